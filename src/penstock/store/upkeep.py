"""When a store does what nobody asked for: memory to objects or to a mapped file, spans merged, old history let go.

Owns two threads, one that flushes and one that merges and collects; each does one span after the other. Invariants: an append never waits
for them; a failure keeps everything where it is and is tried again, that of a flush is remembered with its span, and no defect ends a
thread. Runs in the log service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.store.flusher import Flusher
from penstock.store.log.wal import WriteAheadLog
from penstock.store.objects.merging import MergeSettings
from penstock.store.settings import StoreSettings
from penstock.store.span_store import SpanStore
from penstock.store.spans import Spans

log = logging.getLogger(__name__)
BURST = 4
MERGE_DUE_MAX = 4
SHARED_OBJECTS_MAX = 64
"""Objects on shared storage are flushed by the clock too, small as they are: so many are worth a merge."""


class Work(NamedTuple):
    """What the store itself does, when it is time."""

    flush: Callable[[int], bool]
    merge: Callable[[int], int]
    collect: Callable[[], int]


class Upkeep:
    """Looks after the spans of a store. Thread safe."""

    def __init__(
        self,
        settings: StoreSettings,
        spans: Spans,
        wal: Callable[[], WriteAheadLog],
        work: Work,
        spill_directory: Path,
        clock: Clock,
        *,
        shared: bool,
    ) -> None:
        self._settings = settings
        self._merging = MergeSettings(settings.merge_bytes_min, settings.merge_ratio, SHARED_OBJECTS_MAX * shared)
        self._spans = spans
        self._wal = wal
        self._work = work
        self._spill_directory = spill_directory
        self._clock = clock
        self._collected_s = clock.monotonic_s()
        self.flusher = Flusher("store-flusher", self._flush, clock)
        self.merger = Flusher("store-merger", self._maintain, clock)

    def after_append(self, store: SpanStore) -> None:
        """Ask for a spill where a span whose resolved ts hangs has filled the heap."""
        if store.heap_nbytes >= self._settings.spill_bytes:
            self.flusher.request(store.span_id)

    def after_resolved(self, store: SpanStore) -> None:
        """Ask for a flush where memory or log have grown. Only a resolved ts that advances makes rows flushable."""
        if self._has_grown(store):
            self.flusher.request(store.span_id)
        elif self._wal().nbytes > self._settings.wal_bytes_max:
            for span_id in self._wal().holders():
                self.flusher.request(span_id)

    def after_flush(self, store: SpanStore) -> None:
        """Note that a span was flushed, and ask whether it is worth a merge now."""
        store.flush_error = None
        store.flushed_s = self._clock.monotonic_s()
        self.merger.request(store.span_id)

    def close(self) -> None:
        """End what is under way, leave what waits, and stop."""
        self.flusher.close()
        self.merger.close()

    def _has_grown(self, store: SpanStore) -> bool:
        # While the log is busy, a burst may fill some more memory: objects would be written to the same disk at the same time.
        limit = self._settings.flush_bytes * (BURST if self._wal().queue_fill > 0 else 1)
        return store.memory_nbytes >= limit and store.flushable_nbytes() >= self._settings.flush_bytes // 2

    def _flush(self, span_id: int) -> None:
        store = self._spans.get(span_id)
        if store is None:
            return  # The store stands by: another one has its spans.
        try:
            # Asked for again while it was flushed, a span may have little left: that waits, another object would be tiny.
            if self._has_grown(store) or self._wal().nbytes > self._settings.wal_bytes_max:
                self._work.flush(span_id)
            if store.heap_nbytes >= self._settings.spill_bytes:
                self._spill(store)
        except PenstockError as error:
            self._failed(store, error)
        except Exception as error:  # noqa: BLE001 - the thread serves all spans and must outlive a defect in one; appends report it
            self._failed(store, PenstockError("INTERNAL", f"flush of span {span_id}: {type(error).__name__}: {error}"))

    @staticmethod
    def _failed(store: SpanStore, error: PenstockError) -> None:
        """Remember why; appends raise it once the memory that cannot be flushed has grown too far."""
        store.flush_error = error
        log.warning("flush failed, memory is kept", extra={"span_id": store.span_id, "code": error.code, "detail": error.detail})

    def _spill(self, store: SpanStore) -> None:
        try:
            moved = store.spill(self._spill_directory)
        except OSError as error:
            raise PenstockError("STORE_FAILED", f"memory could not be spilled: {error}") from error
        log.info("memory spilled while the resolved ts waits", extra={"span_id": store.span_id, "nbytes": moved})

    def _maintain(self, span_id: int) -> float | None:
        """Merge a span that has grown, and let old history go; return after how many seconds to look again where a merge is put off.

        Failures are told and tried again after the next flush.
        """
        put_off_s = None
        try:
            put_off_s = self._merge_if_due(self._spans.of(span_id))
            if self._clock.monotonic_s() - self._collected_s >= self._settings.gc_interval_s:
                self._collected_s = self._clock.monotonic_s()
                self._work.collect()
        except PenstockError as error:
            log.warning("maintenance failed", extra={"span_id": span_id, "code": error.code, "detail": error.detail})
        except Exception as error:  # noqa: BLE001 - the thread serves all spans and must outlive a defect in one
            log.error("maintenance failed", extra={"span_id": span_id, "code": "INTERNAL", "detail": f"{type(error).__name__}: {error}"})
        return put_off_s

    def _merge_if_due(self, store: SpanStore) -> float | None:
        """Merge a span that is worth it, or return after how many seconds, because it is still being filled."""
        due = self._merging.due(store.objects)
        if due < 1.0:
            return None
        left_s = store.flushed_s + self._settings.merge_lull_s - self._clock.monotonic_s()
        if left_s > 0 and due < MERGE_DUE_MAX:
            return left_s
        replaced = self._work.merge(store.span_id)
        log.info("span merged", extra={"span_id": store.span_id, "objects": replaced})
        return None
