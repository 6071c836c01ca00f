"""A table as of a ts from a storage target, each file read once: the changes of its whole life, brought together by a shuffle.

The last change of each key decides, as everywhere; of two at one commit ts the delete comes first. A table without a key is counted: as
many rows of one content as came to be and did not cease. Truncated, renamed and re-created tables are read through their lineage.
Runs in the driver; Spark runs the rest.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from penstock.feed.formats.storage_reader import AT, FORMAT, ROW, Request
from penstock.model.rows.typed_columns import COMMIT_TS_COLUMN, OP_COLUMN
from penstock.readback.lineage import lineage
from penstock.readback.net_rows import keyless_updates

_CHANGE, _COUNT, _COPY, _SUM = "_change", "_count", "_copy", "_sum"


def read_table(session: SparkSession, uri: str, table: str, as_of: int | None = None, **options: str) -> DataFrame:
    """Return the rows of a table as of a ts or the checkpoint; options are those of the format and of the feed that wrote the target."""
    bound = {} if as_of is None else {"to-ts": str(as_of)}
    given = {"table": table, "lineage": "true", "old-values": "true", **options, **bound}
    request = Request({"path": uri, **given})
    reader = request.reader()
    life = lineage(reader, request.schema, request.table, reader.limit_ts(request.to_ts))
    # The changes are those up to now, however long the query waits before it runs.
    changes = session.read.format(FORMAT).options(**{**given, "to-ts": str(reader.limit_ts(request.to_ts))}).load(uri)
    columns = [_named(c.name) for c in life.newest.columns]
    if not columns:
        return changes.where(fn.lit(False)).select()
    if life.row_key:
        return _last_of_each(changes, columns, ordered_by_ts=request.settings.data_format.has_commit_ts)
    counts = {row[OP_COLUMN]: row["count"] for row in changes.groupBy(OP_COLUMN).count().collect()}
    if counts.get("update", 0) != counts.get("before", 0):
        raise keyless_updates(life.newest)
    return _counted(changes, columns, ordered_by_ts=request.settings.data_format.has_commit_ts)


def _last_of_each(changes: DataFrame, columns: list[Column], *, ordered_by_ts: bool) -> DataFrame:
    alive = fn.col(OP_COLUMN).isin("insert", "update")
    order = [fn.col(COMMIT_TS_COLUMN), alive.cast("int").alias("alive"), fn.col(AT)] if ordered_by_ts else [fn.col(AT)]
    change = fn.struct(alive.alias("alive"), fn.struct(*columns).alias("row"))
    last = changes.groupBy(ROW).agg(fn.max_by(change, fn.struct(*order)).alias(_CHANGE))
    return last.where(fn.col(f"{_CHANGE}.alive")).select(f"{_CHANGE}.row.*")


def _counted(changes: DataFrame, columns: list[Column], *, ordered_by_ts: bool) -> DataFrame:
    """Count copies; a delete that finds none takes none, so where the sum of the changes falls below nothing it begins again."""
    sign = fn.when(fn.col(OP_COLUMN).isin("insert", "update"), 1).otherwise(-1)
    order = [fn.col(COMMIT_TS_COLUMN), sign] if ordered_by_ts else [fn.col(AT)]
    steps = changes.withColumn(_SUM, fn.sum(sign).over(Window.partitionBy(ROW).orderBy(*order)))
    alive = fn.sum(sign) - fn.least(fn.min(_SUM), fn.lit(0))
    rows = steps.groupBy(ROW).agg(fn.first(fn.struct(*columns)).alias(_CHANGE), alive.alias(_COUNT)).where(fn.col(_COUNT) > 0)
    copies = rows.withColumn(_COPY, fn.explode(fn.sequence(fn.lit(1), fn.col(_COUNT))))
    return copies.select(f"{_CHANGE}.*")


def _named(name: str) -> Column:
    return fn.col("`{}`".format(name.replace("`", "``")))
