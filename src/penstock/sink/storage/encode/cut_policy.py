"""When a dispatcher's file is cut: a state machine over counts, weights and times, which holds no rows and does nothing itself.

A file ends after the chunk that fills it, at another table version, at another commit date, and where the dispatcher is drained. In a
window that lasts longer than the flush interval the clock cuts as well; that row is recorded before the file is published. Invariants: rows
and recorded cuts alone decide where files end, however rows are divided into events; where an earlier attempt left a record, the own clock
rests until it is reached; where transactions stay whole, no cut lies inside one. Runs on executors.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from penstock.sink.storage.cut_records import CutRecord
from penstock.sink.storage.encode.flush_policy import FlushReason
from penstock.target.settings import Atomicity


class ClockState(Enum):
    """What the clock makes of the file that is being filled."""

    AT_REST = "no row waits"
    RUNNING = "rows wait for the interval to pass"
    DUE = "it has passed, inside a transaction that stays whole"


class Turn(Enum):
    """Whose time the clock goes by.

    Dispatchers whose rows began to wait together would be flushed together for ever; after its first cut by the clock each one finds
    a time of its own. Windows that end within an interval never come to that.
    """

    SHARED = "that of all who began together"
    SOUGHT = "the next interval is shorter"
    OWN = "its own"


class Answer(Enum):
    """What is to be done when the clock asks."""

    NOTHING = "no row waits"
    LATER = "a cut by size came first; what waits now came later"
    MORE_ROWS = "the end of the file is still to come, so rows must be let in"
    CUT = "the file ends here"


class CutPolicy:
    """Decides about the cuts of one dispatcher in one window. ``file`` numbers the files from 0."""

    def __init__(
        self, dispatcher: str, interval_s: float, file_size: int, atomicity: Atomicity = Atomicity.NONE, recorded: Sequence[CutRecord] = ()
    ) -> None:
        self._head_start_s = interval_s * (zlib.crc32(dispatcher.encode()) % 1024) / 1024
        self._interval_s = interval_s
        self._file_size = file_size
        self._atomicity = atomicity
        self._recorded = deque(sorted(cut for cut in recorded if cut.rows))
        self._by_rows = {cut.file for cut in recorded if not cut.rows}
        self._clock = ClockState.AT_REST
        self._turn = Turn.SHARED
        self._rows = 0
        self._last_ts = 0
        self._weight = 0
        self._place: tuple[int, str] | None = None
        self.file = 0
        self.since_s = 0.0
        """When the oldest row came that is in no file, while any waits."""

    @property
    def keeps_transactions(self) -> bool:
        """Return whether the rows of a transaction stay in one file."""
        return self._atomicity is Atomicity.TABLE

    def rows_until_cut(self, ts: npt.NDArray[np.uint64]) -> int:
        """Return how many of the rows that come next, with these commit ts, belong before the next cut by the clock; 0: it is here."""
        if self._recorded:
            return min(len(ts), self._recorded[0].rows - self._rows)
        if self._clock is not ClockState.DUE:
            return len(ts)
        ends = np.flatnonzero(np.concatenate(([ts[0] != self._last_ts], ts[1:] != ts[:-1])))
        return int(ends[0]) if len(ends) else len(ts)

    def take(self, ts: npt.NDArray[np.uint64]) -> None:
        """Count rows that came."""
        self._rows += len(ts)
        self._last_ts = int(ts[-1])

    def at_recorded_cut(self) -> bool:
        """Return whether an earlier attempt cut after the rows that came so far. Each record is found once."""
        while self._recorded and self._recorded[0].rows <= self._rows:
            # A record of another file number is of an attempt that lost: its rows were cut elsewhere before.
            if self._recorded.popleft().file == self.file:
                return True
        return False

    def cut_by_clock(self) -> CutRecord:
        """Let the clock cut after the rows that came so far; return the record of that."""
        self._turn = Turn.SOUGHT if self._turn is Turn.SHARED else Turn.OWN
        self._clock = ClockState.AT_REST
        return CutRecord(self._rows, self.file)

    def enter(self, version: int, date: str) -> FlushReason | None:
        """Say which version and date the next row has; return why the file ends before it, or None."""
        before, self._place = self._place, (version, date)
        if before is None or before == self._place:
            return None
        return FlushReason.DDL if before[0] != version else FlushReason.DATE

    def fills(self, weight: int, *, may_cut: bool) -> bool:
        """Count a chunk; return whether it fills the file, which ends then, unless inside a transaction that stays whole."""
        self._weight += weight
        return may_cut and self._weight >= self._file_size

    def cut(self) -> int:
        """End the file, whatever the reason; return its number."""
        self._weight = 0
        self._clock = ClockState.AT_REST
        self.file += 1
        return self.file - 1

    def wait(self, since_s: float) -> None:
        """Say that rows wait for their file, of which the last came at this time."""
        if self._clock is ClockState.AT_REST:
            self._clock = ClockState.RUNNING
            self.since_s = since_s
            if self._turn is Turn.SOUGHT:
                self._turn = Turn.OWN
                self.since_s -= self._head_start_s

    def ask(self, now_s: float) -> Answer:
        """Return what is to be done now, for the clock's sake."""
        if self._clock is ClockState.AT_REST:
            return Answer.NOTHING
        if now_s < self.since_s + self._interval_s:
            return Answer.LATER
        if self._recorded or self.file in self._by_rows:
            return Answer.MORE_ROWS
        if not self.keeps_transactions:
            return Answer.CUT
        self._clock = ClockState.DUE
        return Answer.MORE_ROWS
