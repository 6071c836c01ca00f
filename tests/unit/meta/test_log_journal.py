"""The journal of positions: what is found again after a restart, and what is forgotten."""

from __future__ import annotations

from pathlib import Path

from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import JournalEntry, JournalSettings, LogJournal
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.testing.twins.clock import SimulatedClock


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
    assert journal(tmp_path, source="b").first() is None
    again.close()


def test_marks_at_one_place_follow_each_other_and_a_mark_at_a_known_ts_stays_a_mark(tmp_path: Path) -> None:
    one = journal(tmp_path)
    for ts in (5, 6, 7):
        one.save(JournalEntry(ts, "quiet", True))
    one.save(JournalEntry(9, "later"))
    one.save(JournalEntry(9, "later", True))
    one.save(JournalEntry(9, "later"))
    assert one.marks_from(0) == [JournalEntry(7, "quiet", True), JournalEntry(9, "later", True)]
    one.close()


def test_old_positions_are_dropped_but_never_the_newest(tmp_path: Path) -> None:
    clock = SimulatedClock()
    one = journal(tmp_path, clock)
    one.save(JournalEntry(1, "a"))
    one.save(JournalEntry(2, "b"))
    clock.advance(1_000.0)
    one.save(JournalEntry(3, "c"))
    assert one.first() == JournalEntry(3, "c")
    clock.advance(1_000.0)
    one.save(JournalEntry(3, "c"))
    assert one.first() == JournalEntry(3, "c")
    one.close()


def test_table_versions_stay_as_they_were_first(tmp_path: Path) -> None:
    one = journal(tmp_path)
    versions = [TableSchema(7, "s", "t", ts, (Column(1, "id", ColumnType(TypeKind.INT)),)) for ts in (20, 10)]
    one.save_schemas(versions)
    one.save_schemas([TableSchema(7, "s", "other", 20, ())])
    one.close()
    assert journal(tmp_path).schemas() == versions[::-1]
