"""The columnar event store: the composition of write-ahead log, spans, schema log, upkeep and planner behind one contract.

Appends go through the log's group commit into memory. ``spans.py`` puts together on opening what manifests and log hold, ``upkeep.py``
flushes and merges in the background. Everything acknowledged survives a crash, and a resolved ts is never durable before the rows below
it. Where the objects are on shared storage, ``sharing.py`` sees to it that another machine can go on. Runs in the log service.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.store.changes.changes import SpanView, open_changes
from penstock.store.changes.planner import check_reach, plan_resnapshot, plan_window
from penstock.store.contract import ChangesHandle, WindowPlan, WindowWish
from penstock.store.history import HistoryNeeds
from penstock.store.log.schema_log import SchemaLog, ddl_record, schema_records
from penstock.store.log.wal import WriteAheadLog, span_record
from penstock.store.log.wal_segment import WalRecord
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.owner_chain import OwnerChain
from penstock.store.objects.ownership import Ownership, check_unshared
from penstock.store.objects.shared_records import SharedRecords, SpanMark
from penstock.store.objects.span_writer import ObjectSettings
from penstock.store.settings import StoreSettings
from penstock.store.sharing import Sharing
from penstock.store.span_store import SpanStore
from penstock.store.spans import Spans
from penstock.store.stats import StoreStats, store_stats
from penstock.store.upkeep import Upkeep, Work

log = logging.getLogger(__name__)
_OWNER_FRESH_S = 1.0


class ColumnarEventStore:
    """Implements ``EventStore`` in a local directory, with its objects there or at another URI. Thread safe."""

    def __init__(
        self,
        directory: Path | str,
        settings: StoreSettings | None = None,
        clock: Clock | None = None,
        objects: ObjectSpace | None = None,
        rng: random.Random | None = None,
        shared: bool = False,
        chain: OwnerChain | None = None,
    ) -> None:
        """Open the store and recover what it holds. ``objects`` is where objects go; below ``directory`` unless given.

        ``shared`` says that other machines reach them: the store stands by, empty, until it is first written to, or told to ``own`` them.
        ``chain`` tells whether their last owner worked with the same meta database.
        """
        root = Path(directory).resolve()
        self.settings = settings or StoreSettings()
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self.objects = objects or ObjectSpace((root / "objects").as_uri())
        self.needs = HistoryNeeds(self.settings, self._clock)
        self._schema_log = SchemaLog()
        written = ObjectSettings(self.settings.object_bytes, self.settings.compression)
        self._spans = Spans(self.objects, self._schema_log, self._rng, written)
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._opening = threading.Lock()
        self._is_open = False
        self._sharing: Sharing | None = None
        self._shared = shared
        self._chain = chain
        self._wal = self._new_log()
        work = Work(self.flush, self.merge, self.collect_garbage)
        self.upkeep = Upkeep(self.settings, self._spans, lambda: self._wal, work, root / "spill", self._clock, shared=shared)
        if not shared:
            try:
                self.own()
            except BaseException:
                self.close()
                raise

    def own(self) -> None:
        """Have what the directory and the objects hold. On shared storage that takes the objects from the store that has them now.

        Done by whoever needs the spans, not before: a server that stands by must not take them. Does nothing the second time; raises
        ``FENCED`` once another store has taken them.
        """
        if not self._is_open:
            with self._opening:
                if not self._is_open:
                    self._open()
                    self._is_open = True
        self._check_owned()

    def is_taken_away(self) -> bool:
        """Return whether another store has taken the objects; see the contract."""
        return self._sharing is not None and self._sharing.lost is not None

    def stand_by(self) -> None:
        """Let go of everything, once another store has taken the objects; ``own`` takes them back. Nothing may be appended meanwhile."""
        with self._opening:
            sharing = self._sharing
            if sharing is None or sharing.lost is None:
                return
            sharing.close()
            self._wal.close()
            self._spans.clear()
            self._sharing, self._is_open = None, False

    def is_standing_by(self) -> bool:
        """Return whether the objects are another store's, as far as this one is concerned; see the contract."""
        return self._shared and not self._is_open

    def _open(self) -> None:
        """Recover and begin. What fails on the way, such as a storage that does not answer, may be tried again."""
        self._wal = self._new_log()
        try:
            if self._shared:
                self._take_objects()
            else:
                check_unshared(self._root)
                self._recover()
                self._wal.start()
        except BaseException:
            self._wal.close()
            self._spans.clear()
            raise

    def _take_objects(self) -> None:
        sharing = self._open_sharing(self._root)
        self._spans.written = replace(self._spans.written, epoch=sharing.ownership.epoch)
        self._recover(sharing.take_over(self._root).spans)
        self._wal.start()
        sharing.start(self._root)
        self._sharing = sharing

    def _new_log(self) -> WriteAheadLog:
        return WriteAheadLog(self._root / "wal", self.settings, self._clock, self._spans.head_records)

    def _open_sharing(self, root: Path) -> Sharing:
        if self._chain is not None:
            self._chain.check(SharedRecords(self.objects, 0).marks().link, self.objects.uri)
        ownership = Ownership.claim(self.objects, root, self._rng)
        records = SharedRecords(self.objects, ownership.epoch)
        interval_s = self.settings.objects_interval_s
        return Sharing(ownership, records, self._schema_log, self._spans.all, self.flush, interval_s, self._clock, self._chain)

    # Writing: the puller's side.

    def register_span(self, span_id: int, span: Span, start_ts: int) -> int:
        """Open or create a span; return its resolved ts, durable when it returns."""
        self.own()
        store, is_new = self._spans.ensure(span_id, span, start_ts)
        if is_new:
            self._wal.write([span_record(store.span_id, store.span, store.start_ts)])
        return store.resolved_ts

    def append(self, span_id: int, batches: Sequence[ChangeBatch], on_persisted: Callable[[], None]) -> bool:
        """Queue batches; see the contract. Raises ``RESOLVED_TS_VIOLATED`` for a new row at or below the resolved ts."""
        self._check_owned()
        store = self._spans.get(span_id)
        if store is None:
            return False
        if store.flush_error is not None and store.memory_nbytes > 4 * self.settings.flush_bytes:
            raise store.flush_error
        fresh = [b for b in map(store.unseen, batches) if b is not None]
        self._wal.submit([WalRecord.of_batch(b) for b in fresh], lambda: self._make_visible(store, fresh, on_persisted))
        return True

    def _make_visible(self, store: SpanStore, batches: Sequence[ChangeBatch], on_persisted: Callable[[], None]) -> None:
        """Let readers see batches that are durable now; the write-ahead log's thread calls it, in the order of submission."""
        for batch in batches:
            store.add(batch)
        self.upkeep.after_append(store)
        on_persisted()

    def append_ddl(self, ddl: DdlEvent, on_persisted: Callable[[], None]) -> bool:
        """Queue a DDL for the schema log; one that is there is dropped, and called back as well."""
        self._check_owned()

        def persisted() -> None:
            self._schema_log.put_ddl(ddl)
            on_persisted()

        self._wal.submit([] if self._schema_log.holds(ddl) else [ddl_record(ddl)], persisted)
        return True

    def put_schemas(self, schemas: Sequence[TableSchema]) -> None:
        """Add table versions, such as those known when a table is subscribed to; durable when it returns."""
        self.own()
        new = self._schema_log.put(schemas)
        if new:
            self._wal.write(schema_records(new))

    def advance_resolved_ts(self, span_id: int, ts: int) -> None:
        """Raise the resolved ts of a span; an unknown span or a smaller ts changes nothing."""
        store = self._spans.get(span_id)
        if store is not None and store.advance(ts):
            self._wal.advance_resolved_ts(span_id, ts)
            self.upkeep.after_resolved(store)

    def flush(self, span_id: int) -> bool:
        """Write what is resolved to objects now; return False if there is nothing to write."""
        store = self._spans.of(span_id)
        with self._publishing():
            flushed = store.flush(self._schema_log.versions(store.span.table_id))
        if flushed:
            self._forget_log()
            self.upkeep.after_flush(store)
        return flushed

    def merge(self, span_id: int) -> int:
        """Merge what a span holds now; return how many objects were replaced. The state is written again, so it takes its time."""
        store = self._spans.of(span_id)
        with self._publishing():
            return store.merge(self._schema_log.versions(store.span.table_id))

    def commit_bulk(self, span_id: int, objects: Sequence[ObjectMeta], commit_ts: int, base_ts: int | None = None) -> None:
        """Make bulk objects visible in one step as the span's state at ``commit_ts``; idempotent.

        With ``base_ts`` the state is known from there on only: the objects lack rows that changed between the two.
        """
        with self._publishing():
            self._spans.of(span_id).commit_bulk(objects, commit_ts, base_ts)

    def commit_changes(self, span_id: int, objects: Sequence[ObjectMeta], commit_ts: int) -> None:
        """Make bulk objects, rows and tombstones, visible in one step as changes at ``commit_ts``, which must not be resolved yet.

        That is how a large transaction comes in that was written elsewhere. Idempotent.
        """
        with self._publishing():
            self._spans.of(span_id).commit_changes(objects, commit_ts)

    def base_ts(self, span_id: int) -> int | None:
        """Return from which ts on the state of a span is known; None where it is not, or the span is unknown."""
        store = self._spans.get(span_id)
        return None if store is None else store.base_ts

    def reset_span(self, span_id: int, start_ts: int) -> None:
        """Forget what a span holds and begin again above a ts, because the upstream's log no longer joins what is held.

        It must not be captured meanwhile. Whoever read its history gets ``STALE_READ``, and its state is unknown until a bulk commit.
        """
        with self._publishing():
            self._spans.of(span_id).reset(start_ts)
        self._forget_log()

    def expire_history(self, pins: Mapping[int, int]) -> int:
        """Let the history of some spans go as far as it is older than what is kept; return how many objects left their manifests.

        ``pins`` gives, per span, the ts above which its caller still reads; spans that are not in it are not looked at.
        """
        return sum(self._expire(span_id, ts) for span_id, ts in pins.items())

    def collect_garbage(self) -> int:
        """Let all history go that is older than what is kept and that no pin and no reader needs; return how many objects left.

        Files that nothing names go too, once they are old.
        """
        left = sum(self._expire(span_id, TS_MAX) for span_id in self._spans.ids())
        written_before_ms = self._clock.now_ms() - self.settings.orphan_seconds * 1000
        orphans = sum(self._remove_old_orphans(span_id, written_before_ms) for span_id in self._spans.ids())
        if orphans:
            log.info("old objects without a manifest removed", extra={"objects": orphans})
        return left

    def _expire(self, span_id: int, ts: int) -> int:
        limit_ts = min(ts, self.needs.keep_above(span_id))
        with self._publishing(_OWNER_FRESH_S):
            return self._spans.of(span_id).expire_history(limit_ts, min(limit_ts, self.needs.checkpoints_above(span_id)))

    def _remove_old_orphans(self, span_id: int, written_before_ms: int) -> int:
        with self._publishing(_OWNER_FRESH_S):
            return self._spans.of(span_id).remove_old_orphans(written_before_ms)

    # Reading: the feed's side.

    def resolved_ts(self, span_id: int) -> int:
        """Return the span's resolved ts."""
        return self._spans.of(span_id).resolved_ts

    def view(self, span_id: int, from_ts: int | None = None, to_ts: int | None = None) -> SpanView:
        """Return a consistent picture of a span, from which a handle on the window is built; without one, of what is there now."""
        store = self._spans.of(span_id)
        return store.view(self._schema_log.versions(store.span.table_id), from_ts, to_ts)

    def collect_changes(self, span_id: int, from_ts: int, to_ts: int) -> ChangesHandle:
        """Open a handle on ``(from_ts, to_ts]``; see the contract. Its objects are kept until it is closed or forgotten."""
        lease = self.needs.lease(span_id, from_ts or to_ts)
        try:
            view = self.view(span_id, from_ts, to_ts)
            handle = open_changes(view, from_ts, to_ts, self.settings.batch_rows_min, self.settings.batch_rows_max)
        except BaseException:
            self.needs.release(lease)
            raise
        handle.on_close(weakref.finalize(handle, self.needs.release, lease))
        return handle

    def object_bytes(self, span_id: int, path: str) -> pa.Buffer:
        """Return an object for a reader that does not reach it; ``OBJECT_COLLECTED`` where the span no longer has it."""
        try:
            return self.objects.get(path)
        except PenstockError as error:
            if error.code != "OBJECT_MISSING" or self._spans.of(span_id).names(path):
                raise
            raise PenstockError("OBJECT_COLLECTED", f"span {span_id} has no object {path} any more") from error

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """Choose where a window ends; see the contract."""
        self._check_owned()
        views = [self.view(span_id, wish.from_ts, self.resolved_ts(span_id)) for span_id in wish.span_ids]
        check_reach(views, wish.from_ts)
        resolved_ts = min([wish.end_ts, self.resolved_ts(DDL_SPAN.span_id), *(v.state.resolved_ts for v in views)])
        return plan_window(views, self._schema_log, wish, resolved_ts)

    def plan_resnapshot(
        self, span_ids: Sequence[int], table_ids: Sequence[int], from_ts: int, patterns: Sequence[str] = (), end_ts: int = TS_MAX
    ) -> WindowPlan:
        """Plan a window that takes the place of lost history: it ends at a ts whose state is known, with every DDL on the way.

        That is ``end_ts`` at the latest. ``to_ts == from_ts`` means that the state is not known yet.
        """
        self._check_owned()
        resolved_ts = min([end_ts, *(self.resolved_ts(s) for s in (DDL_SPAN.span_id, *span_ids))])
        views = [self.view(span_id, TS_ZERO, resolved_ts) for span_id in span_ids]
        return plan_resnapshot(views, self._schema_log, table_ids, resolved_ts, from_ts, patterns)

    def schema_history(self, table_id: int) -> tuple[TableSchema, ...]:
        """Return a table's versions, oldest first; empty for a table that is not known."""
        return self._schema_log.versions(table_id)

    def span_ids(self) -> tuple[int, ...]:
        """Return the ids of all spans."""
        return self._spans.ids()

    def recoverable_ts(self, span_ids: Sequence[int]) -> int:
        """Return the ts up to which some spans survive the loss of this machine; see the contract."""
        return TS_MAX if self._sharing is None else self._sharing.held_ts(span_ids)

    def secure(self, span_ids: Sequence[int]) -> None:
        """Make what is resolved of some spans survive the loss of this machine; see the contract."""
        if self._sharing is not None:
            for span_id in span_ids:
                self.flush(span_id)

    def stats(self) -> StoreStats:
        """Return what the store holds."""
        return store_stats(self._spans.all(), self._wal, self.upkeep)

    def close(self) -> None:
        """Make everything queued durable and stop; on shared storage, what is in memory goes there. May be called twice."""
        if self._sharing is not None:
            self._sharing.close()
        self.upkeep.close()
        self._wal.close()

    def __enter__(self) -> ColumnarEventStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside.

    def _check_owned(self) -> None:
        """Raise ``FENCED`` once another store has taken the objects."""
        if self._sharing is not None and self._sharing.lost is not None:
            raise self._sharing.lost

    def _publishing(self, fresh_s: float = 0.0) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._sharing is None else self._sharing.publishing(fresh_s)

    def _recover(self, taken_over: Sequence[SpanMark] = ()) -> None:
        self._spans.recover(self._wal.replay(), taken_over)
        self._wal.forgotten.check_objects({store.span_id: store.flushed_ts for store in self._spans.all()})

    def _forget_log(self) -> None:
        self._wal.forget({s.span_id: s.flushed_ts for s in self._spans.all()})
