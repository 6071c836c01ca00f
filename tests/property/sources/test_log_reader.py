"""The reader of the binlog, with logs made by hand: any transactions in any pieces, from any position, folded as an obvious model does it;
and damaged logs, which give an error or the rows before the damage, never a crash and never another row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import BatchKind, Op
from penstock.model.errors import PenstockError
from penstock.source.mysql.log_reader import LogReader, LogReaderSettings
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.tables.table_versions import TableVersions
from penstock.source.mysql.wire import constants as wire
from penstock.source.single_log import LogPosition, LogStep
from testing.twins.binlog import BinlogWriter, MemoryEventStream, Row, server_table
from testing.twins.clock import SimulatedClock

START = LogPosition(1_000, "bin.000001:4@")
TABLES = ("a", "b")
Change = tuple[int, str, Row | None, Row | None]
"""Second, table, before, after."""
Given = tuple[int, str, int, int, str | None]
"""Commit ts, table, op, key, note."""
PIECE_BYTES = 300

rows = st.tuples(st.integers(-3, 6), st.one_of(st.none(), st.text("xyé", max_size=4)))
steps = st.lists(st.tuples(st.sampled_from(TABLES), st.integers(0, 2), rows, rows), min_size=0, max_size=8)
transactions = st.lists(st.tuples(st.integers(0, 3), st.booleans(), steps), min_size=1, max_size=12)


def apply(state: dict[tuple[str, int], Row], table: str, kind: int, one: Row, two: Row) -> tuple[int, list[Row]] | None:
    """Change a state as a server would; return the kind of rows event and its images, None where nothing happened."""
    key = (table, one[0])
    if kind == 0:
        if key in state:
            return None
        state[key] = one
        return wire.WRITE_ROWS_V1, [one]
    if key not in state:
        return None
    before = state.pop(key)
    if kind == 1:
        return wire.DELETE_ROWS_V1, [before]
    if two[0] != one[0] and (table, two[0]) in state:
        two = (one[0], two[1])
    state[table, two[0]] = two
    return wire.UPDATE_ROWS_V1, [before, two]


def write(plan: Sequence[tuple[int, bool, list[tuple[str, int, Row, Row]]]], checksum: bool) -> tuple[BinlogWriter, list[list[Change]]]:
    """Write a plan as a log; return it and what each transaction changed."""
    log, state, done, second = BinlogWriter(checksum), {}, [], 0
    for gap, by_query, changes in plan:
        second += gap
        log.begin(second)
        effects: list[Change] = []
        for table, kind, one, two in changes:
            found = apply(state, table, kind, one, two)
            if found is None:
                continue
            event, images = found
            log.table_map(10 + TABLES.index(table), table, second)
            log.rows(event, 10 + TABLES.index(table), images, second)
            before = None if event == wire.WRITE_ROWS_V1 else images[0]
            effects.append((second, table, before, None if event == wire.DELETE_ROWS_V1 else images[-1]))
        if by_query:
            log.query("COMMIT", second)
        else:
            log.commit(second)
        done.append(effects)
    return log, done


def folded(done: list[list[Change]]) -> list[Given]:
    """Fold each transaction the obvious way."""
    out: list[Given] = []
    last = START.ts
    for number, effects in enumerate(done):
        second = effects[0][0] if effects else None
        last = max(last + 1, (second or 0) * 1000 << 18) if second is not None else last + 1
        images: dict[tuple[str, int], list[tuple[bool, Row]]] = {}
        for _, table, before, after in effects:
            if before is not None:
                images.setdefault((table, before[0]), []).append((False, before))
            if after is not None:
                images.setdefault((table, after[0]), []).append((True, after))
        for (table, key), seen in images.items():
            existed, exists = not seen[0][0], seen[-1][0]
            gone = next((row for came, row in seen if not came), None)
            if gone is not None and (existed or not exists):
                out.append((number, table, int(Op.BEFORE if exists else Op.DELETE), key, gone[1]))
            if exists:
                out.append((number, table, int(Op.UPDATE if existed else Op.INSERT), key, seen[-1][1][1]))
    return sorted(out, key=str)


def reader_of(
    stream: MemoryEventStream,
    start: LogPosition = START,
    marks: Sequence[LogPosition] = (),
    piece: int = 1 << 20,
    clock: SimulatedClock | None = None,
    ends_at: Callable[[LogPlace], bool] = lambda _: True,
    wanted: Callable[[int], bool] = lambda _: True,
) -> LogReader:
    tables = TableVersions(lambda schema, table: server_table(table))
    tables.load([server_table(name) for name in TABLES], 1)
    settings_ = LogReaderSettings(piece_bytes=piece, mark_interval_s=0.0)
    return LogReader(stream, tables, start, marks, wanted, settings_, clock or SimulatedClock(), ends_at)


def read(stream: MemoryEventStream, reader: LogReader) -> list[LogStep]:
    """Read until everything has been given."""
    return list(reader.steps(stream.ended))


def given_rows(found: Sequence[LogStep], names: dict[int, str]) -> list[tuple[int, str, int, int, str | None]]:
    out = []
    for step in found:
        for change in step.changes:
            records = change.records.to_pydict()
            for ts, op, key, note in zip(records["_ts"], records["_op"], records["c1"], records["c2"], strict=True):
                assert (op in {Op.INSERT, Op.UPDATE}) == (change.header.kind is BatchKind.DATA)
                out.append((ts, names[change.header.table_id], op, key, note))
            ordered = list(zip(records["_ts"], records["_key"], strict=True))
            assert ordered == sorted(set(ordered))
    return out


def names_of() -> dict[int, str]:
    tables = TableVersions(lambda schema, table: server_table(table))
    tables.load([server_table(name) for name in TABLES], 1)
    return {t.table_id: t.table for t in tables.list()}


@settings(max_examples=50, deadline=None)
@given(transactions, st.lists(st.integers(1, 200), max_size=30), st.booleans())
def test_any_log_in_any_pieces_is_folded_as_the_model_folds_it(plan: list, sizes: list[int], checksum: bool) -> None:
    log, done = write(plan, checksum)
    stream = MemoryEventStream(bytes(log.data), sizes, 4 if checksum else 0)
    found = read(stream, reader_of(stream))
    rows_ = given_rows(found, names_of())
    # Each transaction has a ts of its own, growing in log order; numbers stand for them in the model.
    at = sorted({ts for ts, *_ in rows_})
    numbers = [n for n, effects in enumerate(done) if effects]
    assert len(at) == len(numbers)
    assert sorted([(numbers[at.index(ts)], *rest) for ts, *rest in rows_], key=str) == folded(done)
    positions = [s.position for s in found if s.position is not None]
    assert [p.ts for p in positions] == sorted(p.ts for p in positions)


@settings(max_examples=50, deadline=None)
@given(transactions, st.lists(st.integers(1, 120), max_size=20), st.integers(0, 30), st.integers(0, 5))
def test_a_log_gives_the_same_ts_from_any_position_and_over_marks(plan: list, sizes: list[int], pick: int, raised: int) -> None:
    log, _ = write(plan, True)
    data = bytes(log.data)
    stream = MemoryEventStream(data, sizes, 4)
    first = read(stream, reader_of(stream))
    places = [s.position for s in first if s.position is not None and not s.mark]
    chosen = places[pick % len(places)]
    # A mark at a place of the log, as if the log had been quiet there.
    mark = LogPosition(chosen.ts + raised * 1_000_000_007, chosen.text)
    whole = MemoryEventStream(data, (), 4)
    with_mark = given_rows(read(whole, reader_of(whole, START, [mark])), names_of())
    offset = int(chosen.text.split(":")[1].split("@")[0]) - 4
    # The rest of the log begins with table maps of its own; only the format is repeated, as a server does.
    head = data[: int.from_bytes(data[9:13], "little")]
    rest = MemoryEventStream(head + data[offset:], sizes, 4)
    resumed = given_rows(read(rest, reader_of(rest, chosen, [mark])), names_of())
    later = [r for r in with_mark if r[0] > mark.ts]
    assert sorted(resumed, key=str) == sorted(later, key=str)
    assert sorted((r[1:] for r in with_mark), key=str) == sorted((r[1:] for r in given_rows(first, names_of())), key=str)


class SlowLog:
    """A log of which a reader sees pauses at any place: some where the log ended then, some where the server was slow to send."""

    def __init__(self, data: bytes, clock: SimulatedClock) -> None:
        self._data = data
        self._clock = clock
        self._ends = [0]
        """The places behind each whole transaction."""
        at = 0
        while at < len(data):
            kind, size = data[at + 4], int.from_bytes(data[at + 9 : at + 13], "little")
            at += size
            if kind in {wire.XID, wire.QUERY}:
                self._ends.append(at)

    def read(self, sizes: Sequence[int], start: LogPosition, marks: Sequence[LogPosition], grows: bool) -> list[LogStep]:
        """Read from a position on; where the log ``grows`` while it is read, it ends behind the transaction that was sent last."""
        skipped = LogPlace.parse(start.text)
        begin = skipped.offset - 4 if skipped.offset > 4 else 0
        head = self._data[: int.from_bytes(self._data[9:13], "little")] if begin else b""
        stream = MemoryEventStream(head + self._data[begin:], sizes, 4, self._clock.advance)

        def ends_at(place: LogPlace) -> bool:
            sent = begin + stream.given - len(head) if grows else len(self._data)
            number = next((n for n, end in enumerate(self._ends) if end >= sent), len(self._ends) - 1)
            return place.reached(LogPlace.parse(f"bin.000001:4@0-1-{number}"))

        reader = reader_of(stream, start, [m for m in marks if m.ts > start.ts], clock=self._clock, ends_at=ends_at)
        return read(stream, reader)


pauses = st.lists(st.one_of(st.just(0), st.integers(1, 200)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(transactions, pauses, pauses, st.integers(0, 40), st.booleans())
def test_a_log_gives_the_same_ts_wherever_its_reading_pauses(
    plan: list, first_sizes: list[int], again_sizes: list[int], pick: int, grows: bool
) -> None:
    log, _ = write(plan, True)
    clock = SimulatedClock()
    slow = SlowLog(bytes(log.data), clock)
    first = slow.read(first_sizes, START, [], grows)
    marks = [s.position for s in first if s.mark and s.position is not None]
    places = [START, *(s.position for s in first if s.position is not None)]
    start = places[pick % len(places)]
    clock.advance(7.0)
    again = slow.read(again_sizes, start, marks, False)
    later = [r for r in given_rows(first, names_of()) if r[0] > start.ts]
    assert sorted(given_rows(again, names_of()), key=str) == sorted(later, key=str)
    # The order by ts is the order of the log, over both readings.
    known = [*places, *(s.position for s in again if s.position is not None)]
    numbers = [LogPlace.parse(p.text).offset for p in sorted(known, key=lambda p: p.ts)]
    assert numbers == sorted(numbers)


@settings(max_examples=50, deadline=None)
@given(transactions, st.lists(st.integers(1, 200), max_size=30))
def test_transactions_in_pieces_do_not_depend_on_how_the_log_arrives(plan: list, sizes: list[int]) -> None:
    log, done = write([(0, False, [c for _, _, changes in plan for c in changes] * 3)], True)
    data = bytes(log.data)
    whole, parts = MemoryEventStream(data, (), 4), MemoryEventStream(data, sizes, 4)
    one = given_rows(read(whole, reader_of(whole, piece=PIECE_BYTES)), names_of())
    two = given_rows(read(parts, reader_of(parts, piece=PIECE_BYTES)), names_of())
    final = {(table, key): note for ts, table, op, key, note in sorted(two, key=lambda r: (r[0], r[2] != Op.DELETE)) if op != Op.BEFORE}
    gone = {(t, k) for ts, t, op, k, _ in two if op == Op.DELETE and ts == max(r[0] for r in two if (r[1], r[3]) == (t, k))}
    state: dict[tuple[str, int], str | None] = {}
    for _, table, before, after in done[0]:
        if before is not None:
            state.pop((table, before[0]), None)
        if after is not None:
            state[table, after[0]] = after[1]
    assert {k: v for k, v in final.items() if k not in gone or k in state} == state
    assert sorted(one, key=str) == sorted(two, key=str)


@settings(max_examples=50, deadline=None)
@given(transactions, st.lists(st.integers(1, 200), max_size=30), st.sampled_from(TABLES))
def test_transactions_in_pieces_do_not_depend_on_which_tables_are_captured(plan: list, sizes: list[int], captured: str) -> None:
    log, _ = write([(0, False, [c for _, _, changes in plan for c in changes] * 3), *plan], True)
    data = bytes(log.data)
    names = names_of()
    whole, parts = MemoryEventStream(data, (), 4), MemoryEventStream(data, sizes, 4)
    every = read(whole, reader_of(whole, piece=PIECE_BYTES))
    one = read(parts, reader_of(parts, piece=PIECE_BYTES, wanted=lambda number: names[number] == captured))
    expected = [row for row in given_rows(every, names) if row[1] == captured]
    assert sorted(given_rows(one, names), key=str) == sorted(expected, key=str)
    assert one[-1].position == every[-1].position


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.lists(st.integers(1, 200), max_size=20))
def test_rows_behind_a_savepoint_go_and_no_others(before: int, kept: int, gone: int, sizes: list[int]) -> None:
    log = BinlogWriter()
    numbers = iter(range(100))
    expected = []
    for rows_, savepoint in ((before, False), (kept, True)):
        log.begin(1)
        for _ in range(rows_):
            expected.append(next(numbers))
            log.table_map(10, "a", 1)
            log.rows(wire.WRITE_ROWS_V1, 10, [(expected[-1], "x")], 1)
        if savepoint:
            log.query("SAVEPOINT `s`", 1)
            # A table that is seen for the first time, so that what is whole is given in the middle of this transaction.
            log.table_map(11, "b", 1)
            log.rows(wire.WRITE_ROWS_V1, 11, [(next(numbers), "y") for _ in range(gone)], 1)
            log.query("ROLLBACK TO `s`", 1)
        log.commit(1)
    stream = MemoryEventStream(bytes(log.data), sizes, 4)
    found = given_rows(read(stream, reader_of(stream)), names_of())
    assert sorted((table, key) for _, table, _, key, _ in found) == [("a", n) for n in expected]


@settings(max_examples=100, deadline=None)
@given(transactions, st.data(), st.booleans())
def test_damage_gives_an_error_or_the_rows_before_it(plan: list, data: st.DataObject, checksum: bool) -> None:
    log, _ = write(plan, checksum)
    good = bytes(log.data)
    whole = MemoryEventStream(good, (), 4 if checksum else 0)
    expected = given_rows(read(whole, reader_of(whole)), names_of())
    bad = bytearray(good)
    first = int.from_bytes(good[9:13], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(first, len(bad) - 1))
        bad[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del bad[data.draw(st.integers(first, len(bad) - 1)) :]
    stream = MemoryEventStream(bytes(bad), (), 4 if checksum else 0)
    found: list[LogStep] = []
    code = ""
    try:
        for step in reader_of(stream).steps(stream.ended):
            found.append(step)  # noqa: PERF402 - what came before an error counts
    except PenstockError as error:
        code = error.code
    assert code in {"", "DECODE_FAILED", "SCHEMA_UNKNOWN", "TYPE_UNSUPPORTED", "UPSTREAM_MISCONFIGURED", "LOG_PURGED"}
    if checksum:
        got = given_rows(found, names_of())
        assert set(got) <= set(expected)


@pytest.mark.parametrize("ending", ["ROLLBACK", "ROLLBACK TO `s`"])
def test_a_transaction_that_was_given_in_pieces_and_is_rolled_back_leaves_a_doubt(ending: str) -> None:
    log = BinlogWriter()
    log.begin(1)
    log.query("SAVEPOINT `s`", 1)
    for number in range(40):
        log.table_map(10, "a", 1)
        log.rows(wire.WRITE_ROWS_V1, 10, [(number, "x")], 1)
    log.query(ending, 1)
    if ending != "ROLLBACK":
        log.commit(1)
    for number in (100, 101):
        log.begin(2)
        log.table_map(11, "b", 2)
        log.rows(wire.WRITE_ROWS_V1, 11, [(number, "y")], 2)
        log.commit(2)
    stream = MemoryEventStream(bytes(log.data), [200] * 40, 4)
    steps = read(stream, reader_of(stream, piece=PIECE_BYTES))
    found = given_rows(steps, names_of())
    assert [key for _, table, _, key, _ in found if table == "b"] == [100, 101]
    given = [ts for ts, table, _, _, _ in found if table == "a"]
    doubts = [(d.table, d.ts) for s in steps for d in s.doubts]
    assert given
    assert [table for table, _ in doubts] == ["a"]
    assert max(given) <= doubts[0][1] < min(ts for ts, table, _, _, _ in found if table == "b")
