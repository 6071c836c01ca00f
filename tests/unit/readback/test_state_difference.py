"""The difference of two states against an oracle: applied to the old one it gives the new one, with nothing left over."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import COMMIT_TS, KEY, OP, Op
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.readback.state_difference import StateDifference, bucket_of
from testing.checks.change_batches import state_table

TS = 77
VALUES = st.one_of(st.none(), st.sampled_from(["", "a", "b", "\x00", "ü"]))
STATE = st.dictionaries(st.tuples(st.integers(-3, 3), st.sampled_from([b"", b"\x00", b"\xff/"])), st.tuples(VALUES, VALUES), max_size=12)


def old_batch(shown: TableSchema, rows: list[tuple]) -> pa.RecordBatch:
    schema = pa.schema([pa.field(OP, pa.uint8(), nullable=False), *shown.row_schema()])
    return pa.RecordBatch.from_arrays([pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)], schema=schema)


def new_batch(shown: TableSchema, rows: list[tuple]) -> pa.RecordBatch:
    full = [(TS, int(Op.INSERT), f"{n:06d}".encode(), *row) for n, row in enumerate(rows)]
    schema = shown.batch_schema()
    return pa.RecordBatch.from_arrays([pa.array([r[i] for r in full], f.type) for i, f in enumerate(schema)], schema=schema)


def difference(shown: TableSchema, old: list[tuple], new: list[tuple], buckets: int, keys: list[str]) -> list[dict]:
    with tempfile.TemporaryDirectory() as directory:
        found = StateDifference(shown, shown, keys, Path(directory), buckets)
        found.add_old([old_batch(shown, old)] if old else [])
        found.add_new([new_batch(shown, new)] if new else [])
        batches = list(found.changes(TS))
        assert not list(Path(directory).iterdir())
    assert all(b.schema == shown.batch_schema() for b in batches)
    return [row for b in batches for row in b.to_pylist()]


@settings(deadline=None, max_examples=60)
@given(STATE, STATE, STATE, st.integers(1, 5))
def test_a_keyed_difference_turns_the_old_state_into_the_new_one(older: dict, old: dict, new: dict, buckets: int) -> None:
    """The old state comes as changes: rows of an older state, some of them deleted or updated."""
    history = [(int(Op.INSERT), *key, *row) for key, row in older.items()]
    history += [(int(Op.DELETE), *key, *older[key]) for key in older if key not in old]
    history += [(int(Op.UPDATE if key in older else Op.INSERT), *key, *row) for key, row in old.items()]
    changes = difference(state_table(), history, [(*key, *row) for key, row in new.items()], buckets, ["c1", "c2"])
    state, before = dict(old), {}
    for change in changes:
        key, row = (change["c1"], change["c2"]), (change["c3"], change["c4"])
        assert change[COMMIT_TS] == TS
        if change[OP] == Op.DELETE:
            assert state.pop(key) == row
        elif change[OP] == Op.BEFORE:
            assert state[key] == row
            before[key] = change[KEY]
        elif change[OP] == Op.UPDATE:
            assert before.pop(key) == change[KEY]
            assert state[key] != row
            state[key] = row
        else:
            assert key not in state
            state[key] = row
    assert state == new
    assert not before
    ops = [change[OP] for change in changes]
    assert ops == sorted(ops, key=lambda op: op != Op.DELETE), "deletes come first"
    assert difference(state_table(), history, [(*key, *row) for key, row in new.items()], buckets, ["c1", "c2"]) == changes


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1), VALUES)), st.lists(st.tuples(st.integers(0, 1), VALUES)), st.integers(1, 4))
def test_rows_without_a_key_are_counted(old: list, new: list, buckets: int) -> None:
    shown = state_table(keyed=False)
    rows = [(int(Op.INSERT), i, b"x", v, None) for i, v in old]
    changes = difference(shown, rows, [(i, b"x", v, None) for i, v in new], buckets, [])
    state = Counter(old)
    for change in changes:
        state[change["c1"], change["c3"]] += 1 if change[OP] == Op.INSERT else -1
    assert +state == +Counter(new)
    assert len(changes) == (Counter(old) - Counter(new)).total() + (Counter(new) - Counter(old)).total()


def test_updates_of_rows_without_a_key_are_explained_by_their_old_values_wherever_those_lie() -> None:
    """The old and the new row of an update have hashes of their own."""
    shown = state_table(keyed=False)
    old = [(int(op), n, b"x", v, None) for n in range(20) for op, v in ((Op.INSERT, "a"), (Op.BEFORE, "a"), (Op.UPDATE, "b"))]
    assert difference(shown, old, [(n, b"x", "b", None) for n in range(20)], 5, []) == []


def test_updates_without_old_values_of_a_table_without_a_key_are_refused() -> None:
    shown = state_table(keyed=False)
    with pytest.raises(PenstockError, match="no primary key") as raised:
        difference(shown, [(int(Op.UPDATE), 1, b"", "a", None)], [], 1, [])
    assert raised.value.code == "TYPE_UNSUPPORTED"


def test_columns_that_the_target_does_not_hold_are_not_compared() -> None:
    shown = state_table()
    held = TableSchema(1, "d", "t", 5, shown.columns[:3])
    with tempfile.TemporaryDirectory() as directory:
        found = StateDifference(shown, held, ["c1", "c2"], Path(directory), 2)
        found.add_old([old_batch(held, [(0, 1, b"", "a"), (0, 2, b"", "b")])])
        found.add_new([new_batch(shown, [(1, b"", "a", "other"), (3, b"", "c", "whole")])])
        rows = [(r[OP], r["c1"], r["c3"], r["c4"]) for b in found.changes(TS) for r in b.to_pylist()]
    assert rows == [(Op.DELETE, 2, "b", None), (Op.INSERT, 3, "c", "whole")]


def test_the_bucket_of_a_key_never_changes() -> None:
    """Files of a window that is repeated after an update of Penstock must have the same bytes."""
    frame = pl.DataFrame({"c1": [1, 2, 3, 4, 5], "c2": [b"", b"\x00", b"\xff", b"a", None]})
    assert bucket_of(frame, ["c1", "c2"], 7).tolist() == [4, 0, 1, 1, 3]
