"""The event store against a model: random transactions, flushes, repeats, crashes and windows, with equality of content and order."""

import shutil
import tempfile
import threading
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.model.batch import Op
from penstock.model.span import DDL_SPAN, Span
from penstock.store.contract import Hint
from penstock.store.event_store import ColumnarEventStore, StoreSettings
from penstock.testing.change_batches import TABLE, Row, both_sides, read_rows, read_steps

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
WAIT_S = 20
KEYS = st.sets(st.integers(0, 12), min_size=1, max_size=12)


def small_settings() -> StoreSettings:
    return StoreSettings(wal_segment_bytes=2_000, object_bytes=300, batch_rows_min=3, batch_rows_max=7)


class StoreAgainstModel(RuleBasedStateMachine):
    """The model is a list of rows in the order in which a reader must see them, and a table state per ts."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.store = self.open()
        self.log: list[Row] = []
        self.states: dict[int, dict[int, str]] = {0: {}}
        self.ts = 10
        self.resolved = 0

    def open(self) -> ColumnarEventStore:
        return ColumnarEventStore(Path(self.directory.name), small_settings())

    def teardown(self) -> None:
        self.store.close()
        self.directory.cleanup()

    @initialize()
    def register(self) -> None:
        self.store.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)
        self.store.register_span(SPAN_ID, SPAN, 0)
        self.store.put_schemas([TABLE])

    def append(self, rows: list[Row]) -> None:
        durable = threading.Event()
        assert self.store.append(SPAN_ID, both_sides(SPAN_ID, rows), durable.set)
        assert durable.wait(WAIT_S)

    @rule(keys=KEYS, delete=st.booleans(), gap=st.integers(1, 3))
    def transaction(self, keys: set[int], delete: bool, gap: int) -> None:
        self.ts += gap
        state = dict(self.state(self.ts))
        tombstones: list[Row] = []
        rows: list[Row] = []
        for key in sorted(keys):
            before = state.get(key)
            after = f"{key}@{self.ts}"
            if before is None:
                rows.append((self.ts, Op.INSERT, key, after))
                state[key] = after
            elif delete:
                tombstones.append((self.ts, Op.DELETE, key, before))
                del state[key]
            else:
                tombstones.append((self.ts, Op.BEFORE, key, before))
                rows.append((self.ts, Op.UPDATE, key, after))
                state[key] = after
        self.states[self.ts] = state
        self.log += tombstones + rows
        self.append(tombstones + rows)

    @rule(back=st.integers(0, 6))
    def resolve(self, back: int) -> None:
        self.resolved = max(self.resolved, self.ts - back)
        self.store.advance_resolved_ts(SPAN_ID, self.resolved)
        self.store.advance_resolved_ts(DDL_SPAN.span_id, self.resolved)

    @rule()
    def flush(self) -> None:
        self.store.flush(SPAN_ID)

    @precondition(lambda self: any(r[0] > self.resolved for r in self.log))
    @rule()
    def a_range_gives_again_what_is_unresolved(self) -> None:
        self.append([r for r in self.log if r[0] > self.resolved])

    @rule()
    def crash_and_open_again(self) -> None:
        """What is on disk at this moment is all that the next process finds."""
        left = tempfile.TemporaryDirectory()
        shutil.copytree(self.directory.name, left.name, dirs_exist_ok=True)
        self.store.close()
        self.directory.cleanup()
        self.directory = left
        self.store = self.open()
        recovered = self.store.register_span(SPAN_ID, SPAN, 0)
        assert recovered <= self.resolved
        self.resolved = min(recovered, self.store.resolved_ts(DDL_SPAN.span_id))
        assert self.store.schema_history(TABLE.table_id) == (TABLE,)

    @rule()
    def close_and_open_again(self) -> None:
        self.store.close()
        self.store = self.open()
        assert self.store.resolved_ts(SPAN_ID) >= self.resolved

    def state(self, ts: int) -> dict[int, str]:
        return self.states[max(t for t in self.states if t <= ts)]

    @rule(data=st.data())
    def window(self, data: st.DataObject) -> None:
        edges = sorted({1, self.resolved, *(t + d for t in self.states for d in (-1, 0, 1))} & set(range(1, self.resolved + 1)))
        if not edges:
            return
        from_ts = data.draw(st.sampled_from(edges))
        to_ts = data.draw(st.sampled_from([e for e in edges if e >= from_ts]))
        expected = [r for r in self.log if from_ts < r[0] <= to_ts]
        assert read_rows(self.store.collect_changes(SPAN_ID, from_ts, to_ts)) == expected
        self.check_steps(from_ts, to_ts)
        snapshot = [(to_ts, Op.INSERT, key, value) for key, value in sorted(self.state(to_ts).items())]
        assert read_rows(self.store.collect_changes(SPAN_ID, 0, to_ts)) == snapshot

    def check_steps(self, from_ts: int, to_ts: int) -> None:
        done_ts = from_ts
        for step in read_steps(self.store.collect_changes(SPAN_ID, from_ts, to_ts)):
            batches = [*step.data, *step.tombstones]
            assert batches
            assert min(b.header.min_ts for b in batches) > done_ts
            assert sum(b.header.rows for b in step.data) <= 7
            assert sum(b.header.rows for b in step.tombstones) <= 7
            if step.hint is Hint.TAIL_DONE:
                done_ts = max(b.header.max_ts for b in batches)

    @invariant()
    def plans_reach_the_resolved_ts(self) -> None:
        plan = self.store.plan_window([SPAN_ID], [TABLE.table_id], 1, 1 << 30)
        assert plan.to_ts == max(1, self.resolved)
        assert plan.spans[0].rows >= len([r for r in self.log if 1 < r[0] <= self.resolved])


StoreAgainstModel.TestCase.settings = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestStoreAgainstModel = StoreAgainstModel.TestCase
