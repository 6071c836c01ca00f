import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.backoff import JITTER, Backoff

SECONDS = st.floats(0.001, 100)


class Certain(random.Random):
    """Chance that always has the same say, from nothing (0) to all of it."""

    def __init__(self, say: float) -> None:
        super().__init__()
        self.say = say

    def random(self) -> float:
        return self.say


@given(SECONDS, SECONDS, st.integers(0, 2**40), st.integers())
def test_pauses_are_bounded_and_chance_takes_at_most_its_share(first_s: float, longest_s: float, failures: int, seed: int) -> None:
    without_chance_s = min(longest_s, first_s * 2 ** min(max(failures - 1, 0), 30))
    pause_s = Backoff(first_s, longest_s).pause_s(failures, random.Random(seed))
    assert without_chance_s * (1 - JITTER) <= pause_s <= without_chance_s <= longest_s


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 6.0)
    assert [backoff.pause_s(n, Certain(1.0)) for n in range(7)] == [0.5, 0.5, 1.0, 2.0, 4.0, 6.0, 6.0]
    assert [backoff.pause_s(n, Certain(0.0)) for n in range(1, 4)] == [0.375, 0.75, 1.5]


def test_two_that_fail_together_do_not_come_back_together() -> None:
    backoff, rng = Backoff(1.0, 8.0), random.Random(7)
    assert len({backoff.pause_s(3, rng) for _ in range(100)}) == 100
