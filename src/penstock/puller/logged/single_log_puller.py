"""The puller of an upstream whose tables share one log: one reader, many spans.

Owns the thread that reads the log. A span that joins further back than the reader is makes it read again from there; what the others have
already is left out for them (``span_routes.py``). Of each step, in this order: its position is admitted, its rows are handed over, its
doubts are kept, its position is journaled (``journal_keeper.py``), and only then the resolved ts that relies on all of it. A refusal on
the way ends the step and the reader. A connection that breaks is opened again from the last position, with a pause that grows until the
reader gets past the place where it broke off (``break_off.py``); an error that only an operator can end fails all spans, and their owner
subscribes them again. Runs in the log service.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import msgspec

from penstock.meta.table_states import TableState
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO, lag_seconds
from penstock.puller.contract import SpanProgress, SpanState
from penstock.puller.doubts import Corrections, DoubtBook, Settlement, Watch
from penstock.puller.logged.break_off import BreakOff
from penstock.puller.logged.doubted_tables import DoubtedTables, corrected
from penstock.puller.logged.errands import Errands
from penstock.puller.logged.journal_keeper import Journal, JournalKeeper
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.logged.span_routes import RefusedError, SpanRoutes, Subscription
from penstock.puller.logged.span_step import SpanStep
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.span_pipeline import Advance, Consume, OnError, SpanPipeline
from penstock.source.single_log import LoggedUpstream, LogPosition, LogStep

_log = logging.getLogger(__name__)


class SingleLogPuller:
    """Reads one log for many spans. Thread safe. Implements ``Puller``."""

    def __init__(
        self,
        upstream: LoggedUpstream,
        pipeline: SpanPipeline,
        journal: Journal,
        settings: SingleLogPullerSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: LogPullerMetrics | None = None,
        publish: Callable[[Sequence[TableSchema]], None] | None = None,
        needed_from: Callable[[], int] | None = None,
        doubts: DoubtBook | None = None,
    ) -> None:
        """``publish`` makes new table versions known to the store before rows of them arrive; ``needed_from`` as for the log service."""
        self.settings = settings or SingleLogPullerSettings()
        self.metrics = metrics or LogPullerMetrics()
        self._upstream = upstream
        self._journal = journal
        self._publish = publish
        self._needed_from = needed_from
        self._clock = clock or SystemClock()
        self._routes = SpanRoutes(pipeline)
        self._keeper = JournalKeeper(upstream, journal, self.settings, self._clock, self._durable_ts)
        self._doubts = DoubtedTables(doubts, self._clock, self.settings.watch_keys_max)
        self._trouble = BreakOff(self.settings.retry_min_s, self.settings.retry_max_s, rng or system_random())
        self._moved = threading.Condition()
        self._position: LogPosition | None = None
        """Where the reader is, while it reads."""
        self._steps: Iterator[LogStep] = iter(())
        self._start: LogPosition | None = None
        """Where the reader is about to begin; only its thread looks at it."""
        self._is_between = False
        """Whether no transaction is open where the reader is; only its thread looks at it."""
        self._emitted_s = float("-inf")
        self._lacking: set[int] = set()
        """Spans whose rows were found missing and are corrected by a re-read."""
        self._stop = threading.Event()
        self._again = threading.Event()
        self._wake = threading.Event()
        self._errands = Errands(self._wake.set)
        self.metrics.resolved_lag.set_function(self._lag_s)
        upstream.adopt_schemas(journal.schemas())
        self._thread = threading.Thread(target=self._run, name="single-log-puller", daemon=True)
        self._thread.start()

    @property
    def doubts(self) -> SingleLogPuller:
        """Return itself: it settles the doubts of its log."""
        return self

    def subscribe(self, span: Span, start_ts: int, consume: Consume, advance: Advance, on_failed: OnError | None = None) -> int:
        """Begin to give a span what lies above ``start_ts``; the same promises as ``LogPuller.subscribe``, with ``SpanStep`` payloads."""
        if self._stop.is_set():
            raise PenstockError("CANCELLED", "the log puller is closed")
        self._doubts.joined(span.table_id, start_ts)

        def failed(error: PenstockError) -> None:
            if error.code == "RESOLVED_TS_VIOLATED":
                self._lacks_rows(span)
            if on_failed is not None:
                on_failed(error)

        self._routes.add(span, start_ts, consume, advance, failed)
        self._wake.set()
        return span.span_id

    def keep_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Keep table versions in the journal, for the upstream to take over after a restart. Any thread may call it."""
        self._journal.save_schemas(versions)

    def unsubscribe(self, span_id: int) -> None:
        """Stop giving a span anything: neither of its functions is called after this returns. Does nothing if it is not subscribed."""
        self._routes.remove(span_id)

    def progress(self, span_id: int) -> SpanProgress | None:
        """Return where a subscription stands, None if there is none."""
        found = self._routes.get(span_id)
        if found is None:
            return None
        trouble = self._trouble.error
        error = found.last_error or trouble
        reading = int(found.joined and trouble is None)
        return SpanProgress(found.emitted_ts, reading, 1 - reading, found.state, error)

    def settled_ts(self) -> int:
        """Wait until the reader has passed what the log holds now; return a ts at or above every commit acknowledged before the call.

        Such a commit never gets a higher ts later: its ts follows from the log and from marks that are journaled, and no mark is put before
        a place that was read.
        """
        end = self._upstream.log_end()
        deadline_s = self._clock.monotonic_s() + self.settings.settle_timeout_s
        with self._moved:
            while not self._stop.is_set():
                if self._position is not None and self._upstream.reached(self._position.text, end):
                    return self._position.ts
                if self._clock.monotonic_s() > deadline_s:
                    raise self._trouble.error or PenstockError("CONGESTED", f"the log is not read up to {end} yet")
                self._moved.wait(1.0)
        raise PenstockError("CANCELLED", "the log puller is closed")

    def begin_again(self) -> int:
        """Note the end of the log as a place from which it can be read, because it was purged before; return its ts.

        Spans that begin there, or later, go on; what lies between the purged part and the end is in no log that anyone captures.
        """

        def note() -> int:
            ts = self._keeper.begin_again(max((s.handed_ts for s in self._routes.all()), default=TS_ZERO))
            # A reader that is under way does not know of the mark yet.
            self._again.set()
            _log.warning("single log puller: capture begins again at the end of the log", extra={"ts": ts})
            return ts

        return self._errands.ask(note, self.settings.settle_timeout_s)

    def release(self) -> None:
        """Give back what was made at the upstream; a reading that goes on ends."""
        self._upstream.release()

    def close(self) -> None:
        """Stop reading. The pipeline's owner closes the pipeline before, so that nothing waits for its quota."""
        self._stop.set()
        self._again.set()
        self._wake.set()
        with self._moved:
            self._moved.notify_all()
        self._thread.join()

    # -- doubted tables; see ``doubts.py``

    def table_states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""
        return self._doubts.states()

    def doubt_table(self, table_id: int, schema: str, table: str, reason: str) -> None:
        """Doubt a table because somebody asks for it."""
        self._doubts.request(table_id, schema, table, reason, self._keeper.furthest_ts)

    def begin_watch(self, table_id: int) -> Watch:
        """Remember from now on which keys of a table the log changes."""

        def begin() -> Watch | None:
            position = self._position
            if position is None or not self._is_between or position.ts < self._keeper.furthest_ts:
                return None
            spans = tuple(s.span for s in self._routes.of_table(table_id))
            if not spans:
                raise PenstockError("TABLE_UNKNOWN", f"no span of table {table_id} is captured")
            begun = Watch(table_id, position.ts, position.text, spans)
            self._doubts.begin_watch(begun)
            return begun

        return self._errands.ask(begin, self.settings.settle_timeout_s)

    def settle(self, table_id: int, corrections: Iterable[Corrections], bag: bool = False) -> Settlement:
        """Give corrections to the table's spans at a ts of their own; returns when they are durable."""
        end = self._upstream.log_end()
        settlement, touched = self._errands.ask(lambda: self._settle_between(table_id, corrections, end), self.settings.settle_timeout_s)
        self._wait_durable(touched, settlement.ts)
        again = "the log changed rows that cannot be told from others" if bag and settlement.left_out else self._uncovered(table_id)
        closed = self._doubts.close(table_id, settlement.ts, again)
        return Settlement(settlement.ts, settlement.rows, settlement.left_out, closed)

    def fail_round(self, table_id: int, error: PenstockError, retry_s: float) -> None:
        """End a re-read without corrections."""
        self._doubts.fail(table_id, error, retry_s)

    def forget_table(self, table_id: int) -> None:
        """Forget the doubts of a table that is gone."""
        self._doubts.forget(table_id)

    def _settle_between(self, table_id: int, corrections: Iterable[Corrections], end: str) -> tuple[Settlement, list[Subscription]] | None:
        """Put a mark where the reader is and hand over corrections at its ts; None while the reader is not where that may be done."""
        position = self._position
        if position is None or not self._is_between or not self._upstream.reached(position.text, end):
            return None
        if not self._keeper.is_first_reading(position):
            return None
        watch = self._doubts.watch_of(table_id)
        spans = {s.span.span_id: s for s in self._routes.of_table(table_id)}
        behind = [s for s in spans.values() if s.state is not SpanState.RUNNING or not s.joined]
        if behind:
            raise PenstockError("CONGESTED", f"table {table_id}: {len(behind)} of its spans are not captured now")
        mark = LogPosition(max(position.ts, self._keeper.furthest_ts) + 1, position.text)
        self._keeper.put_mark(mark)
        # Whatever happens from here on: the reader's chain must be raised before it gives another commit.
        self._again.set()
        rows = left_out = 0
        for piece in corrections:
            kept, out = corrected(piece, watch, mark.ts)
            left_out += out
            if piece.span_id not in spans:
                raise PenstockError("CONGESTED", f"table {table_id}: span {piece.span_id} is not captured now")
            if kept:
                rows += sum(b.header.rows for b in kept)
                self._routes.enqueue(spans[piece.span_id], SpanStep(kept, nbytes=sum(b.header.nbytes for b in kept)))
        self._resolve(mark, emit=True)
        return Settlement(mark.ts, rows, left_out, closed=False), list(spans.values())

    def _wait_durable(self, spans: Sequence[Subscription], ts: int) -> None:
        deadline_s = self._clock.monotonic_s() + self.settings.settle_timeout_s
        while any(s.advanced_ts < ts for s in spans):
            lost = next((s for s in spans if s.state is not SpanState.RUNNING), None)
            if lost is not None or self._stop.is_set() or self._clock.monotonic_s() > deadline_s:
                raise (lost.last_error if lost else None) or PenstockError("CONGESTED", f"corrections at ts {ts} are not durable yet")
            self._clock.wait(self._stop, 0.02)

    def _uncovered(self, table_id: int) -> str:
        """Return why corrections do not hold for every span of a table; empty if they do."""
        watch = self._doubts.watch_of(table_id)
        covered = {s.span_id for s in watch.begun.spans}
        missed = any(s.span.span_id not in covered and s.start_ts < watch.begun.ts for s in self._routes.of_table(table_id))
        return "a span of the table joined while it was read again" if missed else ""

    def _lacks_rows(self, span: Span) -> None:
        """Have a table read again of which the store lacks rows that were resolved; its span goes on without being checked again.

        Where nobody keeps doubts the span goes on to fail.
        """
        if self._doubts.has_book:
            self._lacking.add(span.span_id)
            versions = [v for v in self._journal.schemas() if v.table_id == span.table_id]
            schema, table = (versions[-1].schema, versions[-1].table) if versions else ("", "")
            self.doubt_table(span.table_id, schema, table, "rows that the log gave are not in the store")

    # -- the reader's thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                self._errands.run()
                if not self._routes.running():
                    self._clock.wait(self._wake, 3600.0)
                    continue
                self._read_and_recover()
        except RefusedError:
            _log.info("single log puller: the pipeline is closed")
        finally:
            self._errands.end()

    def _read_and_recover(self) -> None:
        error: PenstockError | None = None
        try:
            self._read()
        except RefusedError:
            raise
        except PenstockError as failed:
            error = failed
        except Exception as failed:  # noqa: BLE001 - whatever a driver raises must not end the thread in silence
            _log.exception("single log puller: the reader failed")
            error = PenstockError("UPSTREAM_UNREACHABLE", f"{type(failed).__name__}: {failed}")
        finally:
            at = self._position or self._start
            self._move(None)
        if error is not None and not self._stop.is_set():
            self._on_error(error, at.ts if at is not None else TS_ZERO)

    def _on_error(self, error: PenstockError, at_ts: int) -> None:
        pause_s = self._trouble.note(error, at_ts)
        self.metrics.errors.labels(error.code).inc()
        extra = {"code": error.code, "ts": at_ts, "failures": self._trouble.failures, "pause_s": round(pause_s, 3)}
        _log.warning("single log puller: the log broke off", extra=extra)
        if error.kind is not ErrorKind.TRANSIENT:
            for subscription in self._hit_by(error, self._routes.all()):
                subscription.fail(error)
        self._clock.wait(self._stop, pause_s)

    def _hit_by(self, error: PenstockError, subscriptions: Sequence[Subscription]) -> list[Subscription]:
        """Return the spans that an error ends: of a purged log those that need the place that is gone, otherwise all."""
        start, self._start = self._start, None
        if error.code != "LOG_PURGED" or start is None:
            return list(subscriptions)
        needed = {s.span.span_id: self._keeper.place_for(s.handed_ts) for s in subscriptions}
        return [s for s in subscriptions if (place := needed[s.span.span_id]) is None or place.ts <= start.ts]

    def _read(self) -> None:
        """Read from the place that serves the span furthest back, until a span joins that is further back still."""
        if isinstance(self._steps, Generator):
            # Not left to the collector: whoever holds an errand's error holds the frame that read, and a server serves one reader.
            self._steps.close()
        start = self._join_all()
        if start is None:
            return
        self._again.clear()
        if self._stop.is_set():
            # Closed between the two: the flag that would have ended the reader is the one that was just taken back.
            return
        self._start = start
        marks = self._keeper.begin(start)
        steps = self._steps = self._upstream.read_log(start, marks, self._routes.wants, self._again)
        self._is_between = True
        self._move(start)
        for step in steps:
            # The place was there: whatever breaks from now on concerns everyone.
            self._start = None
            if self._again.is_set():
                return
            self._give(step)
            if self._is_between:
                self._errands.run()
            if self._again.is_set() or (self._wake.is_set() and self._must_go_back()):
                return

    def _join_all(self) -> LogPosition | None:
        """Let every span join, and return where to read from; spans that the journal does not reach back to fail."""
        first = self._keeper.first()
        for subscription in self._routes.running():
            if subscription.handed_ts == TS_ZERO or subscription.span == DDL_SPAN:
                # Nothing is older than the beginning of capture.
                subscription.handed_ts = max(subscription.handed_ts, first.ts)
            elif subscription.handed_ts < first.ts:
                subscription.fail(PenstockError("LOG_PURGED", f"span {subscription.span.span_id}: capture begins after its resolved ts"))
        running = self._routes.running()
        if not running:
            return None
        for subscription in running:
            if not subscription.joined and subscription.span.span_id not in self._lacking:
                place = self._keeper.place_for(subscription.handed_ts)
                subscription.checked_from_ts = place.ts if place is not None else None
        self._routes.join(running)
        found = self._keeper.place_for(min(s.handed_ts for s in running)) or first
        _log.info("single log puller: reading", extra={"ts": found.ts, "spans": len(running)})
        return LogPosition(found.ts, found.text)

    def _must_go_back(self) -> bool:
        """Let new spans join where they are; return whether one needs what the reader has passed already.

        A source decodes ahead of the steps that it gives, and leaves out tables that nobody wants: of such a table, rows of transactions to
        come may be passed already. So only a span of a table that is decoded joins on the way, and not within a transaction.
        """
        self._wake.clear()
        new = [s for s in self._routes.running() if not s.joined]
        at = self._position.ts if self._position is not None else 0
        if not new:
            return False
        if self._is_between and all(s.handed_ts >= at and self._routes.wants(s.span.table_id) for s in new):
            self._routes.join(new)
            return False
        self._clock.wait(self._stop, self.settings.gather_s)
        return True

    def _give(self, step: LogStep) -> None:
        """Hand a step to its spans; then, in this order: doubts, the journal, and the resolved ts that relies on them."""
        if step.position is not None:
            self._keeper.admit(step.position, step.mark, step.nbytes)
        if step.schemas:
            self._journal.save_schemas(step.schemas)
        if step.ddls:
            versions = [table for ddl in step.ddls for table in ddl.tables]
            self._journal.save_schemas(versions)
            if self._publish is not None and versions:
                self._publish(versions)
        changes = self._doubts.followed(step.changes)
        self._doubts.watch(changes)
        self._routes.give(step if changes is step.changes else msgspec.structs.replace(step, changes=changes))
        self._doubts.note(step.doubts)
        if step.position is None:
            self._is_between = self._is_between and not step.changes
            return
        self._keeper.passed(step.position, step.mark)
        self._is_between = True
        now_s = self._clock.monotonic_s()
        emit = step.mark or now_s - self._emitted_s >= self.settings.advance_interval_s
        if emit:
            self._emitted_s = now_s
        self._resolve(step.position, emit)
        self._trouble.passed(step.position.ts)

    def _resolve(self, position: LogPosition, emit: bool) -> None:
        self._routes.handed(position.ts, emit)
        self._keeper.confirm_if_due()
        self._move(position)

    def _move(self, position: LogPosition | None) -> None:
        with self._moved:
            self._position = position
            self._moved.notify_all()

    def _durable_ts(self) -> int:
        advanced_ts = self._routes.advanced_ts()
        return min(advanced_ts, self._needed_from()) if self._needed_from is not None else advanced_ts

    def _lag_s(self) -> float:
        """Return how far the slowest span is behind the clock now, whether steps come or not."""
        ts = self._routes.emitted_ts()
        return lag_seconds(ts, self._clock) if ts else 0.0
