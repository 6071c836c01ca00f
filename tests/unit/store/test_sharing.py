"""An event store whose objects are on shared storage: another machine goes on from there, and the one before is cut off."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.model.types import ColumnType, TypeKind
from penstock.store.contract import WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.manifest import load_manifests
from penstock.store.objects.objects import ObjectSpace, ObstoreBackend
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, Row, append_durably, both_sides, read_rows

SPAN = Span(TABLE.table_id)
IDLE = Span(TABLE.table_id + 1)
LATE = Span(TABLE.table_id + 2)
ROWS: list[Row] = [(ts, Op.INSERT, ts, f"row {ts}") for ts in range(11, 31)]
NEWER = TableSchema(TABLE.table_id, "shop", "orders", 35, (*TABLE.columns, Column(3, "qty", ColumnType(TypeKind.INT))))
DDL = DdlEvent(35, DdlType.ADD_COLUMN, "ALTER TABLE orders ADD COLUMN qty INT", "shop", (NEWER,))
NEVER = StoreSettings(objects_interval_s=86_400)


class Machines:
    """Servers' disks around one shared storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[ColumnarEventStore] = []

    def space(self) -> ObjectSpace:
        return ObjectSpace((self.folder / "shared").as_uri())

    def start(self, disk: str) -> ColumnarEventStore:
        store = ColumnarEventStore(self.folder / disk, NEVER, objects=self.space(), shared=True)
        self.opened.append(store)
        store.own()
        return store

    def capture(self, store: ColumnarEventStore) -> None:
        """Rows to ts 20 in objects, those to ts 30 in memory, and a span that never had any."""
        for span in (SPAN, IDLE, DDL_SPAN):
            store.register_span(span.span_id, span, 10)
        store.put_schemas([TABLE])
        append_durably(store, SPAN.span_id, ROWS[:10], 20)
        assert store.flush(SPAN.span_id)
        append_durably(store, SPAN.span_id, ROWS[10:], 30)
        for span in (IDLE, DDL_SPAN):
            store.advance_resolved_ts(span.span_id, 30)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    for store in made.opened:
        store.close()


def test_a_server_with_an_empty_disk_goes_on_from_the_objects_and_pulls_only_what_is_newer(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    one._sharing.mark()  # type: ignore[union-attr]
    two = machines.start("two")
    assert two.register_span(SPAN.span_id, SPAN, 10) == 20
    assert two.register_span(IDLE.span_id, IDLE, 10) == 30
    assert two.register_span(DDL_SPAN.span_id, DDL_SPAN, 10) == 30
    assert two.schema_history(TABLE.table_id) == (TABLE,)
    append_durably(two, SPAN.span_id, ROWS[10:], 30)
    assert read_rows(two.collect_changes(SPAN.span_id, 10, 30)) == ROWS


def test_the_server_before_is_refused_and_says_so_from_then_on(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    fresh = Span(TABLE.table_id + 7)
    one.register_span(fresh.span_id, fresh, 10)
    machines.start("two")
    before = machines.space().list_names("spans/")
    for change in (
        lambda: one.flush(SPAN.span_id),
        lambda: one.flush(fresh.span_id),
        lambda: one.merge(SPAN.span_id),
        one.collect_garbage,
        lambda: one.append(SPAN.span_id, both_sides(SPAN.span_id, [(40, Op.INSERT, 1, "x")]), lambda: None),
        lambda: one.register_span(SPAN.span_id, SPAN, 10),
        lambda: one.plan_window(WindowWish([SPAN.span_id], [TABLE.table_id], 10, 1_000)),
    ):
        with pytest.raises(PenstockError, match=r"\[FENCED\]"):
            change()
    one.close()
    assert machines.space().list_names("spans/") == before


def test_a_manifest_is_fenced_where_nobody_looked_at_the_epoch_in_time(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    two = machines.start("two")
    # As if the new owner had come between the look and the put.
    one._sharing.before_publish = lambda: None  # type: ignore[union-attr, method-assign]
    with pytest.raises(PenstockError, match=r"\[FENCED\]"):
        one.flush(SPAN.span_id)
    assert two.resolved_ts(SPAN.span_id) == 20
    # A span that had no manifest yet is no one's: what the old owner wrote is gone over.
    late = Span(TABLE.table_id + 7)
    two.register_span(late.span_id, late, 10)
    two.put_schemas([TABLE])
    stale = machines.start("three")
    stale.register_span(late.span_id, late, 10)
    append_durably(stale, late.span_id, ROWS[:2], 12)
    four = machines.start("four")
    four.register_span(late.span_id, late, 10)
    append_durably(four, late.span_id, ROWS[:5], 15)
    stale._sharing.before_publish = lambda: None  # type: ignore[union-attr, method-assign]
    assert stale.flush(late.span_id)
    assert four.flush(late.span_id)
    assert (load_manifests(machines.space())[late.span_id].flushed_ts, read_rows(four.collect_changes(late.span_id, 10, 15))) == (
        15,
        ROWS[:5],
    )
    append_durably(stale, late.span_id, ROWS[2:3], 13)
    with pytest.raises(PenstockError, match=r"\[FENCED\]"):
        stale.flush(late.span_id)


def test_the_same_disk_goes_on_with_its_log_and_one_that_was_overtaken_does_not(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    one._sharing = None  # Its process is killed: nothing more is shared.
    one.close()
    again = machines.start("one")
    assert again.register_span(SPAN.span_id, SPAN, 10) == 30
    assert read_rows(again.collect_changes(SPAN.span_id, 10, 30)) == ROWS
    again._sharing = None
    again.close()
    two = machines.start("two")
    append_durably(two, SPAN.span_id, [(25, Op.INSERT, 99, "pulled again, by the other")], 26)
    two.close()
    back = machines.start("one")
    assert back.register_span(SPAN.span_id, SPAN, 10) == 26
    assert read_rows(back.collect_changes(SPAN.span_id, 20, 26)) == [(25, Op.INSERT, 99, "pulled again, by the other")]


def test_an_old_backup_of_a_disk_says_nothing_that_its_log_does_not_hold(machines: Machines) -> None:
    """Objects that were published since name a later resolved ts, whose rows were in the log that is gone."""
    one = machines.start("one")
    machines.capture(one)
    # What is resolved goes to the log with the next record.
    one.register_span(LATE.span_id, LATE, 10)
    shutil.copytree(machines.folder / "one", machines.folder / "backup")
    append_durably(one, SPAN.span_id, [(35, Op.INSERT, 35, "since the backup")], 40)
    one.commit_bulk(SPAN.span_id, (), 15)
    assert load_manifests(machines.space())[SPAN.span_id].resolved_ts == 40
    _killed(one)
    old = machines.start("backup")
    assert old.register_span(SPAN.span_id, SPAN, 10) == 30
    assert read_rows(old.collect_changes(SPAN.span_id, 20, 30)) == ROWS[10:]
    append_durably(old, SPAN.span_id, [(35, Op.INSERT, 35, "since the backup")], 40)
    assert read_rows(old.collect_changes(SPAN.span_id, 30, 40)) == [(35, Op.INSERT, 35, "since the backup")]


def test_of_two_copies_of_a_disk_the_later_one_has_the_objects(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    one.register_span(LATE.span_id, LATE, 10)
    shutil.copytree(machines.folder / "one", machines.folder / "copy")
    two = machines.start("copy")
    assert two.register_span(SPAN.span_id, SPAN, 10) == 30
    for change in (lambda: one.flush(SPAN.span_id), lambda: one.register_span(SPAN.span_id, SPAN, 10), one._sharing.mark):  # type: ignore[union-attr]
        with pytest.raises(PenstockError, match=r"\[FENCED\]"):
            change()
    assert two.flush(SPAN.span_id)
    assert read_rows(two.collect_changes(SPAN.span_id, 10, 30)) == ROWS
    _killed(one)
    back = machines.start("one")
    assert back.register_span(SPAN.span_id, SPAN, 10) == 30
    assert read_rows(back.collect_changes(SPAN.span_id, 10, 30)) == ROWS
    with pytest.raises(PenstockError, match=r"\[FENCED\]"):
        two.collect_garbage()


def test_a_directory_that_goes_on_leaves_two_manifests(machines: Machines) -> None:
    machines.capture(machines.start("one"))
    for _ in range(4):
        _killed(machines.opened[-1])
        machines.start("one")
    assert len(machines.space().list_names(f"spans/{SPAN.span_id}/manifest/")) == 2


def _killed(store: ColumnarEventStore) -> None:
    """Close a store as the end of its process would: nothing more is shared."""
    sharing, store._sharing = store._sharing, None
    assert sharing is not None
    sharing._stop.set()
    store.close()


def test_a_server_that_is_closed_leaves_nothing_to_be_pulled_again(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    one.close()
    shutil.rmtree(machines.folder / "one")
    two = machines.start("two")
    assert two.register_span(SPAN.span_id, SPAN, 10) == 30
    assert read_rows(two.collect_changes(SPAN.span_id, 10, 30)) == ROWS


def test_ddls_are_there_before_a_mark_relies_on_them(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    durable = threading.Event()
    one.append_ddl(DDL, durable.set)
    assert durable.wait(60)
    one.advance_resolved_ts(DDL_SPAN.span_id, 40)
    one._sharing.mark()  # type: ignore[union-attr]
    two = machines.start("two")
    assert two.register_span(DDL_SPAN.span_id, DDL_SPAN, 10) == 40
    assert two.schema_history(TABLE.table_id) == (TABLE, NEWER)
    append_durably(two, SPAN.span_id, ROWS[10:], 40)
    plan = two.plan_window(WindowWish([SPAN.span_id], [TABLE.table_id], 10, 1 << 30))
    assert (plan.to_ts, plan.ddls) == (35, (DDL,))


def test_what_a_mark_says_is_what_survives(machines: Machines) -> None:
    one = machines.start("one")
    ids = [SPAN.span_id, IDLE.span_id, DDL_SPAN.span_id]
    machines.capture(one)
    assert one.recoverable_ts(ids) == 0
    one._sharing.mark()  # type: ignore[union-attr]
    assert (one.recoverable_ts(ids), one.recoverable_ts(ids[1:])) == (20, 30)
    one.secure([SPAN.span_id])
    one._sharing.mark()  # type: ignore[union-attr]
    assert one.recoverable_ts(ids) == 30
    with ColumnarEventStore(machines.folder / "alone") as local:
        assert local.recoverable_ts(ids) == TS_MAX


def test_what_lies_in_memory_is_shared_by_the_clock(machines: Machines) -> None:
    settings = StoreSettings(objects_interval_s=0.1)
    with ColumnarEventStore(machines.folder / "one", settings, objects=machines.space(), shared=True) as one:
        machines.capture(one)
        ids = [SPAN.span_id, IDLE.span_id, DDL_SPAN.span_id]
        never, tries = threading.Event(), 0
        while one.recoverable_ts(ids) < 30 and (tries := tries + 1) < 1_200:
            never.wait(0.05)
        assert one.recoverable_ts(ids) == 30
        assert load_manifests(machines.space())[SPAN.span_id].flushed_ts == 30


def test_a_log_whose_objects_are_elsewhere_is_not_opened_without_them(machines: Machines) -> None:
    machines.start("one").close()
    with pytest.raises(PenstockError, match=r"\[CONFIG_INVALID\] store.objects"):
        ColumnarEventStore(machines.folder / "one")


def test_a_server_that_stands_by_takes_nothing(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    before = machines.space().list_names("")
    with ColumnarEventStore(machines.folder / "two", NEVER, objects=machines.space(), shared=True) as two:
        assert two.is_standing_by()
        assert (two.span_ids(), two.base_ts(SPAN.span_id), two.stats().spans) == ((), None, ())
    assert machines.space().list_names("") == before
    assert one.flush(SPAN.span_id)


def test_a_server_that_was_cut_off_takes_the_objects_back_when_a_feed_begins_there_again(machines: Machines) -> None:
    one = machines.start("one")
    machines.capture(one)
    two = machines.start("two")
    append_durably(two, SPAN.span_id, ROWS[10:], 30)
    two.close()
    with pytest.raises(PenstockError, match=r"\[FENCED\]"):
        one.flush(SPAN.span_id)
    assert one.is_taken_away()
    one.stand_by()
    assert (one.is_taken_away(), one.is_standing_by(), one.span_ids()) == (False, True, ())
    assert one.register_span(SPAN.span_id, SPAN, 10) == 30
    assert read_rows(one.collect_changes(SPAN.span_id, 10, 30)) == ROWS
    append_durably(one, SPAN.span_id, [(40, Op.INSERT, 40, "here again")], 40)
    assert one.flush(SPAN.span_id)


def test_taking_over_is_tried_again_where_the_storage_did_not_answer(machines: Machines) -> None:
    machines.capture(machines.start("one"))
    for fails_at in range(1, 12):
        broken = FailingPuts((machines.folder / "shared").as_uri(), fails_at)
        two = ColumnarEventStore(machines.folder / "two", NEVER, objects=ObjectSpace("", broken), shared=True)
        machines.opened.append(two)
        with contextlib.suppress(PenstockError):
            two.own()
        assert two.is_standing_by() == (broken.puts == fails_at)
        two.own()
        assert two.register_span(SPAN.span_id, SPAN, 10) == 20
        assert read_rows(two.collect_changes(SPAN.span_id, 10, 20)) == ROWS[:10]
        two.close()
        shutil.rmtree(machines.folder / "two")
        if broken.puts < fails_at:
            return
    raise AssertionError("taking over takes more puts than expected")


class FailingPuts(ObstoreBackend):
    """A storage whose put of a number fails."""

    def __init__(self, uri: str, fails_at: int) -> None:
        super().__init__(uri)
        self.puts = 0
        self._fails_at = fails_at

    def put_new(self, path: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        self.puts += 1
        if self.puts == self._fails_at:
            raise OSError("connection refused")
        super().put_new(path, parts)
