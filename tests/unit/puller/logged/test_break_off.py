"""The pause of a reader grows until it gets past the place where it broke off, and the error is shown until then."""

from __future__ import annotations

import random

from penstock.model.errors import PenstockError
from penstock.puller.logged.break_off import BreakOff

ERROR = PenstockError("SCHEMA_UNKNOWN", "scripted")


def test_the_same_place_again_and_again_is_one_trouble_whatever_steps_come_between() -> None:
    trouble = BreakOff(0.1, 10.0, random.Random(1))
    pauses = []
    for _ in range(9):
        pauses.append(trouble.note(ERROR, 50))
        for ts in (30, 40, 50):
            trouble.passed(ts)
        assert trouble.error is ERROR
    assert all(
        0.75 * expected <= found <= expected for expected, found in zip([0.1 * 2**n for n in range(7)] + [10.0] * 2, pauses, strict=True)
    )
    trouble.passed(51)
    assert (trouble.error, trouble.failures) == (None, 0)
    assert trouble.note(ERROR, 51) <= 0.1


def test_breaking_off_further_on_is_another_trouble_and_further_back_is_not() -> None:
    trouble = BreakOff(0.1, 10.0, random.Random(1))
    trouble.note(ERROR, 50)
    trouble.note(ERROR, 40)
    assert trouble.failures == 2
    trouble.passed(45)
    assert trouble.error is ERROR, "the place that was reached before is not passed yet"
    trouble.note(ERROR, 60)
    assert trouble.failures == 1
