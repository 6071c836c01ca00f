"""What happens to a lake once per feed: the version of each table that has a window, DDLs, the checkpoint.

A window becomes one version of each table that it changes. The version says so itself (``Mark``), so an attempt that comes again, also
after a crash between two tables, commits what is missing and nothing twice; of two attempts at once, one commits and the other sees it.
Columns change first, in a version of their own. Invariants: a table whose version was written under a higher epoch is left alone; the
published checkpoint never goes back, and leads no table. Runs beside the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
import pyarrow as pa
import xxhash

from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO, to_datetime
from penstock.sink.contract import DispatcherResult
from penstock.sink.lake.columns import LakeShape, key_names
from penstock.sink.lake.data_files import STAGED_DIR, LakeFile, table_dir
from penstock.sink.lake.ddl_events import apply_ddl
from penstock.sink.lake.evolution import check_own, evolve, in_schema
from penstock.sink.lake.feed_record import FeedRecord
from penstock.sink.lake.format import LakeConflict, LakeFormat, Mark, TableVersion, check_epoch
from penstock.sink.lake.message import DispatcherMessage
from penstock.sink.lake.partitions.division import Partition
from penstock.sink.lake.rewriting import Rewriting
from penstock.target.kind import SinkRun
from penstock.target.storage import ObjectTarget

_TRIES_MAX = 20
CHECKPOINT_SCHEMA = pa.schema(
    [
        pa.field("checkpoint_ts", pa.int64()),
        pa.field("checkpoint_time", pa.timestamp("us", "UTC")),
        pa.field("feed", pa.string()),
        pa.field("not_covered", pa.string()),
    ]
)


class LakeMaintainer:
    """Acts once per feed on a lake; implements ``penstock.sink.contract.SinkMaintainer``. Not thread safe."""

    def __init__(self, target: ObjectTarget, shape: LakeShape, run: SinkRun, open_lake: Callable[[], LakeFormat]) -> None:
        """``open_lake`` is called where a table is looked at for the first time."""
        self._target = target
        self._shape = shape
        self._run = run
        self._open_lake = open_lake
        self._opened: LakeFormat | None = None
        self._record = FeedRecord(target)

    def check(self, feed: str) -> None:
        """Raise unless the lake is writable and empty or this feed's own."""
        self._record.mark.check(feed)

    def claim(self, feed: str) -> None:
        """Mark the lake as this feed's."""
        self._record.mark.claim(feed)

    def probe(self) -> None:
        """Raise unless the lake takes something."""
        self._record.mark.probe()

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Commit the files of a window, one version for each table."""
        self._require_mark()
        done_ts = self._record.read(self._run.epoch).window_ts
        if done_ts >= to_ts:
            return
        messages = [DispatcherMessage.from_json(result.message) for result in results if result.message]
        messages.sort(key=_name)
        for _, found in groupby(messages, _name):
            group = list(found)
            newest = max((m.table for m in group), key=lambda t: t.version)
            self._settled(lambda t=newest, g=group: self._commit_table(t, g, from_ts, to_ts, done_ts))  # type: ignore[misc]
        self._record.advance(self._run.epoch, window_ts=to_ts)
        for path in list(self._target.paths(f"{STAGED_DIR}/{to_ts}")):
            self._target.delete(path)

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Apply a DDL; return the names of the tables that it is about."""
        names = [t.full_name for t in event.tables] or [f"{schema}.{table}" for _, schema, table in event.old_names]
        part = xxhash.xxh3_64_hexdigest(event.to_json())
        if not self._record.has_ddl(self._run.epoch, event.commit_ts, part):
            self._target.guard()
            self._settled(lambda: apply_ddl(self._lake, self._shape, event, self._run.epoch, self._rewriting))
            self._record.advance(self._run.epoch, ddl_ts=event.commit_ts, part=part)
        return names

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Publish the checkpoint in the table ``penstock.checkpoint``, unless a later one is there."""
        text = msgspec.json.encode(dict(sorted((not_covered or {}).items()))).decode()
        row = [checkpoint_ts, to_datetime(checkpoint_ts), self._run.feed, text]
        found = self._lake.published()
        if found is not None and found.num_rows:
            there = found.to_pylist()[0]
            if there["checkpoint_ts"] > checkpoint_ts or (there["checkpoint_ts"] == checkpoint_ts and there["not_covered"] == text):
                return
        self._record.read(self._run.epoch)
        self._target.guard()
        arrays = [pa.array([value], field.type) for value, field in zip(row, CHECKPOINT_SCHEMA, strict=True)]
        reach("metadata:before")
        self._settled(lambda: self._lake.publish(pa.Table.from_arrays(arrays, schema=CHECKPOINT_SCHEMA)))
        reach("metadata:after")

    def published_ts(self) -> int:
        """Return the checkpoint that is published, 0 where none is; raise where the lake is not the feed's any more."""
        self._require_mark()
        found = self._lake.published()
        return 0 if found is None or not found.num_rows else int(found.column("checkpoint_ts")[0].as_py())

    def _require_mark(self) -> None:
        if self._run.claimant:
            self._record.mark.require(self._run.claimant)

    @property
    def _lake(self) -> LakeFormat:
        if self._opened is None:
            self._opened = self._open_lake()
        return self._opened

    def _settled(self, step: Callable[[], None]) -> None:
        """Do something to a table, again where another version came meanwhile."""
        for _ in range(_TRIES_MAX):
            try:
                step()
            except LakeConflict:
                continue
            return
        raise PenstockError("SINK_UNAVAILABLE", f"{self._target.name}: a table never stood still")

    def _commit_table(self, newest: TableSchema, group: list[DispatcherMessage], from_ts: int, to_ts: int, done_ts: int) -> None:
        if not all(m.is_state for m in group) and newest.version <= done_ts and self._lake.open(newest.schema, newest.table) is None:
            what = f"{newest.full_name} is gone from {self._target.name}, which had its rows up to {done_ts}"
            raise PenstockError("SINK_CONFLICT", what)
        schema, fields = self._shape.table_schema(newest), self._shape.partition(newest)
        version = self._lake.create(newest, schema, Mark(epoch=self._run.epoch), fields)
        check_epoch(version, self._run.epoch, newest.full_name)
        if version.mark.window_ts >= to_ts:
            return
        if version.table is None or not all(m.is_state or m.seen_ts is not None for m in group):
            # What comes anew, or was compared, needs nothing of what was there.
            check_own(self._shape, version, newest.full_name)
        if any(m.seen_ts is not None and m.seen_ts != version.mark.window_ts for m in group):
            raise PenstockError("SINK_UNAVAILABLE", f"{newest.full_name} of {self._target.name} changed while it was compared")
        rewriting = self._rewriting(newest, to_ts)
        is_whole = self._shape.settings.is_merge and _is_whole(group) and (from_ts == TS_ZERO or not newest.partition_id)
        mark = Mark(to_ts, version.mark.ddl_ts, self._run.epoch)
        self._target.guard()
        if is_whole:
            added = [f for m in group for f in _in_shape(self._shape, rewriting, m, newest)]
            self._check_there(added)
            reach("lake-commit:before")
            version.replace(mark, added, newest, schema, fields)
        else:
            if evolve(self._lake, self._shape, version, newest, rewriting):
                raise LakeConflict
            added, removed = self._merged(version, group, newest, rewriting)
            self._check_there(added)
            reach("lake-commit:before")
            if added or removed:
                version.commit(mark, added, removed)
        reach("lake-commit:after")

    def _check_there(self, files: Sequence[LakeFile]) -> None:
        """Raise where a file of the window is gone: whoever cleans a table up may take it for one that nobody needs."""
        gone = next((f.path for f in files if not self._target.exists(f.path)), None)
        if gone is not None:
            raise PenstockError("SINK_UNAVAILABLE", f"{self._target.name}: {gone} was deleted before the window was committed")

    def _merged(
        self, version: TableVersion, group: list[DispatcherMessage], newest: TableSchema, rewriting: Rewriting
    ) -> tuple[list[LakeFile], list[LakeFile]]:
        """Return the files that a version comes to have, and those that it loses."""
        shown = version.table if version.table is not None and version.table.version > newest.version else newest
        if not self._shape.settings.is_merge:
            return [f for m in group for f in _in_shape(self._shape, rewriting, m, shown)], []
        there = {f.path: f for f in version.files()}
        live, added = dict(there), dict[str, LakeFile]()
        for message in group:
            own: dict[str, LakeFile] = {}
            for segment in message.segments:
                files = _reshaped(self._shape, rewriting, segment.files, segment.table, shown)
                if message.is_state:
                    keys = rewriting.keys_in(files, key_names(shown), self._shape.schema(shown))
                else:
                    keys = self._shape.shown_keys(rewriting.read_keys(segment.keys), segment.table, shown)
                if keys is not None and len(keys.columns):
                    for before in (live, own):
                        for file, left in rewriting.without(list(before.values()), keys, version.schema):
                            del before[file.path]
                            if left is not None:
                                before[left.path] = left
                own |= {f.path: f for f in files}
            added |= own
        added |= {path: f for path, f in live.items() if path not in there}
        return list(added.values()), [f for path, f in there.items() if path not in live]

    def _rewriting(self, table: TableSchema, ts: int) -> Rewriting:
        name = f"{table_dir(table.schema, table.table)}/{ts}-{table.table_id}-merged"
        return Rewriting(self._target, name, self._shape.settings.compression)


def _in_shape(shape: LakeShape, rewriting: Rewriting, message: DispatcherMessage, newest: TableSchema) -> list[LakeFile]:
    return [f for s in message.segments for f in _reshaped(shape, rewriting, s.files, s.table, newest)]


def _reshaped(shape: LakeShape, rewriting: Rewriting, files: Sequence[LakeFile], before: TableSchema, after: TableSchema) -> list[LakeFile]:
    """Return files of one table version as files of another; most are as they should be, and changes keep what they have."""
    types = {c.id: shape.type_of(c) for c in after.columns}
    same = (before.columns == after.columns or not shape.settings.is_merge) and shape.partition(before) == shape.partition(after)
    if same and all(types.get(c.id) in {None, shape.type_of(c)} for c in before.columns):
        return list(files)

    def reshape(rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        found = shape.reshaped(rows, before, after)
        # A table of changes whose columns are known by name keeps those that were dropped or renamed.
        keeps = not shape.settings.is_merge and not shape.partition_in_files
        kept = [f for f in rows.schema if keeps and f.name not in found.column_names]
        return shape.divided(after, in_schema(found, rows, pa.schema([*found.schema, *kept])))

    return rewriting.reshaped(files, reshape, shape.schema(before))


def _is_whole(group: list[DispatcherMessage]) -> bool:
    """Return whether messages have the state of a table, and all of it: of one that is read in parts, a part may come by itself."""
    return all(m.is_state for m in group) and len(group) >= group[0].parts


def _name(message: DispatcherMessage) -> tuple[str, str]:
    return message.table.schema, message.table.table
