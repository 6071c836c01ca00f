"""The Spark format ``penstock-storage``: a storage target read back, as changes or as a table as of a ts, whatever its protocol.

``spark.read.format("penstock-storage").option("table", "shop.orders").load("s3://bucket/prefix?protocol=parquet")`` gives the changes up
to the checkpoint: ``_commit_ts``, ``_op``, then the table's columns with Spark's types, those of the newest version. ``from-ts`` and
``to-ts`` bound them, ``old-values`` keeps the rows that updates replaced. With ``as-of`` (a ts, or ``checkpoint``) it gives the rows of the
table then. Settings of the feed that wrote the target stand in the URI or among the options. Changes are read file by file in parallel;
``read_table`` gives a table as of a ts in parallel too, by a shuffle on the key, where ``as-of`` of the format uses one task.
``readStream`` follows a growing target: its offset is the checkpoint, so every micro-batch ends at a transaction-consistent cut. Runs in
the driver (plan) and on executors (read).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.feed.typed_rows import COMMIT_TS_COLUMN, OP_COLUMN, op_names, typed_columns, typed_schema
from penstock.format.layout import OWNER_PATH, DataPath
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, OP, TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.sink.storage.reader import StorageReader
from penstock.sink.storage.replay import project, replay_table
from penstock.sink.storage.settings import StorageSinkSettings, from_uri
from penstock.sink.storage.target import ObjectTarget, TargetAddress

FORMAT = "penstock-storage"
FILES_PER_TASK_MAX = 16
TASKS_WANTED = 256
CHECKPOINT = "checkpoint"

_HISTORY = frozenset({DdlType.CREATE_TABLE, DdlType.DROP_TABLE, DdlType.TRUNCATE_TABLE, DdlType.RENAME_TABLE})
_OWN_OPTIONS = frozenset({"path", "table", "as-of", "from-ts", "to-ts", "old-values"})


class FileRead(msgspec.Struct, frozen=True):
    """One data file and the version that its directory has."""

    path: str
    version: TableSchema


class FilesRead(msgspec.Struct, frozen=True):
    """One task: files, shown under one version, bounded by ``(from_ts, to_ts]``."""

    files: tuple[FileRead, ...]
    table: TableSchema
    from_ts: int
    to_ts: int
    old_values: bool


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

    def open(self) -> tuple[ObjectTarget, StorageSinkSettings]:
        """Open the target."""
        return TargetAddress(self.uri).open(), self.settings

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


def _ts(given: dict[str, str], key: str, default: int) -> int:
    text = given.get(key)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise PenstockError("CONFIG_INVALID", f"{key}: {text!r} is not a ts") from None


class StorageTask(InputPartition):
    """One task, as JSON; empty for a table as of a ts."""

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
        return typed_schema(self._request.newest(self._request.reader()), self._request.as_of is None)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return StorageBatchReader(self._request)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        if self._request.as_of is not None:
            raise PenstockError("CONFIG_INVALID", "as-of: a stream gives changes")
        return StorageStreamReader(self._request, self._request.newest(self._request.reader()))


class StorageBatchReader(DataSourceReader):
    """Plans files in the driver and reads them on executors."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: groups of files, or one for a table as of a ts."""
        if self._request.as_of is not None:
            return [StorageTask(b"")]
        reader = self._request.reader()
        end = reader.limit_ts(self._request.to_ts)
        return plan_files(reader, self._request, self._request.newest(reader), self._request.from_ts, end, {}, {})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the typed rows of one task. Runs on an executor."""
        if not partition.value:
            yield from _read_state(self._request)
        else:
            yield from read_files(self._request, partition)


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
        seen = _numbers(reader, self._request)
        return {"ts": end, "seen": seen, "done": start["seen"] if target.exists(OWNER_PATH) else {}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        return plan_files(self._request.reader(), self._request, self._table, int(start["ts"]), int(end["ts"]), start["done"], end["seen"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the typed rows of one task. Runs on an executor."""
        yield from read_files(self._request, partition)


def _numbers(reader: StorageReader, request: Request) -> dict[str, int]:
    """Return the last file number of each index of the table."""
    layout = request.settings.layout
    return {layout.index_path(d, dispatcher): last for d, dispatcher, last in reader.data_files(request.schema, request.table)}


def plan_files(
    reader: StorageReader, request: Request, table: TableSchema, from_ts: int, to_ts: int, done: dict[str, int], seen: dict[str, int]
) -> list[InputPartition]:
    """Return the tasks that read ``(from_ts, to_ts]``: files beyond ``done``, up to ``seen`` where it says something, in groups."""
    layout = request.settings.layout
    versions = {v.table.version: v.table for v in reader.versions(request.schema, request.table)}
    first_date = layout.date_text(from_ts) if from_ts else ""
    files: list[FileRead] = []
    for directory, dispatcher, indexed in sorted(reader.data_files(request.schema, request.table)):
        if directory.version > to_ts or (directory.date and directory.date < first_date):
            continue
        path = layout.index_path(directory, dispatcher)
        numbers = range(done.get(path, 0) + 1, seen.get(path, indexed) + 1)
        version = versions[directory.version]
        files += [FileRead(layout.data_path(DataPath(directory, dispatcher, number)), version) for number in numbers]
    size = min(FILES_PER_TASK_MAX, -(-len(files) // TASKS_WANTED)) or 1
    groups = [files[at : at + size] for at in range(0, len(files), size)]
    plans = [FilesRead(tuple(group), table, from_ts, to_ts, request.old_values) for group in groups]
    return [StorageTask(msgspec.json.encode(plan)) for plan in plans]


def read_files(request: Request, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the typed changes of one task."""
    plan = msgspec.json.decode(partition.value, type=FilesRead)
    reader = StorageReader(*request.open(), look=False)
    kept = [int(o) for o in Op if plan.old_values or o is not Op.BEFORE]
    for file in plan.files:
        frame = reader.read_file(file.path, file.version)
        if reader.stops_at_checkpoint:
            frame = frame.filter(pl.col(COMMIT_TS).is_between(plan.from_ts, plan.to_ts, closed="right"))
        frame = project(frame.filter(pl.col(OP).is_in(kept)), file.version, plan.table)
        if frame.height:
            yield from _typed(frame, plan.table, with_ops=True)


def _read_state(request: Request) -> Iterator[pa.RecordBatch]:
    reader = request.reader()
    table = request.newest(reader)
    rows = replay_table(reader, request.schema, request.table, request.as_of)
    yield from _typed(rows.rename({c.name: c.field_name for c in table.columns}), table, with_ops=False)


def _typed(frame: pl.DataFrame, table: TableSchema, *, with_ops: bool) -> Iterator[pa.RecordBatch]:
    schema = typed_schema(table, with_ops)
    for records in pa.Table.from_arrays(
        [pa.chunked_array([_plain(frame[name].to_arrow(compat_level=pl.CompatLevel.oldest()))]) for name in frame.columns], frame.columns
    ).to_batches():
        head = [records.column(COMMIT_TS).cast(pa.int64()), op_names(records.column(OP))] if with_ops else []
        arrays = [*head, *typed_columns(records, table)]
        # Spark compares schemas with their flags: what it was told is never null must say so here too.
        fields = [pa.field(f.name, a.type, f.nullable) for f, a in zip(schema, arrays, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _plain(values: pa.Array) -> pa.Array:
    """Return an array with the types of change batches: polars has large texts and binaries only."""
    if pa.types.is_large_string(values.type):
        return values.cast(pa.string())
    return values.cast(pa.binary()) if pa.types.is_large_binary(values.type) else values


def read_table(session: SparkSession, uri: str, table: str, as_of: int | None = None, **options: str) -> DataFrame:
    """Return a keyed table as of a ts or the checkpoint, read file by file in parallel: the last change of each key, by a shuffle.

    Of two changes of one key at one ts the delete comes first, as everywhere. A table that was truncated, renamed or created anew needs its
    history, and one without a key counts rows: for those use ``as-of`` of the format.
    """
    chosen = session.read.format(FORMAT).options(table=table, **options)
    if as_of is not None:
        chosen = chosen.option("to-ts", str(as_of))
    request = Request({"path": uri, "table": table, **options, **({} if as_of is None else {"to-ts": str(as_of)})})
    reader = request.reader()
    keys = [c.name for c in request.newest(reader).key_columns]
    if not keys:
        raise PenstockError("TYPE_UNSUPPORTED", f"{table} has no primary key", "Read it with the option as-of.")
    if any(v.type in _HISTORY for v in reader.versions(request.schema, request.table)[1:]):
        raise PenstockError("TYPE_UNSUPPORTED", f"{table} was truncated, renamed or created anew", "Read it with the option as-of.")
    last = Window.partitionBy(*(fn.col(f"`{k}`") for k in keys)).orderBy(
        fn.col(COMMIT_TS_COLUMN).desc(), fn.when(fn.col(OP_COLUMN) == "delete", 1).otherwise(0)
    )
    ranked = chosen.load(uri).withColumn("_rank", fn.row_number().over(last))
    return ranked.where((fn.col("_rank") == 1) & (fn.col(OP_COLUMN) != "delete")).drop("_rank", COMMIT_TS_COLUMN, OP_COLUMN)


def register(session: SparkSession) -> None:
    """Make the format known to a session."""
    session.dataSource.register(StorageSource)
