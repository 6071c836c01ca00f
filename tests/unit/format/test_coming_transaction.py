"""Rows that wait for their partners: what is certain, and what is too large to wait, however rows were divided."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from penstock.format.coming_transaction import ComingTransaction, changed_values
from penstock.model.batch import Op


def batch(*rows: tuple[int, Op]) -> pa.RecordBatch:
    stamps, ops = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(stamps, pa.uint64()), pa.array(ops, pa.uint8())], ["_ts", "_op"])


UPDATES = [Op.BEFORE, Op.UPDATE]
LARGE_TWICE = batch(*((7, op) for op in UPDATES * 3), *((8, op) for op in UPDATES * 3), *((9, op) for op in UPDATES))


@pytest.mark.parametrize("cuts", [(), *((at,) for at in range(1, 14)), *itertools.combinations(range(1, 14), 2)])
def test_transactions_that_are_too_large_are_so_however_they_are_divided(cuts: tuple[int, ...]) -> None:
    coming, seen = ComingTransaction(rows_max=3), []
    pieces = [LARGE_TWICE.slice(start, end - start) for start, end in itertools.pairwise([0, *cuts, LARGE_TWICE.num_rows])]
    for piece in (*pieces, None):
        certain = coming.take() if piece is None else coming.add(piece)
        assert certain is not None
        large = coming.large(certain, certain.column("_op").to_numpy() == Op.BEFORE)
        seen += zip(certain.column("_ts").to_pylist(), large.tolist(), strict=True)
    assert seen == [(7, True)] * 6 + [(8, True)] * 6 + [(9, False)] * 2
    assert not coming.holding


def test_values_that_changed_are_found_with_null_as_a_value() -> None:
    records = pa.RecordBatch.from_pydict({"a": [1, None, 2, 1, 3, 2], "b": ["x", "x", "x", "x", "x", None]})
    updates, befores = np.array([3, 4, 5]), np.array([0, 1, 2])
    assert changed_values(records, ["a"], updates, befores).tolist() == [False, True, False]
    assert changed_values(records, ["a", "b"], updates, befores).tolist() == [False, True, True]
