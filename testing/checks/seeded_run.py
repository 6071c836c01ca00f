"""Plays one seed of a simulation; what fails says how to play it again. Runs in tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol, TypeVar

from testing.checks.interleaving import Interleaving, SimulationError

_SEED = "PENSTOCK_SIM_SEED"
SEEDS = [int(os.environ[_SEED])] if _SEED in os.environ else list(range(50))
"""The seeds of a usual run, or the one that is to be replayed."""


class SimulatedRun(Protocol):
    """A whole run of one seed, with what it found broken."""

    @property
    def broken(self) -> Sequence[str]:
        """Return the rules that did not hold."""

    def play(self) -> None:
        """Play it to its end."""


R = TypeVar("R", bound=SimulatedRun)


def play_seed(seed: int, modules: Sequence[ModuleType], make: Callable[[Interleaving], R], test_file: str) -> tuple[Interleaving, R]:
    """Play a run under a scheduler of its seed, which is threads and clock to these modules; raises with the way to replay it."""
    sim = Interleaving(seed)
    runs: list[R] = []

    def main() -> None:
        runs.append(make(sim))
        runs[0].play()

    replay = f"replay: {_SEED}={seed} pytest tests/sim/{test_file} -k seeded"
    try:
        with sim.modules(*modules):
            sim.run(main)
    except SimulationError as error:
        raise AssertionError(f"{error}\n{replay}") from error
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{replay}") from error
    assert not runs[0].broken, f"{runs[0].broken[:3]}\n{replay}"
    return sim, runs[0]
