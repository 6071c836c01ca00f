"""Penstock's Spark formats for a session of yours: ``penstock`` (a running server's tables) and ``penstock-storage`` (its files).

A public module; what it needs is imported when it is used. Runs in the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("penstock")`` and ``"penstock-storage"`` known to a session, and ``readStream`` of both."""
    from penstock.feed.formats.storage_reader import register as register_storage
    from penstock.feed.formats.table_reader import register_penstock

    register_penstock(spark)
    register_storage(spark)
