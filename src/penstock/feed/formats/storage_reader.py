"""The Spark format ``penstock-storage``: a storage target read back, as changes or as a table as of a ts, whatever its protocol.

``spark.read.format("penstock-storage").option("table", "shop.orders").load("s3://bucket/prefix?protocol=parquet")`` gives the changes up
to the checkpoint: ``_commit_ts``, ``_op``, then the table's columns with Spark's types, those of the newest version. ``from-ts`` and
``to-ts`` bound them, ``old-values`` keeps the rows that updates replaced. With ``as-of`` (a ts, or ``checkpoint``) it gives the rows of the
table then, through renames and truncations. Settings of the feed that wrote the target stand in the URI or among the options. Changes are
read file by file in parallel. ``as-of`` divides the rows of a table by a hash of their key over ``tasks`` tasks, each of which reads all
files and keeps its share, because a data source cannot shuffle; ``read_table`` of ``storage_table`` shuffles instead and reads each file
once. ``readStream`` follows a growing target: its offset is the checkpoint, so every micro-batch ends at a transaction-consistent cut; it
stops with ``SCHEMA_CHANGED`` before a version whose columns it does not show. Runs in the driver (plan) and on executors (read).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.feed.formats.stream_columns import end_before_new_columns
from penstock.feed.formats.typed_rows import typed_schema
from penstock.format.layout.paths import DAY_MS, OWNER_PATH, DataPath
from penstock.model.batch import Op
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.moment import ts_of
from penstock.model.rows.typed_columns import CHANGE_FIELDS, arrow_type, op_names, typed_columns
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.timestamp import LOGICAL_BITS, TS_MAX
from penstock.readback.lineage import Lineage, Segment, lineage
from penstock.readback.reader import StorageReader, open_written
from penstock.readback.replay import Share, project, replay_table
from penstock.target.settings import StorageSinkSettings, from_uri
from penstock.target.storage import ObjectTarget

FORMAT = "penstock-storage"
FILES_PER_TASK_MAX = 16
TASKS_WANTED = 256
FILES_PER_SHARE = 64
"""A share costs reading everything once more, so there are several only where one task could not hold the table."""
SHARES_MAX = 8
TASKS_MAX = 4_096
ROWS_PER_BATCH = 65_536
CHECKPOINT = "checkpoint"
AT, ROW = "_at", "_row"
"""With the option ``lineage``: the place of a change in the order of all changes, and a text that is equal for equal keys only."""

_OWN_OPTIONS = frozenset({"path", "table", "as-of", "from-ts", "to-ts", "old-values", "tasks", "lineage"})
_AT_BITS = 32
_DAY_TICKS = DAY_MS << LOGICAL_BITS


class FileRead(msgspec.Struct, frozen=True):
    """One data file, the version that its directory has, and its place among all files of the table."""

    path: str
    version: TableSchema
    at: int


class FilesRead(msgspec.Struct, frozen=True):
    """One task: files, shown under one version, bounded by ``(from_ts, to_ts]``."""

    files: tuple[FileRead, ...]
    table: TableSchema
    from_ts: int
    to_ts: int
    old_values: bool
    row_key: list[str] | None = None
    """With ``lineage``: the fields of which ``_row`` is made."""


class Request:
    """What the options ask for. Picklable."""

    def __init__(self, options: dict[str, str]) -> None:
        given = {key.lower(): value for key, value in options.items()}
        missing = [key for key in ("path", "table") if not given.get(key)]
        if missing:
            raise PenstockError("CONFIG_INVALID", "\n".join(f"{key}: is required" for key in missing))
        self.schema, dot, self.table = given["table"].partition(".")
        if not dot:
            raise PenstockError("CONFIG_INVALID", "table: must be database.table")
        sink_options = {key: value for key, value in given.items() if key not in _OWN_OPTIONS}
        self.uri, self.settings = from_uri(given["path"], sink_options)
        self.from_ts = _ts(given, "from-ts", 0)
        self.to_ts = _ts(given, "to-ts", TS_MAX)
        self.as_of = None if "as-of" not in given else TS_MAX if given["as-of"] == CHECKPOINT else _ts(given, "as-of", 0)
        self.old_values = given.get("old-values", "false").lower() == "true"
        self.lineage = given.get("lineage", "false").lower() == "true"
        self.tasks = int(tasks) if (tasks := given.get("tasks", "0")).isdigit() else TASKS_MAX + 1
        if self.tasks > TASKS_MAX:
            raise PenstockError("CONFIG_INVALID", f"tasks: must be at most {TASKS_MAX}")

    def open(self) -> tuple[ObjectTarget, StorageSinkSettings]:
        """Open the target."""
        return open_written(self.uri), self.settings

    def reader(self) -> StorageReader:
        """Return a view of the target as it is now."""
        return StorageReader(*self.open())

    def newest(self, reader: StorageReader) -> TableSchema:
        """Return the version whose columns are shown."""
        limit = min(self.to_ts, TS_MAX if self.as_of is None else self.as_of)
        versions = [v.table for v in reader.versions(self.schema, self.table) if v.table.columns and v.table.version <= limit]
        if not versions:
            raise PenstockError("TABLE_UNKNOWN", f"{self.schema}.{self.table} has no schema file at or below the checkpoint")
        return versions[-1]

    def spark_schema(self, table: TableSchema) -> StructType:
        """Return the columns that a version gives to Spark."""
        shown = typed_schema(table, self.as_of is None)
        if not self.lineage:
            return shown
        return StructType([StructField(AT, LongType(), False), StructField(ROW, StringType(), False), *shown])

    def arrow_schema(self, table: TableSchema) -> pa.Schema:
        """Return the columns that a version gives to other readers than Spark."""
        columns = [pa.field(c.name, arrow_type(c.type)) for c in table.columns]
        return pa.schema(columns if self.as_of is not None else [*CHANGE_FIELDS, *columns])

    def shown(self, reader: StorageReader, schema: StructType) -> TableSchema:
        """Return the newest version that has the columns which Spark was told of when the frame was loaded."""
        versions = [v.table for v in reader.versions(self.schema, self.table) if v.table.columns]
        for table in reversed(versions):
            if [(f.name, f.dataType) for f in self.spark_schema(table)] == [(f.name, f.dataType) for f in schema]:
                return table
        raise PenstockError("SCHEMA_CHANGED", f"no version of {self.schema}.{self.table} has the columns of this frame")


def _ts(given: dict[str, str], key: str, default: int) -> int:
    text = given.get(key)
    return default if text is None else ts_of(text, key)


class StorageTask(InputPartition):
    """One task, as JSON: files, or a share of a table as of a ts."""

    def __init__(self, plan: bytes) -> None:
        super().__init__(plan)


class StorageSource(DataSource):
    """The data source ``penstock-storage``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._request = Request(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the newest version, after commit ts and operation where changes are read."""
        return self._request.spark_schema(self._request.newest(self._request.reader()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return StorageBatchReader(self._request, self._request.shown(self._request.reader(), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        if self._request.as_of is not None:
            raise PenstockError("CONFIG_INVALID", "as-of: a stream gives changes")
        return StorageStreamReader(self._request, self._request.shown(self._request.reader(), schema))


class StorageBatchReader(DataSourceReader):
    """Plans files in the driver and reads them on executors."""

    def __init__(self, request: Request, table: TableSchema) -> None:
        self._request = request
        self._table = table

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: groups of files, or shares of a table as of a ts."""
        reader = self._request.reader()
        end = reader.limit_ts(self._request.to_ts if self._request.as_of is None else self._request.as_of)
        if self._request.as_of is not None or self._request.lineage:
            life = lineage(reader, self._request.schema, self._request.table, end)
            if life.newest.columns and _shape(life.newest) != _shape(self._table):
                raise PenstockError("SCHEMA_CHANGED", f"{life.newest.full_name} has changed since the frame was loaded")
            return plan_lineage(reader, self._request, life) if self._request.lineage else plan_shares(reader, self._request, end)
        files = list_files(reader, self._request, self._request.from_ts, end, {}, {})
        return group_files(self._request, files, self._table, self._request.from_ts, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the typed rows of one task. Runs on an executor."""
        if self._request.as_of is not None:
            yield from read_share(self._request, partition)
        else:
            yield from read_files(self._request, partition)


def _shape(table: TableSchema) -> list[Column]:
    """Return the columns of a version, whatever rows from before them show: a lineage knows that, one version alone does not."""
    return [msgspec.structs.replace(c, initial_default=msgspec.UNSET) for c in table.columns]


class StorageStreamReader(DataSourceStreamReader):
    """Follows the checkpoint; the columns are those of the newest version when the query began.

    An offset is the checkpoint, the file numbers seen with it, and those seen with the offset before. The writer publishes no file of a
    later window before the checkpoint of an earlier one, so files seen before an offset hold no row after it and are not read again. A
    target of another writer gives no such promise; there every file from the start's date on is read each time.
    """

    def __init__(self, request: Request, table: TableSchema) -> None:
        self._request = request
        self._table = table

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the beginning."""
        return {"ts": self._request.from_ts, "seen": {}, "done": {}}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
        """Return the checkpoint as it is now; the start where it has not moved."""
        target, settings = self._request.open()
        reader = StorageReader(target, settings)
        end = reader.limit_ts(self._request.to_ts)
        if end <= int(start["ts"]):
            return start
        versions = [v.table for v in reader.versions(self._request.schema, self._request.table)]
        reachable = end_before_new_columns(self._table, versions, int(start["ts"]), end)
        if reachable < end:
            # This is no checkpoint, so what was seen with it says nothing of what lies behind it.
            return {"ts": reachable, "seen": {}, "done": {}}
        seen = _numbers(reader, self._request)
        return {"ts": end, "seen": seen, "done": start["seen"] if target.exists(OWNER_PATH) else {}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        from_ts, to_ts = int(start["ts"]), int(end["ts"])
        files = list_files(self._request.reader(), self._request, from_ts, to_ts, start["done"], end["seen"])
        return group_files(self._request, files, self._table, from_ts, to_ts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the typed rows of one task. Runs on an executor."""
        yield from read_files(self._request, partition)


def _numbers(reader: StorageReader, request: Request) -> dict[str, int]:
    """Return the last file number of each index of the table."""
    layout = request.settings.layout
    return {layout.index_path(d, dispatcher): last for d, dispatcher, last in reader.data_files(request.schema, request.table)}


def list_files(
    reader: StorageReader, request: Request, from_ts: int, to_ts: int, done: dict[str, int], seen: dict[str, int]
) -> list[FileRead]:
    """Return the files of a name that may hold rows of ``(from_ts, to_ts]``: beyond ``done``, up to ``seen`` where it says something."""
    versions = tuple(v.table for v in reader.versions(request.schema, request.table))
    segment = Segment(request.schema, request.table, versions, to_ts)
    return _segment_files(reader, request, segment, from_ts, done, seen)


def _segment_files(
    reader: StorageReader, request: Request, segment: Segment, from_ts: int, done: dict[str, int], seen: dict[str, int]
) -> list[FileRead]:
    layout = request.settings.layout
    # Other writers date their directories by the clock of wherever they ran, which may be a day behind.
    first_date = layout.date_text(max(0, from_ts - _DAY_TICKS)) if from_ts else ""
    files: list[FileRead] = []
    for directory, dispatcher, indexed in sorted(reader.data_files(segment.schema, segment.table)):
        version = segment.version(directory.version)
        if version is None or directory.version > segment.to_ts or (directory.date and directory.date < first_date):
            continue
        if not from_ts and not reader.belongs(directory, dispatcher, segment.to_ts):
            continue
        path = layout.index_path(directory, dispatcher)
        for number in range(done.get(path, 0) + 1, seen.get(path, indexed) + 1):
            files.append(FileRead(layout.data_path(DataPath(directory, dispatcher, number)), version, len(files)))
    return files


def group_files(
    request: Request, files: list[FileRead], table: TableSchema, from_ts: int, to_ts: int, row_key: list[str] | None = None
) -> list[InputPartition]:
    """Return tasks of several files each."""
    size = min(FILES_PER_TASK_MAX, -(-len(files) // TASKS_WANTED)) or 1
    groups = [files[at : at + size] for at in range(0, len(files), size)]
    plans = [FilesRead(tuple(group), table, from_ts, to_ts, request.old_values, row_key) for group in groups]
    return [StorageTask(msgspec.json.encode(plan)) for plan in plans]


def plan_lineage(reader: StorageReader, request: Request, life: Lineage) -> list[InputPartition]:
    """Return the tasks that read all changes of which a table is made, under whatever name they were written."""
    tasks: list[InputPartition] = []
    base = 0
    keys = life.row_key or [c.field_name for c in life.newest.columns]
    for segment in life.segments:
        found = _segment_files(reader, request, segment, 0, {}, {})
        files = [FileRead(f.path, f.version, base + f.at) for f in found]
        base += len(files)
        tasks += group_files(request, files, life.newest, 0, segment.to_ts, keys)
    return tasks


class _ShareRead(msgspec.Struct, frozen=True):
    """One share of a table as of a ts that was fixed when the query was planned."""

    as_of: int
    number: int
    of: int


def plan_shares(reader: StorageReader, request: Request, as_of: int) -> list[InputPartition]:
    """Return one task per share of the table: as many as asked for, else one for every few files."""
    of = request.tasks or min(SHARES_MAX, 1 + len(list_files(reader, request, 0, as_of, {}, {})) // FILES_PER_SHARE)
    return [StorageTask(msgspec.json.encode(_ShareRead(as_of, number, of))) for number in range(of)]


def read_files(request: Request, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the typed changes of one task."""
    plan = decoded(partition.value, FilesRead)
    reader = StorageReader(*request.open(), look=False)
    kept = [int(o) for o in Op if plan.old_values or o is not Op.BEFORE]
    for file in plan.files:
        frame = reader.read_file(file.path, file.version)
        if plan.row_key is not None:
            frame = frame.with_columns((pl.int_range(pl.len(), dtype=pl.Int64) + (file.at << _AT_BITS)).alias(AT))
        if reader.stops_at_checkpoint:
            frame = frame.filter(pl.col(COMMIT_TS).is_between(plan.from_ts, plan.to_ts, closed="right"))
        frame = frame.filter(pl.col(OP).is_in(kept))
        shown = project(frame, file.version, plan.table)
        if shown.height and plan.row_key is None:
            yield from _typed(shown, plan.table, with_ops=True)
        elif shown.height:
            places = frame[AT].to_arrow()
            rows = shown.select(pl.concat_str([_exact_text(plan.table, name) for name in plan.row_key or []]).alias(ROW))
            texts = _plain(rows[ROW].to_arrow(compat_level=pl.CompatLevel.oldest()))
            yield from _typed(shown, plan.table, with_ops=True, before=[(AT, places), (ROW, texts)])


def _exact_text(table: TableSchema, field: str) -> pl.Expr:
    """Return a field as a text that no other value has, fit to be put beside others."""
    column = next(c for c in table.columns if c.field_name == field)
    values = pl.col(field)
    text = values.bin.encode("hex") if pa.types.is_binary(column.type.arrow()) else values.cast(pl.String)
    return pl.when(values.is_null()).then(pl.lit("~")).otherwise(pl.concat_str([text.str.len_bytes(), pl.lit(":"), text]))


def read_share(request: Request, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the typed rows of one share."""
    plan = decoded(partition.value, _ShareRead)
    reader = request.reader()
    table = lineage(reader, request.schema, request.table, reader.limit_ts(plan.as_of)).newest
    rows = replay_table(reader, request.schema, request.table, plan.as_of, Share(plan.number, plan.of))
    yield from _typed(rows.rename({c.name: c.field_name for c in table.columns}), table, with_ops=False)


def _typed(
    frame: pl.DataFrame, table: TableSchema, *, with_ops: bool, before: Sequence[tuple[str, pa.Array]] = ()
) -> Iterator[pa.RecordBatch]:
    schema = typed_schema(table, with_ops)
    arrays = [_plain(frame[name].to_arrow(compat_level=pl.CompatLevel.oldest())) for name in frame.columns]
    stored = pa.RecordBatch.from_arrays(arrays, frame.columns)
    head = [stored.column(COMMIT_TS).cast(pa.int64()), op_names(stored.column(OP))] if with_ops else []
    typed = [*head, *typed_columns(stored, table)]
    # Spark compares schemas with their flags: what it was told is never null must say so here too.
    fields = [pa.field(name, values.type, nullable=False) for name, values in before]
    fields += [pa.field(f.name, a.type, f.nullable) for f, a in zip(schema, typed, strict=True)]
    records = pa.RecordBatch.from_arrays([*(values for _, values in before), *typed], schema=pa.schema(fields))
    for start in range(0, records.num_rows, ROWS_PER_BATCH):
        yield records.slice(start, ROWS_PER_BATCH)


def _plain(values: pa.Array) -> pa.Array:
    """Return an array with the types of change batches: polars has large texts and binaries only."""
    if pa.types.is_large_string(values.type):
        return values.cast(pa.string())
    return values.cast(pa.binary()) if pa.types.is_large_binary(values.type) else values


def register(session: SparkSession) -> None:
    """Make the format known to a session."""
    session.dataSource.register(StorageSource)
