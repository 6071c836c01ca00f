"""Seeds of ``testing/checks/puller_simulation.py``: data server, puller and store. A failing seed prints how to replay it."""

from __future__ import annotations

import pytest

from testing.checks.interleaving import Interleaving
from testing.checks.puller_simulation import MODULES, Run
from testing.checks.seeded_run import SEEDS, play_seed

TRANSACTIONS = 12


def simulate(seed: int) -> Interleaving:
    return play_seed(seed, MODULES, lambda sim: Run(seed, TRANSACTIONS, sim), "test_puller_sim.py")[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_seeded_run_with_faults(seed: int) -> None:
    simulate(seed)


@pytest.mark.chaos
@pytest.mark.parametrize("first", range(1000, 3000, 20))
def test_many_seeds_with_faults(first: int) -> None:
    for seed in range(first, first + 20):
        simulate(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = simulate(7), simulate(7), simulate(8)
    assert (first.trace, first.steps, first.now_s) == (second.trace, second.steps, second.now_s)
    assert first.trace != other.trace
