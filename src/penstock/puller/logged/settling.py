"""Settling doubted tables beside a reader: the watch begins, and the mark of corrections is put, between two of its steps.

Invariants: corrections stand at the ts of a mark that is journaled before them, at a place that the reader reached for the first time; the
reader begins again there, so that its chain is raised before it gives another commit. It does not wait for the corrections: they are handed
over beside it (``hand_over.py``). A doubt is closed only when its corrections are durable for every span of the table. Called by whoever
reads tables again, from any thread; what touches the reader runs as its errand. Runs in the log service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.meta.table_states import TableState
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.puller.contract import SpanState
from penstock.puller.doubts import Corrections, Settlement, Watch
from penstock.puller.logged.doubted_tables import DoubtedTables
from penstock.puller.logged.errands import Errands
from penstock.puller.logged.hand_over import HandOver
from penstock.puller.logged.journal_keeper import JournalKeeper
from penstock.puller.logged.reader_place import ReaderPlace
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.logged.span_routes import SpanRoutes, Subscription
from penstock.source.single_log import LoggedUpstream, LogPosition


@dataclass(frozen=True)
class BetweenSteps:
    """The parts of a reader that an errand may use."""

    place: ReaderPlace
    keeper: JournalKeeper
    routes: SpanRoutes
    errands: Errands
    begin_again: Callable[[], None]
    """Make the reader begin again behind this errand."""
    stopped: threading.Event


class TableSettler:
    """What the log service gives to those who read a doubted table again; see ``doubts.py``. Thread safe."""

    def __init__(
        self, upstream: LoggedUpstream, reader: BetweenSteps, doubted: DoubtedTables, settings: SingleLogPullerSettings, clock: Clock
    ) -> None:
        self.lacking: set[int] = set()
        """Spans whose rows were found missing: a re-read corrects them, and they are not asked again."""
        self._upstream = upstream
        self._reader = reader
        self._doubted = doubted
        self._settings = settings
        self._timeout_s = settings.settle_timeout_s
        self._clock = clock

    def table_states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""
        return self._doubted.states()

    def doubt_table(self, table_id: int, schema: str, table: str, reason: str) -> None:
        """Doubt a table because somebody asks for it."""
        self._doubted.request(table_id, schema, table, reason, self._reader.keeper.furthest_ts)

    def note_missing(self, span: Span, versions: Sequence[TableSchema]) -> None:
        """Have a table read again of which the store lacks rows that were resolved. Where nobody keeps doubts its span goes on to fail."""
        if self._doubted.has_book:
            self.lacking.add(span.span_id)
            named = [(v.schema, v.table) for v in versions if v.table_id == span.table_id] or [("", "")]
            self.doubt_table(span.table_id, *named[-1], "rows that the log gave are not in the store")

    def begin_watch(self, table_id: int) -> Watch:
        """Remember from now on which keys of a table the log changes."""
        settled_ts = max((s.settled_ts for s in self._doubted.states() if s.table_id == table_id), default=0)
        return self._reader.errands.ask(lambda: self._begin_between(table_id, settled_ts), self._timeout_s)

    def settle(
        self,
        table_id: int,
        corrections: Iterable[Corrections],
        bag: bool = False,
        check: Callable[[], None] = lambda: None,
        alone: bool = False,
        read_at: Sequence[str] = (),
        secure: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> Settlement:
        """Give corrections to the table's spans at a ts of their own; returns when they are durable, and ``secure`` for these spans."""
        end = self._upstream.log_end()
        over = self._reader.errands.ask(lambda: self._mark_between(table_id, end, check, alone), self._timeout_s)
        with over:
            for piece in corrections:
                over.give(piece, bag)
        self._wait_durable(over.spans, over.ts)
        secure([s.span.span_id for s in over.spans])
        # Of rows that are counted, one that the log brought before they were read may hide that the store had one too many.
        hidden = bag and not all(self._upstream.reached(over.quiet_at, place) for place in read_at)
        again = "the log changed rows that cannot be told from others" if hidden or (bag and over.left_out) else self._uncovered(table_id)
        return Settlement(over.ts, over.rows, over.left_out, closed=self._doubted.close(table_id, over.ts, again))

    def fail_round(self, table_id: int, error: PenstockError, retry_s: float) -> None:
        """End a re-read without corrections."""
        self._doubted.fail(table_id, error, retry_s)

    def look_again(self) -> None:
        """Have the reader begin again where it is: the source forgets then which tables it could not tell."""
        self._reader.begin_again()

    def forget_table(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Forget the doubts of a table that is gone."""
        self._doubted.forget(table_id, schema, table)

    def _begin_between(self, table_id: int, settled_ts: int) -> Watch | None:
        place, routes = self._reader.place, self._reader.routes
        position = place.position
        if position is None or not place.is_between or position.ts < self._reader.keeper.furthest_ts:
            return None
        spans = tuple(s.span for s in routes.of_table(table_id))
        if not spans:
            raise PenstockError("TABLE_UNKNOWN", f"no span of table {table_id} is captured")
        begun = Watch(table_id, position.ts, position.text, spans, settled_ts)
        self._doubted.begin_watch(begun)
        return begun

    def _mark_between(self, table_id: int, end: str, check: Callable[[], None], alone: bool) -> HandOver | None:
        """Put a mark where the reader is and begin to hand over at its ts; None while the reader is not where that may be done."""
        reader, position = self._reader, self._reader.place.position
        if position is None or not reader.place.is_between or not self._upstream.reached(position.text, end):
            return None
        if not reader.keeper.is_first_reading(position):
            return None
        self._doubted.watch_of(table_id).end()
        watch = self._doubted.watch_of(table_id)
        spans = {s.span.span_id: s for s in reader.routes.of_table(table_id)}
        behind = [s for s in spans.values() if s.state is not SpanState.RUNNING or not s.joined]
        if behind:
            raise PenstockError("CONGESTED", f"table {table_id}: {len(behind)} of its spans are not captured now")
        if alone and watch.has_changes:
            raise PenstockError("CONGESTED", f"table {table_id}: it got another key, and changed while it was read again")
        check()
        mark = LogPosition(max(position.ts, reader.keeper.furthest_ts) + 1, position.text)
        reader.keeper.put_mark(mark)
        # Whatever happens from here on: the reader's chain must be raised before it gives another commit.
        reader.begin_again()
        over = HandOver(reader.routes, spans, watch, mark.ts, self._settings.hand_over_bytes_max, self._clock, reader.stopped)
        reader.routes.handed(mark.ts, emit=True)
        reader.place.move(mark)
        return over

    def _wait_durable(self, spans: Sequence[Subscription], ts: int) -> None:
        stopped, deadline_s = self._reader.stopped, self._clock.monotonic_s() + self._timeout_s
        while any(s.advanced_ts < ts for s in spans):
            lost = next((s for s in spans if s.state is not SpanState.RUNNING), None)
            if lost is not None or stopped.is_set() or self._clock.monotonic_s() > deadline_s:
                raise (lost.last_error if lost else None) or PenstockError("CONGESTED", f"corrections at ts {ts} are not durable yet")
            self._clock.wait(stopped, 0.02)

    def _uncovered(self, table_id: int) -> str:
        """Return why corrections do not hold for every span of a table; empty if they do."""
        begun = self._doubted.watch_of(table_id).begun
        covered = {s.span_id for s in begun.spans}
        missed = any(s.span.span_id not in covered and s.start_ts < begun.ts for s in self._reader.routes.of_table(table_id))
        return "a span of the table joined while it was read again" if missed else ""
