"""The journal of positions: what is found again after a restart, and what is forgotten."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import JournalEntry, JournalSettings, LogJournal
from penstock.model.errors import InvariantError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.twins.clock import SimulatedClock
from testing.twins.single_log import MemoryJournal


def journal(path: Path, clock: SimulatedClock | None = None, source: str = "a") -> LogJournal:
    return LogJournal(sqlite_url(path / "meta.db"), source, JournalSettings(keep_s=100, prune_interval_s=10), clock or SimulatedClock())


def test_positions_and_marks_are_found_again_by_their_ts(tmp_path: Path) -> None:
    first = journal(tmp_path)
    assert (first.first(), first.start_for(10), first.marks_from(0)) == (None, None, [])
    for entry in (JournalEntry(10, "x"), JournalEntry(20, "y"), JournalEntry(30, "y", True), JournalEntry(40, "z", True)):
        first.save(entry)
    first.close()
    again = journal(tmp_path)
    assert again.first() == JournalEntry(10, "x")
    assert again.start_for(9) is None
    assert again.start_for(29) == JournalEntry(20, "y")
    assert again.start_for(1 << 62) == JournalEntry(40, "z", True)
    assert again.marks_from(10) == [JournalEntry(30, "y", True), JournalEntry(40, "z", True)]
    assert again.marks_from(30) == [JournalEntry(40, "z", True)]
    again.close()
    with contextlib.closing(journal(tmp_path, source="b")) as another:
        assert another.first() is None


@pytest.fixture(params=["database", "twin"])
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogJournal | MemoryJournal]:
    """The journal and its twin, which keep the same rules."""
    made = journal(tmp_path) if request.param == "database" else MemoryJournal()
    yield made
    if isinstance(made, LogJournal):
        made.close()


def test_marks_at_one_place_follow_each_other_and_a_mark_at_a_known_ts_stays_a_mark(one: LogJournal | MemoryJournal) -> None:
    one.save(JournalEntry(3, "busy"))
    for ts in (5, 6, 7, 8):
        one.save(JournalEntry(ts, "quiet", True))
    # Who stands between the marks needs nothing of what came before the quiet.
    assert one.start_for(7) == JournalEntry(5, "quiet", True)
    one.save(JournalEntry(9, "later"))
    one.save(JournalEntry(9, "later", True))
    one.save(JournalEntry(9, "later"))
    assert one.marks_from(0) == [JournalEntry(5, "quiet", True), JournalEntry(8, "quiet", True), JournalEntry(9, "later", True)]


def test_a_place_that_was_given_for_a_ts_is_not_taken_back(one: LogJournal | MemoryJournal) -> None:
    """The upstream lets go of the log before a place that everybody has reached; nobody may be sent to an older one after that."""
    entries = [
        JournalEntry(3, "o"),
        *(JournalEntry(ts, "quiet", True) for ts in (5, 6, 7, 8)),
        JournalEntry(10, "z"),
        JournalEntry(11, "z", True),
    ]
    given: dict[int, str] = {}
    for entry in entries:
        one.save(entry)
        for ts in range(3, entry.ts + 1):
            found = one.start_for(ts)
            assert found is not None
            assert given.setdefault(ts, found.text) == found.text
    assert given == {3: "o", 4: "o", 5: "quiet", 6: "quiet", 7: "quiet", 8: "quiet", 9: "quiet", 10: "z", 11: "z"}


def test_old_positions_are_dropped_but_never_one_that_is_needed_nor_the_newest(tmp_path: Path) -> None:
    clock = SimulatedClock()
    one = journal(tmp_path, clock)
    for ts, text in ((1, "a"), (2, "b"), (4, "d")):
        one.save(JournalEntry(ts, text))
    one.prune(4)
    assert one.first() == JournalEntry(1, "a"), "not old yet"
    clock.advance(1_000.0)
    one.prune(0)
    assert one.first() == JournalEntry(1, "a"), "nobody has said what is durable"
    clock.advance(1_000.0)
    one.prune(3)
    assert one.first() == JournalEntry(2, "b"), "somebody stands at 3 and begins there"
    clock.advance(1_000.0)
    one.prune(1 << 62)
    assert one.first() == JournalEntry(4, "d") == one.newest()
    one.close()


def test_an_older_mark_of_a_place_stays_where_the_log_was_read_on_since(one: LogJournal | MemoryJournal) -> None:
    for entry in (JournalEntry(5, "p", True), JournalEntry(6, "q"), JournalEntry(8, "p", True)):
        one.save(entry)
    assert one.marks_from(0) == [JournalEntry(5, "p", True), JournalEntry(8, "p", True)]


def test_one_ts_has_one_mark_and_another_log_begins_with_an_empty_journal(one: LogJournal | MemoryJournal) -> None:
    one.save(JournalEntry(5, "p", True))
    one.save(JournalEntry(5, "p", True))
    with pytest.raises(InvariantError, match="two marks of ts 5"):
        one.save(JournalEntry(5, "q", True))
    one.begin_anew(JournalEntry(9, "other", True))
    assert (one.first(), one.marks_from(0)) == (JournalEntry(9, "other", True), [JournalEntry(9, "other", True)])


@given(st.lists(st.tuples(st.sampled_from("pmq"), st.integers(1, 5)), max_size=25), st.integers(0, 200))
def test_a_reader_from_start_for_finds_everything_above_the_ts_after_any_legal_history(history: list[tuple[str, int]], ts: int) -> None:
    """A log is read once: commits, marks while it is quiet, positions now and then. From every ts the place leaves nothing out."""
    commits: list[int] = []
    saved = {0: 0}
    last_ts, place = 0, 0
    with tempfile.TemporaryDirectory() as directory:
        one = journal(Path(directory))
        one.save(JournalEntry(0, "0"))
        for what, step in history:
            last_ts += step
            if what == "q":
                place += 1
                commits.append(last_ts)
            one.save(JournalEntry(last_ts, str(place), what == "m")) if what != "q" else None
            saved[last_ts] = place
        found = one.start_for(ts)
        assert found is not None
        assert all(commit <= ts for commit in commits[: int(found.text)])
        assert found.ts <= ts
        # A reader from there passes the marks that are left, and gives every later commit the ts that it has.
        marks = [(int(m.text), m.ts) for m in one.marks_from(found.ts)]
        chain = found.ts
        for at in range(int(found.text), len(commits)):
            chain = max([chain, *(m for p, m in marks if p <= at)])
            assert chain < commits[at]
            chain = commits[at]
        one.close()


def test_table_versions_stay_as_they_were_first(tmp_path: Path) -> None:
    one = journal(tmp_path)
    versions = [TableSchema(7, "s", "t", ts, (Column(1, "id", ColumnType(TypeKind.INT)),)) for ts in (20, 10)]
    one.save_schemas(versions)
    one.save_schemas([TableSchema(7, "s", "other", 20, ())])
    one.close()
    with contextlib.closing(journal(tmp_path)) as again:
        assert again.schemas() == versions[::-1]
