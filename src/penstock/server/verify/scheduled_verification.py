"""Verification on a schedule: every ``verify-interval`` one key range of each table of a feed is compared with the source.

What is compared is the event store's state, from which every target is delivered. The ranges of a span take turns, beginning anywhere, so
all are looked at over time, and a range that was found to differ is looked at in every round until it does not. One range at a time, over
all feeds, in one thread that nothing waits for. A table that cannot be looked at (in doubt, hidden rows, no privilege, a DDL in between) is
named with the reason and hinders no other. What was found lives as long as the process; with ``verify-repair`` it becomes a doubt, which
survives it. Runs in the server.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from penstock.feed.window.following import from_record
from penstock.meta.database import MetaDatabase
from penstock.meta.records import ReachedState
from penstock.meta.table_states import TableState
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.server.feeds.creation import FeedDocument
from penstock.server.feeds.keeper import foreign_error
from penstock.server.metrics import VerifyMetrics
from penstock.server.source_address import same_source
from penstock.server.verify.range_check import next_piece
from penstock.server.verify.table_comparison import TableVerdict
from penstock.settings.masking import mask_text

log = logging.getLogger(__name__)
PROBLEMS_MAX = 16
"""How many differing ranges of a span are remembered; others are found again in their turn."""
_LOOK_INTERVAL_S = 1.0
_STOP_WAIT_S = 60.0


class Check(Protocol):
    """What compares: ``server.verify.range_check.RangeCheck``."""

    def pieces(self, span: Span) -> list[Span]:
        """Return the ranges of a span, in key order."""

    def check(self, span: Span, piece: Span, stop: threading.Event) -> TableVerdict:
        """Compare a range."""


class VerifyWish(msgspec.Struct, frozen=True):
    """A feed that wants its tables verified: each span with its table's name."""

    feed: str
    interval_s: float
    repair: bool
    spans: tuple[tuple[Span, str, str], ...]


class _Progress(msgspec.Struct):
    """Where the turns of one span are, and what was found."""

    schema: str
    table: str
    cursor: bytes
    ranges: int = 0
    ranges_checked: int = 0
    rows_checked: int = 0
    checked_ms: int = 0
    unchecked: str = ""
    problems: dict[Span, TableVerdict] = {}


class ScheduledVerification:
    """The schedule of one server. ``scan`` is called by its thread, or by a test that did not start it; the rest by any thread."""

    def __init__(
        self,
        check: Check,
        wishes: Callable[[], Sequence[VerifyWish]],
        states: Callable[[], Sequence[TableState]],
        repair: Callable[[int, str, str], None],
        clock: Clock,
        rng: random.Random,
        metrics: VerifyMetrics,
    ) -> None:
        """``states`` are those of doubted tables; ``repair`` has a table read again."""
        self._check = check
        self._wishes = wishes
        self._states = states
        self._repair = repair
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._lock = threading.Lock()
        self._found: dict[str, dict[Span, _Progress]] = {}
        self._due_ms: dict[str, int] = {}
        self._rounds: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduled-verification", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop what is under way and end."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_WAIT_S)

    def view(self, feed: str) -> dict[str, Any] | None:
        """Return what was found of a feed's tables, None where it is not verified on a schedule."""
        with self._lock:
            spans = self._found.get(feed)
            if spans is None:
                return None
            shown = [_shown(progress) for _, progress in sorted(spans.items())]
            return {"rounds": self._rounds.get(feed, 0), "next_ms": self._due_ms.get(feed), "tables": shown}

    def scan(self) -> bool:
        """Do the round of the feed that waits for longest; return whether one was due."""
        try:
            wishes = {w.feed: w for w in self._wishes()}
        except PenstockError as error:
            log.warning("feeds to verify cannot be looked at", extra={"code": error.code})
            return False
        now_ms = self._clock.now_ms()
        with self._lock:
            for gone in self._found.keys() - wishes.keys():
                self._found.pop(gone)
                self._due_ms.pop(gone, None)
                self._metrics.forget(gone)
            for wish in wishes.values():
                self._found.setdefault(wish.feed, {})
                # The first round after one interval: a server that starts has other things to do.
                latest_ms = now_ms + round(wish.interval_s * 1000)
                self._due_ms[wish.feed] = min(self._due_ms.get(wish.feed, latest_ms), latest_ms)
            due = [feed for feed, at_ms in self._due_ms.items() if at_ms <= now_ms]
        if not due:
            return False
        self._round(wishes[min(due, key=lambda feed: self._due_ms[feed])])
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.scan():
                self._clock.wait(self._stop, _LOOK_INTERVAL_S)

    def _round(self, wish: VerifyWish) -> None:
        progress = self._begin(wish)
        for span, one in progress.items():
            if self._stop.is_set():
                return
            self._verify(wish, span, one)
        with self._lock:
            self._rounds[wish.feed] = self._rounds.get(wish.feed, 0) + 1
            self._due_ms[wish.feed] = self._clock.now_ms() + round(wish.interval_s * 1000)

    def _begin(self, wish: VerifyWish) -> dict[Span, _Progress]:
        """Return the spans of a feed as they are now, with where their turns are."""
        with self._lock:
            known = self._found.setdefault(wish.feed, {})
            fresh = {}
            for span, schema, table in wish.spans:
                old = known.get(span)
                # Anywhere: a server that is often started again must not look at the first ranges only.
                fresh[span] = old or _Progress(schema, table, self._rng.randbytes(8), problems={})
                fresh[span].schema, fresh[span].table = schema, table
            self._found[wish.feed] = fresh
            return dict(fresh)

    def _verify(self, wish: VerifyWish, span: Span, one: _Progress) -> None:
        """Compare the next range of a span, and the oldest one that was found to differ."""
        before = self._state(span)
        if before is not None and before.is_open:
            self._note(wish, one, unchecked=_in_doubt(before))
            return
        try:
            pieces = self._check.pieces(span)
            piece = next_piece(pieces, one.cursor)
            with self._lock:
                again = [known for known in list(one.problems)[:1] if known != piece]
            for chosen in (*again, piece):
                verdict = self._check.check(span, chosen, self._stop)
                after = self._state(span)
                if after is not None and verdict.differs and (after.is_open or after != before):
                    # The log doubted it meanwhile, and may have been corrected already: what was seen says nothing.
                    self._note(wish, one, unchecked=_in_doubt(after))
                    return
                self._compared(wish, span, one, chosen, verdict)
        except PenstockError as error:
            self._failed(wish, one, error)
        except Exception as error:  # noqa: BLE001 - drivers may raise anything; it must not end the others' turns
            self._failed(wish, one, foreign_error(error))
        else:
            with self._lock:
                one.ranges, one.cursor = len(pieces), piece.end_key
            self._note(wish, one)

    def _state(self, span: Span) -> TableState | None:
        return next((s for s in self._states() if s.table_id == span.table_id), None)

    def _compared(self, wish: VerifyWish, span: Span, one: _Progress, piece: Span, verdict: TableVerdict) -> None:
        with self._lock:
            was = one.problems.pop(piece, None)
            one.ranges_checked += 1
            one.rows_checked += verdict.rows
            if verdict.differs and len(one.problems) < PROBLEMS_MAX:
                one.problems[piece] = verdict
        self._metrics.ranges.labels("differs" if verdict.differs else "identical").inc()
        self._metrics.rows.inc(verdict.rows)
        name = f"{one.schema}.{one.table}"
        if not verdict.differs:
            if was is not None:
                log.info("verification found a difference gone", extra={"feed": wish.feed, "table": name})
            return
        found = {"missing": verdict.missing, "unexpected": verdict.unexpected, "different": verdict.different}
        log.warning("verification found rows that differ", extra={"feed": wish.feed, "table": name, "repair": wish.repair} | found)
        if wish.repair:
            self._repair(span.table_id, one.schema, one.table)

    def _failed(self, wish: VerifyWish, one: _Progress, error: PenstockError) -> None:
        if error.code == "CANCELLED" and self._stop.is_set():
            return
        self._metrics.ranges.labels("unchecked").inc()
        log.info("table could not be verified", extra={"feed": wish.feed, "table": f"{one.schema}.{one.table}", "code": error.code})
        self._note(wish, one, unchecked=f"[{error.code}] {mask_text(error.detail)}. {error.hint}")

    def _note(self, wish: VerifyWish, one: _Progress, unchecked: str = "") -> None:
        with self._lock:
            one.unchecked = unchecked
            if not unchecked:
                one.checked_ms = self._clock.now_ms()
            wrong = sum(v.missing + v.unexpected + v.different for v in one.problems.values())
        self._metrics.note(wish.feed, f"{one.schema}.{one.table}", wrong)


def _in_doubt(state: TableState) -> str:
    return f"it is {state.state.value}: {mask_text(state.reason)}" if state.is_open else "it was read again meanwhile"


def _shown(one: _Progress) -> dict[str, Any]:
    verdicts = list(one.problems.values())
    state = "differs" if verdicts else "unchecked" if one.unchecked else "identical" if one.ranges_checked else "waiting"
    return {
        "name": f"{one.schema}.{one.table}",
        "state": state,
        "checked_ms": one.checked_ms or None,
        "ranges": one.ranges,
        "ranges_checked": one.ranges_checked,
        "rows_checked": one.rows_checked,
        "missing": sum(v.missing for v in verdicts),
        "unexpected": sum(v.unexpected for v in verdicts),
        "different": sum(v.different for v in verdicts),
        "sample_keys": [key for v in verdicts for key in v.sample_keys][:5],
        "unchecked": one.unchecked,
    }


def feed_wishes(meta: MetaDatabase, source: str) -> list[VerifyWish]:
    """Return the feeds of a source that run and want their tables verified; a table whose first state is not read yet is left out."""
    found = []
    for feed in meta.list_feeds():
        document = FeedDocument.of(feed)
        if feed.reached_state is not ReachedState.RUNNING or not same_source(document.source, source):
            continue
        settings = document.feed_config().settings
        if settings.verify_interval_s:
            live = [from_record(r) for r in meta.dispatchers(feed.name) or []]
            spans = tuple((d.span, d.schema, d.table) for d in live if not d.with_state)
            found.append(VerifyWish(feed.name, settings.verify_interval_s, settings.verify_repair, spans))
    return found
