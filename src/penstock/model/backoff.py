"""How long to wait before something that failed is tried again: longer each time up to a bound, and never in step with others.

Invariant: a pause is at most the bound and at least three quarters of what it would be without chance; without chance it doubles from the
first one up to the bound and never becomes shorter. The generator comes from the caller, as ``model/clock.py`` gives it. Runs anywhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

JITTER = 0.25
"""The share of a pause that chance decides on."""
_DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses of one kind of attempt."""

    first_s: float
    longest_s: float

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """Return the pause after so many failures in a row, the first of which is 1."""
        doublings = min(max(failures - 1, 0), _DOUBLINGS_MAX)
        return min(self.longest_s, self.first_s * 2.0**doublings) * (1 - JITTER + JITTER * rng.random())
