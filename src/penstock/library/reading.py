"""Reading a storage target from a program: a table as of a moment, or its changes, into polars, Arrow or Spark.

The rows are those of the Spark format ``penstock-storage``, whose reader this is. Invariant: nothing after the checkpoint is read, so
tables that are read as of one moment fit together. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.library.places import given_uri
from penstock.model.errors import PenstockError
from penstock.model.moment import Moment, ts_of

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Into = Literal["polars", "arrow", "spark"]


@overload
def read_table(
    target: str | Path,
    table: str,
    *,
    as_of: Moment | None = None,
    into: Literal["polars"] = "polars",
    settings: Mapping[str, Any] | None = None,
) -> pl.DataFrame: ...
@overload
def read_table(
    target: str | Path, table: str, *, as_of: Moment | None = None, into: Literal["arrow"], settings: Mapping[str, Any] | None = None
) -> pa.Table: ...
@overload
def read_table(
    target: str | Path,
    table: str,
    *,
    as_of: Moment | None = None,
    into: Literal["spark"],
    settings: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
) -> DataFrame: ...
def read_table(
    target: str | Path,
    table: str,
    *,
    as_of: Moment | None = None,
    into: Into = "polars",
    settings: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
) -> pl.DataFrame | pa.Table | DataFrame:
    """Return the rows of a table that a feed delivered to files, as of a moment or its checkpoint.

    ``target`` is the URI of the files, or a path here; ``table`` is ``database.table``. ``settings`` are those with which the feed wrote
    them, such as ``{"protocol": "canal-json"}``. Into Spark the rows are read by ``spark``, or by the session that is active.
    """
    target = given_uri(target)
    as_of_ts = None if as_of is None else ts_of(as_of, "as_of")
    options = _options(settings)
    if into == "spark":
        from penstock.feed.formats.storage_table import read_table as read_with_spark

        return read_with_spark(_session(spark), target, table, as_of_ts, **options)
    from penstock.feed.formats.storage_reader import Request, plan_shares, read_share

    state = {"as-of": "checkpoint" if as_of_ts is None else str(as_of_ts), "tasks": "1"}
    request = Request({"path": target, "table": table} | options | state)
    reader = request.reader()
    end_ts = reader.limit_ts(request.as_of)
    batches = [batch for task in plan_shares(reader, request, end_ts) for batch in read_share(request, task)]
    return _as(_table(batches, request.arrow_schema(request.newest(reader))), into)


@overload
def read_changes(
    target: str | Path,
    table: str,
    *,
    start: Moment = 0,
    end: Moment | None = None,
    into: Literal["polars"] = "polars",
    old_values: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> pl.DataFrame: ...
@overload
def read_changes(
    target: str | Path,
    table: str,
    *,
    start: Moment = 0,
    end: Moment | None = None,
    into: Literal["arrow"],
    old_values: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> pa.Table: ...
@overload
def read_changes(
    target: str | Path,
    table: str,
    *,
    start: Moment = 0,
    end: Moment | None = None,
    into: Literal["spark"],
    old_values: bool = False,
    settings: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
) -> DataFrame: ...
def read_changes(
    target: str | Path,
    table: str,
    *,
    start: Moment = 0,
    end: Moment | None = None,
    into: Into = "polars",
    old_values: bool = False,
    settings: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
) -> pl.DataFrame | pa.Table | DataFrame:
    """Return the changes of a table after ``start`` up to ``end`` or the checkpoint: ``_commit_ts``, ``_op``, then its columns.

    They stand in the order of their commits, in Spark inside a partition. ``_op`` is ``insert``, ``update`` or ``delete``; with
    ``old_values`` the rows that updates replaced come too, as ``before``, where the files have them.
    """
    target, start_ts = given_uri(target), ts_of(start, "start")
    if end is not None and ts_of(end, "end") < start_ts:
        raise PenstockError("CONFIG_INVALID", f"end: {end!r} lies before start, {start!r}")
    bounds = {"from-ts": str(start_ts)} | ({} if end is None else {"to-ts": str(ts_of(end, "end"))})
    given = {"table": table, "old-values": str(old_values).lower()} | _options(settings) | bounds
    if into == "spark":
        from penstock.feed.formats.storage_reader import FORMAT, register

        session = _session(spark)
        register(session)
        return session.read.format(FORMAT).options(**given).load(target)
    from penstock.feed.formats.storage_reader import Request, group_files, list_files, read_files
    from penstock.model.rows.typed_columns import COMMIT_TS_COLUMN

    request = Request({"path": target} | given)
    reader = request.reader()
    shown, end_ts = request.newest(reader), reader.limit_ts(request.to_ts)
    files = list_files(reader, request, request.from_ts, end_ts, {}, {})
    tasks = group_files(request, files, shown, request.from_ts, end_ts)
    found = _table([batch for task in tasks for batch in read_files(request, task)], request.arrow_schema(shown))
    order = found.column(COMMIT_TS_COLUMN).to_numpy().argsort(kind="stable")
    return _as(found.take(order), into)


def _table(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


def _as(table: pa.Table, into: Into) -> pl.DataFrame | pa.Table:
    if into == "arrow":
        return table
    if into != "polars":
        raise PenstockError("CONFIG_INVALID", f"into: {into!r} is none of polars, arrow and spark")
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _options(settings: Mapping[str, Any] | None) -> dict[str, str]:
    from penstock.target.settings import flat_options

    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in flat_options(settings or {}).items()}


def _session(given: SparkSession | None) -> SparkSession:
    from pyspark.sql import SparkSession

    session = given or SparkSession.getActiveSession()
    if session is None:
        raise PenstockError("SPARK_UNAVAILABLE", "no Spark session is active", "Give one: spark=SparkSession.builder.getOrCreate().")
    return session
