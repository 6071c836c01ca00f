"""The puller of an upstream whose tables share one log: one reader, many spans.

Owns the thread that reads the log. A span that joins further back than the reader is makes it read again from there; what the others have
already is left out for them (``span_routes.py``). Of each step, in this order: its position is admitted, its doubts are kept, its rows are
handed over, its position is journaled (``journal_keeper.py``), and only then the resolved ts that relies on all of it. A refusal on
the way ends the step and the reader. A connection that breaks is opened again from the last position, with a pause that grows until the
reader gets past the place where it broke off (``break_off.py``); an error that only an operator can end fails all spans, and their owner
subscribes them again. Runs in the log service.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Generator, Iterator, Sequence

import msgspec

from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO, lag_seconds
from penstock.puller.contract import NewBeginning, SpanProgress
from penstock.puller.doubts import DoubtBook
from penstock.puller.logged.break_off import BreakOff
from penstock.puller.logged.doubted_tables import DoubtedTables, created_in
from penstock.puller.logged.errands import Errands
from penstock.puller.logged.journal_keeper import Journal, JournalKeeper
from penstock.puller.logged.reader_place import ReaderPlace
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.logged.settling import BetweenSteps, TableSettler
from penstock.puller.logged.span_routes import RefusedError, SpanRoutes, Subscription
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.span_pipeline import Advance, Consume, OnError, SpanPipeline
from penstock.source.single_log import AsksItsCatalog, LoggedUpstream, LogPosition, LogStep, ServesOneReader

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
        self._trouble = BreakOff(self.settings.retry_min_s, self.settings.retry_max_s, rng or system_random())
        self._place = ReaderPlace()
        self._start: LogPosition | None = None
        """Where the reader is about to begin; only its thread looks at it."""
        self._emitted_s = float("-inf")
        self._stop = threading.Event()
        self._again = threading.Event()
        self._wake = threading.Event()
        self._errands = Errands(self._wake.set)
        self._doubted = DoubtedTables(doubts, self._clock, self.settings.watch_keys_max)
        between = BetweenSteps(self._place, self._keeper, self._routes, self._errands, self._again.set, self._stop)
        self.doubts = TableSettler(upstream, between, self._doubted, self.settings, self._clock)
        """What those need who read a doubted table again."""
        self.metrics.resolved_lag.set_function(self._lag_s)
        upstream.adopt_schemas(journal.schemas())
        self._thread = threading.Thread(target=self._run, name="single-log-puller", daemon=True)
        self._thread.start()

    def subscribe(self, span: Span, start_ts: int, consume: Consume, advance: Advance, on_failed: OnError | None = None) -> int:
        """Begin to give a span what lies above ``start_ts``; the same promises as ``LogPuller.subscribe``, with ``SpanStep`` payloads."""
        if self._stop.is_set():
            raise PenstockError("CANCELLED", "the log puller is closed")
        self._doubted.joined(span.table_id, start_ts)

        def failed(error: PenstockError) -> None:
            if error.code == "RESOLVED_TS_VIOLATED":
                self.doubts.note_missing(span, self._journal.schemas())
            if on_failed is not None:
                on_failed(error)

        self._routes.add(span, start_ts, consume, advance, failed)
        self._wake.set()
        return span.span_id

    def keep_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Keep table versions in the journal, for the upstream to take over after a restart. Any thread may call it."""
        self._journal.save_schemas([*versions, *self._upstream.notes()])

    def unsubscribe(self, span_id: int) -> None:
        """Stop giving a span anything: neither of its functions is called after this returns. Does nothing if it is not subscribed."""
        self._routes.remove(span_id)
        if not self._routes.all():
            # A log that nobody wants is not read, nor journaled: another server may.
            self._again.set()

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
        while not self._stop.is_set():
            position = self._place.wait_for(lambda at: self._upstream.reached(at.text, end), 1.0)
            if position is not None:
                return position.ts
            if self._clock.monotonic_s() > deadline_s:
                raise self._trouble.error or PenstockError("CONGESTED", f"the log is not read up to {end} yet")
        raise PenstockError("CANCELLED", "the log puller is closed")

    def begin_again(self, told_ts: int) -> NewBeginning:
        """Note the end of the log as a place from which it can be read, because it was purged before.

        Spans that begin there, or later, go on; what lies between the purged part and the end is in no log that anyone captures.
        """

        def note() -> NewBeginning:
            begun = self._keeper.begin_again(max((s.handed_ts for s in self._routes.all()), default=TS_ZERO), told_ts)
            # A reader that is under way does not know of the mark yet.
            self._again.set()
            self._doubted.created(created_in(begun.ddls))
            self._doubted.renamed(begun.ddls)
            extra = {"ts": begun.position.ts, "ddls": len(begun.ddls)}
            _log.warning("single log puller: capture begins again at the end of the log", extra=extra)
            return NewBeginning(begun.position.ts, begun.ddls)

        return self._errands.ask(note, self.settings.settle_timeout_s)

    def release(self) -> None:
        """Give back what was made at the upstream; a reading that goes on ends."""
        self._upstream.release()

    def close(self) -> None:
        """Stop reading. The pipeline's owner closes the pipeline before, so that nothing waits for its quota."""
        self._stop.set()
        self._again.set()
        self._wake.set()
        self._thread.join()

    # -- the reader's thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                self._errands.run()
                if not self._routes.running():
                    self._let_go()
                    self._clock.wait(self._wake, 3600.0)
                    continue
                self._read_and_recover()
        except RefusedError:
            _log.info("single log puller: the pipeline is closed")
        finally:
            self._errands.end()
            self._let_go()

    def _let_go(self) -> None:
        """Leave the log to whoever wants it next; where that cannot be said, the lease ends by itself."""
        try:
            self._journal.let_go()
        except PenstockError as error:
            _log.warning("single log puller: the log was not let go", extra={"code": error.code})

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
            at = self._place.position or self._start
            self._place.move(None)
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
        self._journal.hold()
        if isinstance(self._upstream, ServesOneReader):
            self._upstream.read_as(*self._journal.readers, lambda: self._journal.hold(afresh=True))
        start = self._join_all()
        if start is None:
            return
        if isinstance(self._upstream, AsksItsCatalog):
            self._upstream.told_up_to(max((s.handed_ts for s in self._routes.of_table(DDL_SPAN.table_id)), default=TS_ZERO))
        self._again.clear()
        if self._stop.is_set():
            # Closed between the two: the flag that would have ended the reader is the one that was just taken back.
            return
        self._start = start
        marks = self._keeper.begin(start)
        steps = self._upstream.read_log(start, marks, self._routes.wants, self._again)
        self._place.is_between = True
        self._place.move(start)
        try:
            self._follow(steps)
        finally:
            if isinstance(steps, Generator):
                # Not left to the collector: whoever holds an errand's error holds this frame, and a server serves one reader of a slot.
                steps.close()

    def _follow(self, steps: Iterator[LogStep]) -> None:
        for step in steps:
            if step.position is not None or step.changes or step.ddls:
                # The place was there: whatever breaks from now on concerns everyone. A server that is slow to answer says nothing yet.
                self._start = None
            if self._again.is_set():
                return
            self._give(step)
            if self._place.is_between:
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
            if not subscription.joined and subscription.span.span_id not in self.doubts.lacking:
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
        at = self._place.position.ts if self._place.position is not None else 0
        if not new:
            return False
        if self._place.is_between and all(s.handed_ts >= at and self._routes.wants(s.span.table_id) for s in new):
            self._routes.join(new)
            return False
        self._clock.wait(self._stop, self.settings.gather_s)
        return True

    def _give(self, step: LogStep) -> None:
        """Keep the doubts of a step and hand it to its spans; then the journal, and the resolved ts that relies on them."""
        # Behind the reading of the step: a reader that begins after this puts its marks behind it, so its ts is the same there.
        self._journal.hold()
        if step.position is not None:
            self._keeper.admit(step.position, step.mark, step.nbytes)
        # First of all: a version that is kept is not told again, so neither would be the doubt that came with it.
        self._doubted.note(step.doubts)
        if step.schemas:
            self._journal.save_schemas(step.schemas)
        if step.ddls:
            versions = [table for ddl in step.ddls for table in ddl.tables]
            self._journal.save_schemas(versions)
            if self._publish is not None and versions:
                self._publish(versions)
        followed = step
        if self._doubted.wants_changes:
            followed = msgspec.structs.replace(step, changes=self._doubted.followed(step.changes))
            self._doubted.watch(followed.changes)
        self._routes.give(followed)
        self._doubted.note(step.doubts)
        if step.ddls:
            self._doubted.created(created_in(step.ddls))
            self._doubted.renamed(step.ddls)
        self._doubted.gone(step.gone)
        if step.position is None:
            self._place.is_between = self._place.is_between and not step.changes
            return
        self._keeper.passed(step.position, step.mark)
        self._doubted.passed(step.position.text)
        self._place.is_between = True
        now_s = self._clock.monotonic_s()
        emit = step.mark or now_s - self._emitted_s >= self.settings.advance_interval_s
        if emit:
            self._emitted_s = now_s
        self._routes.handed(step.position.ts, emit)
        self._keeper.confirm_if_due()
        self._place.move(step.position)
        self._trouble.passed(step.position.ts)

    def _durable_ts(self) -> int:
        advanced_ts = self._routes.advanced_ts()
        return min(advanced_ts, self._needed_from()) if self._needed_from is not None else advanced_ts

    def _lag_s(self) -> float:
        """Return how far the slowest span is behind the clock now, whether steps come or not."""
        ts = self._routes.emitted_ts()
        return lag_seconds(ts, self._clock) if ts else 0.0
