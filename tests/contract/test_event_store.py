"""The contract of an event store: what the puller and the feeds may rely on. Each implementation is a parameter."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.store.contract import ChangesHandle, EndOfRange, EventStore, Hint, WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.server import FlightService
from testing.checks.change_batches import TABLE, both_sides, change_batch, read_rows, read_steps
from testing.checks.looked_inside import object_rows
from testing.twins.event_store import MemoryEventStore

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
WAIT_S = 120
Open = Callable[[int, int], ChangesHandle]


@pytest.fixture(params=["columnar", "columnar by Flight", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventStore]:
    """The store, read in two ways, and its twin."""
    opened = MemoryEventStore() if request.param == "memory" else ColumnarEventStore(tmp_path / "store")
    with closing(opened):
        opened.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)
        opened.register_span(SPAN_ID, SPAN, 0)
        opened.put_schemas([TABLE])
        yield opened


@pytest.fixture
def open_changes(request: pytest.FixtureRequest, store: EventStore) -> Iterator[Open]:
    """Read in the process, or through Flight."""
    if "by Flight" not in request.node.callspec.params["store"]:
        yield lambda from_ts, to_ts: store.collect_changes(SPAN_ID, from_ts, to_ts)
        return
    assert isinstance(store, ColumnarEventStore)
    service = FlightService(store)
    client = FlightStoreClient(service.location, service.token)
    yield lambda from_ts, to_ts: client.open_changes(SPAN_ID, from_ts, to_ts)
    client.close()
    service.close()


def flush(store: EventStore) -> None:
    """Let a store that has objects write its memory to them."""
    if isinstance(store, ColumnarEventStore):
        assert store.flush(SPAN_ID)


def append(store: EventStore, batches: Sequence[ChangeBatch]) -> None:
    durable = threading.Event()
    assert store.append(SPAN_ID, batches, durable.set)
    assert durable.wait(WAIT_S)


def advance(store: EventStore, ts: int) -> None:
    store.advance_resolved_ts(SPAN_ID, ts)
    store.advance_resolved_ts(DDL_SPAN.span_id, ts)


ROWS = [
    (10, Op.INSERT, 1, "a"),
    (10, Op.INSERT, 2, "b"),
    (12, Op.BEFORE, 1, "a"),
    (12, Op.UPDATE, 1, "a2"),
    (12, Op.INSERT, 3, "c"),
    (15, Op.DELETE, 2, "b"),
]
ORDERED = [ROWS[0], ROWS[1], ROWS[2], ROWS[3], ROWS[4], ROWS[5]]


@pytest.mark.parametrize("flushes", [(), (11,), (12,), (15,), (10, 12)])
def test_a_tail_gives_lower_ts_first_and_at_one_ts_deletes_first(store: EventStore, open_changes: Open, flushes: tuple[int, ...]) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    for ts in flushes:
        advance(store, ts)
        flush(store)
    advance(store, 20)
    assert read_rows(open_changes(5, 20)) == ORDERED
    for from_ts in range(9, 17):
        for to_ts in range(from_ts, 18):
            assert read_rows(open_changes(from_ts, to_ts)) == [r for r in ORDERED if from_ts < r[0] <= to_ts], (from_ts, to_ts)


def test_without_before_images_keys_are_left_out_too(store: EventStore, open_changes: Open) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 20)
    assert read_rows(open_changes(5, 20), keep_before=False) == [r for r in ORDERED if r[1] is not Op.BEFORE]


def test_a_snapshot_is_the_state_at_its_ts_in_key_order_without_tombstones(store: EventStore, open_changes: Open) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 12)
    flush(store)
    advance(store, 20)
    expected = {
        9: [],
        10: [(10, Op.INSERT, 1, "a"), (10, Op.INSERT, 2, "b")],
        12: [(12, Op.INSERT, 1, "a2"), (12, Op.INSERT, 2, "b"), (12, Op.INSERT, 3, "c")],
        20: [(20, Op.INSERT, 1, "a2"), (20, Op.INSERT, 3, "c")],
    }
    for ts, rows in expected.items():
        steps = read_steps(open_changes(0, ts))
        assert all(s.hint is Hint.SNAPSHOT and not s.tombstones for s in steps)
        assert read_rows(open_changes(0, ts)) == rows


def test_a_snapshot_reads_old_rows_under_the_version_of_its_ts(store: EventStore, open_changes: Open) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    added = (
        Column(3, "state", ColumnType(TypeKind.ENUM, elems=("new", "paid")), default="paid"),
        Column(4, "qty", ColumnType(TypeKind.INT), default="7"),
        Column(5, "memo", ColumnType(TypeKind.VARCHAR)),
    )
    newer = TableSchema(7, "shop", "orders", 18, (TABLE.columns[0], *added))
    durable = threading.Event()
    store.append_ddl(DdlEvent(18, DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE orders ...", "shop", (newer,)), durable.set)
    assert durable.wait(WAIT_S)
    append(store, [change_batch(SPAN_ID, [(19, Op.INSERT, 9, 1, 2, "m")], BatchKind.DATA, newer)])
    advance(store, 30)
    assert read_rows(open_changes(0, 30)) == [
        (30, Op.INSERT, 1, 2, 7, None),
        (30, Op.INSERT, 3, 2, 7, None),
        (30, Op.INSERT, 9, 1, 2, "m"),
    ]
    assert read_rows(open_changes(0, 17))[0] == (17, Op.INSERT, 1, "a2")
    assert list(store.schema_history(7)) == [TABLE, newer]


def test_the_end_is_a_value_and_cancelling_an_error(store: EventStore, open_changes: Open) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 20)
    handle = open_changes(5, 20)
    read_steps(open_changes(5, 20))
    while not isinstance(end := handle.next(), EndOfRange):
        pass
    assert end == EndOfRange(20)
    assert handle.next() == EndOfRange(20)
    assert open_changes(20, 20).next() == EndOfRange(20)
    handle.close()
    handle.close()
    with pytest.raises(PenstockError, match=r"\[CANCELLED\]"):
        handle.next()


def test_windows_that_cannot_be_answered_are_errors_of_their_own(store: EventStore, open_changes: Open) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 13)
    for window in ((14, 13), (5, 14)):
        with pytest.raises(PenstockError, match=r"\[WINDOW_INVALID\]"):
            open_changes(*window)


@pytest.mark.parametrize("store", ["columnar", "columnar by Flight"], indirect=True)
def test_history_that_is_gone_is_an_error_of_its_own(store: ColumnarEventStore, open_changes: Open) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 13)
    flush(store)
    assert sorted(meta.rows for meta in store.view(SPAN_ID).state.objects) == [1, 4], "an object for each side"
    store.reset_span(SPAN_ID, 13)
    assert object_rows(store, SPAN_ID) == {}
    append(store, both_sides(SPAN_ID, ROWS[5:]))
    advance(store, 20)
    for from_ts in (12, 0):
        with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
            open_changes(from_ts, 20)
    assert read_rows(open_changes(13, 20)) == [ROWS[5]]


def test_rows_that_come_again_are_not_stored_twice(store: EventStore, open_changes: Open) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    append(store, both_sides(SPAN_ID, ROWS[2:]))
    advance(store, 12)
    flush(store)
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 20)
    assert read_rows(open_changes(5, 20)) == ORDERED


def test_a_new_row_below_the_resolved_ts_is_a_violation(store: EventStore) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 20)
    with pytest.raises(PenstockError, match=r"\[RESOLVED_TS_VIOLATED\]"):
        store.append(SPAN_ID, [change_batch(SPAN_ID, [(20, Op.INSERT, 50, "late")], BatchKind.DATA)], lambda: None)


def test_an_unknown_span_takes_nothing(store: EventStore) -> None:
    called = threading.Event()
    assert not store.append(99, both_sides(99, ROWS), called.set)
    assert not called.is_set()
    with pytest.raises(PenstockError, match=r"\[SPAN_UNKNOWN\]"):
        store.resolved_ts(99)


def test_the_resolved_ts_never_goes_back(store: EventStore) -> None:
    advance(store, 20)
    advance(store, 19)
    assert store.resolved_ts(SPAN_ID) == 20
    assert store.register_span(SPAN_ID, SPAN, 3) == 20


def test_a_window_ends_at_the_smallest_resolved_ts(store: EventStore) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    assert store.plan_window(WindowWish([SPAN_ID], [7], 0, 1 << 30)).to_ts == 0
    store.advance_resolved_ts(SPAN_ID, 20)
    assert store.plan_window(WindowWish([SPAN_ID], [7], 5, 1 << 30)).to_ts == 5
    store.advance_resolved_ts(DDL_SPAN.span_id, 14)
    plan = store.plan_window(WindowWish([SPAN_ID], [7], 5, 1 << 30))
    assert (plan.from_ts, plan.to_ts, plan.resolved_ts, plan.ddls) == (5, 14, 14, ())


def test_a_window_ends_at_the_first_ddl_of_its_tables(store: EventStore) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 20)
    mine = DdlEvent(12, DdlType.DROP_TABLE, "DROP TABLE orders", "shop", dropped_table_ids=(7,))
    other = DdlEvent(11, DdlType.DROP_TABLE, "DROP TABLE others", "shop", dropped_table_ids=(8,))
    calls: list[DdlEvent] = []
    done = threading.Semaphore(0)
    for ddl in (mine, other, mine):

        def persisted(ddl: DdlEvent = ddl) -> None:
            calls.append(ddl)
            done.release()

        assert store.append_ddl(ddl, persisted)
    for _ in range(3):
        assert done.acquire(timeout=WAIT_S)
    assert calls == [mine, other, mine]
    plan = store.plan_window(WindowWish([SPAN_ID], [7], 5, 1 << 30))
    assert (plan.to_ts, plan.ddls) == (12, (mine,))
    assert store.plan_window(WindowWish([SPAN_ID], [7], 12, 1 << 30)).to_ts == 20
    assert store.plan_window(WindowWish([SPAN_ID], [9], 5, 1 << 30)).to_ts == 20


def test_a_window_ends_at_ddls_of_matching_names_and_not_at_changes_in_place_of_unsplit_tables(store: EventStore) -> None:
    append(store, both_sides(SPAN_ID, ROWS))
    advance(store, 20)
    made = msgspec.structs.replace(TABLE, table_id=70, table="fresh", version=14)
    ddls = [
        DdlEvent(11, DdlType.ADD_COLUMN, "ALTER TABLE orders ADD COLUMN x INT", "shop", (msgspec.structs.replace(TABLE, version=11),)),
        DdlEvent(13, DdlType.CREATE_SCHEMA, "CREATE DATABASE elsewhere", "elsewhere"),
        DdlEvent(14, DdlType.CREATE_TABLE, "CREATE TABLE fresh (...)", TABLE.schema, (made,)),
    ]
    done = threading.Semaphore(0)
    for ddl in ddls:
        assert store.append_ddl(ddl, done.release)
        assert done.acquire(timeout=WAIT_S)
    plan = store.plan_window(WindowWish([SPAN_ID], [7], 5, 1 << 30, [f"{TABLE.schema}.*"], [7]))
    assert (plan.to_ts, plan.ddls, plan.inner_ddls) == (14, (ddls[2],), (ddls[0],))
    assert store.plan_window(WindowWish([SPAN_ID], [7], 5, 1 << 30, [f"{TABLE.schema}.*"])).to_ts == 11
    assert store.plan_window(WindowWish([SPAN_ID], [7], 14, 1 << 30, [f"{TABLE.schema}.*"], [7])).to_ts == 20
    assert store.plan_window(WindowWish([SPAN_ID], [7], 5, 1 << 30, ["else*.t"], [7])).ddls == (ddls[1],)


def test_a_window_is_cut_by_bytes_and_always_gets_on(store: EventStore) -> None:
    rows = [(100 + ts, Op.INSERT, ts, "x" * 50) for ts in range(400)]
    for start in range(0, 400, 40):
        append(store, both_sides(SPAN_ID, rows[start : start + 40]))
    advance(store, 200)
    flush(store)
    advance(store, 600)
    whole = store.plan_window(WindowWish([SPAN_ID], [7], 50, 1 << 30))
    assert (whole.to_ts, whole.spans[0].rows) == (600, 400)
    nbytes_max = whole.spans[0].nbytes // 5
    from_ts, read, windows = 50, [], 0
    while from_ts < 600:
        plan = store.plan_window(WindowWish([SPAN_ID], [7], from_ts, nbytes_max))
        assert plan.to_ts > from_ts
        assert plan.spans[0].nbytes <= nbytes_max
        read += read_rows(store.collect_changes(SPAN_ID, from_ts, plan.to_ts))
        from_ts, windows = plan.to_ts, windows + 1
    assert read == rows
    assert 5 <= windows <= 8
    tiny = store.plan_window(WindowWish([SPAN_ID], [7], 50, 1))
    assert tiny.to_ts >= 100
    assert read_rows(store.collect_changes(SPAN_ID, 50, tiny.to_ts)) == rows[: tiny.to_ts - 99]
