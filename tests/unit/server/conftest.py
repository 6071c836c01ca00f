"""A meta database on a clock that stands still, for whatever of a server needs one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from testing.twins.clock import SimulatedClock


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def meta(tmp_path: Path, clock: SimulatedClock) -> Iterator[MetaDatabase]:
    with MetaDatabase(sqlite_url(tmp_path / "meta.db"), clock) as database:
        yield database
