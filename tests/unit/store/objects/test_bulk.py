"""Bulk objects: rows of one span at one ts, read back as they were given."""

from pathlib import Path

import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.errors import InvariantError
from penstock.store.objects.bulk import write_bulk
from penstock.store.objects.object_file import ObjectKind
from penstock.store.objects.objects import ObjectSpace
from testing.checks.change_batches import TABLE, change_batch, rows_of

ROWS = [(9, Op.INSERT, key, f"row {key}") for key in range(5)]


def test_rows_are_read_back(tmp_path: Path) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    batches = [change_batch(7, ROWS[:2], BatchKind.DATA), change_batch(7, ROWS[2:], BatchKind.DATA)]
    first, second = (write_bulk(space, 7, "part", batches, 9, [TABLE]) for _ in range(2))
    assert (first.object_kind, first.commit_ts, first.min_ts, first.max_ts, first.rows) == (ObjectKind.BULK, 9, 9, 9, 5)
    assert first.path != second.path, "an attempt never meets another one's object"
    assert [row for b in space.batches(first, 0, 9) for row in rows_of(b.records)] == ROWS


@pytest.mark.parametrize(("span_id", "commit_ts"), [(8, 9), (7, 10)])
def test_rows_of_another_span_or_ts_are_refused(tmp_path: Path, span_id: int, commit_ts: int) -> None:
    space = ObjectSpace(tmp_path.as_uri())
    with pytest.raises(InvariantError):
        write_bulk(space, span_id, "part", [change_batch(7, ROWS, BatchKind.DATA)], commit_ts, [TABLE])
    assert list(space.list_names("")) == []
