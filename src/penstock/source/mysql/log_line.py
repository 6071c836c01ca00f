"""The line of a log: the place up to which it was given, the commit ts that follow from it, and the marks that raise them.

The same log gives the same ts from any place whose ts is known: a transaction's ts is chained to the one before it, and a mark raises the
chain at its place whenever that is passed again. Runs in the log service; one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from penstock.kernels.jit import I64, U8, U64
from penstock.model.clock import Clock
from penstock.model.timestamp import lag_seconds
from penstock.source.mysql.gtid import MariadbGtids, MysqlGtids
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.wire import framing
from penstock.source.single_log import CommitChain, LogPosition

_SID_BYTES = 16


class LogLine:
    """Where a reader is and which ts comes next. Not thread safe."""

    def __init__(self, start: LogPosition, marks: Sequence[LogPosition]) -> None:
        self.place = LogPlace.parse(start.text)
        self._chain = CommitChain(start.ts)
        self._marks = deque((LogPlace.parse(m.text), m.ts) for m in marks if m.ts > start.ts)
        self._sids: list[str] = []
        self.sid_bytes: U8 = np.zeros((0, _SID_BYTES), dtype=np.uint8)
        """The servers whose GTIDs were seen, as the framing kernel compares them."""

    @property
    def position(self) -> LogPosition:
        """Return where the reader is."""
        return LogPosition(self._chain.last_ts, str(self.place))

    @property
    def last_ts(self) -> int:
        """Return the ts of the last commit or mark."""
        return self._chain.last_ts

    @property
    def mariadb(self) -> bool:
        """Return whether the log is one of MariaDB."""
        return isinstance(self.place.gtids, MariadbGtids)

    def add_sid(self, sid: bytes) -> None:
        """Make a server known whose GTIDs come."""
        text = sid.hex()
        self._sids.append("-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
        self.sid_bytes = np.concatenate([self.sid_bytes, np.frombuffer(sid, dtype=np.uint8).reshape(1, _SID_BYTES)])

    def after(self, txns: I64) -> LogPlace:
        """Return the place behind some transactions."""
        gtids = self.place.gtids
        if isinstance(gtids, MariadbGtids):
            gtids = gtids.advanced(txns[:, framing.TXN_DOMAIN], txns[:, framing.TXN_SERVER], txns[:, framing.TXN_SEQUENCE])
        elif isinstance(gtids, MysqlGtids):
            gtids = gtids.advanced(self._sids, txns[:, framing.TXN_DOMAIN], txns[:, framing.TXN_SEQUENCE])
        return LogPlace(self.place.file, int(txns[-1, framing.TXN_END]), gtids, self.place.server)

    def chained(self, txns: I64, after: LogPlace) -> U64:
        """Return the ts of transactions, raising the chain at every mark among them."""
        parts = []
        first = 0
        while self._marks and after.reached(self._marks[0][0]):
            place, mark_ts = self._marks.popleft()
            low, high = first, len(txns)
            # The smallest number of transactions behind which the mark's place is reached.
            while low < high:
                middle = (low + high) // 2
                here = self.after(txns[:middle]) if middle else self.place
                low, high = (low, middle) if here.reached(place) else (middle + 1, high)
            parts.append(self._chain.next_many(txns[first:low, framing.TXN_TIME_MS]))
            self._chain.raise_to(mark_ts)
            first = low
        parts.append(self._chain.next_many(txns[first:, framing.TXN_TIME_MS]))
        return np.concatenate(parts)

    def next_ts(self, time_ms: int, after: LogPlace | None = None, count: int = 1) -> int:
        """Return the ts of the one transaction that begins here, and pass the marks up to the place behind it.

        It takes ``count`` ts, of which this is the first.
        """
        self._pass_marks(self.place)
        ts = self._chain.next(time_ms)
        self._chain.raise_to(ts + count - 1)
        self._pass_marks(after or self.place)
        return ts

    def further_ts(self, time_ms: int) -> int:
        """Return one more ts inside a transaction."""
        return self._chain.next(time_ms)

    def raise_to(self, ts: int) -> None:
        """Let what comes be above a ts that a transaction used."""
        self._chain.raise_to(ts)

    def coming_ts(self, time_ms: int) -> int:
        """Return what ``next_ts`` would give here, without taking it."""
        self._pass_marks(self.place)
        return CommitChain(self._chain.last_ts).next(time_ms)

    def rotate(self, file: str, offset: int) -> None:
        """Go on to a file; a stream by GTIDs says first which file it begins in, and not how far in it the place is."""
        if self.place.gtids is None or file != self.place.file or offset > self.place.offset:
            self.place = LogPlace(file, offset, self.place.gtids, self.place.server)

    def come_to(self, file: str, offset: int) -> None:
        """Without GTIDs, go on to a place that a quiet server tells; one that lies before is an old answer."""
        told = LogPlace(file, offset, server=self.place.server)
        if self.place.gtids is None and told.reached(self.place):
            self.place = told

    def mark(self, now_ts: int, ends_at: Callable[[LogPlace], bool]) -> bool:
        """Raise the chain to the present if the log ends here; return whether it does.

        A server that is slow to send looks quiet too: behind a mark where the log goes on, commits would get other ts than those
        under which they may be stored already. So ``ends_at`` asks the server, and no mark is put before one that is known.
        """
        self._pass_marks(self.place)
        if self._marks or now_ts <= self._chain.last_ts or not ends_at(self.place):
            return False
        self._chain.raise_to(now_ts)
        return True

    def _pass_marks(self, place: LogPlace) -> None:
        while self._marks and place.reached(self._marks[0][0]):
            self._chain.raise_to(self._marks.popleft()[1])


class MarkPace:
    """Tells when a mark in a quiet log is due: at intervals, and at once when a reader that was behind comes to the log's end."""

    def __init__(self, interval_s: float, last_ts: int, clock: Clock) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._asked = (clock.monotonic_s(), last_ts)

    def is_due(self, last_ts: int) -> bool:
        """Return whether it is time for one behind this ts, and count it as asked for."""
        now_s, (asked_s, asked_ts) = self._clock.monotonic_s(), self._asked
        # The windows of a feed wait for what is captured to be of the present.
        arrived = last_ts != asked_ts and lag_seconds(last_ts, self._clock) >= self._interval_s
        if not arrived and now_s - asked_s < self._interval_s:
            return False
        self._asked = (now_s, last_ts)
        return True
