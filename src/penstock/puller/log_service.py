"""The log service: captures spans into the event store, and keeps capturing them.

Owns which spans are captured. Each is pulled from where the store says that it was durable. The DDL span is always captured. A
span that fails is pulled again from its persisted resolved ts, with bounded backoff, by the supervisor thread. Knows upstream and store
only by their contracts. Runs in the server process, next to the Flight service.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec
from prometheus_client import CollectorRegistry

from penstock.meta.table_states import TableState
from penstock.model.backoff import Backoff
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.puller.catalog import PullerParts, open_puller
from penstock.puller.contract import DoubtControl
from penstock.puller.doubts import Corrections, DoubtBook, Settlement, Watch
from penstock.puller.logged.journal_keeper import Journal
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.metrics import LogPullerMetrics, SpanPipelineMetrics
from penstock.puller.ranged.log_puller import LogPullerSettings
from penstock.puller.span_capture import SpanCapture, after_all
from penstock.puller.span_pipeline import SpanPipeline, SpanPipelineSettings
from penstock.source.contract import Upstream
from penstock.store.contract import EventStore

_log = logging.getLogger(__name__)


_KEEP_S_MAX = 60.0


@dataclass(frozen=True)
class LogServiceSettings:
    """Backoff of failed spans, and the settings of the parts."""

    retry_min_s: float = 0.2
    retry_max_s: float = 30.0
    ddl_start_ts: int = TS_ZERO
    pipeline: SpanPipelineSettings = field(default_factory=SpanPipelineSettings)
    puller: LogPullerSettings = field(default_factory=LogPullerSettings)
    single_log: SingleLogPullerSettings = field(default_factory=SingleLogPullerSettings)


class CaptureState(Enum):
    """Being pulled, or waiting to be pulled again."""

    PULLING = "pulling"
    RETRYING = "retrying"


class SpanStatus(msgspec.Struct, frozen=True):
    """Where a captured span stands. ``resolved_ts`` is the store's; the regions are those of ``SpanProgress``."""

    span_id: int
    span: Span
    resolved_ts: int
    regions: int
    regions_waiting: int
    state: CaptureState
    failures: int
    last_error: PenstockError | None


class _Supervised:
    """A capture and how it fares; the service's lock guards the latter."""

    def __init__(self, capture: SpanCapture, start_ts: int) -> None:
        self.capture = capture
        self.span = capture.span
        self.span_id = capture.span_id
        self.start_ts = start_ts
        self.state = CaptureState.PULLING
        self.failures = 0
        self.due_s = 0.0
        self.last_error: PenstockError | None = None
        self.failed_at_ts = -1

    def resolved_ts(self) -> int:
        """Return the store's resolved ts of the span; where it begins, while the store does not know it yet or was taken away."""
        try:
            return self.capture.resolved_ts()
        except PenstockError as error:
            if error.code != "SPAN_UNKNOWN":
                raise
            return self.start_ts


class LogService:
    """Captures spans of one upstream into one store. Thread safe."""

    def __init__(
        self,
        upstream: Upstream,
        store: EventStore,
        settings: LogServiceSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry | None = None,
        journal: Journal | None = None,
        needed_from: Callable[[], int] | None = None,
        doubts: DoubtBook | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Make the parts; ``journal``, ``needed_from`` and ``doubts`` are for the puller, see ``PullerParts``.

        With ``waits`` nothing is captured, not even DDLs, before ``begin``: another server may read the log, and one at a time does.
        """
        self._waits = waits
        self.settings = settings or LogServiceSettings()
        self.registry = registry if registry is not None else CollectorRegistry()
        self._upstream = upstream
        self._store = store
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._pipeline = SpanPipeline(self.settings.pipeline, self._clock, SpanPipelineMetrics(self.registry))
        parts = PullerParts(
            self.settings.puller,
            self.settings.single_log,
            self._clock,
            self._rng,
            LogPullerMetrics(self.registry),
            store.put_schemas,
            journal,
            lambda: min(needed_from() if needed_from is not None else TS_MAX, self._recoverable_ts()),
            doubts,
        )
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        self._captures: dict[int, _Supervised] = {}
        self._puller, self._decode = open_puller(upstream, self._pipeline, parts)
        self._wake = threading.Event()
        self._closed = False
        self._supervisor = threading.Thread(target=self._supervise, name="log-service", daemon=True)

    def start(self) -> LogService:
        """Begin to capture: the DDL span first, unless that waits for a feed. Raises if upstream or store refuse."""
        self._supervisor.start()
        if not self._waits and not self._store.is_standing_by():
            self.ensure_span(DDL_SPAN, self.settings.ddl_start_ts)
        return self

    def begin(self) -> None:
        """Take the store where it stands by, or was taken away, because a feed begins here; and capture DDLs. Idempotent."""
        if self._store.is_taken_away():
            self.stand_by()
            self._store.stand_by()
        self.ensure_span(DDL_SPAN, self.settings.ddl_start_ts)

    def stand_by(self) -> None:
        """Capture nothing until ``begin``; what the store holds stays."""
        for span in self.status():
            self.remove_span(span.span_id)

    @property
    def stands_by(self) -> bool:
        """Return whether nothing is captured here, because no feed has begun, or another server has taken the store."""
        return self._is_waiting() or self._store.is_taken_away()

    def _is_waiting(self) -> bool:
        with self._lock:
            return self._store.is_standing_by() or (self._waits and not self._captures)

    def ensure_span(self, span: Span, start_ts: int) -> int:
        """Capture a span from ``start_ts`` on, or from where the store already is; return its id. Idempotent.

        The schema versions that the upstream knows now are in the store when this returns.
        """
        if span != DDL_SPAN and self._is_waiting():
            self.begin()
        capture = _Supervised(SpanCapture(span, self._store, self._decode), start_ts)
        with self._changing:
            with self._lock:
                if self._closed:
                    raise PenstockError("CANCELLED", "the log service is closed")
                if capture.span_id in self._captures:
                    return capture.span_id
            if span != DDL_SPAN:
                self._learn_versions(span)
            # The capture is known before it is pulled, so that an early failure finds it.
            with self._lock:
                self._captures[capture.span_id] = capture
            try:
                self._pull(capture)
            except BaseException:
                with self._lock:
                    self._captures.pop(capture.span_id, None)
                raise
        return capture.span_id

    def _learn_versions(self, span: Span) -> None:
        """Have the versions of a span's table in the store that the upstream knows now."""
        versions = self._upstream.schema_history(span.table_id)
        self._puller.keep_schemas(versions)
        self._store.put_schemas(versions)

    def remove_span(self, span_id: int) -> None:
        """Stop capturing a span; what the store holds stays. Does nothing if it is not captured."""
        with self._changing:
            with self._lock:
                self._captures.pop(span_id, None)
            self._puller.unsubscribe(span_id)

    def settled_ts(self) -> int:
        """Return a ts at or above every commit that was acknowledged before the call; the captured spans resolve up to it by themselves."""
        return self._puller.settled_ts()

    def begin_log_again(self) -> int:
        """Go on at the end of a log that was purged before; return its ts, from which on spans can be captured."""
        begun = self._puller.begin_again(self._store.resolved_ts(DDL_SPAN.span_id))
        # Durable before anyone begins behind them: the log tells them to nobody.
        self._store.put_schemas([table for ddl in begun.ddls for table in ddl.tables])
        kept = threading.Event()
        done = after_all(len(begun.ddls), kept.set)
        if any(not self._store.append_ddl(ddl, done) for ddl in begun.ddls) or (begun.ddls and not self._clock.wait(kept, _KEEP_S_MAX)):
            raise PenstockError("CONGESTED", "what became of tables where the log is lost is not durable yet")
        return begun.ts

    def release_upstream(self) -> None:
        """Give back what was made at the upstream for capture, because no feed needs it any more. May be called twice."""
        self._puller.release()

    # Tables in doubt: see ``puller/doubts.py``.

    def table_states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""
        return self._puller.doubts.table_states() if self._puller.doubts is not None else []

    def doubt_table(self, table_id: int, schema: str, table: str, reason: str) -> None:
        """Have a table read again, because an operator, a schedule or a verification wants it."""
        self._doubts().doubt_table(table_id, schema, table, reason)

    def begin_watch(self, table_id: int) -> Watch:
        """Remember from now on which keys of a table its log changes; a snapshot that corrects it begins after this returns."""
        return self._doubts().begin_watch(table_id)

    def settle(
        self,
        table_id: int,
        corrections: Iterable[Corrections],
        bag: bool = False,
        check: Callable[[], None] = lambda: None,
        alone: bool = False,
        read_at: Sequence[str] = (),
    ) -> Settlement:
        """Give what differed to the table's spans at a ts of its own, and close the doubt when that is durable.

        ``bag``: the table has no key, so another round is due where the log overtook a correction. ``check``, ``alone`` and
        ``read_at`` as in ``puller/doubts.py``.
        """
        # No log gives corrections again.
        return self._doubts().settle(table_id, corrections, bag, check, alone, read_at, self._store.secure)

    def fail_round(self, table_id: int, error: PenstockError, retry_s: float) -> None:
        """Give a re-read up; the table stays in doubt, and is quarantined where the error is not a passing one."""
        self._doubts().fail_round(table_id, error, retry_s)

    def look_again(self) -> None:
        """Have the source asked once more about tables of which no version is known."""
        self._doubts().look_again()

    def forget_table(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Forget the doubts of a table that is gone; of one without an id those of its name."""
        self._doubts().forget_table(table_id, schema, table)

    def _recoverable_ts(self) -> int:
        """Return from where on the upstream's log is still needed by a server that would have to go on without this one's disk."""
        with self._lock:
            span_ids = list(self._captures)
        return self._store.recoverable_ts(span_ids)

    def _doubts(self) -> DoubtControl:
        if self._puller.doubts is None:
            raise PenstockError("TABLE_UNKNOWN", "only a source with one log has tables in doubt")
        return self._puller.doubts

    def status(self) -> list[SpanStatus]:
        """Return where each captured span stands."""
        with self._lock:
            captures = list(self._captures.values())
        return [self._status(c) for c in captures]

    def close(self) -> None:
        """Stop capturing. What is persisted stays; what is in flight is pulled again next time. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake.set()
        self._pipeline.close()
        self._puller.close()
        if self._supervisor.is_alive():
            self._supervisor.join()

    def _pull(self, capture: _Supervised) -> None:
        """Register with the store and pull from what it answers."""
        resume_ts = capture.capture.resume(capture.start_ts)

        def failed(error: PenstockError) -> None:
            self._note_failure(capture, error)

        self._puller.subscribe(capture.span, resume_ts, capture.capture.consume, capture.capture.advance, failed)
        extra = {"span_id": capture.span_id, "table_id": capture.span.table_id, "resume_ts": resume_ts}
        _log.info("log service: span captured", extra=extra)

    def _note_failure(self, capture: _Supervised, error: PenstockError) -> None:
        """Plan to pull a failed span again; runs in a thread of the puller, so it only takes note."""
        resolved_ts = capture.resolved_ts()
        with self._lock:
            # Progress since the last failure means that the cause went away in between.
            capture.failures = capture.failures + 1 if resolved_ts == capture.failed_at_ts else 1
            capture.failed_at_ts = resolved_ts
            capture.state = CaptureState.RETRYING
            capture.last_error = error
            backoff = Backoff(self.settings.retry_min_s, self.settings.retry_max_s)
            capture.due_s = self._clock.monotonic_s() + backoff.pause_s(capture.failures, self._rng)
        _log.warning("log service: span failed", extra={"span_id": capture.span_id, "code": error.code, "failures": capture.failures})
        self._wake.set()

    def _supervise(self) -> None:
        while not self._closed:
            self._wake.clear()
            now_s = self._clock.monotonic_s()
            with self._lock:
                retrying = [c for c in self._captures.values() if c.state is CaptureState.RETRYING]
            for capture in [c for c in retrying if c.due_s <= now_s]:
                self._pull_again(capture)
            waits = [c.due_s - now_s for c in retrying if c.due_s > now_s]
            self._clock.wait(self._wake, min(waits, default=3600.0))

    def _pull_again(self, capture: _Supervised) -> None:
        with self._changing:
            with self._lock:
                if self._closed or self._captures.get(capture.span_id) is not capture:
                    return
                capture.state = CaptureState.PULLING
            self._puller.unsubscribe(capture.span_id)
            try:
                self._pull(capture)
            except PenstockError as error:
                self._note_failure(capture, error)
            except Exception as error:  # noqa: BLE001 - the supervisor lives on whatever a store or an upstream raises
                self._note_failure(capture, PenstockError("STORE_FAILED", f"{type(error).__name__}: {error}"))

    def _status(self, capture: _Supervised) -> SpanStatus:
        progress = self._puller.progress(capture.span_id)
        return SpanStatus(
            span_id=capture.span_id,
            span=capture.span,
            resolved_ts=capture.resolved_ts(),
            regions=progress.regions if progress else 0,
            regions_waiting=progress.regions_waiting if progress else 0,
            state=capture.state,
            failures=capture.failures,
            last_error=capture.last_error or (progress.last_error if progress else None),
        )
