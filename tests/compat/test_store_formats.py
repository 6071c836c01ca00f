"""Files of format version 1, written once and kept: every later Penstock must read them.

``python tests/compat/test_store_formats.py`` writes them again; do so only for a new format version, into a new directory.
"""

import random
import shutil
import tempfile
import threading
from pathlib import Path

from penstock.model.batch import BatchKind, Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.store.contract import WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.inspection import check_span, inspect_store
from penstock.store.log import forgotten, wal_segment
from penstock.store.objects import checkpoints, manifest, object_file, ownership, shared_records
from penstock.store.objects.merging import plan_merge, write_merge
from penstock.store.objects.object_file import ObjectKind
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.span_writer import ObjectSettings, SpanWriter
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, append_durably, both_sides, change_batch, read_rows
from testing.checks.looked_inside import object_rows

GOLDEN = Path(__file__).parent / "golden" / "store-v1"
SPAN = Span(TABLE.table_id, b"\x01", b"\xfe")
NEWER = TableSchema(7, "shop", "orders", 15, (*TABLE.columns, Column(3, "qty", ColumnType(TypeKind.INT, unsigned=True), default="4")))
DDL = DdlEvent(15, DdlType.ADD_COLUMN, "ALTER TABLE orders ADD COLUMN qty INT UNSIGNED DEFAULT 4", "shop", (NEWER,))
ROWS = [
    (10, Op.INSERT, 1, "één"),
    (10, Op.INSERT, 2, None),
    (12, Op.BEFORE, 1, "één"),
    (12, Op.UPDATE, 1, ""),
    (14, Op.DELETE, 2, None),
]
NEWER_ROWS = [(16, Op.INSERT, 3, "three", 30), (17, Op.INSERT, 4, None, None)]


def write_golden() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with ColumnarEventStore(GOLDEN) as store:
        store.register_span(SPAN.span_id, SPAN, 0)
        store.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)
        store.put_schemas([TABLE])
        for batches in (both_sides(SPAN.span_id, ROWS), [change_batch(SPAN.span_id, NEWER_ROWS, BatchKind.DATA, NEWER)]):
            durable = threading.Event()
            store.append(SPAN.span_id, batches, durable.set)
            durable.wait(120)
        durable = threading.Event()
        store.append_ddl(DDL, durable.set)
        durable.wait(120)
        store.advance_resolved_ts(SPAN.span_id, 13)
        store.flush(SPAN.span_id)
        store.advance_resolved_ts(SPAN.span_id, 20)
        store.advance_resolved_ts(DDL_SPAN.span_id, 20)


MERGED = Path(__file__).parent / "golden" / "store-merged-v1"
MERGED_ROWS = [
    (10, Op.INSERT, 1, "one"),
    (10, Op.INSERT, 2, "two"),
    (10, Op.INSERT, 3, "three"),
    (14, Op.DELETE, 2, "two"),
    (20, Op.DELETE, 3, "three"),
    (30, Op.INSERT, 9, "nine"),
]


def kept() -> StoreSettings:
    return StoreSettings(history_seconds=0, checkpoint_seconds=10**10)


def write_merged_golden() -> None:
    """Merged objects, a tombstone that was transferred, and a checkpoint that holds what the merge replaced."""
    shutil.rmtree(MERGED, ignore_errors=True)
    with ColumnarEventStore(MERGED, kept()) as store:
        for span in (SPAN, DDL_SPAN):
            store.register_span(span.span_id, span, 0)
        store.put_schemas([TABLE])
        plan = None
        for resolved_ts, merge in ((15, False), (25, True), (40, False)):
            rows = [r for r in MERGED_ROWS if resolved_ts - 15 <= r[0] <= resolved_ts and r[0] > store.resolved_ts(SPAN.span_id)]
            durable = threading.Event()
            store.append(SPAN.span_id, both_sides(SPAN.span_id, rows), durable.set)
            durable.wait(120)
            store.advance_resolved_ts(SPAN.span_id, resolved_ts)
            if plan is not None and merge:
                writer = SpanWriter(store.objects, SPAN.span_id, ObjectSettings(1 << 20, None), random.Random(1))
                view = store.view(SPAN.span_id)
                merged = write_merge(view, plan.merge_ts, lambda side, kind, b, ts, w=writer: w.write(9, side, kind, b, [TABLE], ts))
                store._spans.of(SPAN.span_id).commit_merge(plan, merged, [TABLE])
            store.flush(SPAN.span_id)
            plan = plan_merge(store.view(SPAN.span_id).state)
        store.expire_history({SPAN.span_id: 40})


def test_merged_objects_and_checkpoints_of_version_1_are_read_as_they_were_written(tmp_path: Path) -> None:
    shutil.copytree(MERGED, tmp_path / "store")
    with ColumnarEventStore(tmp_path / "store", kept()) as store:
        state = store.view(SPAN.span_id).state
        assert (state.history_start_ts, state.base_ts) == (25, 25)
        assert {o.object_kind for o in state.objects} == {ObjectKind.MERGED, ObjectKind.APPENDABLE}
        assert [o.rows for o in state.objects if o.create_ts and o.side is BatchKind.TOMBSTONE] == [1]
        assert read_rows(store.collect_changes(SPAN.span_id, 1, 40)) == MERGED_ROWS, "from the checkpoint, without the transferred one"
        for ts, keys in ((10, {1, 2, 3}), (15, {1, 3}), (24, {1}), (25, {1}), (40, {1, 9})):
            assert {r[2] for r in read_rows(store.collect_changes(SPAN.span_id, 0, ts))} == keys, ts
        spans = inspect_store(store.objects)
        assert [p for s in spans for p in check_span(store.objects, s)] == []


SHARED = Path(__file__).parent / "golden" / "store-shared-v1"


def write_shared_golden(disk: Path) -> None:
    """What lies on shared storage: owners, marks, the schema log, manifests with an epoch."""
    shutil.rmtree(SHARED, ignore_errors=True)
    with ColumnarEventStore(disk, objects=ObjectSpace(SHARED.as_uri()), shared=True) as store:
        for span in (SPAN, DDL_SPAN):
            store.register_span(span.span_id, span, 5)
        store.put_schemas([TABLE])
        append_durably(store, SPAN.span_id, ROWS, 14)
        durable = threading.Event()
        store.append_ddl(DDL, durable.set)
        durable.wait(120)
        store.advance_resolved_ts(DDL_SPAN.span_id, 20)


def test_a_shared_store_of_version_1_is_taken_over(tmp_path: Path) -> None:
    shutil.copytree(SHARED, tmp_path / "shared")
    with ColumnarEventStore(tmp_path / "disk", objects=ObjectSpace((tmp_path / "shared").as_uri()), shared=True) as store:
        assert store.register_span(SPAN.span_id, SPAN, 5) == 14
        assert store.register_span(DDL_SPAN.span_id, DDL_SPAN, 5) == 20
        assert store.schema_history(7) == (TABLE, NEWER)
        assert read_rows(store.collect_changes(SPAN.span_id, 5, 14)) == ROWS
        assert store.plan_window(WindowWish([SPAN.span_id], [7], 5, 1 << 30)).to_ts == 14
        store.advance_resolved_ts(SPAN.span_id, 20)
        assert store.plan_window(WindowWish([SPAN.span_id], [7], 5, 1 << 30)).ddls == (DDL,)
    assert (tmp_path / "shared" / "owner" / "000000000002.json").exists()


def test_versions_are_those_of_the_golden_files() -> None:
    assert (wal_segment.VERSION, object_file.VERSION, manifest.VERSION, checkpoints.VERSION) == (1, 1, 1, 1)
    assert (ownership.VERSION, shared_records.VERSION, forgotten.VERSION) == (1, 1, 1)


def test_what_a_log_forgot_is_read_as_version_1_wrote_it() -> None:
    found = forgotten.read_forgotten(GOLDEN.with_name("store-forgotten-v1"))
    assert found == forgotten.Forgotten(5, {7: 120, 9007199254740993: 130})


def test_a_store_of_version_1_is_read_as_it_was_written(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "store")
    with ColumnarEventStore(tmp_path / "store") as store:
        assert store.register_span(SPAN.span_id, SPAN, 0) == 20
        assert store.schema_history(7) == (TABLE, NEWER)
        assert store.plan_window(WindowWish([SPAN.span_id], [7], 5, 1 << 30)).ddls == (DDL,)
        stats = next(s for s in store.stats().spans if s.span_id == SPAN.span_id)
        assert (stats.flushed_ts, stats.memory_rows, object_rows(store, SPAN.span_id)) == (13, 3, {"appendable": 4})
        assert read_rows(store.collect_changes(SPAN.span_id, 5, 20)) == [*ROWS, *NEWER_ROWS]
        assert read_rows(store.collect_changes(SPAN.span_id, 0, 20)) == [
            (20, Op.INSERT, 1, "", 4),
            (20, Op.INSERT, 3, "three", 30),
            (20, Op.INSERT, 4, None, None),
        ]


if __name__ == "__main__":
    write_golden()
    write_merged_golden()
    with tempfile.TemporaryDirectory() as folder:
        write_shared_golden(Path(folder))
