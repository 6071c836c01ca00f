"""Up to where the log may be let go of follows from when the catalog was looked at, and from what became of what it showed."""

from __future__ import annotations

from penstock.source.postgres.catalog_looks import LOOK_SHARE, CatalogLooks
from penstock.source.postgres.tables.catalog_watch import Changed
from testing.twins.clock import SimulatedClock

FOUND = Changed(7, 1, None, None)


def test_a_look_speaks_for_what_was_read_when_the_one_before_it_began() -> None:
    looks = CatalogLooks(list, 5.0, SimulatedClock())
    looks.begin(10)
    assert looks.seen_lsn == 0
    seen = []
    for read_lsn in (20, 30, 30, 40):
        looks.look(read_lsn)
        seen.append(looks.seen_lsn)
    assert seen == [10, 20, 30, 30]


def test_what_was_found_counts_once_it_is_kept() -> None:
    found = [[FOUND], [FOUND], []]
    looks = CatalogLooks(lambda: found.pop(0), 5.0, SimulatedClock())
    looks.begin(10)
    looks.look(20)
    assert (looks.found, looks.seen_lsn) == ([FOUND], 0)
    looks.look(30)
    assert looks.seen_lsn == 0, "nobody was told of the first either"
    looks.note_kept()
    assert (looks.found, looks.seen_lsn) == ([], 20)
    looks.look(40)
    assert looks.seen_lsn == 30


def test_a_look_that_took_long_is_not_made_again_at_once_and_does_not_lose_what_it_found() -> None:
    clock, taken_s = SimulatedClock(), 2.0

    def slow() -> list[Changed]:
        clock.advance(taken_s)
        return [FOUND]

    looks = CatalogLooks(slow, 5.0, clock)
    looks.begin(10)
    looks.look(20)
    looks.look(30)
    assert (looks.found, looks.seen_lsn, clock.monotonic_s()) == ([FOUND], 0, taken_s)
    clock.advance(LOOK_SHARE * taken_s)
    looks.look(40)
    assert clock.monotonic_s() > LOOK_SHARE * taken_s + taken_s
    looks.note_kept()
    assert looks.seen_lsn == 20
