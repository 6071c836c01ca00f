"""The log service's half of doubted tables without a log: real table states, and re-reads that end as a script says. Runs in tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from penstock.feed.bootstrap.bootstrap import BootstrapProgress
from penstock.meta.engine import sqlite_url
from penstock.meta.table_states import TableCondition, TableState, TableStates
from penstock.model.clock import Clock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.puller.doubts import Settlement

Ending = Settlement | PenstockError | None
SETTLED = Settlement(ts=1, rows=0, left_out=0, closed=True)


class ScriptedDoubts:
    """Implements ``DoubtedLog`` and makes ``TableJob``s. ``endings`` says how the re-reads of a table end, one after the other.

    ``before`` is called with a table id while its re-read is under way; ``read`` lists the tables that were read, in order.
    """

    def __init__(self, directory: Path, clock: Clock, source: str = "a") -> None:
        self._states = TableStates(sqlite_url(directory / "meta.db"), source, clock)
        self.endings: dict[int, list[Ending]] = {}
        self.before: Callable[[int], None] = lambda _: None
        self.read: list[int] = []
        self.uncaptured: set[int] = set()
        self.ts = 100
        self.looks = 0

    def table_states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""
        return self._states.states()

    def state(self, table_id: int) -> TableState:
        """Return the state of one table."""
        return next(s for s in self._states.states() if s.table_id == table_id)

    def doubt_table(self, table_id: int, schema: str, table: str, reason: str, code: str = "") -> None:
        """Open a doubt."""
        self.ts += 1
        state = TableCondition.QUARANTINED if code else TableCondition.DOUBTFUL
        self._states.open(TableState(table_id, schema, table, state, reason, code, doubt_ts=self.ts))

    def begin(self, table_id: int) -> None:
        """Note that a re-read begins, as ``begin_watch`` does."""
        self._states.begin(table_id)

    def settle(self, table_id: int, settlement: Settlement) -> None:
        """Close a doubt as a settlement says."""
        self._states.close_doubt(table_id, self.ts if settlement.closed else 0, settlement.ts)

    def fail_round(self, table_id: int, error: PenstockError, retry_s: float) -> None:
        """Note that a re-read failed."""
        code, hint = (error.code, error.hint) if error.kind is not ErrorKind.TRANSIENT else ("", "")
        self._states.fail(table_id, error.detail, code, hint, self._states._clock.now_ms() + round(retry_s * 1000))

    def look_again(self) -> None:
        """Count how often it was asked."""
        self.looks += 1

    def forget_table(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Forget a table that is gone."""
        self._states.forget(table_id, schema, table)

    def job(self) -> ScriptedReread:
        """Return a re-read."""
        return ScriptedReread(self)

    def close(self) -> None:
        """Close the states."""
        self._states.close()


class ScriptedReread:
    """One re-read. Implements ``TableJob``."""

    def __init__(self, doubts: ScriptedDoubts) -> None:
        self._doubts = doubts
        self.cancelled = threading.Event()

    def run(self, table_id: int) -> Settlement | None:
        """End as the script says."""
        if table_id in self._doubts.uncaptured:
            raise PenstockError("CONGESTED", "no span of the table is captured")
        self._doubts.begin(table_id)
        self._doubts.read.append(table_id)
        self._doubts.before(table_id)
        if self.cancelled.is_set():
            raise PenstockError("CANCELLED", "stopped")
        endings = self._doubts.endings.get(table_id, [])
        ending = endings.pop(0) if endings else SETTLED
        if isinstance(ending, PenstockError):
            raise ending
        if ending is not None:
            self._doubts.settle(table_id, ending)
        return ending

    def progress(self) -> BootstrapProgress:
        """Return a progress that tests know again."""
        return BootstrapProgress(4, 1, 250)

    def cancel(self) -> None:
        """Let ``run`` raise ``CANCELLED``."""
        self.cancelled.set()
