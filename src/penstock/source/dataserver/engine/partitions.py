"""Partitions: which physical table each of them is.

A partitioned table is several physical tables of one name, each with an id of its own, which is also its ``partition_id``; rows are
written to the physical table that the writer chooses. A DDL that touches partitions gives all of them a new version, so that rows from
before it and from after it lie in different directories of a target. Runs in the data server.
"""

from __future__ import annotations

from penstock.ddl.partition_statement import PartitionChange, PartitionDdl
from penstock.model.errors import PenstockError


def check_partitions(partitions: dict[str, int], ddl: PartitionDdl) -> None:
    """Raise where a DDL names partitions that are not there, makes one that is, or leaves none."""
    unknown = [name for name in ddl.names if name not in partitions]
    if unknown or not partitions:
        raise PenstockError("UPSTREAM_REFUSED", f"{ddl.schema}.{ddl.table} has no partition {', '.join(unknown) or 'at all'}")
    kept = [name for name in partitions if name not in ddl.names]
    twice = [name for name in ddl.made if name in kept]
    if twice or (ddl.change is PartitionChange.DROP and not kept):
        raise PenstockError("UPSTREAM_REFUSED", f"{ddl.schema}.{ddl.table}: partition {', '.join(twice)} exists, or none would be left")
