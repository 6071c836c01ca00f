"""Records of bootstraps, orphans that go once they are old, spans that begin again, and plans of re-snapshots."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.store.contract import WindowKind, WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.log.bootstrap_log import BootstrapLog, BootstrapPlan, PulledPart
from penstock.store.objects.bulk import write_bulk
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, append_durably, change_batch, read_rows

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
PLAN = BootstrapPlan(SPAN_ID, 100, (Span(TABLE.table_id, b"", b"m"), Span(TABLE.table_id, b"m")))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ColumnarEventStore]:
    with ColumnarEventStore(tmp_path / "store") as opened:
        for span in (SPAN, DDL_SPAN):
            opened.register_span(span.span_id, span, 100)
        opened.put_schemas([TABLE])
        yield opened


def bulk(space: ObjectSpace, key: int, name: str = "part") -> ObjectMeta:
    batch = change_batch(SPAN_ID, [(100, Op.INSERT, key, f"row {key}")], BatchKind.DATA)
    return write_bulk(space, SPAN_ID, name, [batch], 100, [TABLE])


def names(space: ObjectSpace, folder: str) -> list[str]:
    return list(space.list_names(f"spans/{SPAN_ID}/{folder}/"))


def test_a_driver_that_comes_back_finds_the_plan_and_what_is_done(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    log = BootstrapLog(space, SPAN_ID)
    assert log.plan() is None
    log.begin(PLAN)
    part = PulledPart((bulk(space, 1),), 105, 2)
    assert log.finish(PLAN, 1, part) == part
    again = BootstrapLog(ObjectSpace(tmp_path.as_uri()), SPAN_ID)
    assert again.plan() == PLAN
    assert again.finished(PLAN) == {1: part}
    assert again.finish(PLAN, 1, PulledPart((bulk(space, 1),), 109)) == part, "the first record of a part counts"
    again.clear()
    assert again.plan() is None
    assert part.objects[0].path in names(space, "bulk")


def test_a_new_plan_removes_what_the_old_one_had_written(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    log = BootstrapLog(space, SPAN_ID)
    log.begin(PLAN)
    log.finish(PLAN, 0, PulledPart((bulk(space, 1),), 100))
    newer = BootstrapPlan(SPAN_ID, 200, PLAN.pieces, "{}", resumable=False)
    log.begin(newer)
    assert log.plan() == newer
    assert log.finished(newer) == {}
    assert names(space, "bulk") == []


def test_orphans_go_when_they_are_old_and_those_of_a_live_bootstrap_stay(tmp_path: Path) -> None:
    settings = StoreSettings(orphan_seconds=-60)
    with ColumnarEventStore(tmp_path / "store", StoreSettings(orphan_seconds=60)) as young:
        young.register_span(SPAN_ID, SPAN, 100)
        orphan = bulk(young.objects, 1, "orphan")
        young.collect_garbage()
        assert orphan.path in names(young.objects, "bulk"), "it is young"
    # With a negative age everything that there is counts as old.
    with ColumnarEventStore(tmp_path / "store", settings) as store:
        committed = bulk(store.objects, 2, "committed")
        store.commit_bulk(SPAN_ID, [committed], 100)
        store.collect_garbage()
        assert names(store.objects, "bulk") == [committed.path]


def test_records_of_a_bootstrap_keep_its_objects(store: ColumnarEventStore) -> None:
    BootstrapLog(store.objects, SPAN_ID).begin(PLAN)
    waiting = bulk(store.objects, 1)
    span = store._spans.of(SPAN_ID)
    assert span.remove_old_orphans(0) == 0
    written_ms = max(store.objects.list_modified(f"spans/{SPAN_ID}/").values())
    assert span.remove_old_orphans(written_ms) == 0, "the plan is as young as that"
    assert waiting.path in names(store.objects, "bulk")
    assert span.remove_old_orphans(written_ms + 60_000) == 1
    assert BootstrapLog(store.objects, SPAN_ID).plan() is None


def test_a_span_begins_again_after_a_hole_in_the_log(store: ColumnarEventStore, tmp_path: Path) -> None:
    store.commit_bulk(SPAN_ID, [bulk(store.objects, 1)], 100)
    append_durably(store, SPAN_ID, [(110, Op.INSERT, 2, "two")], 120)
    store.flush(SPAN_ID)
    append_durably(store, SPAN_ID, [(130, Op.INSERT, 3, "in memory")], 140)
    with pytest.raises(PenstockError, match=r"\[RESOLVED_TS_VIOLATED\]"):
        store.reset_span(SPAN_ID, 139)
    store.reset_span(SPAN_ID, 200)
    assert store.base_ts(SPAN_ID) is None
    for window in ((0, 200), (120, 200)):
        with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
            store.collect_changes(SPAN_ID, *window)
    append_durably(store, SPAN_ID, [(210, Op.INSERT, 4, "four")], 220)
    batch = change_batch(SPAN_ID, [(200, Op.INSERT, 9, "nine")], BatchKind.DATA)
    store.commit_bulk(SPAN_ID, [write_bulk(store.objects, SPAN_ID, "new", [batch], 200, [TABLE])], 200, 205)
    store.close()
    with ColumnarEventStore(tmp_path / "store") as again:
        assert read_rows(again.collect_changes(SPAN_ID, 0, 220)) == [(220, Op.INSERT, 4, "four"), (220, Op.INSERT, 9, "nine")]
        assert read_rows(again.collect_changes(SPAN_ID, 200, 220)) == [(210, Op.INSERT, 4, "four")]


def test_rows_of_a_bulk_commit_are_no_changes(store: ColumnarEventStore) -> None:
    """History begins with them: a tail that crossed their ts would show them as inserts."""
    append_durably(store, SPAN_ID, [(110, Op.INSERT, 2, "two")], 120)
    batch = change_batch(SPAN_ID, [(115, Op.INSERT, 2, "two"), (115, Op.INSERT, 3, "three")], BatchKind.DATA)
    store.commit_bulk(SPAN_ID, [write_bulk(store.objects, SPAN_ID, "late", [batch], 115, [TABLE])], 115)
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        store.collect_changes(SPAN_ID, 105, 120)
    assert read_rows(store.collect_changes(SPAN_ID, 115, 120)) == []
    assert len(read_rows(store.collect_changes(SPAN_ID, 0, 120))) == 2


def test_the_plan_of_a_resnapshot(store: ColumnarEventStore) -> None:
    ddl = DdlEvent(115, DdlType.TABLE_COMMENT, "ALTER TABLE orders COMMENT 'x'", TABLE.schema, (TABLE,))
    durable = threading.Event()
    store.append_ddl(ddl, durable.set)
    assert durable.wait(120)
    append_durably(store, SPAN_ID, [(110, Op.INSERT, 2, "two")], 120)
    waiting = store.plan_resnapshot([SPAN_ID], [TABLE.table_id], 50)
    assert (waiting.to_ts, waiting.kind) == (50, WindowKind.CHANGES), "the state is not known"
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        store.plan_window(WindowWish([SPAN_ID], [TABLE.table_id], 50, 1 << 30))
    store.commit_bulk(SPAN_ID, [bulk(store.objects, 1)], 100)
    plan = store.plan_resnapshot([SPAN_ID], [TABLE.table_id], 50)
    assert (plan.from_ts, plan.to_ts, plan.kind, plan.ddls) == (50, 120, WindowKind.RESNAPSHOT, (ddl,))
    assert plan.spans[0].rows == 2
