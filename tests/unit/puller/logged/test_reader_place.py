"""Where a reader is, for those who wait for it in other threads."""

import threading

from penstock.puller.logged.reader_place import ReaderPlace
from penstock.source.single_log import LogPosition


def test_who_waits_is_told_when_the_reader_is_there() -> None:
    place, found = ReaderPlace(), list[LogPosition | None]()
    waiting = threading.Thread(target=lambda: found.append(place.wait_for(lambda p: p.ts >= 20, 300)))
    waiting.start()
    for ts in (10, 20):
        place.move(LogPosition(ts, f"at {ts}"))
    waiting.join(300)
    assert found == [LogPosition(20, "at 20")]


def test_who_waits_in_vain_gets_nothing() -> None:
    place = ReaderPlace()
    assert place.wait_for(lambda _: True, 0) is None, "nobody reads"
    place.move(LogPosition(10, "x"))
    assert place.wait_for(lambda p: p.ts > 10, 0) is None
    assert place.wait_for(lambda p: p.ts == 10, 0) == LogPosition(10, "x")
    place.move(None)
    assert place.wait_for(lambda _: True, 0) is None
