"""The line of a log: the same ts from any place whose ts is known, however transactions are taken together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.jit import I64
from penstock.model.timestamp import compose_ts
from penstock.source.mysql.log_line import LogLine, MarkPace
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.wire import framing
from penstock.source.single_log import LogPosition
from testing.twins.clock import SimulatedClock

START = LogPosition(5, "bin.000001:4@")


def transactions(times_ms: list[int], first: int = 1) -> I64:
    rows = np.zeros((len(times_ms), framing.TXN_COLUMNS), np.int64)
    rows[:, framing.TXN_TIME_MS] = times_ms
    rows[:, framing.TXN_SERVER] = 1
    rows[:, framing.TXN_SEQUENCE] = np.arange(first, first + len(times_ms))
    rows[:, framing.TXN_END] = 100 * np.arange(first, first + len(times_ms))
    return rows


def at(sequence: int) -> str:
    return f"bin.000001:{100 * sequence}@0-1-{sequence}"


def given_in(line: LogLine, sizes: list[int], times_ms: list[int]) -> list[int]:
    """Return the ts of transactions that come in pieces of some sizes."""
    found, begun = list[int](), 0
    for size in [*sizes, len(times_ms)]:
        txns = transactions(times_ms[begun : begun + size], begun + 1)
        if len(txns):
            after = line.after(txns)
            found += line.chained(txns, after).tolist()
            line.place = after
        begun += len(txns)
    return found


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.lists(st.integers(1, 5)), st.integers(0, 12), st.integers(0, 1 << 25))
def test_pieces_and_marks_play_no_part(times_ms: list[int], sizes: list[int], marked: int, above: int) -> None:
    sequence = min(marked, len(times_ms))
    marks = [LogPosition(START.ts + 1 + above, at(sequence) if sequence else START.text)]
    whole = LogLine(START, marks)
    expected = given_in(whole, [], times_ms)
    assert given_in(LogLine(START, marks), sizes, times_ms) == expected == sorted(set(expected))
    assert all(ts > marks[0].ts for ts in expected[sequence:]), "what comes behind a mark is above it"
    one_by_one, found = LogLine(START, marks), []
    for number, time_ms in enumerate(times_ms, 1):
        after = LogPlace.parse(at(number))
        found.append(one_by_one.next_ts(time_ms, after))
        one_by_one.place = after
    assert found == expected
    assert one_by_one.position == LogPosition(max(expected[-1], marks[0].ts), at(len(times_ms)))


def test_a_mark_only_where_the_log_ends() -> None:
    line = LogLine(START, [])
    assert not line.mark(1_000, lambda _: False)
    assert not line.mark(5, lambda _: True), "not above what was given"
    assert line.mark(1_000, lambda place: str(place) == START.text)
    assert line.last_ts == 1_000
    assert line.coming_ts(0) == line.next_ts(0) == 1_001
    behind = LogLine(START, [LogPosition(9, at(3))])
    assert not behind.mark(1_000, lambda _: True), "one that is known comes first"


def test_a_reader_that_was_behind_marks_the_end_at_once_and_a_quiet_log_at_intervals() -> None:
    clock = SimulatedClock()
    old_ts, present_ts = compose_ts(clock.now_ms() - 60_000), compose_ts(clock.now_ms())
    pace = MarkPace(0.5, old_ts, clock)
    assert not pace.is_due(old_ts), "nothing came yet"
    assert pace.is_due(old_ts + 1), "it has come to the end of what is a minute old"
    assert not pace.is_due(old_ts + 1), "the server said that the log does not end here"
    assert not pace.is_due(present_ts), "who keeps up waits"
    clock.advance(0.5)
    assert pace.is_due(present_ts)
    assert not pace.is_due(present_ts)


def test_a_quiet_server_without_gtids_tells_where_it_is() -> None:
    line = LogLine(LogPosition(5, "bin.000002:10"), [])
    line.come_to("bin.000001", 99)
    assert str(line.place) == "bin.000002:10"
    line.come_to("bin.000003", 4)
    assert str(line.place) == "bin.000003:4"
    assert not line.mariadb
    assert LogLine(START, []).mariadb


def test_a_stream_by_gtids_that_names_its_file_takes_nothing_back() -> None:
    line = LogLine(LogPosition(5, at(7)), [])
    line.rotate("bin.000001", 4)
    assert str(line.place) == at(7)
    line.rotate("bin.000002", 4)
    assert str(line.place) == "bin.000002:4@0-1-7"
    by_file = LogLine(LogPosition(5, "bin.000001:700"), [])
    by_file.rotate("bin.000001", 4)
    assert str(by_file.place) == "bin.000001:4"
