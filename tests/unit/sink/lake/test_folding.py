"""Change rows fold to what came of them."""

import random

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.folding import folded
from penstock.sink.lake.settings import LakeSettings

SHAPE = LakeShape(LakeSettings(), True)
KEYED = TableSchema(1, "d", "t", 5, (Column(1, "id", ColumnType(TypeKind.INT), False, True), Column(2, "v", ColumnType(TypeKind.TEXT))))
BAG = TableSchema(1, "d", "t", 5, (Column(1, "id", ColumnType(TypeKind.INT)), Column(2, "v", ColumnType(TypeKind.TEXT))))


def records(changes: list[tuple[Op, int, str | None]]) -> pa.Table:
    ops, ids, texts = zip(*changes, strict=True)
    arrays = [pa.array(range(len(ops)), pa.uint64()), pa.array(ops, pa.uint8()), pa.array(ids, pa.int32()), pa.array(texts, pa.string())]
    return pa.Table.from_arrays(arrays, names=["_ts", "_op", "c1", "c2"])


@pytest.mark.parametrize("seed", range(5))
def test_of_each_key_the_last_change_counts(seed: int) -> None:
    rng = random.Random(seed)
    changes = [(rng.choice([Op.INSERT, Op.UPDATE, Op.DELETE, Op.BEFORE]), rng.randrange(9), f"v{i}") for i in range(40)]
    want = {key: (op, text) for op, key, text in changes}
    rows, keys = folded(SHAPE, KEYED, records(changes))
    assert keys.column("id").to_pylist() == sorted(want)
    there = sorted((key, text) for key, (op, text) in want.items() if op in (Op.INSERT, Op.UPDATE))
    assert list(zip(*rows.to_pydict().values(), strict=True)) == there


def test_rows_that_nothing_names_cancel_each_other_out() -> None:
    changes = [
        (Op.INSERT, 1, "a"),
        (Op.INSERT, 1, "a"),
        (Op.DELETE, 2, None),
        (Op.INSERT, 3, None),
        (Op.BEFORE, 3, None),
        (Op.DELETE, 1, "a"),
    ]
    rows, gone = folded(SHAPE, BAG, records([*changes, (Op.INSERT, 4, "z"), (Op.UPDATE, 4, "z"), (Op.DELETE, 2, None)]))
    assert rows.to_pydict() == {"id": [1, 4, 4], "v": ["a", "z", "z"]}
    assert gone.to_pydict() == {"id": [2], "v": [None], "_count": [2]}
