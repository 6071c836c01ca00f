"""Spilled batches are the same batches, and leave no file."""

from pathlib import Path

import pyarrow as pa

from penstock.model.batch import Op
from penstock.store.objects.spill import spill_batches
from testing.checks.change_batches import both_sides


def test_spilled_batches_are_the_same_and_their_bytes_are_not_on_the_heap(tmp_path: Path) -> None:
    batches = both_sides(3, [(10, Op.INSERT, 1, "x" * 5_000), (11, Op.DELETE, 2, None), (12, Op.UPDATE, 1, "ü")])
    before = pa.total_allocated_bytes()
    spilled = spill_batches(tmp_path / "spill", batches)
    assert [b.header for b in spilled] == [b.header for b in batches]
    assert all(a.records.equals(b.records) for a, b in zip(spilled, batches, strict=True))
    assert list((tmp_path / "spill").iterdir()) == []
    assert pa.total_allocated_bytes() - before < 5_000
    assert spill_batches(tmp_path / "spill", []) == []
