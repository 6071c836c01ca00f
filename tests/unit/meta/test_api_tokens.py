from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.known_servers import new_token
from penstock.meta.api_tokens import ApiTokens, Role
from penstock.meta.engine import sqlite_url
from penstock.model.errors import PenstockError
from testing.twins.clock import SimulatedClock

DAY_S = 86_400.0


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def tokens(tmp_path: Path, clock: SimulatedClock) -> Iterator[ApiTokens]:
    opened = ApiTokens(sqlite_url(tmp_path / "meta.db"), clock)
    yield opened
    opened.close()


def test_a_role_holds_those_before_it() -> None:
    allowed = {(mine.value, needed.value) for mine in Role for needed in Role if mine.allows(needed)}
    assert allowed == {
        ("read", "read"),
        ("operate", "read"),
        ("operate", "operate"),
        ("admin", "read"),
        ("admin", "operate"),
        ("admin", "admin"),
    }


def test_old_tokens_are_forgotten_and_live_ones_never(tokens: ApiTokens, clock: SimulatedClock) -> None:
    kept, _ = tokens.create("kept", Role.READ, 0, new_token)
    ended, _ = tokens.create("ended", Role.READ, 0, new_token)
    expired, _ = tokens.create("expired", Role.READ, 1, new_token)
    tokens.revoke(ended.id)
    clock.advance(89 * DAY_S)
    tokens.create("late", Role.READ, 0, new_token)
    assert {token.id for token in tokens.list()} >= {kept.id, ended.id, expired.id}
    clock.advance(2 * DAY_S)
    tokens.create("later", Role.READ, 0, new_token)
    assert [token.name for token in tokens.list()] == ["kept", "late", "later"]


def test_a_token_ends_once(tokens: ApiTokens, clock: SimulatedClock) -> None:
    made, _ = tokens.create("a", Role.ADMIN, 0, new_token)
    first = tokens.revoke(made.id)
    clock.advance(5)
    assert tokens.revoke(made.id) == first
    with pytest.raises(PenstockError) as unknown:
        tokens.revoke("00000000")
    with pytest.raises(PenstockError, match="TOKEN_UNKNOWN"):
        tokens.revoke(made.id.upper() + "\U0001f600")
    assert unknown.value.code == "TOKEN_UNKNOWN"
