"""Steps of a changes handle: sizes, hints, cuts, sources that interleave."""

import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.store.changes.changes import SpanState, SpanView, open_changes
from penstock.store.contract import Hint
from penstock.store.memory import MemoryRows
from penstock.store.objects.object_file import ObjectKind, ObjectMeta, ObjectWriter
from penstock.store.objects.objects import ObjectSpace
from testing.checks.change_batches import TABLE, Row, change_batch, read_rows, read_steps, rows_of

SPAN = Span(TABLE.table_id)
NEWER = TableSchema(7, "shop", "orders", 50, (*TABLE.columns, Column(3, "qty", ColumnType(TypeKind.INT))))


class Views:
    """Builds views from rows, with objects in a directory."""

    def __init__(self, root: Path) -> None:
        self.space = ObjectSpace(root.as_uri())
        self.count = 0

    def object(self, rows: Sequence[Row], side: BatchKind, kind: ObjectKind = ObjectKind.APPENDABLE, rows_max: int = 5) -> ObjectMeta:
        self.count += 1
        pieces = [change_batch(1, rows[at : at + rows_max], side) for at in range(0, len(rows), rows_max)]
        writer = ObjectWriter(f"{self.count}.arrow", kind, pieces, [TABLE], commit_ts=rows[0][0] if kind is ObjectKind.BULK else 0)
        assert self.space.put_new(f"{self.count}.arrow", writer.parts())
        return writer.meta

    def view(
        self, objects: Sequence[ObjectMeta] = (), data: Sequence[ChangeBatch] = (), tombstones: Sequence[ChangeBatch] = ()
    ) -> SpanView:
        state = SpanState(1, SPAN, 1_000_000, 0, 0, 0, tuple(objects), (TABLE, NEWER))
        return SpanView(state, MemoryRows(tuple(data), tuple(tombstones)), self.space)


@pytest.fixture
def views(tmp_path: Path) -> Views:
    return Views(tmp_path)


def inserts(ts: int, keys: Iterable[int]) -> list[Row]:
    return [(ts, Op.INSERT, key, f"{key}@{ts}") for key in keys]


def deletes(ts: int, keys: Iterable[int]) -> list[Row]:
    return [(ts, Op.DELETE, key, f"{key}@{ts}") for key in keys]


def test_a_bulk_object_inside_an_appendable_one_comes_at_its_ts(views: Views) -> None:
    appendable = [r for ts in range(10, 30) for r in inserts(ts, range(2))]
    bulk = [inserts(15, range(100, 112)), inserts(22, range(200, 203))]
    memory = inserts(30, range(4))
    objects = [views.object(appendable, BatchKind.DATA), *(views.object(b, BatchKind.DATA, ObjectKind.BULK) for b in bulk)]
    view = views.view(objects, [change_batch(1, memory, BatchKind.DATA)])
    everything = sorted([*appendable, *bulk[0], *bulk[1], *memory], key=lambda r: (r[0], r[2]))
    rows = read_rows(open_changes(view, 5, 40, 4, 8))
    assert sorted(rows, key=lambda r: (r[0], r[2])) == everything
    assert [r[0] for r in rows] == [r[0] for r in everything]
    for from_ts, to_ts in [(14, 15), (15, 16), (15, 22), (21, 22), (22, 22), (29, 30)]:
        window = read_rows(open_changes(view, from_ts, to_ts, 4, 8))
        assert sorted(window, key=lambda r: (r[0], r[2])) == [r for r in everything if from_ts < r[0] <= to_ts]


def test_merged_objects_are_not_delivered(views: Views) -> None:
    rows = inserts(10, range(4))
    view = views.view([views.object(rows, BatchKind.DATA), views.object(rows, BatchKind.DATA, ObjectKind.MERGED)])
    assert read_rows(open_changes(view, 5, 40)) == rows


def test_one_call_suffices_for_a_small_window(views: Views) -> None:
    data, tombstones = inserts(10, range(4)) + inserts(30, range(4)), deletes(20, range(4))
    view = views.view([views.object(data, BatchKind.DATA)], tombstones=[change_batch(1, tombstones, BatchKind.TOMBSTONE)])
    steps = read_steps(open_changes(view, 5, 40))
    assert [s.hint for s in steps] == [Hint.TAIL_DONE]
    assert sum(b.header.rows for b in steps[0].data) == 8


@pytest.mark.parametrize("side", list(BatchKind))
def test_a_single_side_comes_in_full_steps(views: Views, side: BatchKind) -> None:
    make = inserts if side is BatchKind.DATA else deletes
    rows = [r for ts in range(10, 60) for r in make(ts, range(3))]
    steps = read_steps(open_changes(views.view([views.object(rows, side, rows_max=16)]), 5, 100, 16, 32))
    sizes = [sum(b.header.rows for b in (*s.data, *s.tombstones)) for s in steps]
    assert sum(sizes) == len(rows)
    assert all(16 - 3 <= size <= 32 for size in sizes[:-1])
    assert read_rows(open_changes(views.view([views.object(rows, side)]), 5, 100, 16, 32)) == rows


def test_the_longer_side_is_cut_where_the_shorter_ends(views: Views) -> None:
    data = [r for ts in range(10, 400) for r in inserts(ts, range(2))]
    tombstones = [r for ts in range(10, 400, 40) for r in deletes(ts, range(50, 58))]
    view = views.view([views.object(data, BatchKind.DATA, rows_max=16), views.object(tombstones, BatchKind.TOMBSTONE, rows_max=16)])
    done_ts = 5
    steps = read_steps(open_changes(view, 5, 500, 16, 32))
    for step in steps:
        batches = [*step.data, *step.tombstones]
        assert min(b.header.min_ts for b in batches) > done_ts
        assert step.hint is Hint.TAIL_DONE
        done_ts = max(b.header.max_ts for b in batches)
    expected = sorted([*data, *tombstones], key=lambda r: (r[0], r[1] is not Op.DELETE, r[2]))
    assert read_rows(open_changes(view, 5, 500, 16, 32)) == expected


def test_a_transaction_larger_than_a_step_is_work_in_progress_with_its_tombstones_first(views: Views) -> None:
    data = inserts(9, range(3)) + inserts(10, range(100)) + inserts(11, range(3))
    tombstones = deletes(10, range(70)) + deletes(12, range(2))
    view = views.view([views.object(data, BatchKind.DATA, rows_max=16), views.object(tombstones, BatchKind.TOMBSTONE, rows_max=16)])
    steps = read_steps(open_changes(view, 5, 100, 8, 16))
    hints = [s.hint for s in steps]
    assert hints[0] is Hint.TAIL_DONE
    assert hints[-1] is Hint.TAIL_DONE
    assert hints.count(Hint.TAIL_WIP) >= 8
    assert all(sum(b.header.rows for b in side) <= 16 for s in steps for side in (s.data, s.tombstones))
    expected = sorted([*data, *tombstones], key=lambda r: (r[0], r[1] is not Op.DELETE, r[2]))
    assert read_rows(open_changes(view, 5, 100, 8, 16)) == expected


def test_a_step_may_hold_two_table_versions(views: Views) -> None:
    old = change_batch(1, [(40, Op.INSERT, 1, "a"), (60, Op.INSERT, 3, "late txn")], BatchKind.DATA)
    new = change_batch(1, [(51, Op.INSERT, 2, "b", 5), (70, Op.INSERT, 4, "c", 6)], BatchKind.DATA, NEWER)
    gone = change_batch(1, [(51, Op.DELETE, 9, "x", 0), (61, Op.DELETE, 8, "y", 1)], BatchKind.TOMBSTONE, NEWER)
    view = views.view(data=[new, old], tombstones=[gone])
    assert read_rows(open_changes(view, 5, 100)) == [
        (40, Op.INSERT, 1, "a"),
        (51, Op.DELETE, 9, "x", 0),
        (51, Op.INSERT, 2, "b", 5),
        (60, Op.INSERT, 3, "late txn"),
        (61, Op.DELETE, 8, "y", 1),
        (70, Op.INSERT, 4, "c", 6),
    ]


def test_many_small_transactions_in_memory_come_in_full_batches(views: Views) -> None:
    rng = random.Random(5)
    order = list(range(10, 3_010))
    rng.shuffle(order)
    batches = [change_batch(1, inserts(ts, range(1)), BatchKind.DATA) for ts in order]
    steps = read_steps(open_changes(views.view(data=batches), 5, 5_000))
    assert len(steps) == 1
    assert [b.header.rows for b in steps[0].data] == [3_000]
    assert read_rows(open_changes(views.view(data=batches), 5, 5_000)) == [r for ts in range(10, 3_010) for r in inserts(ts, range(1))]


def test_an_object_that_is_gone_is_an_error_of_its_own(views: Views) -> None:
    view = views.view([views.object(inserts(10, range(4)), BatchKind.DATA)])
    views.space.delete("1.arrow")
    with pytest.raises(PenstockError, match=r"\[OBJECT_MISSING\]"):
        read_rows(open_changes(view, 5, 40))
    with pytest.raises(PenstockError, match=r"\[OBJECT_MISSING\]"):
        read_rows(open_changes(view, 0, 40))


@pytest.mark.parametrize("offset", [70, 300, -30, -3])
def test_a_damaged_object_is_never_delivered(views: Views, tmp_path: Path, offset: int) -> None:
    rows = inserts(10, range(4))
    view = views.view([views.object(rows, BatchKind.DATA)])
    file = tmp_path / "1.arrow"
    damaged = bytearray(file.read_bytes())
    damaged[offset] ^= 4
    file.write_bytes(bytes(damaged))
    with pytest.raises(PenstockError, match=r"\[OBJECT_CORRUPT\]"):
        read_rows(open_changes(view, 5, 40))


def test_an_object_that_is_not_in_ts_order_is_noticed(views: Views) -> None:
    view = views.view([views.object([*inserts(30, range(5)), *inserts(20, range(5))], BatchKind.DATA)])
    with pytest.raises(PenstockError, match=r"\[OBJECT_CORRUPT\]"):
        read_rows(open_changes(view, 5, 40, 2, 4))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_objects_read_the_same(views: Views, compression: str) -> None:
    rows = [r for ts in range(10, 40) for r in inserts(ts, range(30))]
    writer = ObjectWriter("c.arrow", ObjectKind.APPENDABLE, [change_batch(1, rows, BatchKind.DATA)], [TABLE], compression)
    views.space.put_new("c.arrow", writer.parts())
    assert read_rows(open_changes(views.view([writer.meta]), 5, 40)) == rows
    plain = ObjectWriter("p.arrow", ObjectKind.APPENDABLE, [change_batch(1, rows, BatchKind.DATA)], [TABLE])
    assert writer.meta.size < sum(len(p) if isinstance(p, bytes) else p.size for p in plain.parts())


@pytest.mark.parametrize("lost", [1, 100, 1_000])
def test_an_object_that_lost_its_end_is_corrupt(views: Views, tmp_path: Path, lost: int) -> None:
    meta = views.object(inserts(10, range(4)), BatchKind.DATA)
    view = views.view([meta])
    file = tmp_path / "1.arrow"
    file.write_bytes(file.read_bytes()[:-lost])
    with pytest.raises(PenstockError, match=r"\[OBJECT_CORRUPT\]"):
        read_rows(open_changes(view, 5, 40))


def test_an_object_that_lost_its_end_after_its_footer_was_read_is_corrupt(views: Views, tmp_path: Path) -> None:
    view = views.view([views.object(inserts(10, range(4)), BatchKind.DATA)])
    assert len(read_rows(open_changes(view, 5, 40))) == 4
    (tmp_path / "1.arrow").write_bytes(b"PENSTOBJ")
    with pytest.raises(PenstockError, match=r"\[OBJECT_CORRUPT\]"):
        read_rows(open_changes(view, 5, 40))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_transaction_over_several_ranges_is_in_key_order_however_its_parts_arrive(views: Views, order: tuple[int, ...]) -> None:
    parts = [inserts(10, [13, 14]), inserts(10, [20]), inserts(10, [1]), [*inserts(9, [7]), *inserts(10, [5])]]
    batches = [change_batch(1, parts[at], BatchKind.DATA) for at in order]
    steps = read_steps(open_changes(views.view(data=batches), 5, 40))
    rows = [r for step in steps for b in step.data for r in rows_of(b.records)]
    assert rows == sorted((r for part in parts for r in part), key=lambda r: (r[0], r[2]))
