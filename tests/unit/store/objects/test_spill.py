"""Spilled batches are the same batches, and leave no file."""

from pathlib import Path

from penstock.model.batch import Op
from penstock.store.objects.spill import spill_batches
from testing.checks.change_batches import both_sides


def test_spilled_batches_are_the_same_and_leave_no_file(tmp_path: Path) -> None:
    batches = both_sides(3, [(10, Op.INSERT, 1, "x" * 5_000), (11, Op.DELETE, 2, None), (12, Op.UPDATE, 1, "ü")])
    spilled = spill_batches(tmp_path / "spill", batches)
    assert [b.header for b in spilled] == [b.header for b in batches]
    assert all(a.records.equals(b.records) for a, b in zip(spilled, batches, strict=True))
    assert list((tmp_path / "spill").iterdir()) == []
    assert spill_batches(tmp_path / "spill", []) == []
