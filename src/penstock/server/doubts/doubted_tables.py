"""Settles doubted tables: has each read again, one at a time, and goes on with those that failed after a growing pause.

A doubt waits a little, so that several of one table are settled by one re-read. What the log doubts obeys ``on-rewrite``; what an operator,
a schedule or a verification asks for is done in any case. A table that cannot be read is quarantined with its error and tried again; other
tables go on meanwhile, because nothing here holds up the log. All that must survive is in the table states: a process that comes back
finds a re-read that was under way open, and begins it again. Runs in the server, in a thread of its own.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.config.server_tree import RereadSettings
from penstock.feed.bootstrap.bootstrap import BootstrapProgress
from penstock.feed.settings import OnRewrite
from penstock.meta.table_states import TableCondition, TableState
from penstock.model.backoff import Backoff
from penstock.model.clock import Clock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.puller.doubts import Settlement
from penstock.server.doubts.doubt_rules import Recheck
from penstock.server.feeds.keeper import foreign_error
from penstock.server.metrics import DoubtMetrics
from penstock.settings.masking import mask_text

log = logging.getLogger(__name__)
ASKED = "asked for by an operator"
SCHEDULED = "due by recheck-interval"
EXCLUDED = "excluded by an operator"
FOUND = "a verification found rows that differ"
PAUSED = "TABLE_PAUSED"
_LOOK_INTERVAL_S = 1.0
_STOP_WAIT_S = 60.0
_LOOKS_MAX = 3
"""How often a table that the source does not list is looked for before it is quarantined."""


class DoubtedLog(Protocol):
    """The log service as it is needed here; see ``puller/doubts.py``."""

    def table_states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""

    def doubt_table(self, table_id: int, schema: str, table: str, reason: str) -> None:
        """Open a doubt."""

    def fail_round(self, table_id: int, error: PenstockError, retry_s: float) -> None:
        """Note that a re-read failed."""

    def look_again(self) -> None:
        """Have the source asked once more about tables of which no version is known."""

    def forget_table(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Forget the doubts of a table that is gone."""


class TableJob(Protocol):
    """One re-read of one table: ``feed.bootstrap.reread.Reread``."""

    def run(self, table_id: int) -> Settlement | None:
        """Read a table and settle what differs; None where the table is gone."""

    def progress(self) -> BootstrapProgress:
        """Return how far it is."""

    def cancel(self) -> None:
        """Stop; ``run`` raises ``CANCELLED``."""


class DoubtRules(Protocol):
    """What is wished for tables: ``server.doubt_rules.FeedDoubtRules``."""

    def rule(self, schema: str, table: str) -> OnRewrite:
        """Return what is done about a table that is in doubt."""

    def rechecks(self) -> list[Recheck]:
        """Return the tables that are read again on a schedule."""

    def has_table(self, table_id: int) -> bool:
        """Return whether a feed has a table still."""

    def concerns(self, table_id: int, schema: str, table: str) -> bool:
        """Return whether a feed has a table, or a pattern matches it."""


class DoubtedTables:
    """The re-reads of one server. ``scan`` is called by its thread, or by a test that did not start it; the rest by any thread."""

    def __init__(
        self,
        doubted: DoubtedLog,
        job: Callable[[], TableJob],
        rules: DoubtRules,
        settings: RereadSettings,
        clock: Clock,
        jitter: random.Random,
        metrics: DoubtMetrics,
        follows: Callable[[], bool] = lambda: True,
    ) -> None:
        """``job`` makes what reads one table once; ``follows`` says whether the log is read here, where doubts are settled."""
        self._doubted = doubted
        self._make_job = job
        self._rules = rules
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._metrics = metrics
        self._follows = follows
        self._lock = threading.Lock()
        self._asked: set[int] = set()
        self._excluding: set[int] = set()
        self._not_before_ms: dict[int, int] = {}
        self._running: tuple[int, TableJob] | None = None
        self._began_ms = clock.now_ms()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doubted-tables", daemon=True)

    def start(self) -> None:
        """Begin to settle doubts."""
        self._thread.start()

    def stop(self) -> None:
        """Stop what is under way and end; open doubts stay open."""
        self._stop.set()
        self._wake.set()
        with self._lock:
            running = self._running
        if running is not None:
            running[1].cancel()
        if self._thread.ident is not None:
            self._thread.join(_STOP_WAIT_S)

    def states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""
        return self._doubted.table_states()

    def progress(self, table_id: int) -> BootstrapProgress | None:
        """Return how far the re-read of a table is, None where it is not under way."""
        with self._lock:
            running = self._running
        return running[1].progress() if running is not None and running[0] == table_id else None

    def will_settle(self, state: TableState) -> bool:
        """Return whether a table in doubt is read again without an operator's word."""
        return state.table_id in self._asked or (state.table_id != 0 and self._wish(state) == "resnapshot")

    def resnapshot(self, table_id: int, schema: str, table: str, reason: str = ASKED) -> None:
        """Have a table read again, in doubt or not, as soon as possible; ``reason`` is ``ASKED`` or ``FOUND``."""
        self._doubted.doubt_table(table_id, schema, table, reason)
        self._let_go_on([s for s in self._doubted.table_states() if s.table_id == table_id and s.is_open])
        self._hurry(table_id)

    def retry(self, table_ids: Sequence[int]) -> None:
        """Read tables that are in doubt again now rather than when their pause is over; raises where none of them is."""
        found = [s for s in self._doubted.table_states() if s.table_id in table_ids and s.is_open]
        if not found:
            raise PenstockError("TABLE_UNKNOWN", "the table is not in doubt", "Use resnapshot to have it read again in any case.")
        self._let_go_on(found)
        for state in found:
            self._hurry(state.table_id)

    def exclude(self, table_id: int, schema: str, table: str) -> None:
        """Leave a table out, of every feed that has it, until it is asked for again; that delivers what differs by then."""
        with self._lock:
            if self._running is not None and self._running[0] == table_id:
                raise PenstockError("CONGESTED", f"{schema}.{table} is being read again", "Exclude it when that is done.")
            self._asked.discard(table_id)
            self._excluding.add(table_id)
        try:
            self._doubted.doubt_table(table_id, schema, table, EXCLUDED)
            self._doubted.fail_round(table_id, PenstockError(PAUSED, f"{schema}.{table}: {EXCLUDED}"), 0.0)
        finally:
            with self._lock:
                self._excluding.discard(table_id)
        log.warning("table is excluded", extra={"table": f"{schema}.{table}", "table_id": table_id})

    def look_again(self) -> None:
        """Ask the source once more about tables of which no version is known; their rows are followed from the next one on."""
        self._doubted.look_again()

    def scan(self) -> bool:
        """Open the doubts that a schedule asks for and settle the oldest one that is due; return whether there was one."""
        if not self._follows():
            return False
        try:
            states = self._doubted.table_states()
            self._open_scheduled(states)
            due = [s for s in states if self._is_due(s)]
        except PenstockError as error:
            log.warning("doubted tables cannot be looked at", extra={"code": error.code})
            return False
        if not due:
            return False
        self._settle(min(due, key=lambda s: (s.table_id not in self._asked, s.since_ms)))
        return True

    def _let_go_on(self, states: Sequence[TableState]) -> None:
        """Make it durable that tables shall be read again which would not be: whoever asked was told so, whatever ends meanwhile."""
        for state in states:
            if self._wish(state) != "resnapshot":
                self._doubted.fail_round(state.table_id, PenstockError("SNAPSHOT_DUE", ASKED), 0.0)

    def _hurry(self, table_id: int) -> None:
        with self._lock:
            self._asked.add(table_id)
            self._not_before_ms.pop(table_id, None)
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            if not self.scan():
                self._clock.wait(self._wake, _LOOK_INTERVAL_S)

    def _open_scheduled(self, states: Sequence[TableState]) -> None:
        known = {s.table_id: s for s in states}
        for wanted in self._rules.rechecks():
            state = known.get(wanted.table_id)
            if state is not None and state.is_open:
                continue
            last_ms = state.since_ms if state is not None else self._began_ms
            if self._clock.now_ms() >= last_ms + wanted.interval_s * 1000:
                self._doubted.doubt_table(wanted.table_id, wanted.schema, wanted.table, SCHEDULED)

    def _is_due(self, state: TableState) -> bool:
        if not state.is_open or state.table_id in self._excluding:
            return False
        if state.table_id == 0:
            # A table of which only the name is known waits until the log tells more; one that nobody wants does not.
            self._is_nobodys(state)
            return False
        if state.table_id in self._asked:
            return True
        now_ms = self._clock.now_ms()
        pause_ms = max(state.next_attempt_ms, self._not_before_ms.get(state.table_id, 0))
        if state.state is not TableCondition.REREADING:
            pause_ms = max(pause_ms, state.since_ms + round(self._settings.delay_s * 1000))
        return now_ms >= pause_ms and not self._is_nobodys(state) and self._is_wished(state)

    def _is_nobodys(self, state: TableState) -> bool:
        """Forget a table that no feed has: whoever comes to have it begins with its rows as they are then."""
        if self._rules.concerns(state.table_id, state.schema, state.table):
            return False
        self._doubted.forget_table(state.table_id, state.schema, state.table)
        self._metrics.rereads.labels("gone").inc()
        log.info("doubted table is in no feed", extra=_shown(state))
        return True

    def _is_wished(self, state: TableState) -> bool:
        wish = self._wish(state)
        if wish == "pause-table" and state.code != PAUSED:
            detail = f"{state.schema}.{state.table} is left out: {state.reason}"
            self._doubted.fail_round(state.table_id, PenstockError(PAUSED, detail), 0.0)
            log.warning("doubted table is paused", extra=_shown(state))
        return wish == "resnapshot"

    def _wish(self, state: TableState) -> OnRewrite:
        if state.code == PAUSED and state.state is TableCondition.QUARANTINED:
            return "pause-table"
        if state.reason in {ASKED, SCHEDULED, FOUND} or state.attempts:
            return "resnapshot"
        rule = self._rules.rule(state.schema, state.table)
        # Of a table with a code the log tells nothing at all: keeping it as it is would lose every change from now on.
        return "resnapshot" if rule == "keep" and state.code else rule

    def _settle(self, state: TableState) -> None:
        log.info("doubted table is read again", extra=_shown(state) | {"reason": state.reason, "attempt": state.attempts + 1})
        began_s = self._clock.monotonic_s()
        job = self._make_job()
        with self._lock:
            self._asked.discard(state.table_id)
            self._running = (state.table_id, job)
        try:
            if self._stop.is_set():
                return
            settlement = job.run(state.table_id)
        except PenstockError as error:
            self._failed(state, error)
        except Exception as error:  # noqa: BLE001 - drivers and Spark may raise anything; it must not end the others' re-reads
            self._failed(state, foreign_error(error))
        else:
            self._settled(state, settlement, self._clock.monotonic_s() - began_s)
        finally:
            with self._lock:
                self._running = None

    def _settled(self, state: TableState, settlement: Settlement | None, took_s: float) -> None:
        if settlement is None:
            self._missed(state)
            return
        self._metrics.rereads.labels("settled" if settlement.closed else "again").inc()
        self._metrics.corrections.inc(settlement.rows)
        self._metrics.seconds.observe(took_s)
        if not settlement.closed:
            self._not_before_ms[state.table_id] = self._clock.now_ms() + round(self._pause_s(state) * 1000)
        else:
            self._not_before_ms.pop(state.table_id, None)
        found = {"rows": settlement.rows, "left_out": settlement.left_out, "ts": settlement.ts, "seconds": round(took_s, 3)}
        log.info("doubted table corrected" if settlement.closed else "doubted table needs another round", extra=_shown(state) | found)

    def _missed(self, state: TableState) -> None:
        """Forget a table that the source does not list, once no feed has it; until then it may only be hidden."""
        if self._rules.has_table(state.table_id):
            # A feed takes a moment to pass the drop.
            code = "UPSTREAM_CHANGING" if state.attempts < _LOOKS_MAX else "TABLE_UNKNOWN"
            detail = f"{state.schema}.{state.table} is not among the tables of the source"
            self._failed(state, PenstockError(code, detail, "Check that the table exists and that the user may read it."))
            return
        self._doubted.forget_table(state.table_id)
        self._metrics.rereads.labels("gone").inc()
        log.info("doubted table is gone", extra=_shown(state))

    def _failed(self, state: TableState, error: PenstockError) -> None:
        if error.code == "CANCELLED" and self._stop.is_set():
            return
        if error.code == "CONGESTED" and not self._is_begun(state):
            # Its feed is about to capture it, after a restart: that is no attempt, and why the table is in doubt must stay on record.
            self._not_before_ms[state.table_id] = self._clock.now_ms() + round(self._settings.delay_s * 1000)
            return
        # A schema that changed meanwhile, or a store that lags, says nothing against the table.
        retry_s = self._settings.delay_s if error.code == "UPSTREAM_CHANGING" else self._pause_s(state)
        self._metrics.rereads.labels("failed").inc()
        shown = _shown(state) | {"code": error.code, "attempt": state.attempts + 1, "retry_s": round(retry_s, 1)}
        level = logging.INFO if error.kind is ErrorKind.TRANSIENT else logging.WARNING
        log.log(level, "doubted table could not be read", extra=shown)
        masked = PenstockError(error.code, mask_text(error.detail), error.hint)
        try:
            self._doubted.fail_round(state.table_id, masked, retry_s)
        except PenstockError as lost:
            log.warning("failure of a re-read not recorded", extra=_shown(state) | {"code": lost.code})
            self._not_before_ms[state.table_id] = self._clock.now_ms() + round(retry_s * 1000)

    def _is_begun(self, state: TableState) -> bool:
        return any(s.table_id == state.table_id and s.state is TableCondition.REREADING for s in self._doubted.table_states())

    def _pause_s(self, state: TableState) -> float:
        return Backoff(self._settings.backoff_s, self._settings.backoff_max_s).pause_s(state.attempts + 1, self._jitter)


def _shown(state: TableState) -> dict[str, object]:
    return {"table": f"{state.schema}.{state.table}", "table_id": state.table_id}
