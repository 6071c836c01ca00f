"""Supervisors that a test drives, over one meta database."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.server.feeds.supervisor import Supervisor
from testing.paths.feed_run import ScriptedFeedRunFactory
from testing.twins.clock import SimulatedClock

SETTINGS = SupervisorSettings(lease_s=9, scan_interval_s=1, backoff_s=1, backoff_max_s=4, rebalance_interval_s=5)
Build = Callable[..., tuple[Supervisor, ScriptedFeedRunFactory]]


@pytest.fixture
def settings() -> SupervisorSettings:
    return SETTINGS


@pytest.fixture
def build(meta: MetaDatabase, clock: SimulatedClock) -> Iterator[Build]:
    """Make supervisors that a test drives by ``scan``; stopped at the end."""
    with ExitStack() as stack:

        def make(
            owner: str = "a", *start_errors: Exception | None, through: MetaDatabase = meta
        ) -> tuple[Supervisor, ScriptedFeedRunFactory]:
            factory = ScriptedFeedRunFactory(start_errors)
            supervisor = Supervisor(owner, through, factory, SETTINGS, clock, random.Random(0))
            stack.callback(supervisor.stop)
            return supervisor, factory

        yield make
