"""Sessions of targets that are tables, kept open between the windows of one process.

To enter a server costs more than a window of few rows, so a session whose work ended whole is lent to the next who asks for the same server
under the same settings. Invariants: a session has one borrower at a time; one that failed never comes back; one that nobody asks for is
closed after a moment, so that a feed which ended holds nothing of its target; none lives for long. Runs on executors and beside the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING

from penstock.model.clock import Clock, SystemClock

if TYPE_CHECKING:
    from penstock.sink.tables.database import Session

KEPT_S = 10.0
"""For how long a session is kept: about twice as long as windows are usually apart."""
LIVED_S = 60.0
"""For how long one is lent again: what a server takes from a user, or a name that leads elsewhere, counts for sessions entered later."""
KEPT_MAX = 16
"""How many a process keeps, whichever targets they are of."""


class IdleSessions:
    """The sessions that nobody uses now. Thread safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        # Since when each is idle, the oldest first.
        self._idle: list[tuple[float, Hashable, Session]] = []
        self._never = threading.Event()
        self._closer: threading.Thread | None = None

    def take(self, target: Hashable) -> Session | None:
        """Return the session of a target that was given last, or None."""
        with self._lock:
            at = next((i for i in reversed(range(len(self._idle))) if self._idle[i][1] == target), None)
            return None if at is None else self._idle.pop(at)[2]

    def give(self, target: Hashable, session: Session) -> None:
        """Keep a session that is outside a transaction, unless it is old; where enough are kept, the one that waited longest is closed."""
        now_s = self._clock.monotonic_s()
        session.first_given_s = now_s if session.first_given_s is None else session.first_given_s
        over: Session | None = session
        if now_s - session.first_given_s < LIVED_S:
            with self._lock:
                self._idle.append((now_s, target, session))
                over = self._idle.pop(0)[2] if len(self._idle) > KEPT_MAX else None
                if self._closer is None:
                    self._closer = threading.Thread(target=self._run, name="idle-sessions", daemon=True)
                    self._closer.start()
        if over is not None:
            over.close()

    def close_old(self, kept_s: float = KEPT_S) -> None:
        """Close what nobody asked for in so many seconds."""
        until_s = self._clock.monotonic_s() - kept_s
        with self._lock:
            old = [one for one in self._idle if one[0] <= until_s]
            self._idle = self._idle[len(old) :]
        for _, _, session in old:
            session.close()

    def _run(self) -> None:
        """Close sessions as they get old, until there are none."""
        while True:
            self._clock.wait(self._never, KEPT_S / 4)
            self.close_old()
            with self._lock:
                if not self._idle:
                    self._closer = None
                    return


IDLE = IdleSessions()
"""Those of this process."""
