"""Verification: replays a storage target and compares every row with the upstream as of the target's checkpoint.

Each table is compared by ``TableComparison``, one after the other, and reported by itself. A feed may go on meanwhile: the reader takes the
checkpoint before it looks for files, and leaves out rows and schema versions beyond it. Runs in the server, in the CLI or in tests.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from penstock.config.tree import FeedConfig, SinkConfig
from penstock.feed.filters.rules import FilterSettings
from penstock.feed.window.assignment import Dispatcher
from penstock.feed.window.following import from_record
from penstock.meta.database import MetaDatabase
from penstock.meta.table_states import TableState
from penstock.model.batch import ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.readback.lineage import lineage
from penstock.readback.reader import StorageReader, open_written
from penstock.server.feeds.creation import FeedDocument
from penstock.server.source_address import same_source
from penstock.server.verify.table_comparison import TableComparison, TableVerdict, Tell, compared
from penstock.settings.masking import mask_text, mask_uri
from penstock.sink.catalog import open_tables, settings_of
from penstock.sink.contract import DispatcherId
from penstock.source.contract import PastReader, Upstream, reads_past
from penstock.target.settings import StorageSinkSettings

log = logging.getLogger(__name__)
LINES_MAX = 10_000
_LOOKS = 20
"""How often a checkpoint that is just being published is looked for."""
_GONE_HINT = "It was dropped or renamed a moment ago, or where no log tells of it: then exclude it, or remove it from the feed's patterns."


class Verdict(msgspec.Struct, frozen=True):
    """The outcome over all tables, as of one checkpoint."""

    checkpoint_ts: int
    tables: tuple[TableVerdict, ...]
    stops_at_checkpoint: bool = True
    """False where the files have no commit ts: then a difference may be a row that the feed delivered beyond the checkpoint."""

    @property
    def rows(self) -> int:
        """Return how many rows are identical, over all tables."""
        return sum(t.rows for t in self.tables)

    @property
    def identical(self) -> bool:
        """Return whether every table is identical."""
        return all(t.identical for t in self.tables)

    @property
    def unchecked(self) -> list[TableVerdict]:
        """Return the tables that could not be compared."""
        return [t for t in self.tables if t.unchecked]

    def summary(self) -> str:
        """Return the line that ends a verification without differences."""
        seen = len(self.tables) - len(self.unchecked)
        without = f"; {len(self.unchecked)} could not be checked" if self.unchecked else ""
        return f"verified: {seen} tables, {self.rows} rows identical{without}"

    def check(self) -> None:
        """Raise ``VERIFY_MISMATCH`` where a table differs."""
        wrong = [str(t) for t in self.tables if t.differs]
        if wrong:
            hint = None if self.stops_at_checkpoint else "The files have no commit ts: verify again while nothing changes upstream."
            raise PenstockError("VERIFY_MISMATCH", "; ".join(wrong), hint)


class Verifies(Protocol):
    """What the API asks for a verification."""

    def verify(self, name: str) -> Verdict:
        """Compare the target of a feed with the upstream, as of the target's checkpoint."""

    def progress(self, name: str) -> list[str] | None:
        """Return what was told of a feed's verification that is under way, oldest first; None where none is."""

    def cancel(self, name: str) -> bool:
        """Have a feed's verification that is under way end with ``CANCELLED``, soon; return whether there was one."""


class FeedVerifier:
    """Verifies the feeds of one upstream, one at a time: both sides of a table are on disk while it is compared."""

    def __init__(
        self,
        meta: MetaDatabase,
        upstream: Upstream,
        source_uri: str,
        verify_moving: Callable[[StorageReader, Sequence[int], Tell], Verdict],
        states: Callable[[], Sequence[TableState]] = tuple,
        resolve: Callable[[SinkConfig], SinkConfig] = lambda sink: sink,
        verifying: threading.Lock | None = None,
    ) -> None:
        """``verify_moving`` compares where the upstream cannot read the past; ``states`` are those of doubted tables.

        ``verifying`` is shared with the verifiers of other upstreams.
        """
        self._resolve = resolve
        self._states = states
        self._progress: tuple[str, list[str]] = ("", [])
        self._cancelled: list[str] | None = None
        """The lines of the verification that shall end: those of the next one are another list."""
        self._meta = meta
        self._verify_moving = verify_moving
        self._upstream = upstream
        self._source_uri = source_uri
        self._lock = verifying or threading.Lock()

    def verify(self, name: str) -> Verdict:
        """Compare the target of a feed with the upstream, as of the target's checkpoint."""
        document = FeedDocument.of(self._meta.get_feed(name))
        if not same_source(document.source, self._source_uri):
            raise PenstockError(
                "CONFIG_INVALID", f"feed {name} captures {mask_uri(document.source)}", "Ask a server that captures the same source."
            )
        if not self._lock.acquire(blocking=False):
            raise PenstockError("VERIFY_BUSY", "this server verifies another feed")
        self._progress = (name, [])
        try:
            config = document.feed_config()
            target = self._resolve(config.target)
            if not holds_files(target.uri, target.options):
                return self._verify_tables(name, target, config)
            reader, joined = self._open(name, target)
            records = self._meta.dispatchers(name, reader.checkpoint_ts())
            live = document.dispatchers if records is None else [from_record(r) for r in records]
            left_out = self._left_out(live, joined, config.settings.filter)
            table_ids = sorted({d.id.table_id for d in live} - left_out.keys())
            if reads_past(self._upstream):
                verdict = verify_target(reader, self._upstream, table_ids, start_ts=config.settings.start_ts, tell=self._tell)
            else:
                verdict = self._verify_moving(reader, table_ids, self._tell)
            return msgspec.structs.replace(verdict, tables=(*verdict.tables, *left_out.values()))
        finally:
            self._progress = ("", [])
            self._lock.release()

    def _verify_tables(self, name: str, target: SinkConfig, config: FeedConfig) -> Verdict:
        """Compare a target that holds tables, and not changes."""
        from penstock.server.verify.tables_verification import TablesVerifier

        with contextlib.closing(open_tables(target.uri, target.options)) as tables:
            live = [from_record(r) for r in self._meta.dispatchers(name) or ()] or list(
                FeedDocument.of(self._meta.get_feed(name)).dispatchers
            )
            left_out = self._left_out(live, {(d.id, d.begin_ts) for d in live if not d.with_state}, config.settings.filter)
            table_ids = sorted({d.id.table_id for d in live} - left_out.keys())
            verdict = TablesVerifier(tables, self._upstream, self._tell).verify(table_ids, config.settings.start_ts)
            return msgspec.structs.replace(verdict, tables=(*verdict.tables, *left_out.values()))

    def progress(self, name: str) -> list[str] | None:
        """Return what was told of a feed's verification that is under way, oldest first; None where none is."""
        under_way, lines = self._progress
        return list(lines) if under_way == name else None

    def cancel(self, name: str) -> bool:
        """Have a verification end where it next has something to tell: with the next table, or after some rows of this one."""
        under_way, lines = self._progress
        if under_way != name:
            return False
        self._cancelled = lines
        return True

    def _open(self, name: str, target: SinkConfig) -> tuple[StorageReader, set[tuple[DispatcherId, int]]]:
        """Open the target; return with it the dispatchers, each with its beginning, that are surely in it up to its checkpoint.

        A window is committed a moment before its checkpoint is published: what joined in it is not there for a reader yet. So the meta
        database is asked first, and the target opened again where it has not come so far.
        """
        for _ in range(_LOOKS):
            found = [from_record(r) for r in self._meta.dispatchers(name) or ()]
            committed_ts = self._meta.progress(name).checkpoint_ts
            reader = open_reader(target.uri, target.options)
            if committed_ts <= (reader.checkpoint_ts() or TS_ZERO):
                return reader, {(d.id, d.begin_ts) for d in found if not d.with_state}
        return reader, set()

    def _left_out(
        self, live: Sequence[Dispatcher], joined: Collection[tuple[DispatcherId, int]], chosen: FilterSettings
    ) -> dict[int, TableVerdict]:
        """Return the tables of which nothing can be known now, each with the reason; ``joined`` are surely in the target."""
        states = {s.table_id: s for s in self._states() if s.is_open}
        past = reads_past(self._upstream)
        shown = set() if past else {t.table_id for t in self._upstream.list_tables()}
        found = {}
        for one in live:
            table_id, state = one.id.table_id, states.get(one.id.table_id)
            # A table whose state is still being read is not in the target yet.
            is_new = one.with_state or (one.begin_ts != TS_ZERO and (one.id, one.begin_ts) not in joined)
            why = "its first state is still being read, or on its way" if is_new else ""
            if state is not None:
                why = f"it is {state.state.value}: {mask_text(state.reason)}"
            elif not past and table_id not in shown:
                why = "the source does not show it: it was dropped a moment ago, or the user may not see it any more"
            else:
                why = why or chosen.not_a_copy(one.schema, one.table)
            if why:
                found[table_id] = TableVerdict(f"{one.schema}.{one.table}", 0, unchecked=why)
        return found

    def _tell(self, line: str) -> None:
        name, lines = self._progress
        if self._cancelled is lines:
            raise PenstockError("CANCELLED", f"the verification of {name} was cancelled")
        log.info("verifying", extra={"progress": line})
        if len(lines) < LINES_MAX:
            lines.append(line)


def holds_files(sink_uri: str, sink_options: Mapping[str, Any]) -> bool:
    """Return whether a target holds changes in files; another one may hold tables."""
    return isinstance(settings_of(sink_uri, sink_options)[1], StorageSinkSettings)


def open_reader(sink_uri: str, sink_options: Mapping[str, Any]) -> StorageReader:
    """Open a target for reading; nothing is created where there is none."""
    target_uri, settings = settings_of(sink_uri, sink_options)
    if not isinstance(settings, StorageSinkSettings):
        raise PenstockError("SINK_NOT_READABLE", f"{mask_uri(target_uri)} holds no files: only those are compared")
    return StorageReader(open_written(target_uri), settings)


def verify_target(
    reader: StorageReader,
    upstream: PastReader,
    table_ids: Sequence[int],
    on_table: Callable[[TableVerdict], None] = lambda _: None,
    start_ts: int = TS_ZERO,
    tell: Tell = lambda _: None,
) -> Verdict:
    """Compare every given table as of the checkpoint that the target publishes.

    A feed with a start ts delivered only the changes after it: what was written last before that ts is left out on the upstream's side.
    """
    checkpoint_ts = published_ts(reader)
    tables: dict[str, list[TableSchema]] = {}
    for table_id in table_ids:
        table = SchemaHistory(table_id, upstream.schema_history(table_id)).at(checkpoint_ts)
        tables.setdefault(table.full_name, []).append(table)
    verdicts = []
    for at, partitions in enumerate(tables.values(), 1):
        tell(f"{partitions[0].full_name}: table {at} of {len(tables)}")
        compare = functools.partial(_verify_table, reader, upstream, partitions, checkpoint_ts, start_ts, tell)
        verdicts.append(compared(partitions[0].full_name, compare))
        on_table(verdicts[-1])
    return Verdict(checkpoint_ts, tuple(verdicts), reader.stops_at_checkpoint)


def published_ts(reader: StorageReader) -> int:
    """Return the checkpoint of a target; raises where it has none."""
    checkpoint_ts = reader.checkpoint_ts()
    if checkpoint_ts is None:
        raise PenstockError("CHECKPOINT_MISSING", "the target has no `metadata` yet")
    return checkpoint_ts


def _verify_table(
    reader: StorageReader, upstream: PastReader, partitions: Sequence[TableSchema], checkpoint_ts: int, start_ts: int, tell: Tell
) -> TableVerdict:
    """Compare one table, which is one physical table or one per partition."""
    table = partitions[0]
    with contextlib.closing(TableComparison(table, tell)) as comparison:
        if reader.versions(table.schema, table.table):
            life = lineage(reader, table.schema, table.table, reader.limit_ts())
            if not life.newest.columns and all(t.table_id != table.table_id for t in upstream.list_tables()):
                return TableVerdict(table.full_name, 0)
            comparison.read_target(reader, life)
        elif start_ts == TS_ZERO:
            raise PenstockError("VERIFY_MISMATCH", f"{table.full_name} has no schema file in the target")
        # Else nothing was delivered: without a snapshot, a table is described when its first change comes.
        for part in partitions:
            comparison.add_rows(rows_of(upstream.read_table(Span(part.table_id), checkpoint_ts), part, table), start_ts)
        return comparison.verdict()


def present_rows(upstream: Upstream, table_id: int) -> Iterator[ChangeBatch]:
    """Yield the rows of a table as they are now; that it is gone is a matter of this table, and no reason to compare no other."""
    try:
        yield from upstream.read_now(Span(table_id))
    except PenstockError as error:
        if error.code != "TABLE_UNKNOWN":
            raise
        raise PenstockError("UPSTREAM_CHANGING", error.detail, _GONE_HINT) from error


def rows_of(batches: Iterable[ChangeBatch], part: TableSchema, table: TableSchema | None = None) -> Iterator[pa.RecordBatch]:
    """Yield rows that an upstream read; those of a partition with the columns as another partition of the table has them."""
    names = {c.name: c.field_name for c in (table or part).columns}
    fields = {c.field_name: names[c.name] for c in part.columns}
    for batch in batches:
        yield batch.records.rename_columns([fields.get(name, name) for name in batch.records.schema.names])


__all__ = [
    "FeedVerifier",
    "TableVerdict",
    "Verdict",
    "Verifies",
    "holds_files",
    "open_reader",
    "present_rows",
    "published_ts",
    "rows_of",
    "verify_target",
]
