"""Runs of one commit ts, against grouping row by row."""

from itertools import groupby

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.format.transaction_runs import TransactionRuns, pack_runs, unpack_runs

TS = st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 5), min_size=1, max_size=40).map(sorted)


def runs_of(packed: bytes) -> list[tuple[int, int]]:
    ts, rows = unpack_runs(packed)
    return list(zip(ts.tolist(), rows.tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(TS, st.data())
def test_runs_are_those_of_the_rows_however_they_are_divided(ts: list[int], data: st.DataObject) -> None:
    collected, at = TransactionRuns(), 0
    while at < len(ts):
        count = data.draw(st.integers(1, len(ts) - at))
        collected.add(np.array(ts[at : at + count], np.uint64))
        at += count
    assert runs_of(collected.take()) == [(value, len(list(rows))) for value, rows in groupby(ts)]
    # The next file begins with nothing of this one.
    collected.add(np.array([7], np.uint64))
    assert runs_of(collected.take()) == [(7, 1)]


def test_many_transactions_take_few_bytes() -> None:
    ts = np.arange(100_000, dtype=np.uint64) * np.uint64(1 << 18) + np.uint64(1 << 58)
    packed = pack_runs(ts, np.full(len(ts), 3))
    assert len(packed) < 2 * len(ts)
    found, rows = unpack_runs(packed)
    assert np.array_equal(found, ts)
    assert set(rows.tolist()) == {3}
    assert TransactionRuns().take() == b""
