"""Leaving out what is equal changes nothing about the difference, in whatever order and pieces the states come."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feed.bootstrap import lockstep
from penstock.feed.bootstrap.lockstep import leave_out_equal
from penstock.model.batch import KEY, OP

SCHEMA = pa.schema([pa.field(OP, pa.uint8()), pa.field(KEY, pa.binary()), pa.field("c1", pa.string()), pa.field("c2", pa.float64())])
KEYS = st.sampled_from([bytes([n]) for n in range(12)])
ROW = st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, 0.0, 1.5]))
Rows = list[tuple[bytes, tuple[Any, ...]]]


def pieces(rows: Rows, size: int) -> list[pa.RecordBatch]:
    cut = [rows[at : at + size] for at in range(0, len(rows), size)]
    found = []
    for c in cut:
        columns = {OP: [0] * len(c), KEY: [k for k, _ in c], "c1": [v[0] for _, v in c], "c2": [v[1] for _, v in c]}
        found.append(pa.RecordBatch.from_pydict(columns, SCHEMA))
    return found


def left(old: Rows, new: Rows, sizes: tuple[int, int], *, unique: bool) -> tuple[Counter, Counter]:
    kept: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
    leave_out_equal(iter(pieces(old, sizes[0])), iter(pieces(new, sizes[1])), kept[0].append, kept[1].append, unique=unique)
    rows = [Counter((r[KEY], (r["c1"], r["c2"])) for b in side for r in b.to_pylist()) for side in kept]
    return rows[0], rows[1]


def check(old: Rows, new: Rows, sizes: tuple[int, int], *, unique: bool) -> int:
    """What was left out is the same on both sides; return how many rows are left that need not be."""
    kept_old, kept_new = left(old, new, sizes, unique=unique)
    assert Counter(old) - kept_old == Counter(new) - kept_new
    assert not kept_old - Counter(old)
    assert not kept_new - Counter(new)
    return (kept_old & kept_new).total()


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(KEYS, ROW), st.dictionaries(KEYS, ROW), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_states_with_keys(old: dict, new: dict, old_size: int, new_size: int, ordered: bool) -> None:
    rows = sorted(new.items()) if ordered else list(new.items())
    over = check(sorted(old.items()), rows, (old_size, new_size), unique=True)
    if ordered:
        assert over == 0, "where both are in order nothing is left that is equal"


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(KEYS, ROW)), st.lists(st.tuples(KEYS, ROW)), st.integers(1, 5), st.integers(1, 5))
def test_bags(old: Rows, new: Rows, old_size: int, new_size: int) -> None:
    check(sorted(old, key=lambda r: r[0]), new, (old_size, new_size), unique=False)


def test_little_is_held_where_the_states_have_nothing_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "WAITING_BYTES_MAX", 400)
    old: Rows = [(bytes([0, n]), ("x" * 50, None)) for n in range(100)]
    assert check(old, [(b"\xff", ("a", None))], (1, 1), unique=True) == 0
    assert check(old, [*old[:3], (b"\xff", ("a", None))], (1, 1), unique=True) == 0
