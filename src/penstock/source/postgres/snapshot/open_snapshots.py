"""The snapshots that are open: at which place of the log each began, under which ts, and what must not be let go of meanwhile.

The reader of the log tells the ts of a place. Where nobody reads, a snapshot chooses its own, and whoever reads the log later must raise
the chain of commit ts there: such a mark is kept in the journal as a note, before anything of the snapshot is captured, because a process
that comes back reads that part of the log again. Thread safe. Runs in the log service and the server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.model.clock import system_random
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.source.postgres.commit_log import TS_STEP, CommitLog
from penstock.source.postgres.slot import create_slot, format_lsn, parse_lsn
from penstock.source.postgres.wire.connection import Connection
from penstock.source.single_log import LogPosition

_MARK_ID = -(1 << 62)
"""Under which table id the journal keeps marks; tables' own notes are above."""


class OpenSnapshot(NamedTuple):
    """A snapshot that is open or being opened: nothing after ``lsn`` is confirmed meanwhile."""

    lsn: int
    ts: int = 0
    connection: Connection | None = None


class OpenSnapshots:
    """The snapshots of one upstream, by the names under which they were exported."""

    def __init__(
        self, connect: Callable[[], Connection], log_end: Callable[[], int], now_ts: Callable[[], int], commits: CommitLog, shown: str
    ) -> None:
        """``connect`` opens a replication connection, ``now_ts`` is above every commit so far."""
        self._connect = connect
        self._log_end = log_end
        self._now_ts = now_ts
        self._commits = commits
        self._shown = shown
        self._lock = threading.Lock()
        self._held: dict[str, OpenSnapshot] = {}
        self._marks: dict[int, str] = {}

    def begin(self, reader_wait_s: float, snapshot_wait_s: float) -> tuple[str, int, int]:
        """Export a snapshot and hold it until ``end``; return its name, its place and its ts.

        A reader that is about to begin is waited for, so that it does not begin behind that place, and then until it gets there.
        """
        is_read = self._commits.wait_reading(reader_wait_s)
        # Nothing after this place is confirmed, so that the log from the snapshot on stays readable.
        floor = self._log_end()
        name = f"penstock_{system_random().getrandbits(48):012x}"
        with self._lock:
            self._held[name] = OpenSnapshot(floor)
        self._commits.hold()
        try:
            holder = self._connect()
            try:
                made = create_slot(holder, name, temporary=True)
                ts = self._ts_at(made.lsn, snapshot_wait_s) if is_read else self._mark_at(made.lsn)
            except BaseException:
                holder.close()
                raise
            with self._lock:
                self._held[made.snapshot] = OpenSnapshot(floor, ts, holder)
        finally:
            self._commits.release()
            with self._lock:
                self._held.pop(name, None)
        return made.snapshot, made.lsn, ts

    def end(self, name: str) -> None:
        """Release a snapshot. May be called twice."""
        with self._lock:
            held = self._held.pop(name, None)
        if held is not None and held.connection is not None:
            held.connection.close()

    def lets_go(self, lsn: int) -> bool:
        """Return whether no open snapshot needs the log before a place."""
        with self._lock:
            return all(lsn <= held.lsn for held in self._held.values())

    def first_ts(self) -> int | None:
        """Return the lowest ts of the snapshots that are open; None where none is."""
        with self._lock:
            return min((held.ts for held in self._held.values() if held.ts), default=None)

    def with_own_marks(self, start: LogPosition, marks: Sequence[LogPosition]) -> list[LogPosition]:
        """Return marks that a reading from a place passes, in the order of the log, those of snapshots among them."""
        with self._lock:
            own = [LogPosition(ts, text) for ts, text in self._marks.items() if parse_lsn(text) >= parse_lsn(start.text)]
        return sorted([*marks, *own], key=lambda m: parse_lsn(m.text))

    def notes(self) -> tuple[TableSchema, ...]:
        """Return the marks of snapshots as the journal keeps them."""
        with self._lock:
            return tuple(TableSchema(_MARK_ID, "", text, ts, ()) for ts, text in self._marks.items())

    def adopt_notes(self, versions: Sequence[TableSchema]) -> list[TableSchema]:
        """Take over the marks among what the journal kept; return the rest."""
        with self._lock:
            self._marks |= {note.version: note.table for note in versions if note.table_id == _MARK_ID}
        return [version for version in versions if version.table_id != _MARK_ID]

    def close(self) -> None:
        """Release all snapshots."""
        with self._lock:
            names = list(self._held)
        for name in names:
            self.end(name)

    def _ts_at(self, lsn: int, wait_s: float) -> int:
        """Return the chain's ts at a place of a log that is read."""
        found = self._commits.ts_at(lsn, wait_s)
        if found is None:
            raise PenstockError("CONGESTED", f"{self._shown}: the log was not read up to where a snapshot begins")
        return found

    def _mark_at(self, lsn: int) -> int:
        """Return a ts for a place of a log that nobody reads, which a reader from there on begins with."""
        with self._lock:
            # Two snapshots of one moment have two places, each with a ts of its own.
            ts = max(self._now_ts(), max(self._marks, default=0) + TS_STEP)
            self._marks[ts] = format_lsn(lsn)
        return ts
