"""Whose a token is, as a server remembers it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.meta.api_tokens import ApiTokens, Role
from penstock.meta.engine import sqlite_url
from penstock.server.http.callers import Callers
from testing.twins.clock import SimulatedClock


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def tokens(tmp_path: Path, clock: SimulatedClock) -> Iterator[ApiTokens]:
    opened = ApiTokens(sqlite_url(tmp_path / "meta.db"), clock)
    yield opened
    opened.close()


def whose(callers: Callers, token: str) -> str | None:
    found, certain = callers.find(token)
    if not certain:
        callers.refresh()
        found, _ = callers.find(token)
    return found.name if found else None


def test_an_expiry_counts_to_the_millisecond(tokens: ApiTokens, clock: SimulatedClock) -> None:
    callers = Callers("own", tokens, clock)
    _, token = callers.create("a", Role.READ, 1000)
    assert whose(callers, token) == "a"
    clock.advance(0.999)
    assert whose(callers, token) == "a"
    clock.advance(0.001)
    assert whose(callers, token) is None
    assert whose(callers, "own") == "server"


def test_what_another_server_does_is_seen_in_a_moment(tokens: ApiTokens, clock: SimulatedClock) -> None:
    here, there = Callers("one", tokens, clock), Callers("two", tokens, clock)
    assert whose(here, "two") is None
    made, token = there.create("a", Role.READ, 0)
    clock.advance(2.0)
    assert whose(here, token) == "a"
    there.revoke(made.id)
    assert whose(there, token) is None
    clock.advance(2.0)
    assert whose(here, token) is None
