"""When the position of one log is saved, marked and confirmed, and what may be saved at all.

The rules that make a restart find everything, and everything once:

- The journal's order by ts is the log's order. An entry above another in ts whose place lies before it is refused: the chain of commit ts
  was raised where the log had been read on already, so commits would come again under a second ts.
- A new mark stands only where the log was read to its end: at or behind the furthest place that was ever given, and at or behind the end
  that the log had when this reading began. The second covers what the journal cannot know: the store is ahead of it after a crash.
- The journal may lead the store, because a reader begins at the newest entry at or below what is durable. So no entry goes that such a
  reader needs: old ones are dropped only below what is durable for all.
- What is told to the upstream as confirmed is in the journal and durable for all.

Only the reader's thread calls it. Runs in the log service.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.meta.log_journal import JournalEntry
from penstock.model.clock import Clock
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.source.single_log import Beginning, LoggedUpstream, LogPosition

_log = logging.getLogger(__name__)
_JOURNALED_MAX = 65_536
_AHEAD = compose_ts(1_000)
"""A second: more than any number of commits that one log holds unread."""


class Journal(Protocol):
    """Where positions, marks and table versions are kept; see ``meta/log_journal.py``."""

    @property
    def readers(self) -> tuple[str, str]:
        """Return who reads the log, and who had it before and lost it without letting go; empty where that is nobody."""

    def hold(self, afresh: bool = False) -> None:
        """Be the reader of the log; raise where another server is. A look of a moment ago is enough, unless it is taken ``afresh``."""

    def let_go(self) -> None:
        """Be the reader of the log no more."""

    def save(self, entry: JournalEntry) -> None:
        """Make a position or mark durable."""

    def start_for(self, ts: int) -> JournalEntry | None:
        """Return the newest position at or below a ts."""

    def first(self) -> JournalEntry | None:
        """Return the oldest position."""

    def newest(self) -> JournalEntry | None:
        """Return the newest position."""

    def marks_from(self, ts: int) -> list[JournalEntry]:
        """Return the marks above a ts, oldest first."""

    def begin_anew(self, entry: JournalEntry) -> None:
        """Drop every position and begin with this one."""

    def prune(self, needed_ts: int) -> None:
        """Drop old positions that nobody needs who stands at or above a ts."""

    def save_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Make table versions durable."""

    def schemas(self) -> list[TableSchema]:
        """Return every table version that was seen."""


class JournalKeeper:
    """Saves the positions of one reader. ``durable_ts`` tells what is durable for all who have the log, or may want it again."""

    def __init__(
        self,
        upstream: LoggedUpstream,
        journal: Journal,
        settings: SingleLogPullerSettings,
        clock: Clock,
        durable_ts: Callable[[], int],
    ) -> None:
        self._upstream = upstream
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._durable_ts = durable_ts
        self._furthest: LogPosition | None = None
        """The position with the highest ts that was given or journaled."""
        self._end = ""
        """The end of the log when the present reading began; empty once it was reached."""
        self._known_marks: set[tuple[int, str]] = set()
        """Those that the journal had when the present reading began."""
        self._saved_s = float("-inf")
        self._weight = 0
        self._due = False
        self._saved: deque[LogPosition] = deque(maxlen=_JOURNALED_MAX)
        self._confirmed_s = clock.monotonic_s()
        self._confirmable_ts = 0

    @property
    def furthest_ts(self) -> int:
        """Return the highest ts that was given by this process or is in the journal; 0 before anything was."""
        return self._furthest.ts if self._furthest is not None else 0

    def first(self) -> JournalEntry:
        """Return where capture begins; where there is nothing yet, that is the end of the log now."""
        first = self._journal.first()
        if first is None:
            position = self._upstream.first_position()
            first = JournalEntry(position.ts, position.text)
            self._journal.save_schemas(self._upstream.list_tables())
            self._journal.save(first)
        if self._furthest is None:
            newest = self._journal.newest() or first
            self._furthest = LogPosition(newest.ts, newest.text)
        return first

    def place_for(self, ts: int) -> JournalEntry | None:
        """Return from where the log is read for a span that has everything up to a ts; None where that is before the journal."""
        return self._journal.start_for(ts)

    def begin(self, start: LogPosition) -> list[LogPosition]:
        """Note that a reading begins at a position; return the marks that it passes."""
        marks = [LogPosition(m.ts, m.text) for m in self._journal.marks_from(start.ts)]
        self._known_marks = {(m.ts, m.text) for m in marks}
        self._end = self._upstream.log_end()
        return marks

    def is_first_reading(self, position: LogPosition) -> bool:
        """Return whether nothing was ever given behind a position: the log is not being read again there."""
        if position.ts < self.furthest_ts or not self._reached(position.text, self._furthest):
            return False
        if self._end and self._upstream.reached(position.text, self._end):
            self._end = ""
        return not self._end

    def admit(self, position: LogPosition, mark: bool, nbytes: int) -> None:
        """Take note of a step before anything of it is handed over; raises where its position would break the order."""
        self._weight += nbytes
        self._due = mark or self._weight >= self._settings.journal_bytes or self._age_s() >= self._settings.journal_interval_s
        if mark and (position.ts, position.text) not in self._known_marks and not self.is_first_reading(position):
            raise InvariantError(f"a mark of ts {position.ts} at {position.text}, where the log is read again or goes on")
        if self._due and position.ts > self.furthest_ts:
            self._check(position)

    def passed(self, position: LogPosition, mark: bool) -> None:
        """Save the position of a step that was admitted and handed over, if that is due."""
        if position.ts > self.furthest_ts:
            if self._due:
                self._save(JournalEntry(position.ts, position.text, mark))
            self._furthest = position

    def put_mark(self, position: LogPosition) -> None:
        """Save a mark of the puller's own, behind which no commit was ever given; the reader must begin again there."""
        if position.ts <= self.furthest_ts:
            raise InvariantError(f"a mark of ts {position.ts}, given up to {self.furthest_ts}")
        self._check(position)
        self._save(JournalEntry(position.ts, position.text, mark=True))
        self._furthest = position

    def begin_again(self, above_ts: int, told_ts: int) -> Beginning:
        """Note the end of the log as a place from which it can be read, with a ts above another; return it.

        ``told_ts`` is up to where DDLs were kept.
        """
        newest = self._journal.newest()
        lowest = max(above_ts, self.furthest_ts, newest.ts if newest is not None else 0)
        # Commits between what was given and the end are chained above what was given: the mark stands above them as well.
        begun = self._upstream.begin_again(told_ts, lowest + _AHEAD)
        entry = JournalEntry(begun.position.ts, begun.position.text, mark=True)
        # Whatever of it is kept and not told is told by the next beginning: nobody has begun at this one yet.
        self._journal.save_schemas(begun.schemas)
        if newest is None or self._upstream.reached(entry.text, newest.text):
            self._journal.save(entry)
        else:
            _log.warning("journal keeper: the log is another one than before", extra={"ts": entry.ts})
            self._journal.begin_anew(entry)
            self._saved.clear()
        self._furthest = begun.position
        return begun

    def confirm_if_due(self) -> None:
        """Tell the upstream the newest position in the journal from which no span will ever be read again.

        What the spans had reached one interval ago counts, because by now it is durable with its resolved ts. A span that failed and waits
        to be read again counts too, and so does what no span asks for yet: feeds that a server has not begun with, or would take over.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._confirmed_s < self._settings.confirm_interval_s:
            return
        newest: LogPosition | None = None
        while self._saved and self._saved[0].ts <= self._confirmable_ts:
            newest = self._saved.popleft()
        if newest is not None:
            self._upstream.confirm(newest)
        self._journal.prune(self._confirmable_ts)
        self._confirmed_s = now_s
        self._confirmable_ts = self._durable_ts()

    def _age_s(self) -> float:
        return self._clock.monotonic_s() - self._saved_s

    def _check(self, position: LogPosition) -> None:
        if not self._reached(position.text, self._furthest):
            raise InvariantError(f"ts {position.ts} at {position.text}: {self._furthest} was given before it")

    def _save(self, entry: JournalEntry) -> None:
        self._journal.save(entry)
        self._saved.append(LogPosition(entry.ts, entry.text))
        self._saved_s, self._weight = self._clock.monotonic_s(), 0

    def _reached(self, text: str, place: LogPosition | None) -> bool:
        return place is None or text == place.text or self._upstream.reached(text, place.text)
