"""What a storage target holds for one dispatcher, read back from its files up to a position.

The position, not the checkpoint, says which files count: those of earlier directories that an index names, and those of the position's own
directory up to its number. So what is read stays the same while a later window publishes files, and every attempt of that window sees the
same state. Rows come under the columns of the version that the dispatcher is at now, as a replay would show them. Runs on executors;
``position`` beside the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl
import pyarrow as pa

from penstock.format.column_selection import select_columns
from penstock.format.layout.paths import DataDir, DataPath, IndexPath
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, OP, TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.readback.lineage import Lineage, ids_by_name, lineage, renumbered
from penstock.readback.reader import StorageReader
from penstock.readback.recovery import recover_position
from penstock.readback.replay import project, under_ids
from penstock.target.dispatcher import DispatcherId, DispatcherWork
from penstock.target.positions import newest_directory
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import ObjectTarget


class StorageState:
    """Reads dispatchers of one target back; implements ``penstock.target.state.TargetState``."""

    def __init__(self, target: ObjectTarget, settings: StorageSinkSettings) -> None:
        self._target = target
        self._settings = settings

    def position(self, dispatcher: DispatcherId, table: TableSchema) -> dict[str, int]:
        """Return where the dispatcher stands after everything that it published, committed or not."""
        return recover_position(self._target, self._settings, dispatcher, table)

    def columns(self, table: TableSchema) -> TableSchema:
        """Return the table with the columns that the target holds."""
        return select_columns(table, self._settings.column_selectors)

    def row_key(self, work: DispatcherWork) -> list[str]:
        """Return the fields of the work's table that name a row in all that the target holds; empty where rows must be counted."""
        life = self._life(_FutureReader(self._target, self._settings, work.to_ts), work)
        wanted = self.columns(work.table)
        if life is None:
            return [c.field_name for c in wanted.key_columns]
        names = {c.field_name: c.name.lower() for c in life.newest.columns}
        ids = {c.name.lower(): c.field_name for c in wanted.columns}
        return [ids[names[key]] for key in life.row_key if names.get(key) in ids]

    def changes(self, work: DispatcherWork) -> Iterator[pa.RecordBatch]:
        """Yield the changes that make up the dispatcher's state at ``work.position``, in order: ``_op`` and the table's columns."""
        reader = _FutureReader(self._target, self._settings, work.to_ts)
        life = self._life(reader, work)
        if life is None:
            return
        wanted = self.columns(work.table)
        source = renumbered(life.newest, ids_by_name(life.newest, wanted))
        for segment in life.segments:
            for path, index in self._own(reader, segment.schema, segment.table, work):
                version = segment.version(index.dir.version)
                if version is None:
                    continue
                found = next(v.table for v in reader.versions(segment.schema, segment.table) if v.table.version == version.version)
                for number in range(1, _last_number(reader, path, index, work.position) + 1):
                    frame = reader.read_file(reader.data_path(index, number), found, path)
                    frame = _with_ts(project(_with_ts(under_ids(frame, found, version)), version, life.newest))
                    shown = project(under_ids(frame, life.newest, source), source, wanted).drop(COMMIT_TS)
                    yield from _batches(shown, wanted)

    def _life(self, reader: StorageReader, work: DispatcherWork) -> Lineage | None:
        """Return how the table came about in the target, None where the target knows nothing of it or it is gone."""
        try:
            life = lineage(reader, work.table.schema, work.table.table, work.to_ts)
        except PenstockError as error:
            if error.code != "TABLE_UNKNOWN":
                raise
            return None
        return life if life.newest.columns else None

    def _own(self, reader: StorageReader, schema: str, table: str, work: DispatcherWork) -> list[tuple[str, IndexPath]]:
        one = work.dispatcher
        name = self._settings.layout.dispatcher_text(one.table_id, one.span, one.spans, work.table.partition_id)
        partition = work.table.partition_id if self._settings.enable_partition_separator else 0
        found = [(p, i) for p, i in reader.index_files(schema, table) if i.dispatcher == name and i.dir.partition == partition]
        newest = newest_directory(work.position)
        if newest is not None and (schema, table) == (work.table.schema, work.table.table):
            # An attempt may have ended between the first file of a directory and its index: the next index names that file too.
            (version, date), _ = newest
            last = IndexPath(DataDir(schema, table, version, partition, date), name)
            if last.dir not in {index.dir for _, index in found}:
                found.append((self._settings.layout.index_path(last.dir, name), last))
        return sorted(found, key=lambda one: (one[1].dir.version, one[1].dir.date))


class _FutureReader(StorageReader):
    """A reader that goes up to the end of a window which is not committed yet."""

    def __init__(self, target: ObjectTarget, settings: StorageSinkSettings, to_ts: int) -> None:
        self._to_ts = to_ts
        super().__init__(target, settings)

    def limit_ts(self, up_to_ts: int | None = None) -> int:
        """Return the window's end, or an earlier ts."""
        return self._to_ts if up_to_ts is None else min(up_to_ts, self._to_ts)

    def data_path(self, index: IndexPath, number: int) -> str:
        """Return the path of a data file."""
        return self._layout.data_path(DataPath(index.dir, index.dispatcher, number))


def _last_number(reader: _FutureReader, path: str, index: IndexPath, position: Mapping[str, int]) -> int:
    """Return up to which number the files of a directory count."""
    newest = newest_directory(position)
    if newest is None:
        return 0
    last, number = newest
    here = (index.dir.version, index.dir.date)
    if here == last:
        return number
    return reader.last_number(path, index) if here < last else 0


def _with_ts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame that has a commit ts, because projections keep it; files may come without."""
    return frame if COMMIT_TS in frame.columns else frame.with_columns(pl.lit(TS_MAX, dtype=pl.UInt64).alias(COMMIT_TS))


def _batches(frame: pl.DataFrame, table: TableSchema) -> Iterator[pa.RecordBatch]:
    rows = table.row_schema()
    schema = pa.schema([pa.field(OP, pa.uint8(), nullable=False), *(rows.field(c.field_name) for c in table.columns)])
    yield from frame.select(schema.names).to_arrow().cast(schema).to_batches()
