"""When positions are saved and marks allowed: the journal's order is the log's, and a mark stands where the log was read to its end."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.model.errors import InvariantError
from penstock.puller.logged.journal_keeper import JournalKeeper
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.source.single_log import LoggedUpstream, LogPosition
from testing.twins.clock import SimulatedClock
from testing.twins.single_log import FIRST_TS, MemoryJournal, MemoryLog


class Lab:
    """A keeper on a log of five commits."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.log = MemoryLog()
        for n in range(5):
            self.log.commit(1, [n])
        self.journal = journal or MemoryJournal()
        self.clock = SimulatedClock()
        self.durable_ts = 0
        settings = SingleLogPullerSettings(journal_interval_s=1.0, journal_bytes=1_000, confirm_interval_s=5.0)
        self.keeper = JournalKeeper(cast("LoggedUpstream", self.log), self.journal, settings, self.clock, lambda: self.durable_ts)
        first = self.keeper.first()
        self.keeper.begin(LogPosition(first.ts, first.text))

    def give(self, place: int, ts: int, mark: bool = False, nbytes: int = 1) -> None:
        position = LogPosition(ts, str(place))
        self.keeper.admit(position, mark, nbytes)
        self.keeper.passed(position, mark)

    def saved(self) -> list[tuple[int, str]]:
        return [(e.ts, e.text) for e in self.journal.entries]


def test_positions_are_saved_by_time_and_by_weight_and_marks_at_once() -> None:
    lab = Lab()
    lab.give(1, 1_001)
    lab.give(2, 1_002)
    lab.clock.advance(1.0)
    lab.give(3, 1_003)
    lab.give(4, 1_004, nbytes=1_000)
    lab.give(5, 1_005)
    lab.give(5, 1_006, mark=True)
    assert lab.saved() == [(FIRST_TS, "0"), (1_001, "1"), (1_003, "3"), (1_004, "4"), (1_006, "5")]
    assert [e.ts for e in lab.journal.marks_from(0)] == [1_006]


def test_what_is_read_again_is_not_saved_again() -> None:
    lab = Lab()
    for place in range(1, 6):
        lab.clock.advance(2.0)
        lab.give(place, FIRST_TS + place)
    saved = lab.saved()
    lab.keeper.begin(LogPosition(FIRST_TS, "0"))
    for place in range(1, 6):
        lab.clock.advance(2.0)
        lab.give(place, FIRST_TS + place)
    assert lab.saved() == saved


def test_a_new_mark_is_refused_before_the_end_that_the_log_had_and_where_it_is_read_again() -> None:
    lab = Lab()
    with pytest.raises(InvariantError, match="read again or goes on"):
        lab.give(0, 2_000, mark=True)
    lab.give(1, 1_001)
    with pytest.raises(InvariantError, match="read again or goes on"):
        lab.give(1, 2_000, mark=True)
    for place in range(2, 6):
        lab.give(place, FIRST_TS + place)
    lab.give(5, 2_000, mark=True)
    lab.log.commit(1, [9])
    lab.give(6, 2_001)
    lab.keeper.begin(LogPosition(2_000, "5"))
    with pytest.raises(InvariantError, match="read again or goes on"):
        lab.give(5, 3_000, mark=True)
    assert [e.ts for e in lab.journal.marks_from(0)] == [2_000]


def test_a_mark_of_the_journal_may_be_given_again() -> None:
    lab = Lab()
    lab.give(5, 1_005)
    lab.give(5, 2_000, mark=True)
    lab.log.commit(1, [9])
    lab.give(6, 2_001)
    lab.keeper.begin(LogPosition(FIRST_TS, "0"))
    lab.give(5, 2_000, mark=True)
    assert len(lab.journal.marks_from(0)) == 1


def test_an_entry_above_another_whose_place_lies_before_it_is_refused() -> None:
    lab = Lab()
    lab.clock.advance(2.0)
    lab.give(4, 1_004)
    lab.clock.advance(2.0)
    with pytest.raises(InvariantError, match="was given before it"):
        lab.give(3, 1_009)
    assert lab.saved()[-1] == (1_004, "4")
    again = Lab(lab.journal)
    again.clock.advance(2.0)
    with pytest.raises(InvariantError, match="was given before it"):
        again.give(2, 1_009)


def test_an_own_mark_is_put_above_everything_that_was_given_and_nowhere_else() -> None:
    lab = Lab()
    lab.give(5, 1_005)
    for place, ts in ((5, 1_005), (4, 1_006)):
        with pytest.raises(InvariantError):
            lab.keeper.put_mark(LogPosition(ts, str(place)))
    lab.keeper.put_mark(LogPosition(1_006, "5"))
    assert [e.ts for e in lab.journal.marks_from(0)] == [1_006]
    assert lab.keeper.furthest_ts == 1_006


def test_only_what_was_durable_an_interval_ago_is_confirmed() -> None:
    lab = Lab()
    for place in range(1, 6):
        lab.clock.advance(2.0)
        lab.give(place, FIRST_TS + place)
    lab.durable_ts = FIRST_TS + 3
    lab.keeper.confirm_if_due()
    assert lab.log.confirmed == []
    lab.durable_ts = FIRST_TS + 5
    lab.clock.advance(5.0)
    lab.keeper.confirm_if_due()
    assert [p.ts for p in lab.log.confirmed] == [FIRST_TS + 3]


def test_beginning_again_stands_above_everything_and_another_log_drops_the_old_places() -> None:
    lab = Lab()
    lab.clock.advance(2.0)
    lab.give(5, 1_005)
    # The log of this upstream begins at place 0 again, before what the journal has: it is another one.
    ts = lab.keeper.begin_again(7_000, 0).position.ts
    assert ts > 7_000
    assert [(e.ts, e.text, e.mark) for e in lab.journal.entries] == [(ts, "0", True)]
    assert lab.keeper.furthest_ts == ts
