"""Sessions that are kept between windows: lent to one at a time, the last one first, and closed when they are old or too many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import pytest

from penstock.model.table import TableSchema
from penstock.sink.tables.database import Session
from penstock.sink.tables.idle_sessions import KEPT_MAX, KEPT_S, LIVED_S, IdleSessions
from testing.twins.clock import SimulatedClock


class OpenSession(Session):
    """A session of which only the end counts."""

    is_closed = False

    def fetch(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return []

    def load(self, table: TableSchema, rows: pl.DataFrame) -> None: ...

    upsert = insert = delete = load

    def delete_copies(self, table: TableSchema, rows: pl.DataFrame, counts: pl.Series) -> None: ...

    def read(self, table: TableSchema, values: Sequence[str], rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
        yield from ()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clock() -> Iterator[SimulatedClock]:
    """A clock on which what closes sessions comes to its end: it waits as long as there are any."""
    clock = SimulatedClock()
    yield clock
    clock.wait_for_waiters(1)
    clock.advance(2 * KEPT_S)


def test_a_session_has_one_borrower_and_one_target(clock: SimulatedClock) -> None:
    idle = IdleSessions(clock)
    first, second, other = OpenSession(), OpenSession(), OpenSession()
    idle.give("a", first)
    idle.give("b", other)
    idle.give("a", second)
    assert [idle.take("a"), idle.take("a"), idle.take("a")] == [second, first, None]
    assert idle.take("b") is other
    assert not any(one.is_closed for one in (first, second, other))


def test_what_nobody_asks_for_is_closed(clock: SimulatedClock) -> None:
    idle = IdleSessions(clock)
    old, young = OpenSession(), OpenSession()
    idle.give("a", old)
    clock.wait_for_waiters(1)
    clock.advance(KEPT_S / 2)
    idle.give("b", young)
    clock.advance(KEPT_S / 2)
    idle.close_old()
    assert (old.is_closed, young.is_closed) == (True, False)
    assert idle.take("a") is None
    assert idle.take("b") is young


def test_nobody_gets_a_session_that_lived_long(clock: SimulatedClock) -> None:
    idle = IdleSessions(clock)
    session = OpenSession()
    for _ in range(int(LIVED_S)):
        idle.give("a", session)
        assert not session.is_closed
        assert idle.take("a") is session
        clock.advance(1.0)
    idle.give("a", session)
    assert session.is_closed
    assert idle.take("a") is None
    idle.give("a", OpenSession())


def test_the_oldest_goes_where_there_are_too_many(clock: SimulatedClock) -> None:
    idle = IdleSessions(clock)
    given = [OpenSession() for _ in range(KEPT_MAX + 2)]
    for number, session in enumerate(given):
        idle.give(number, session)
    assert [one.is_closed for one in given] == [True, True] + [False] * KEPT_MAX
