"""One server at a time reads a log: who gets it, who keeps it, and what a reader that lost it can still do."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import JournalEntry, JournalSettings, LogJournal
from penstock.meta.records import ServerRecord, ServerState
from penstock.model.errors import PenstockError
from testing.twins.clock import SimulatedClock

Open = Callable[..., LogJournal]
SETTINGS = JournalSettings(lease_s=6.0)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def meta(tmp_path: Path, clock: SimulatedClock) -> Iterator[MetaDatabase]:
    with MetaDatabase(sqlite_url(tmp_path / "meta.db"), clock) as database:
        yield database


@pytest.fixture
def open_journal(tmp_path: Path, meta: MetaDatabase, clock: SimulatedClock) -> Iterator[Open]:
    with ExitStack() as stack:

        def opened(reader: str, source: str = "log") -> LogJournal:
            made = LogJournal(sqlite_url(tmp_path / "meta.db"), source, SETTINGS, clock, reader=reader)
            stack.callback(made.close)
            return made

        yield opened


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(PenstockError) as caught:
        act()
    assert caught.value.code == "LOG_HELD"
    return caught.value.detail


def test_a_log_is_held_by_one_until_it_lets_go(open_journal: Open) -> None:
    one, two = open_journal("a~1"), open_journal("b~1")
    one.hold()
    assert refused(two.hold) == "the log is read by the server a~1"
    assert refused(lambda: two.save(JournalEntry(5, "x", True))) == "the log is read by the server a~1"
    assert two.first() is None
    open_journal("b~1", "another").hold()
    one.let_go()
    two.hold()
    two.save(JournalEntry(5, "x", True))
    assert one.first() == JournalEntry(5, "x", True)


def test_a_reader_that_lives_keeps_the_log_and_one_that_does_not_loses_it(open_journal: Open, clock: SimulatedClock) -> None:
    one, two = open_journal("a~1"), open_journal("b~1")
    one.hold()
    for _ in range(10):
        clock.advance(2.0)
        one.hold()
        refused(two.hold)
    clock.advance(5.9)
    refused(two.hold)
    clock.advance(0.2)
    two.hold()
    # What it reads from now on may have another ts there.
    refused(one.hold)
    refused(lambda: one.save(JournalEntry(5, "x")))
    refused(one.hold)
    one.let_go()
    two.save(JournalEntry(7, "y"))
    two.let_go()
    one.hold()


def test_who_lost_the_log_without_letting_go_is_told(open_journal: Open, clock: SimulatedClock) -> None:
    one, two = open_journal("a~1"), open_journal("b~1")
    one.hold()
    assert one.readers == ("a~1", "")
    clock.advance(6.1)
    two.hold()
    assert two.readers == ("b~1", "a~1")
    two.let_go()
    one.let_go()
    one.hold()
    assert one.readers == ("a~1", "")
    # The lease of one that stood still so long may be another's by now.
    clock.advance(6.1)
    two.hold()
    refused(lambda: one.hold(afresh=True))


def test_nobody_is_asked_again_within_a_moment(open_journal: Open, clock: SimulatedClock) -> None:
    one, two = open_journal("a~1"), open_journal("b~1")
    one.hold()
    one._engine.close()
    clock.advance(0.9)
    one.hold()
    clock.advance(5.2)
    two.hold()
    refused(one.hold)


def test_a_late_reader_goes_on_where_nobody_else_came(open_journal: Open, clock: SimulatedClock) -> None:
    one = open_journal("a~1")
    one.hold()
    clock.advance(3600.0)
    one.save(JournalEntry(5, "x"))
    refused(open_journal("b~1").hold)


def test_the_successor_in_a_data_directory_waits_for_nobody_and_a_copy_does(open_journal: Open, meta: MetaDatabase) -> None:
    open_journal("a~1").hold()
    open_journal("a~2").hold()
    # Somebody who says that it lives is no predecessor.
    meta.announce(ServerRecord("a~2", "http://a", ServerState.ACTIVE), 12_000)
    refused(open_journal("a~3").hold)
    meta.withdraw("a~2")
    open_journal("a~3").hold()
