"""Where the reader of a log broke off, how often, and how long it rests.

An error counts as the same trouble until the reader got past the place where it broke off, whatever steps it gave again on the way there.
Until then the pause grows and the error is shown. Runs in the log service, in the reader's thread; ``error`` is read by any thread.
"""

from __future__ import annotations

import random

from penstock.model.errors import PenstockError


class BreakOff:
    """The present trouble of one reader, if it has any."""

    def __init__(self, retry_min_s: float, retry_max_s: float, rng: random.Random) -> None:
        self.error: PenstockError | None = None
        self.failures = 0
        self._retry_min_s = retry_min_s
        self._retry_max_s = retry_max_s
        self._rng = rng
        self._at_ts = -1

    def note(self, error: PenstockError, at_ts: int) -> float:
        """Take note of an error behind the position of a ts; return after how many seconds to read again."""
        self.failures = self.failures + 1 if self.error is not None and at_ts <= self._at_ts else 1
        self._at_ts = max(at_ts, self._at_ts) if self.failures > 1 else at_ts
        self.error = error
        longest_s = min(self._retry_max_s, self._retry_min_s * 2.0 ** min(self.failures - 1, 20))
        return longest_s * (0.75 + self._rng.random() / 4)

    def passed(self, ts: int) -> None:
        """Forget the trouble if a position lies behind the place where the reader broke off."""
        if self.error is not None and ts > self._at_ts:
            self.error, self.failures, self._at_ts = None, 0, -1
