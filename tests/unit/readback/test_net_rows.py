"""What changes leave of rows that are counted: against applying them one by one, where a delete that finds no copy takes none."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl

from penstock.model.batch import Op
from penstock.model.table import OP
from penstock.readback.net_rows import COUNT, TAKEN, net_copies


def test_copies_are_those_of_one_change_after_the_other() -> None:
    rng = random.Random(5)
    for _ in range(200):
        changes = [(rng.choice((Op.INSERT, Op.DELETE, Op.UPDATE, Op.BEFORE)), rng.choice((None, 1, 2))) for _ in range(rng.randrange(12))]
        before = Counter({value: rng.randrange(4) for value in (None, 1, 2)})
        expected = Counter(before)
        for op, value in changes:
            expected[value] = expected[value] + 1 if op in {Op.INSERT, Op.UPDATE} else max(0, expected[value] - 1)
        schema = {OP: pl.UInt8, "a": pl.Int64}
        frame = pl.DataFrame([(int(op), value) for op, value in changes], schema=schema, orient="row")
        found = Counter(before)
        for value, count, taken in net_copies(frame, ["a"]).select("a", COUNT, TAKEN).iter_rows():
            found[value] = max(0, found[value] - taken) + count
        assert +found == +expected
