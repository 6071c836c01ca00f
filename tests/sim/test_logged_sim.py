"""Seeds of ``testing/checks/logged_simulation.py``: a source with one log, captured. A failing seed prints how to replay it."""

from __future__ import annotations

import pytest

from testing.checks.interleaving import Interleaving
from testing.checks.logged_simulation import MODULES, Run
from testing.checks.seeded_run import SEEDS, play_seed


def simulate(seed: int, is_sound: bool = True) -> Interleaving:
    return play_seed(seed, MODULES, lambda sim: Run(seed, sim, is_sound), "test_logged_sim.py")[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_seeded_run_with_faults(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("seed", range(100, 120))
def test_a_source_that_marks_where_the_log_is_read_again_is_refused_and_nothing_comes_twice(seed: int) -> None:
    """Such a mark stands in the reader only: the reading ends before anyone relies on it, and begins again without it."""
    simulate(seed, is_sound=False)


@pytest.mark.chaos
@pytest.mark.parametrize("first", range(1000, 3000, 20))
def test_many_seeds_with_faults(first: int) -> None:
    for seed in range(first, first + 20):
        simulate(seed, is_sound=seed % 5 > 0)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = simulate(7), simulate(7), simulate(8)
    assert (first.trace, first.steps, first.now_s) == (second.trace, second.steps, second.now_s)
    assert first.trace != other.trace
