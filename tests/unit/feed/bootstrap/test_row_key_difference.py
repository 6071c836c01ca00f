"""Corrections against an oracle: applied to the store's rows they give the table's, with nothing left over."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feed.bootstrap.row_key_difference import RowKeyDifference
from penstock.model.batch import KEY, OP, Op
from penstock.model.table import TableSchema
from testing.checks.change_batches import state_table

TS = 77
VALUES = st.one_of(st.none(), st.sampled_from(["", "a", "b", "\x00", "ü"]))


def keyed_batch(shown: TableSchema, rows: list[tuple[bytes, tuple]]) -> pa.RecordBatch:
    """Rows of a state with the upstream's row keys."""
    full = [(TS, int(Op.INSERT), key, *row) for key, row in rows]
    schema = shown.batch_schema()
    return pa.RecordBatch.from_arrays([pa.array([r[i] for r in full], f.type) for i, f in enumerate(schema)], schema=schema)


def corrections(shown: TableSchema, old: list[tuple[bytes, tuple]], new: list[tuple[bytes, tuple]], buckets: int) -> list:
    with tempfile.TemporaryDirectory() as directory:
        found = RowKeyDifference(shown, Path(directory), buckets)
        found.add_old([keyed_batch(shown, old)] if old else [])
        found.add_new([keyed_batch(shown, new)] if new else [])
        steps = list(found.steps(TS))
    assert all(b.schema == shown.batch_schema() for step in steps for side in step for b in side)
    return [tuple([row for b in side for row in b.to_pylist()] for side in step) for step in steps]


KEYED = st.dictionaries(st.sampled_from([b"", b"\x00", b"a", b"b", b"\xff"]), st.tuples(st.integers(0, 1), VALUES), max_size=5)


@settings(deadline=None, max_examples=60)
@given(KEYED, KEYED, st.integers(1, 4))
def test_corrections_name_rows_by_their_row_key(old: dict, new: dict, buckets: int) -> None:
    shown = state_table()

    def rows(state: dict) -> list:
        return [(key, (number, key, v, None)) for key, (number, v) in state.items()]

    steps = corrections(shown, rows(old), rows(new), buckets)
    state: dict = dict(old)
    for ended, begun in steps:
        assert [r[KEY] for r in ended] == sorted(r[KEY] for r in ended)
        assert [r[KEY] for r in begun] == sorted(r[KEY] for r in begun)
        updated = {r[KEY] for r in begun if r[OP] == Op.UPDATE}
        assert updated == {r[KEY] for r in ended if r[OP] == Op.BEFORE}, "both sides of a key stand in one step"
        for row in ended:
            assert row[OP] in {Op.DELETE, Op.BEFORE}
            assert state.pop(row[KEY]) == (row["c1"], row["c3"])
        for row in begun:
            assert row[KEY] not in state
            state[row[KEY]] = (row["c1"], row["c3"])
    assert state == new
    assert sum(len(side) for step in steps for side in step) == len(set(rows(old)) ^ set(rows(new)))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1), VALUES)), st.lists(st.tuples(st.integers(0, 1), VALUES)), st.integers(1, 3))
def test_rows_without_a_key_are_counted_and_those_that_are_gone_keep_their_row_key(old: list, new: list, buckets: int) -> None:
    """The same row has one key in the store and another in the table, as rows have that are named by their place."""
    shown = state_table(keyed=False)
    held = {f"held {n}".encode(): (i, b"x", v, None) for n, (i, v) in enumerate(old)}
    read = {f"read {n}".encode(): (i, b"x", v, None) for n, (i, v) in enumerate(new)}
    left = dict(held)
    for ended, begun in corrections(shown, list(held.items()), list(read.items()), buckets):
        for row in ended:
            assert left.pop(row[KEY])[:3] == (row["c1"], row["c2"], row["c3"])
        for row in begun:
            assert read[row[KEY]][:3] == (row["c1"], row["c2"], row["c3"])
            left[row[KEY]] = read[row[KEY]]
    assert Counter(left.values()) == Counter(read.values())
    changed = sum(len(side) for step in corrections(shown, list(held.items()), list(read.items()), buckets) for side in step)
    assert changed == (Counter(old) - Counter(new)).total() + (Counter(new) - Counter(old)).total()
