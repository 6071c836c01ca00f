"""What a source with one log adds. The sources are in ``conftest.py``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.source.contract import LogPosition
from penstock.source.single_log import LogStep

TableOf = Callable[..., TableSchema]
READ_S = 60.0


def read(rig: Any, start: LogPosition, wanted: Callable[[int], bool], marks: tuple[LogPosition, ...] = ()) -> list[LogStep]:
    """Read the log from a position up to where it ends now."""
    end, stop, clock = rig.upstream.log_end(), threading.Event(), SystemClock()
    deadline_s, steps = clock.monotonic_s() + READ_S, []
    with contextlib.closing(rig.upstream.read_log(start, marks, wanted, stop)) as reader:
        for step in reader:
            steps.append(step)
            if step.position is not None and rig.upstream.reached(step.position.text, end):
                return steps
            assert clock.monotonic_s() < deadline_s, "the end of the log is not reached"
    raise AssertionError("the log ended")


def events(steps: list[LogStep], table_id: int) -> list[tuple[int, Op, int]]:
    """Return commit ts, operation and id of a table's rows in commit order: a step has what came and what ceased apart."""
    rows = [r for s in steps for c in s.changes if c.header.table_id == table_id for r in c.records.to_pylist()]
    return sorted((row["_ts"], Op(row["_op"]), row["c1"]) for row in rows)


def marks_of(steps: list[LogStep]) -> tuple[LogPosition, ...]:
    return tuple(s.position for s in steps if s.mark and s.position is not None)


def test_the_end_of_the_log_is_behind_every_commit(logged: Any) -> None:
    start = logged.upstream.first_position()
    assert logged.upstream.reached(start.text, start.text)
    logged.put([1])
    end = logged.upstream.log_end()
    assert not logged.upstream.reached(start.text, end)
    assert logged.upstream.reached(end, start.text)


def test_every_commit_comes_once_in_order_and_before_the_position_that_covers_it(logged: Any, table_of: TableOf) -> None:
    logged.put([100])
    start = logged.upstream.first_position()
    logged.put([1, 2])
    logged.put([3])
    logged.delete([1])
    table_id = table_of(logged).table_id
    steps = read(logged, start, lambda _: True)
    found = events(steps, table_id)
    assert [(op, i) for _, op, i in found] == [(Op.INSERT, 1), (Op.INSERT, 2), (Op.INSERT, 3), (Op.DELETE, 1)]
    stamps = [ts for ts, _, _ in found]
    assert start.ts < stamps[0] == stamps[1] < stamps[2] < stamps[3]
    covered_ts = start.ts
    for step in steps:
        for change in step.changes:
            assert change.header.span_id == 0
            assert change.header.min_ts > covered_ts, "a row at or below a position that was given before"
            assert (change.header.kind is BatchKind.TOMBSTONE) == (set(change.records.column("_op").to_pylist()) == {int(Op.DELETE)})
        if step.position is not None:
            assert step.position.ts >= covered_ts
            covered_ts = step.position.ts
    assert stamps[-1] <= covered_ts
    assert logged.upstream.current_ts() >= covered_ts


def test_the_same_log_gives_the_same_ts_from_any_position(logged: Any, table_of: TableOf) -> None:
    start = logged.upstream.first_position()
    for number in range(6):
        logged.put([number])
    table_id = table_of(logged).table_id
    first = read(logged, start, lambda _: True)
    whole = events(first, table_id)
    assert [i for _, _, i in whole] == list(range(6))
    marks = marks_of(first)
    for position in [s.position for s in first if s.position is not None]:
        after = tuple(m for m in marks if m.ts >= position.ts)
        # What comes later is read again, and nothing else.
        logged.put([100 + position.ts % 7])
        again = events(read(logged, position, lambda _: True, after), table_id)
        assert [e for e in again if e[2] < 100] == [e for e in whole if e[0] > position.ts]
        logged.delete([100 + position.ts % 7])


def test_rows_that_nobody_wants_are_left_out(logged: Any, table_of: TableOf) -> None:
    start = logged.upstream.first_position()
    logged.put([1])
    logged.put([2], "other")
    wanted, other = table_of(logged).table_id, table_of(logged, "other").table_id
    steps = read(logged, start, lambda table_id: table_id == wanted)
    assert [i for _, _, i in events(steps, wanted)] == [1]
    assert events(steps, other) == []


def test_a_quiet_log_gives_steps_until_it_is_stopped(logged: Any) -> None:
    stop = threading.Event()
    reader = logged.upstream.read_log(logged.upstream.first_position(), (), lambda _: True, stop)
    with contextlib.closing(reader):
        for _ in range(2):
            assert next(reader).changes == ()
        stop.set()
        assert sum(len(step.changes) for step in reader) == 0


def test_a_new_version_of_a_table_comes_with_the_log_before_its_rows(logged: Any, table_of: TableOf) -> None:
    start = logged.upstream.first_position()
    logged.put([1])
    table = table_of(logged)
    logged.alter()
    logged.put([2])
    steps = read(logged, start, lambda _: True)
    versions = [(c.header.schema_version, i) for s in steps for c in s.changes for i in c.records.column("c1").to_pylist()]
    history = logged.upstream.schema_history(table.table_id)
    assert [len(v.columns) for v in history][-2:] == [len(table.columns), len(table.columns) + 1]
    assert versions == [(history[-2].version, 1), (history[-1].version, 2)]
    told = [t for s in steps for d in s.ddls for t in d.tables if t.table_id == table.table_id]
    assert history[-1] in told
    assert [d.commit_ts for s in steps for d in s.ddls] == sorted(d.commit_ts for s in steps for d in s.ddls)


class Reading:
    """Reads the log in a thread, as a puller does."""

    def __init__(self, rig: Any, start: LogPosition) -> None:
        self.steps: list[LogStep] = []
        self._rig = rig
        self._stop = threading.Event()
        self._came = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(start,), daemon=True)
        self._thread.start()

    def _read(self, start: LogPosition) -> None:
        for step in self._rig.upstream.read_log(start, (), lambda _: True, self._stop):
            with self._came:
                self.steps.append(step)
                self._came.notify_all()

    def wait(self) -> None:
        """Wait until everything that is committed now was read."""
        end = self._rig.upstream.log_end()
        with self._came:
            assert self._came.wait_for(
                lambda: any(s.position is not None and self._rig.upstream.reached(s.position.text, end) for s in self.steps), READ_S
            )

    def close(self) -> None:
        self._stop.set()
        self._thread.join(READ_S)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("is_read", [False, True])
def test_a_snapshot_beside_the_log_and_the_log_since_are_the_table(logged: Any, table_of: TableOf, is_read: bool) -> None:
    logged.put(range(10))
    table = table_of(logged)
    start = logged.upstream.first_position()
    with contextlib.ExitStack() as parts:
        reading = parts.enter_context(contextlib.closing(Reading(logged, start))) if is_read else None
        logged.put([40])
        if reading is not None:
            reading.wait()
        ticket = logged.upstream.begin_snapshot()
        logged.delete([4])
        logged.put([50])
        pages = logged.upstream.read_snapshot(ticket, Span(table.table_id), table, 3)
        state = {i for b in pages for i in b.records.column("c1").to_pylist()}
        logged.delete([5])
        logged.upstream.end_snapshot(ticket)
        if reading is None:
            reading = parts.enter_context(contextlib.closing(Reading(logged, ticket.start)))
        reading.wait()
    for ts, op, i in events(reading.steps, table.table_id):
        if ts > ticket.start.ts:
            (state.discard if op is Op.DELETE else state.add)(i)
    now = {i for b in logged.upstream.read_now(Span(table.table_id)) for i in b.records.column("c1").to_pylist()}
    assert state == now == {*range(10), 40, 50} - {4, 5}


def test_schemas_of_earlier_runs_are_taken_over(logged: Any, table_of: TableOf) -> None:
    versions = logged.upstream.schema_history(table_of(logged).table_id)
    logged.upstream.adopt_schemas(versions)
    assert list(logged.upstream.schema_history(versions[-1].table_id)) == list(versions)


def test_what_is_confirmed_and_released_may_be_so_twice(logged: Any) -> None:
    start = logged.upstream.first_position()
    logged.put([1])
    for step in read(logged, start, lambda _: True):
        if step.position is not None:
            logged.upstream.confirm(step.position)
            logged.upstream.confirm(step.position)
    logged.upstream.release()
    logged.upstream.release()
    again = logged.upstream.first_position()
    logged.put([2])
    assert [i for s in read(logged, again, lambda _: True) for c in s.changes for i in c.records.column("c1").to_pylist()] == [2]


@pytest.mark.parametrize("logged", ["memory log", "postgres"], indirect=True)
def test_a_log_that_was_given_up_is_purged(logged: Any) -> None:
    """A server that keeps its logs by its own rules has nothing to give up."""
    start = logged.upstream.first_position()
    logged.put([1])
    logged.upstream.release()
    with pytest.raises(PenstockError, match="LOG_PURGED"):
        read(logged, start, lambda _: True)
