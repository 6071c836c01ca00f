"""Doubts in the meta database: what the same log may say twice, and what closes a doubt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.meta.engine import sqlite_url
from penstock.meta.table_states import TableCondition, TableState, TableStates
from testing.twins.clock import SimulatedClock
from testing.twins.doubt_book import MemoryDoubts


def doubt(ts: int, table_id: int = 7, code: str = "", table: str = "t") -> TableState:
    state = TableCondition.QUARANTINED if code else TableCondition.DOUBTFUL
    return TableState(table_id, "shop", table, state, f"seen at {ts}", code, "look" if code else "", doubt_ts=ts)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[TableStates]:
    made = TableStates(sqlite_url(tmp_path / "meta.db"), "a", SimulatedClock())
    yield made
    made.close()


def test_a_doubt_is_found_again_after_a_restart_and_by_its_source_only(book: TableStates, tmp_path: Path) -> None:
    assert book.open(doubt(10))
    again, other = (TableStates(sqlite_url(tmp_path / "meta.db"), source) for source in ("a", "b"))
    [found] = again.states()
    assert (found.table_id, found.table, found.state, found.doubt_ts, found.reason) == (7, "t", TableCondition.DOUBTFUL, 10, "seen at 10")
    assert found.since_ms > 0
    assert other.states() == []
    again.close()
    other.close()


@pytest.fixture(params=["database", "twin"])
def either(request: pytest.FixtureRequest, book: TableStates) -> TableStates | MemoryDoubts:
    """The book and its twin, which keep the same rules."""
    return book if request.param == "database" else MemoryDoubts(SimulatedClock())


def test_a_doubt_that_is_read_again_changes_nothing_before_and_after_it_was_settled(either: TableStates | MemoryDoubts) -> None:
    assert [either.open(doubt(ts)) for ts in (10, 10, 20, 10)] == [True, False, True, False]
    before = either.states()
    assert not either.open(doubt(15))
    assert either.states() == before
    assert either.close_doubt(7, covered_ts=25, settled_ts=30)
    assert [either.open(doubt(ts)) for ts in (10, 20)] == [False, False]
    assert either.states()[0].state is TableCondition.OK
    assert either.open(doubt(40)), "a new one opens it again"
    assert either.states()[0].settled_ts == 30


def test_a_doubt_behind_the_beginning_of_the_reread_stays_open(either: TableStates | MemoryDoubts) -> None:
    either.open(doubt(10))
    either.begin(7)
    assert (either.states()[0].state, either.states()[0].attempts) == (TableCondition.REREADING, 1)
    either.open(doubt(26))
    assert not either.close_doubt(7, covered_ts=25, settled_ts=30)
    [found] = either.states()
    assert (found.state, found.doubt_ts, found.settled_ts) == (TableCondition.DOUBTFUL, 26, 30)


def test_a_code_quarantines_and_a_milder_doubt_does_not_hide_it(either: TableStates | MemoryDoubts) -> None:
    either.open(doubt(10))
    either.open(doubt(10, code="DECODE_FAILED"))
    either.open(doubt(11))
    [found] = either.states()
    assert (found.state, found.code, found.reason, found.doubt_ts) == (TableCondition.QUARANTINED, "DECODE_FAILED", "seen at 10", 11)
    either.begin(7)
    either.fail(7, "no SELECT", "UPSTREAM_REFUSED", "GRANT SELECT", 5_000)
    [found] = either.states()
    assert (found.state, found.code, found.hint, found.next_attempt_ms) == (
        TableCondition.QUARANTINED,
        "UPSTREAM_REFUSED",
        "GRANT SELECT",
        5_000,
    )
    either.fail(7, "busy", "", "", 6_000)
    assert either.states()[0].state is TableCondition.DOUBTFUL
    assert either.close_doubt(7, 11, 12)
    assert (either.states()[0].code, either.states()[0].attempts) == ("", 0)


def test_tables_without_an_id_are_told_apart_by_name_until_they_have_one(book: TableStates) -> None:
    book.open(doubt(10, 0, "SCHEMA_UNKNOWN", "x"))
    book.open(doubt(11, 0, "SCHEMA_UNKNOWN", "y"))
    assert [s.table for s in book.states()] == ["x", "y"]
    book.identify("shop", "x", 9)
    assert [(s.table_id, s.table, s.doubt_ts) for s in book.states()] == [(0, "y", 11), (9, "x", 10)]
    book.open(doubt(12, 0, "SCHEMA_UNKNOWN", "z"))
    book.forget(9)
    book.forget(0, "shop", "z")
    assert [s.table for s in book.states()] == ["y"]


def test_a_renamed_table_keeps_its_one_row(either: TableStates | MemoryDoubts) -> None:
    either.open(doubt(10, table="old"))
    either.open(doubt(12, table="new"))
    assert [(s.table, s.doubt_ts) for s in either.states()] == [("new", 12)]


def test_a_table_in_doubt_has_its_present_name(either: TableStates | MemoryDoubts) -> None:
    either.open(doubt(10, table="old"))
    either.rename(7, "elsewhere", "new")
    either.rename(8, "shop", "of nobody")
    assert [(s.schema, s.table, s.doubt_ts, s.is_open) for s in either.states()] == [("elsewhere", "new", 10, True)]
