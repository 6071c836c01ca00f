"""The event store against a model: random transactions, small and bulk, flushes, merges with concurrent changes, history that leaves,
spans that begin again with a bootstrap, repeats, crashes and windows at every boundary, with equality of content and order."""

import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.model.batch import BatchKind, Op
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.store.contract import Hint, WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.bulk import write_bulk
from penstock.store.objects.objects import ObjectSpace, ObstoreBackend
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, Row, both_sides, change_batch, read_rows, read_steps
from testing.twins.object_store import Fault, FaultRule, FaultyObjects

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
WAIT_S = 120
KEYS = st.sets(st.integers(0, 12), min_size=1, max_size=12)


def small_settings() -> StoreSettings:
    # History leaves the manifest when a rule says so, and stays in checkpoints until another does.
    return StoreSettings(
        wal_segment_bytes=2_000, object_bytes=300, batch_rows_min=3, batch_rows_max=7, history_seconds=0, checkpoint_seconds=10**10
    )


class StoreAgainstModel(RuleBasedStateMachine):
    """The model is a list of rows in the order in which a reader must see them, and a table state per ts."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.store = self.open()
        self.start = 1
        self.log: list[Row] = []
        self.states: dict[int, dict[int, str]] = {0: {}}
        self.ts = 10
        self.resolved = 0
        self.declared = 0
        self.base = 0

    def open(self) -> ColumnarEventStore:
        root = Path(self.directory.name)
        self.faults = FaultyObjects(ObstoreBackend((root / "objects").as_uri()))
        return ColumnarEventStore(root, small_settings(), objects=ObjectSpace("faulty:///", backend=self.faults))

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
        self.append(self.changed(keys, delete, gap))

    def changed(self, keys: set[int], delete: bool, gap: int) -> list[Row]:
        """Commit a transaction in the model; return its rows, tombstones first."""
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
        return tombstones + rows

    @rule(keys=KEYS, delete=st.booleans(), cuts=st.integers(1, 3), again=st.booleans())
    def bulk_transaction(self, keys: set[int], delete: bool, cuts: int, again: bool) -> None:
        """A large transaction that was written elsewhere; a part of it may come with the log as well."""
        rows = self.changed(keys, delete, 1)
        metas = []
        for side in both_sides(SPAN_ID, rows):
            mine = [r for r in rows if (r[1] in (Op.DELETE, Op.BEFORE)) == (side.header.kind is BatchKind.TOMBSTONE)]
            for at in range(0, len(mine), cuts * 2):
                batch = change_batch(SPAN_ID, mine[at : at + cuts * 2], side.header.kind)
                metas.append(write_bulk(self.store.objects, SPAN_ID, f"part-{at}", [batch], self.ts, [TABLE]))
        self.store.commit_changes(SPAN_ID, metas[::-1], self.ts)
        if again:
            self.append(rows[::2])

    @rule(held=KEYS, changed=KEYS, delete=st.booleans(), late=st.sets(st.integers(0, 12)), cuts=st.integers(1, 3))
    def the_log_has_a_hole_and_the_span_begins_again(
        self, held: set[int], changed: set[int], delete: bool, late: set[int], cuts: int
    ) -> None:
        """Nobody knows what happened in the hole. The state is read while rows change: of some keys before, of some after."""
        self.ts = max(self.ts, self.declared) + 1
        start = self.ts
        self.store.reset_span(SPAN_ID, start)
        before = {key: f"{key}@{start}" for key in held}
        self.log, self.states = [], {start: before}
        self.start = self.resolved = self.declared = start
        self.store.advance_resolved_ts(DDL_SPAN.span_id, start)
        rows = self.changed(changed, delete, 2)
        self.append(rows)
        after = self.states[self.ts]
        read = before | {key: after[key] for key in late & after.keys()}
        read = {key: value for key, value in read.items() if key not in late or key in after}
        wanted = [(start, Op.INSERT, key, value) for key, value in sorted(read.items())]
        metas = [
            write_bulk(
                self.store.objects, SPAN_ID, "state", [change_batch(SPAN_ID, wanted[at : at + cuts], BatchKind.DATA)], start, [TABLE]
            )
            for at in range(0, len(wanted), cuts)
        ]
        self.base = self.ts
        self.store.commit_bulk(SPAN_ID, metas, start, self.base)

    @rule()
    def old_orphans_go(self) -> None:
        self.store._spans.of(SPAN_ID).remove_old_orphans(10**15)

    @rule()
    def merge(self) -> None:
        self.store.merge(SPAN_ID)

    @rule(keys=KEYS, delete=st.booleans(), flush=st.booleans(), ahead=st.integers(0, 2))
    def merge_while_rows_commit(self, keys: set[int], delete: bool, flush: bool, ahead: int) -> None:
        held = self.faults.script(FaultRule("put", Fault.HOLD, "-data.arrow"))
        merge = threading.Thread(target=self.store.merge, args=(SPAN_ID,))
        merge.start()
        while merge.is_alive() and not held.held.wait(0.002):
            pass
        if held.held.is_set():
            self.transaction(keys, delete, 1)
            self.ts += ahead
            self.resolve(0)
            if flush:
                self.store.flush(SPAN_ID)
        held.times = 0
        held.release.set()
        merge.join(WAIT_S)
        assert not merge.is_alive()

    @rule(back=st.integers(0, 20))
    def history_leaves_the_manifest(self, back: int) -> None:
        self.store.expire_history({SPAN_ID: max(1, self.resolved - back)})

    @rule(back=st.integers(5, 30))
    def history_is_given_up(self, back: int) -> None:
        limit = max(1, self.resolved - back)
        self.store._spans.of(SPAN_ID).expire_history(limit, limit)
        start = self.store.view(SPAN_ID, 1, 1).state.history_start_ts
        assert start <= max(limit, self.start)
        self.start = max(self.start, start)

    @rule(back=st.integers(0, 6))
    def resolve(self, back: int) -> None:
        self.resolved = max(self.resolved, self.ts - back)
        self.declared = max(self.declared, self.resolved)
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
        assert recovered <= self.declared
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
        if from_ts < self.start:
            with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
                self.store.collect_changes(SPAN_ID, from_ts, to_ts)
            from_ts = self.start
            to_ts = max(to_ts, from_ts)
        expected = [r for r in self.log if from_ts < r[0] <= to_ts]
        assert read_rows(self.store.collect_changes(SPAN_ID, from_ts, to_ts)) == expected
        self.check_steps(from_ts, to_ts)
        if to_ts < self.base:
            with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
                self.store.collect_changes(SPAN_ID, 0, to_ts)
            return
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
        plan = self.store.plan_window(WindowWish([SPAN_ID], [TABLE.table_id], self.start, 1 << 30))
        assert plan.to_ts == max(self.start, self.resolved)
        assert plan.spans[0].rows >= len([r for r in self.log if self.start < r[0] <= self.resolved])


StoreAgainstModel.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestStoreAgainstModel = StoreAgainstModel.TestCase


class StoreAgainstModelForLong(StoreAgainstModel):
    """The same, many times and longer."""


StoreAgainstModelForLong.TestCase.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestStoreAgainstModelForLong = pytest.mark.chaos(StoreAgainstModelForLong.TestCase)
