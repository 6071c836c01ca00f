"""Reads a storage target back: tables, versions, changes in order, DDLs, the checkpoint.

Invariants: only files that an index names are read, and every file that it names must be there; rows beyond the checkpoint are left out,
so what is read is a transaction-consistent cut; the order is version, date, then commit ts. Column ids are made consistent over the
versions of a table (by name, or by the rename that a DDL's text states), so rows of different versions can be put together. Runs anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import polars as pl

from penstock.ddl.statement import column_origins
from penstock.format.data_file import DECODED_BYTES_MAX, decode_file
from penstock.format.layout.checkpoint import parse_checkpoint
from penstock.format.layout.index_file import parse_index
from penstock.format.layout.partition_record import PartitionRecord, is_partition_record, parse_partition_record, visible_partitions
from penstock.format.layout.paths import METADATA_PATH, OWNER_PATH, DataDir, DataPath, IndexPath, parse_schema_path, schema_dir
from penstock.format.layout.schema_file import FIRST_COLUMN_ID, SchemaFile, check_schema_name, parse_schema_file, stand_ins
from penstock.format.layout.transaction_index import TransactionIndex, parse_transaction_index, parse_transactions_path
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.rows.projection import carried
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.settings.masking import mask_uri
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import SMALL_BYTES_MAX, ObjectTarget, TargetAddress

CLEARING = frozenset({DdlType.TRUNCATE_TABLE, DdlType.CREATE_TABLE, DdlType.DROP_TABLE, DdlType.EXCHANGE_PARTITION})
"""DDLs that leave no row of before."""
BEGINNINGS = CLEARING | {DdlType.RENAME_TABLE}


def open_written(uri: str) -> ObjectTarget:
    """Open a target to read it; raise ``SINK_URI_INVALID`` for a folder that is not there, which opening it would make."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)} is no folder", "Name the folder that a feed delivers to.")
    return TargetAddress(uri).open()


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table as its schema file describes it: the structure and the DDL that made it."""

    table: TableSchema
    query: str
    type: int


class StorageReader:
    """A view of a target, taken when it is made; ``refresh`` takes a new one. Not thread safe."""

    def __init__(
        self, target: ObjectTarget, settings: StorageSinkSettings, *, look: bool = True, file_bytes_max: int = DECODED_BYTES_MAX
    ) -> None:
        self._target = target
        self._file_bytes_max = file_bytes_max
        self._settings = settings
        self._layout = settings.layout
        self._checkpoint_ts: int | None = None
        if look:
            self.refresh()

    def refresh(self) -> None:
        """Look at the target again: the checkpoint first, so that everything at or below it is in the listing that follows."""
        content = self._target.find(METADATA_PATH)
        self._checkpoint_ts = None if content is None else parse_checkpoint(content)
        self._schema_paths: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._indexes: dict[tuple[str, str], list[tuple[str, IndexPath]]] = defaultdict(list)
        self._partitions: dict[tuple[str, str], list[PartitionRecord]] = defaultdict(list)
        self._first_files: dict[str, DataPath] = {}
        self._windows: dict[int, str] = {}
        self._others: list[str] = []
        for path in sorted(self._target.paths()):
            if is_partition_record(path):
                record = parse_partition_record(self._target.get(path, SMALL_BYTES_MAX), path)
                self._partitions[record.schema, record.table].append(record)
            schema = parse_schema_path(path)
            index = self._layout.parse_index(path)
            if schema is not None:
                self._schema_paths[schema.schema, schema.table].append(path)
            elif index is not None:
                self._indexes[index.dir.schema, index.dir.table].append((path, index))
            elif (data := self._layout.parse_data(path)) is not None:
                self._first_files.setdefault(self._layout.index_path(data.dir, data.dispatcher), data)
            elif (window := parse_transactions_path(path)) is not None and window[1]:
                self._windows[window[0]] = path
            elif self._layout.is_other(path):
                self._others.append(path)

    def require_whole(self, applied: Container[str]) -> None:
        """Raise unless everything up to the checkpoint can be found: what is missing must not look like nothing to read.

        ``applied`` are the paths of indexes whose files were read before; they may have expired since.
        """
        self._refuse(self._others)
        indexed = {path: index.dir for found in self._indexes.values() for path, index in found}
        for path, directory in {**{path: data.dir for path, data in self._first_files.items()}, **indexed}.items():
            if directory.version > self.limit_ts() or path in applied:
                continue
            if not self._schema_paths.get((directory.schema, directory.table)):
                raise PenstockError("FILE_MALFORMED", f"{self._layout.dir_path(directory)}: no schema file describes this table")
            if path not in indexed and self._has_begun(self._first_files[path]):
                raise PenstockError("OBJECT_MISSING", f"{path} is gone, though there are files that it should name")

    def _has_begun(self, data: DataPath) -> bool:
        """Return whether a data file has rows up to the checkpoint; one that has none may still lack its index."""
        table = next((v.table for v in self.versions(data.dir.schema, data.dir.table) if v.table.version == data.dir.version), None)
        if table is None or not self.stops_at_checkpoint:
            return table is not None and bool(data.dir.date) and data.dir.date < self._layout.date_text(self.limit_ts())
        first = self.read_file(self._layout.data_path(data), table)[COMMIT_TS].min()
        return first is not None and int(first) <= self.limit_ts()  # type: ignore[arg-type]

    def checkpoint_ts(self) -> int | None:
        """Return the published checkpoint; None where there is none yet."""
        return self._checkpoint_ts

    def identity(self) -> str:
        """Return what tells this target from others: the feed that owns it, or where it is."""
        content = self._target.find(OWNER_PATH)
        try:
            return f"feed {decoded(content, dict[str, str])['id']}" if content is not None else self._target.place
        except (msgspec.MsgspecError, KeyError) as error:
            raise PenstockError("FILE_MALFORMED", f"{OWNER_PATH}: does not name a feed") from error

    @property
    def stops_at_checkpoint(self) -> bool:
        """Return whether rows beyond the checkpoint can be told apart; without a commit ts in the files they cannot."""
        return self._settings.data_format.has_commit_ts

    def limit_ts(self, up_to_ts: int | None = None) -> int:
        """Return how far the target may be read: to the checkpoint or an earlier ts; 0 before the first checkpoint."""
        checkpoint_ts = self._checkpoint_ts or 0
        return checkpoint_ts if up_to_ts is None else min(up_to_ts, checkpoint_ts)

    def tables(self) -> list[tuple[str, str]]:
        """Return (schema, table) of every table that has a schema file, dropped ones included."""
        return sorted(name for name in self._schema_paths if name[1])

    def ddls(self, schema: str, table: str = "") -> list[SchemaFile]:
        """Return the DDLs of a table, or of a database, oldest first."""
        return [file for file in self._files(schema, table) if file.query or file.type != DdlType.NONE]

    def versions(self, schema: str, table: str) -> list[TableVersion]:
        """Return the versions of a table up to the checkpoint, oldest first, with consistent column ids and initial defaults."""
        versions: list[TableVersion] = []
        next_id = FIRST_COLUMN_ID
        for file in self._files(schema, table):
            if file.columns is None:
                structure: tuple[Column, ...] = ()
            elif file.output_column_id:
                structure = file.columns
            else:
                before = versions[-1].table if versions else None
                structure, next_id = _identified(file, before, next_id)
            table_version = file.to_table(stand_ins(structure, as_names=self._settings.data_format.has_element_names))
            if self._settings.output_raw_change_event:
                # Updates of unique keys were not taken apart, so only a primary key names a row for good.
                table_version = msgspec.structs.replace(table_version, unique_keys=())
            if versions and file.type not in BEGINNINGS:
                table_version = carried(versions[-1].table, table_version)
            versions.append(TableVersion(table_version, file.query, file.type))
        return versions

    def changes(self, schema: str, table: str, up_to_ts: int | None = None) -> Iterator[tuple[TableSchema, pl.DataFrame]]:
        """Yield the changes of a table in order, up to the checkpoint or an earlier ts, with the version that each part has."""
        limit = self.limit_ts(up_to_ts)
        yield from self._changes(schema, table, limit, lambda index: self.belongs(index.dir, index.dispatcher, limit))

    def partition_changes(
        self, schema: str, table: str, partitions: frozenset[int], up_to_ts: int
    ) -> Iterator[tuple[TableSchema, pl.DataFrame]]:
        """Yield the changes of some physical partitions in order, whether they belong to the table still or not."""
        yield from self._changes(schema, table, self.limit_ts(up_to_ts), lambda index: self.partition_of(index) in partitions)

    def _changes(
        self, schema: str, table: str, limit: int, wanted: Callable[[IndexPath], bool]
    ) -> Iterator[tuple[TableSchema, pl.DataFrame]]:
        known = {version.table.version: version.table for version in self.versions(schema, table)}
        groups: dict[tuple[int, str], list[tuple[str, IndexPath]]] = defaultdict(list)
        for path, index in self.index_files(schema, table):
            if index.dir.version <= limit and wanted(index):
                groups[index.dir.version, index.dir.date].append((path, index))
        for (version, _), indexes in sorted(groups.items()):
            if version not in known:
                raise PenstockError("FILE_MALFORMED", f"{self._layout.dir_path(indexes[0][1].dir)}: no schema file describes this version")
            yield from self._group(known[version], indexes, limit)

    def partition_of(self, index: IndexPath) -> int:
        """Return of which physical partition the files of an index are, 0 where the table may not have any."""
        return self._layout.partition_of(index.dir, index.dispatcher)

    def belongs(self, directory: DataDir, dispatcher: str, ts: int) -> bool:
        """Return whether rows of a dispatcher belong to its table at a ts; those of a partition that was dropped by then do not."""
        partition = self._layout.partition_of(directory, dispatcher)
        if partition == 0:
            return True
        records = [r for r in self._partitions[directory.schema, directory.table] if r.version <= ts]
        visible = visible_partitions(records)
        return visible is None or partition in visible

    def dropped_partitions(self, schema: str, table: str, version: int) -> frozenset[int]:
        """Return the directories whose rows leave a table with the DDL of a version."""
        records = self._partitions[schema, table]
        before = visible_partitions(r for r in records if r.version < version)
        after = visible_partitions(r for r in records if r.version <= version)
        if after is None or all(r.version != version for r in records):
            return frozenset()
        there = {self.partition_of(i) for _, i in self.index_files(schema, table) if i.dir.version < version} - {0}
        return frozenset((there if before is None else before) - after)

    def _group(self, table: TableSchema, indexes: list[tuple[str, IndexPath]], limit: int) -> Iterator[tuple[TableSchema, pl.DataFrame]]:
        """Yield one directory group: file by file where one dispatcher wrote it, merged by commit ts where several did."""
        sources = [self._kept(table, path, index, limit) for path, index in indexes]
        for frame in sources[0] if len(sources) == 1 else merge_by_ts(sources):
            yield table, frame

    def _kept(self, table: TableSchema, path: str, index: IndexPath, limit: int) -> Iterator[pl.DataFrame]:
        frames = (self._up_to(frame, limit) for frame in self._frames(table, path, index))
        return (frame for frame in frames if frame.height)

    @property
    def has_transactions(self) -> bool:
        """Return whether any window has an index of its transactions."""
        return bool(self._windows)

    def transaction_windows(self, after_ts: int) -> list[TransactionIndex]:
        """Return the transactions of each window that has an index of them and ends behind a ts, up to the checkpoint, in order."""
        ends = sorted(ts for ts in self._windows if after_ts < ts <= self.limit_ts())
        return [parse_transaction_index(self._target.get(self._windows[ts], self._file_bytes_max), self._windows[ts]) for ts in ends]

    def place_of(self, path: str) -> tuple[str, DataPath]:
        """Return what the path of a data file says, behind the path of its index."""
        data = self._layout.parse_data(path)
        if data is None:
            raise PenstockError("FILE_MALFORMED", f"{path}: a transaction index names it, and it is no data file of these settings")
        return self._layout.index_path(data.dir, data.dispatcher), data

    def index_files(self, schema: str, table: str) -> list[tuple[str, IndexPath]]:
        """Return the index files of a table, with what their paths say; raise where it has files of other settings."""
        if self._others:
            place = schema_dir(schema, table).removesuffix("meta")
            self._refuse([path for path in self._others if path.startswith(place)])
        return list(self._indexes[schema, table])

    def _refuse(self, others: Sequence[str]) -> None:
        if others:
            shown = f"{others[0]} is no file" if len(others) == 1 else f"{others[0]} and {len(others) - 1} others are no files"
            hint = "Give the settings with which the target was written, as in --set date-separator=month."
            raise PenstockError("FILE_MALFORMED", f"{shown} of these settings", hint)

    def schemas(self) -> list[str]:
        """Return the databases that have a schema file of their own."""
        return sorted(name[0] for name in self._schema_paths if not name[1])

    def files_after(self, index_path: str, index: IndexPath, number: int) -> Iterator[tuple[int, TableSchema, pl.DataFrame]]:
        """Yield the files of an index beyond a number: each number, the version of its directory and its rows, those beyond too."""
        table = next((v.table for v in self.versions(index.dir.schema, index.dir.table) if v.table.version == index.dir.version), None)
        if table is None:
            raise PenstockError("FILE_MALFORMED", f"{self._layout.dir_path(index.dir)}: no schema file describes this version")
        for at, path in self._numbered(index_path, index, number):
            yield at, table, self.read_file(path, table)

    def read_file(self, path: str, table: TableSchema, index_path: str = "its index") -> pl.DataFrame:
        """Return the rows of one data file."""
        return self.decode(self.content(path, index_path), path, table)

    def content(self, path: str, index_path: str = "its index") -> bytes:
        """Return the bytes of one data file."""
        try:
            return self._target.get(path, self._file_bytes_max)
        except FileNotFoundError:
            raise PenstockError("OBJECT_MISSING", f"{path} is gone, though {index_path} names it") from None

    def decode(self, content: bytes, path: str, table: TableSchema) -> pl.DataFrame:
        """Return the rows of one data file's bytes."""
        return decode_file(content, table, self._settings.data_format, path, self._file_bytes_max)

    def last_number(self, index_path: str, index: IndexPath) -> int:
        """Return the number of the last data file that an index names."""
        return parse_index(self._layout, self._target.get(index_path, SMALL_BYTES_MAX), index_path, index.dispatcher)

    def _numbered(self, index_path: str, index: IndexPath, after: int = 0) -> Iterator[tuple[int, str]]:
        for number in range(after + 1, self.last_number(index_path, index) + 1):
            yield number, self._layout.data_path(DataPath(index.dir, index.dispatcher, number))

    def _frames(self, table: TableSchema, index_path: str, index: IndexPath) -> Iterator[pl.DataFrame]:
        for _, path in self._numbered(index_path, index):
            yield self.read_file(path, table, index_path)

    def _up_to(self, frame: pl.DataFrame, limit: int) -> pl.DataFrame:
        return frame.filter(pl.col(COMMIT_TS) <= limit) if self._settings.data_format.has_commit_ts else frame

    def _files(self, schema: str, table: str) -> list[SchemaFile]:
        files = []
        for path in self._schema_paths[schema, table]:
            name = parse_schema_path(path)
            if name is None or name.version > self.limit_ts():
                continue
            file = parse_schema_file(self._target.get(path, SMALL_BYTES_MAX), path)
            check_schema_name(file, name, path)
            files.append(file)
        return sorted(files, key=lambda f: f.table_version)

    def data_files(self, schema: str, table: str) -> list[tuple[DataDir, str, int]]:
        """Return (directory, dispatcher, last number) of every index of a table."""
        return [
            (index.dir, index.dispatcher, parse_index(self._layout, self._target.get(path, SMALL_BYTES_MAX), path, index.dispatcher))
            for path, index in self.index_files(schema, table)
        ]


def merge_by_ts(sources: list[Iterator[pl.DataFrame]]) -> Iterator[pl.DataFrame]:
    """Merge rows of several dispatchers by commit ts, each dispatcher's in its own order; holds a file of each, and what one ts spans."""
    held = [next(source, None) for source in sources]
    running = [(source, frame) for source, frame in zip(sources, held, strict=True) if frame is not None]
    ended: list[pl.DataFrame] = []
    while running:
        # What another file may still add to is held back: at one ts, a row may leave one partition and come to another.
        end_ts = min(frame[COMMIT_TS].max() for _, frame in running)  # type: ignore[type-var]
        before, others = pl.col(COMMIT_TS) < end_ts, pl.col(COMMIT_TS) >= end_ts
        ready = pl.concat([frame.filter(before) for frame in [*ended, *(frame for _, frame in running)]])
        if ready.height:
            yield tombstones_first(ready)
        ended = [frame.filter(others) for frame in ended]
        following: list[tuple[Iterator[pl.DataFrame], pl.DataFrame]] = []
        for source, frame in running:
            rest = frame.filter(others)
            more = next(source, None) if rest[COMMIT_TS].max() == end_ts else rest.clear()
            if more is None:
                ended.append(rest)
            else:
                following.append((source, pl.concat([rest, more])))
        running = following
    if ended:
        yield tombstones_first(pl.concat(ended))


def tombstones_first(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort by commit ts, tombstones first at one ts; what is equal stays in order."""
    tombstone = pl.col(OP).is_in([int(Op.DELETE), int(Op.BEFORE)])
    return rows.sort(pl.col(COMMIT_TS), ~tombstone, maintain_order=True)


def _identified(file: SchemaFile, before: TableSchema | None, next_id: int) -> tuple[tuple[Column, ...], int]:
    """Return the file's columns with the ids that they had before, by name or by the DDL's rename; new ones are numbered on.

    Files without column ids tell a column by its name only. Where the DDL's text says that a name was dropped or given away, the column
    that has it afterwards is another; where the text does not say so, one that was added again is taken for the one that was dropped.
    """
    old = {c.name.lower(): c.id for c in before.columns} if before is not None else {}
    renames, free = column_origins(file.query)
    columns = []
    for column in file.columns or ():
        name = column.name.lower()
        known = old.get(renames[name]) if name in renames else None if name in free else old.get(name)
        if known is None:
            known, next_id = next_id, next_id + 1
        columns.append(msgspec.structs.replace(column, id=known))
    return tuple(columns), next_id


__all__ = ["CLEARING", "StorageReader", "TableVersion", "open_written", "tombstones_first"]
