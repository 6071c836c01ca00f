"""How long a server is waited for, and how much of what it sends is held: until somebody is in, and for one answer after that.

Invariants: a login ends in bounded time and memory, whatever trickles or floods meanwhile; a message or an answer longer than can be is
refused by its length, before it is held. Not thread safe. Runs wherever a connection is.
"""

from __future__ import annotations

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.pgoutput import MESSAGE_BYTES_MAX

ANSWER_BYTES_MAX = 1 << 29
"""No catalog is as long. What is longer comes by COPY or as a stream, and is not counted here."""
_LOGIN_MESSAGE_BYTES_MAX = 1 << 16
"""Nothing that a server says before somebody is in is as long as this."""
_LOGIN_BYTES_MAX = 1 << 20
_LOGIN_ANSWERS = 6
"""A login is given the time of so many answers."""


class Bounds:
    """The bounds of one connection."""

    def __init__(self, answer_s_max: float, answer_bytes_max: int = ANSWER_BYTES_MAX, clock: Clock | None = None) -> None:
        self._answer_s_max = answer_s_max
        self._answer_bytes_max = answer_bytes_max
        self._clock = clock or SystemClock()
        self._login_until_s = self._clock.monotonic_s() + _LOGIN_ANSWERS * answer_s_max
        self._is_entered = False
        self._taken_bytes = 0

    def enter(self) -> None:
        """Somebody is in."""
        self._is_entered = True

    def begin_answer(self) -> None:
        """Something was asked; a login is one answer from its beginning to its end."""
        if self._is_entered:
            self._taken_bytes = 0

    def take(self, length: int) -> None:
        """Count a message whose length is known; raise where it is one that cannot be."""
        self._taken_bytes += length
        one, all_of_them = (MESSAGE_BYTES_MAX, self._answer_bytes_max) if self._is_entered else (_LOGIN_MESSAGE_BYTES_MAX, _LOGIN_BYTES_MAX)
        if not 4 <= length <= one:
            raise PenstockError("DECODE_FAILED", f"a message of {length} bytes; is this a PostgreSQL server?")
        if self._taken_bytes > all_of_them:
            raise PenstockError("DECODE_FAILED", f"an answer of more than {all_of_them} bytes; is this a PostgreSQL server?")

    def wait_s(self) -> float | None:
        """Return for how long the next bytes are waited for; raise ``TimeoutError`` where a login takes too long."""
        if self._is_entered:
            # A query may take long; the socket's own keepalive notices a peer that is gone. A login may not.
            return None
        left_s = self._login_until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("the login took too long")
        return min(left_s, self._answer_s_max)
