"""A window over several parts ends where one over a single store with the same rows may end, and has the same sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.feed.receivers.board import PartBoard
from penstock.feed.receivers.messages import Orders, PartReport, Report, SpanReport
from penstock.feed.receivers.part_planner import PartPlanner, Plans
from penstock.feed.receivers.settings import ReceiverSettings
from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.puller.log_service import CaptureState
from penstock.store.contract import WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.stats import SpanStats
from testing.checks.change_batches import TABLE, append_durably
from testing.twins.clock import SimulatedClock

SPANS = [Span(TABLE.table_id, bytes([n]), bytes([n + 1])) for n in range(4)]
IDS = [span.span_id for span in SPANS]
DDL = DdlEvent(25, DdlType.ADD_COLUMN, "ALTER TABLE orders ADD COLUMN qty INT", "shop", (TABLE,))


class Parts:
    """Four spans in parts of their own, and once more in one store, which is the oracle."""

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        names = ("all", "own", *(f"part-{number}" for number in range(4)))
        self.stores = {name: self._open.enter_context(ColumnarEventStore(folder / name)) for name in names}
        self.board = PartBoard(ReceiverSettings(2, settle_s=0.0), SimulatedClock(), lambda span_id: TS_MAX)
        self.run = self.board.begin_run(0)
        self.away: set[int] = set()
        self.planner = self._open.enter_context(closing(PartPlanner(self.board, self.stores["own"], self._plans_at)))
        for number, span in enumerate(SPANS):
            for name in ("all", f"part-{number}"):
                self.stores[name].register_span(span.span_id, span, 0)
            self.board.ensure(span)
        for store in self.stores.values():
            store.put_schemas([TABLE])
            store.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)

    def _plans_at(self, number: int, location: str) -> Plans:
        assert location == f"at part-{number}"
        if number in self.away:
            raise PenstockError("STORE_UNREACHABLE", "nobody answers")
        return self.stores[f"part-{number}"]

    def write(self, number: int, first_ts: int, count: int, resolved_ts: int) -> None:
        rows = [(ts, Op.INSERT, ts, f"row {ts}") for ts in range(first_ts, first_ts + count)]
        for name in ("all", f"part-{number}"):
            append_durably(self.stores[name], IDS[number], rows, resolved_ts)

    def resolve(self, ts: int) -> None:
        for store in self.stores.values():
            for span_id in (*store.span_ids(), DDL_SPAN.span_id):
                store.advance_resolved_ts(span_id, ts)

    def ddl(self) -> None:
        for name in ("all", "own"):
            assert self.stores[name].append_ddl(DDL, lambda: None)
            self.stores[name].put_schemas([TableSchema(9, "shop", "other", 1, TABLE.columns)])  # Written behind the DDL.

    def report(self) -> Orders:
        """Say what the parts hold, twice: the first report of a receiver is answered with what it is to hold."""
        parts = []
        for number, span_id in enumerate(IDS):
            store = self.stores[f"part-{number}"]
            stats = next(s for s in store.stats().spans if s.span_id == span_id)
            parts.append(PartReport(number, f"at part-{number}", (SpanReport(SpanStats(*_values(stats))),)))
        report = Report("", "r", 0, self.run, "h", 1, tuple(parts))
        self.board.receive(report)
        return self.board.receive(report)


def _values(stats: SpanStats) -> tuple[object, ...]:
    return tuple(getattr(stats, name) for name in SpanStats.__struct_fields__)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    found = Parts(tmp_path)
    yield found
    found._open.close()


def test_a_window_has_the_end_the_ddls_and_the_sizes_of_one_store(parts: Parts) -> None:
    for number in range(4):
        parts.write(number, 11 + 5 * number, 10, 20)
    parts.ddl()
    parts.resolve(40)
    parts.report()
    for unsplit in ((), (TABLE.table_id,)):
        asked = WindowWish(IDS, [TABLE.table_id], 10, 1 << 30, (), unsplit)
        assert parts.planner.plan_window(asked) == parts.stores["all"].plan_window(asked)
    assert parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], 10, 1 << 30)).ddls == (DDL,)
    ordered = parts.planner.plan_window(WindowWish(IDS[::-1], [TABLE.table_id], 25, 1 << 30))
    assert ordered == parts.stores["all"].plan_window(WindowWish(IDS[::-1], [TABLE.table_id], 25, 1 << 30))


def test_the_part_that_is_furthest_behind_is_the_frontier(parts: Parts) -> None:
    for number in range(4):
        parts.write(number, 11, 10, 20)
    parts.resolve(22)
    for number in (0, 1, 3):
        for span_id in (IDS[number], DDL_SPAN.span_id):
            parts.stores[f"part-{number}"].advance_resolved_ts(span_id, 90)
    parts.stores["own"].advance_resolved_ts(DDL_SPAN.span_id, 90)
    parts.report()
    plan = parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], 10, 1 << 30))
    assert (plan.to_ts, plan.resolved_ts) == (22, 22)
    assert [span.rows for span in plan.spans] == [10, 10, 10, 10]
    assert parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], 22, 1 << 30)).to_ts == 22


def test_a_window_is_bounded_by_its_bytes_over_all_parts_and_still_moves(parts: Parts) -> None:
    for number in range(4):
        parts.write(number, 11, 200, 300)
    parts.resolve(300)
    parts.report()
    whole = parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], 10, 1 << 30))
    bound = sum(span.nbytes for span in whole.spans) // 3
    ends, from_ts = [], 10
    while from_ts < 300:
        plan = parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], from_ts, bound))
        assert sum(span.nbytes for span in plan.spans) <= bound + len(IDS)
        ends.append(plan.to_ts)
        assert plan.to_ts > from_ts
        from_ts = plan.to_ts
    assert 3 <= len(ends) <= 8
    assert parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], 10, 1)).to_ts == 11, "at least the first commit"


def test_a_part_that_does_not_answer_holds_the_window_back_and_is_shown(parts: Parts) -> None:
    for number in range(4):
        parts.write(number, 11, 10, 30)
    parts.resolve(30)
    parts.report()
    parts.away = {2}
    assert parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], 10, 1 << 30)).to_ts == 10
    assert parts.planner.plan_resnapshot(IDS, [TABLE.table_id], 10).to_ts == 10
    shown = {s.span_id: s for s in parts.board.status()}
    assert {i for i in IDS if shown[i].state is CaptureState.RETRYING} == {IDS[2]}
    assert str(shown[IDS[2]].last_error) == "[STORE_UNREACHABLE] nobody answers"
    parts.away = set()
    assert parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], 10, 1 << 30)).to_ts == 30
    assert {s.state for s in parts.board.status()} == {CaptureState.PULLING}


def test_a_span_that_nobody_has_yet_is_unknown(parts: Parts) -> None:
    with pytest.raises(PenstockError, match="SPAN_UNKNOWN"):
        parts.planner.plan_window(WindowWish(IDS, [TABLE.table_id], 10, 1 << 30))
    assert parts.planner.plan_resnapshot(IDS, [TABLE.table_id], 10).to_ts == 10, "its state will be known"


def test_a_state_is_of_one_ts_in_all_parts(parts: Parts) -> None:
    for number in range(4):
        parts.write(number, 11 + number, 10, 30)
    parts.ddl()
    parts.resolve(30)
    parts.stores["part-1"].advance_resolved_ts(IDS[1], 50)
    parts.report()
    found = parts.planner.plan_resnapshot(IDS, [TABLE.table_id], 10)
    assert found == parts.stores["all"].plan_resnapshot(IDS, [TABLE.table_id], 10)
    assert (found.to_ts, found.ddls) == (30, (DDL,))
