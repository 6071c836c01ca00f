"""The columnar event store: the composition of write-ahead log, memory, objects, schema log and planner behind one contract.

Appends go through the log's group commit into memory; a background thread flushes memory to objects when it has grown; recovery on
opening puts together what manifests and log hold. Everything acknowledged survives a crash, and a resolved ts is never durable before
the rows below it. Where the objects are on shared storage, ``sharing.py`` sees to it that another machine can go on. Runs in the log
service.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from penstock.model.batch import BATCH_ROWS_MAX, BATCH_ROWS_MIN, ChangeBatch
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.store.changes.changes import SpanView, open_changes
from penstock.store.changes.planner import check_reach, plan_resnapshot, plan_window
from penstock.store.contract import ChangesHandle, WindowPlan
from penstock.store.flusher import Flusher
from penstock.store.history import HistoryNeeds, HistorySettings
from penstock.store.log.schema_log import SchemaLog, ddl_record, read_schemas, schema_records
from penstock.store.log.wal import SpanEntry, WalSettings, WriteAheadLog, read_resolved, resolved_record, span_record
from penstock.store.log.wal_segment import RecordKind, Replayed, WalRecord
from penstock.store.objects.manifest import load_manifests
from penstock.store.objects.merging import MergeSettings
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.ownership import Ownership, check_unshared
from penstock.store.objects.shared_records import SharedRecords, SpanMark
from penstock.store.objects.span_writer import ObjectSettings
from penstock.store.sharing import Sharing
from penstock.store.span_store import SpanStore
from penstock.store.stats import StoreStats, span_stats

log = logging.getLogger(__name__)
BURST = 4
MERGE_DUE_MAX = 4
SHARED_OBJECTS_MAX = 64
"""Objects on shared storage are flushed by the clock too, small as they are: so many are worth a merge."""
_OWNER_FRESH_S = 1.0


@dataclass(frozen=True)
class StoreSettings:
    """How much the store keeps where."""

    flush_bytes: int = 64 * 1024 * 1024
    object_bytes: int = 64 * 1024 * 1024
    """A flush that has more writes several objects: a reader maps one at a time."""
    spill_bytes: int = 256 * 1024 * 1024
    """When a span whose resolved ts hangs has more on the heap, it goes to a mapped file."""
    wal_segment_bytes: int = 64 * 1024 * 1024
    wal_bytes_max: int = 512 * 1024 * 1024
    """When the log is larger, spans that hold its oldest segment are flushed however small they are."""
    group_commit_max_delay_s: float = 0.0
    resolved_max_delay_s: float = 0.2
    queue_bytes_max: int = 256 * 1024 * 1024
    history_seconds: int = 3_600
    """How long changes that no one pins stay where every reader finds them at once."""
    checkpoint_seconds: int = 24 * 3_600
    """How long they stay readable from checkpoints, counted from the change as well."""
    gc_ttl_seconds: int = 24 * 3_600
    """How long a subscription that does not get on can hold history back; after that its reader gets ``STALE_READ``."""
    gc_interval_s: float = 60.0
    orphan_seconds: int = 24 * 3_600
    """How old object files that nothing names must be before they go: younger ones may belong to a bootstrap under way."""
    merge_bytes_min: int = 256 * 1024 * 1024
    """A span is merged when so much was flushed since the last merge, ..."""
    merge_ratio: float = 0.5
    """... and it is at least this share of what is merged. Bounds what the reader of a state reads, and how often rows are written."""
    merge_lull_s: float = 10.0
    """While a span is flushed more often than this, its merge waits, until four times as much is due: catching up comes first."""
    batch_rows_min: int = BATCH_ROWS_MIN
    batch_rows_max: int = BATCH_ROWS_MAX
    compression: str | None = None
    """Of object files: None (readers map them), ``lz4`` or ``zstd``."""
    objects: str = field(default="", repr=False)
    """Where objects go, below a folder for each source: a URI of shared storage; the data directory where it is empty. May hold secrets."""
    objects_interval_s: float = 60.0
    """How often what lies in memory goes to shared storage: so much a server that takes over pulls again."""

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        return [] if 0.1 <= self.objects_interval_s <= 86_400 else [("objects-interval", "must be between 100 ms and 24 h")]


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
    ) -> None:
        """Open the store and recover what it holds. ``objects`` is where objects go; below ``directory`` unless given.

        ``shared`` says that other machines reach them: the store stands by, empty, until it is first written to, or told to ``own`` them.
        """
        root = Path(directory).resolve()
        self.settings = settings or StoreSettings()
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self.objects = objects or ObjectSpace((root / "objects").as_uri())
        self._spill_directory = root / "spill"
        self._merge_settings = MergeSettings(self.settings.merge_bytes_min, self.settings.merge_ratio, SHARED_OBJECTS_MAX * shared)
        kept = HistorySettings(self.settings.history_seconds, self.settings.checkpoint_seconds, self.settings.gc_ttl_seconds)
        self.needs = HistoryNeeds(kept, self._clock)
        self._collected_s = self._clock.monotonic_s()
        self._schema_log = SchemaLog()
        self._spans: dict[int, SpanStore] = {}
        self._lock = threading.Lock()
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._opening = threading.Lock()
        self._is_open = False
        self._sharing: Sharing | None = None
        self._shared = shared
        self._written = ObjectSettings(self.settings.object_bytes, self.settings.compression)
        self._wal = self._new_log()
        self._flusher = Flusher("store-flusher", self._flush_in_background, self._clock)
        self._merger = Flusher("store-merger", self._maintain_in_background, self._clock)
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
            with self._lock:
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
        self._written = replace(self._written, epoch=sharing.ownership.epoch)
        self._recover(sharing.take_over(self._root).spans)
        self._wal.start()
        sharing.start(self._root)
        self._sharing = sharing

    def _new_log(self) -> WriteAheadLog:
        settings = WalSettings(
            segment_bytes=self.settings.wal_segment_bytes,
            group_commit_max_delay_s=self.settings.group_commit_max_delay_s,
            resolved_max_delay_s=self.settings.resolved_max_delay_s,
            queue_bytes_max=self.settings.queue_bytes_max,
        )
        return WriteAheadLog(self._root / "wal", settings, self._clock, self._head_records)

    def _open_sharing(self, root: Path) -> Sharing:
        ownership = Ownership.claim(self.objects, root, self._rng)
        records = SharedRecords(self.objects, ownership.epoch)
        interval_s = self.settings.objects_interval_s
        return Sharing(ownership, records, self._schema_log, self._all_spans, self.flush, interval_s, self._clock)

    # Writing: the puller's side.

    def register_span(self, span_id: int, span: Span, start_ts: int) -> int:
        """Open or create a span; return its resolved ts, durable when it returns."""
        self.own()
        with self._lock:
            store = self._spans.get(span_id)
            created = store is None
            if store is None:
                store = SpanStore.create(self.objects, span_id, span, start_ts, self._rng, self._written)
                self._spans[span_id] = store
        if created:
            self._write_and_wait([span_record(store.span_id, store.span, store.start_ts)])
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
        if store.heap_nbytes >= self.settings.spill_bytes:
            self._flusher.request(store.span_id)
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
            self._write_and_wait(schema_records(new))

    def advance_resolved_ts(self, span_id: int, ts: int) -> None:
        """Raise the resolved ts of a span; an unknown span or a smaller ts changes nothing."""
        store = self._spans.get(span_id)
        if store is not None and store.advance(ts):
            self._wal.advance_resolved_ts(span_id, ts)
            self._flush_if_grown(store)

    def flush(self, span_id: int) -> bool:
        """Write what is resolved to objects now; return False if there is nothing to write."""
        store = self._span(span_id)
        with self._publishing():
            flushed = store.flush(self._schema_log.versions(store.span.table_id))
        if flushed:
            store.flush_error = None
            store.flushed_s = self._clock.monotonic_s()
            self._forget_log()
            self._merger.request(span_id)
        return flushed

    def merge(self, span_id: int) -> int:
        """Merge what a span holds now; return how many objects were replaced. The state is written again, so it takes its time."""
        store = self._span(span_id)
        with self._publishing():
            return store.merge(self._schema_log.versions(store.span.table_id))

    def commit_bulk(self, span_id: int, objects: Sequence[ObjectMeta], commit_ts: int, base_ts: int | None = None) -> None:
        """Make bulk objects visible in one step as the span's state at ``commit_ts``; idempotent.

        With ``base_ts`` the state is known from there on only: the objects lack rows that changed between the two.
        """
        with self._publishing():
            self._span(span_id).commit_bulk(objects, commit_ts, base_ts)

    def commit_changes(self, span_id: int, objects: Sequence[ObjectMeta], commit_ts: int) -> None:
        """Make bulk objects, rows and tombstones, visible in one step as changes at ``commit_ts``, which must not be resolved yet.

        That is how a large transaction comes in that was written elsewhere. Idempotent.
        """
        with self._publishing():
            self._span(span_id).commit_changes(objects, commit_ts)

    def base_ts(self, span_id: int) -> int | None:
        """Return from which ts on the state of a span is known; None where it is not, or the span is unknown."""
        store = self._spans.get(span_id)
        return None if store is None else store.base_ts

    def reset_span(self, span_id: int, start_ts: int) -> None:
        """Forget what a span holds and begin again above a ts, because the upstream's log no longer joins what is held.

        It must not be captured meanwhile. Whoever read its history gets ``STALE_READ``, and its state is unknown until a bulk commit.
        """
        with self._publishing():
            self._span(span_id).reset(start_ts)
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
        left = sum(self._expire(span_id, TS_MAX) for span_id in self.span_ids())
        written_before_ms = self._clock.now_ms() - self.settings.orphan_seconds * 1000
        orphans = sum(self._remove_old_orphans(span_id, written_before_ms) for span_id in self.span_ids())
        if orphans:
            log.info("old objects without a manifest removed", extra={"objects": orphans})
        return left

    def _expire(self, span_id: int, ts: int) -> int:
        limit_ts = min(ts, self.needs.keep_above(span_id))
        with self._publishing(_OWNER_FRESH_S):
            return self._span(span_id).expire_history(limit_ts, min(limit_ts, self.needs.checkpoints_above(span_id)))

    def _remove_old_orphans(self, span_id: int, written_before_ms: int) -> int:
        with self._publishing(_OWNER_FRESH_S):
            return self._span(span_id).remove_old_orphans(written_before_ms)

    # Reading: the feed's side.

    def resolved_ts(self, span_id: int) -> int:
        """Return the span's resolved ts."""
        return self._span(span_id).resolved_ts

    def view(self, span_id: int, from_ts: int | None = None, to_ts: int | None = None) -> SpanView:
        """Return a consistent picture of a span, from which a handle on the window is built; without one, of what is there now."""
        store = self._span(span_id)
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
            if error.code != "OBJECT_MISSING" or self._span(span_id).names(path):
                raise
            raise PenstockError("OBJECT_COLLECTED", f"span {span_id} has no object {path} any more") from error

    def plan_window(
        self,
        span_ids: Sequence[int],
        table_ids: Sequence[int],
        from_ts: int,
        nbytes_max: int,
        patterns: Sequence[str] = (),
        unsplit: Sequence[int] = (),
    ) -> WindowPlan:
        """Choose where a window ends; see the contract."""
        self._check_owned()
        views = [self.view(span_id, from_ts, self.resolved_ts(span_id)) for span_id in span_ids]
        check_reach(views, from_ts)
        resolved_ts = min([self.resolved_ts(DDL_SPAN.span_id), *(v.state.resolved_ts for v in views)])
        return plan_window(views, self._schema_log, table_ids, resolved_ts, from_ts, nbytes_max, patterns, unsplit)

    def plan_resnapshot(self, span_ids: Sequence[int], table_ids: Sequence[int], from_ts: int, patterns: Sequence[str] = ()) -> WindowPlan:
        """Plan a window that takes the place of lost history: it ends at a ts whose state is known, with every DDL on the way.

        ``to_ts == from_ts`` means that the state is not known yet.
        """
        self._check_owned()
        resolved_ts = min([self.resolved_ts(s) for s in (DDL_SPAN.span_id, *span_ids)])
        views = [self.view(span_id, TS_ZERO, resolved_ts) for span_id in span_ids]
        return plan_resnapshot(views, self._schema_log, table_ids, resolved_ts, from_ts, patterns)

    def schema_history(self, table_id: int) -> tuple[TableSchema, ...]:
        """Return a table's versions, oldest first; empty for a table that is not known."""
        return self._schema_log.versions(table_id)

    def span_ids(self) -> tuple[int, ...]:
        """Return the ids of all spans."""
        with self._lock:
            return tuple(self._spans)

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
        return StoreStats(tuple(span_stats(s) for s in self._all_spans()), self._wal.group_count, self._wal.queue_fill)

    def close(self) -> None:
        """Make everything queued durable and stop; on shared storage, what is in memory goes there. May be called twice."""
        if self._sharing is not None:
            self._sharing.close()
        self._flusher.close()
        self._merger.close()
        self._wal.close()

    def __enter__(self) -> ColumnarEventStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside.

    def _span(self, span_id: int) -> SpanStore:
        store = self._spans.get(span_id)
        if store is None:
            raise PenstockError("SPAN_UNKNOWN", f"the event store holds no span {span_id}")
        return store

    def _all_spans(self) -> list[SpanStore]:
        with self._lock:
            return list(self._spans.values())

    def _check_owned(self) -> None:
        """Raise ``FENCED`` once another store has taken the objects."""
        if self._sharing is not None and self._sharing.lost is not None:
            raise self._sharing.lost

    @contextlib.contextmanager
    def _publishing(self, fresh_s: float = 0.0) -> Iterator[None]:
        """Write manifests in it, or remove objects: only as the owner, and only once the schema log is where they are."""
        if self._sharing is None:
            yield
            return
        try:
            if fresh_s:
                self._sharing.check(fresh_s)
            else:
                self._sharing.before_publish()
            yield
        except PenstockError as error:
            self._sharing.note(error)
            raise

    def _write_and_wait(self, records: Sequence[WalRecord]) -> None:
        durable = threading.Event()
        self._wal.submit(records, durable.set)
        while not self._clock.wait(durable, 1.0):
            self._wal.check_open()

    def _recover(self, taken_over: Sequence[SpanMark] = ()) -> None:
        for span_id, manifest in load_manifests(self.objects).items():
            self._spans[span_id] = store = SpanStore(self.objects, manifest, self._rng, self._written)
            removed = store.remove_orphans()
            if removed:
                log.info("objects without a manifest removed", extra={"span_id": span_id, "objects": removed})
        for mark in taken_over:
            if mark.span_id not in self._spans:
                self._spans[mark.span_id] = SpanStore.create(self.objects, mark.span_id, mark.span, mark.start_ts, self._rng, self._written)
            self._spans[mark.span_id].advance(mark.held_ts)
        for record in self._wal.replay():
            self._replay(record)
        self._wal.forgotten.check_objects({store.span_id: store.flushed_ts for store in self._spans.values()})

    def _replay(self, record: Replayed) -> None:
        if record.batch is not None:
            store = self._spans.get(record.span_id)
            if store is None:
                raise PenstockError("WAL_CORRUPT", f"the write-ahead log holds rows of span {record.span_id} that was never registered")
            store.add(record.batch)
        elif record.kind is RecordKind.SPAN:
            entry = decoded(record.payload, SpanEntry)
            if record.span_id not in self._spans:
                self._spans[record.span_id] = SpanStore.create(
                    self.objects, record.span_id, entry.span, entry.start_ts, self._rng, self._written
                )
        elif record.kind is RecordKind.RESOLVED:
            for span_id, ts in read_resolved(record.payload):
                if span_id in self._spans:
                    self._spans[span_id].advance(ts)
        elif record.kind is RecordKind.SCHEMAS:
            self._schema_log.put(read_schemas(record.payload))
        elif record.kind is RecordKind.DDL:
            self._schema_log.put_ddl(DdlEvent.from_json(record.payload))

    def _head_records(self) -> Sequence[WalRecord]:
        spans = self._all_spans()
        records = [span_record(s.span_id, s.span, s.start_ts) for s in spans]
        if spans:
            records.append(resolved_record({s.span_id: s.resolved_ts for s in spans}))
        return [*records, *self._schema_log.records()]

    def _flush_if_grown(self, store: SpanStore) -> None:
        """Ask for a flush. Called when a resolved ts advances, because only that makes rows flushable."""
        if self._has_grown(store):
            self._flusher.request(store.span_id)
        elif self._wal.nbytes > self.settings.wal_bytes_max:
            for span_id in self._wal.holders():
                self._flusher.request(span_id)

    def _has_grown(self, store: SpanStore) -> bool:
        # While the log is busy, a burst may fill some more memory: objects would be written to the same disk at the same time.
        limit = self.settings.flush_bytes * (BURST if self._wal.queue_fill > 0 else 1)
        return store.memory_nbytes >= limit and store.flushable_nbytes() >= self.settings.flush_bytes // 2

    def _flush_in_background(self, span_id: int) -> None:
        store = self._spans[span_id]
        try:
            # Asked for again while it was flushed, a span may have little left: that waits, another object would be tiny.
            if self._has_grown(store) or self._wal.nbytes > self.settings.wal_bytes_max:
                self.flush(span_id)
            if store.heap_nbytes >= self.settings.spill_bytes:
                self._spill(store)
        except PenstockError as error:
            self._flush_failed(store, error)
        except Exception as error:  # noqa: BLE001 - the thread serves all spans and must outlive a defect in one; appends report it
            self._flush_failed(store, PenstockError("INTERNAL", f"flush of span {span_id}: {type(error).__name__}: {error}"))

    @staticmethod
    def _flush_failed(store: SpanStore, error: PenstockError) -> None:
        """Remember why; appends raise it once the memory that cannot be flushed has grown too far."""
        store.flush_error = error
        log.warning("flush failed, memory is kept", extra={"span_id": store.span_id, "code": error.code, "detail": error.detail})

    def _maintain_in_background(self, span_id: int) -> float | None:
        """Merge a span that has grown, and let old history go; return after how many seconds to look again where a merge is put off.

        Failures are told and tried again after the next flush.
        """
        put_off_s = None
        try:
            put_off_s = self._merge_if_due(self._spans[span_id])
            if self._clock.monotonic_s() - self._collected_s >= self.settings.gc_interval_s:
                self._collected_s = self._clock.monotonic_s()
                self.collect_garbage()
        except PenstockError as error:
            log.warning("maintenance failed", extra={"span_id": span_id, "code": error.code, "detail": error.detail})
        except Exception as error:  # noqa: BLE001 - the thread serves all spans and must outlive a defect in one
            log.error("maintenance failed", extra={"span_id": span_id, "code": "INTERNAL", "detail": f"{type(error).__name__}: {error}"})
        return put_off_s

    def _merge_if_due(self, store: SpanStore) -> float | None:
        """Merge a span that is worth it, or return after how many seconds, because it is still being filled."""
        due = self._merge_settings.due(store.objects)
        if due < 1.0:
            return None
        left_s = store.flushed_s + self.settings.merge_lull_s - self._clock.monotonic_s()
        if left_s > 0 and due < MERGE_DUE_MAX:
            return left_s
        replaced = self.merge(store.span_id)
        log.info("span merged", extra={"span_id": store.span_id, "objects": replaced})
        return None

    def _spill(self, store: SpanStore) -> None:
        try:
            moved = store.spill(self._spill_directory)
        except OSError as error:
            raise PenstockError("STORE_FAILED", f"memory could not be spilled: {error}") from error
        log.info("memory spilled while the resolved ts waits", extra={"span_id": store.span_id, "nbytes": moved})

    def _forget_log(self) -> None:
        self._wal.forget({s.span_id: s.flushed_ts for s in self._all_spans()})
