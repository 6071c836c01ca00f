"""A span's objects: bounded in size, in order, under names that nobody else uses."""

import itertools
import random
from pathlib import Path

import pytest

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.store.objects.object_file import ObjectKind
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.span_writer import ObjectSettings, SpanWriter, by_size, with_row_ids
from testing.checks.change_batches import TABLE, change_batch


def batches(count: int) -> list[ChangeBatch]:
    return [change_batch(3, [(10 + n, Op.INSERT, n, "x" * 9)], BatchKind.DATA) for n in range(count)]


@pytest.mark.parametrize("nbytes_max", [1, 100, 250, 1 << 20])
def test_a_stream_is_cut_by_size_and_nothing_is_lost(nbytes_max: int) -> None:
    given = batches(7)
    cut = [list(piece) for piece in by_size(iter(given), nbytes_max)]
    assert [b for piece in cut for b in piece] == given
    for piece in cut:
        assert piece
        assert len(piece) == 1 or sum(b.header.nbytes for b in piece) <= nbytes_max
    for piece, following in itertools.pairwise(cut):
        assert sum(b.header.nbytes for b in (*piece, following[0])) > nbytes_max, "no smaller than it has to be"
    assert list(by_size(iter([]), 5)) == []


def test_objects_are_written_named_and_removed(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    given = batches(4)
    writer = SpanWriter(space, 3, ObjectSettings(2 * given[0].header.nbytes, None), random.Random(1))
    written = list(writer.write(5, BatchKind.DATA, ObjectKind.APPENDABLE, iter(given), [TABLE]))
    assert [meta.rows for meta in written] == [2, 2]
    assert [(meta.min_ts, meta.max_ts) for meta in written] == [(10, 11), (12, 13)]
    paths = [meta.path for meta in written]
    assert paths == sorted(paths)
    assert all(path.startswith("spans/3/objects/000000000005-") and path.endswith("-data.arrow") for path in paths)
    again = list(writer.write(5, BatchKind.DATA, ObjectKind.APPENDABLE, iter(given), [TABLE]))
    assert not {meta.path for meta in again} & set(paths)
    writer.discard(again)
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.arrow")} == set(paths)
    numbered, following = with_row_ids(written, 100)
    assert ([meta.first_row for meta in numbered], following) == ([100, 102], 104)
