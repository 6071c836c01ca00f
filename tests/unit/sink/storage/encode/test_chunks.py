import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sink.storage.encode.chunks import Rechunker, row_weights


def batch(ts: list[int], texts: list[str] | None = None) -> pa.RecordBatch:
    notes = texts if texts is not None else ["x"] * len(ts)
    return pa.RecordBatch.from_arrays([pa.array(ts, pa.uint64()), pa.array(notes, pa.string())], names=["_ts", "c1"])


def chunks(events: list[pa.RecordBatch], **options: object) -> list[tuple[list[int], bool]]:
    rechunker = Rechunker(**options)  # type: ignore[arg-type]
    found = [c for event in events for c in rechunker.add(event)]
    found += list(rechunker.flush())
    return [(c.records.column(0).to_pylist(), c.may_cut) for c in found]


def test_chunks_end_by_rows() -> None:
    assert chunks([batch(list(range(10)))], bytes_max=10**6, rows_max=4) == [([0, 1, 2, 3], True), ([4, 5, 6, 7], True), ([8, 9], True)]


def test_chunks_end_early_where_rows_are_wide() -> None:
    events = [batch([0, 1, 2, 3], ["a" * 100, "b", "c", "d" * 500])]
    assert [c[0] for c in chunks(events, bytes_max=120, rows_max=100)] == [[0, 1], [2, 3]]


def test_transactions_stay_whole() -> None:
    ts = [1, 1, 2, 2, 2, 3, 4]
    assert chunks([batch(ts)], bytes_max=10**6, rows_max=3, whole_transactions=True) == [([1, 1, 2, 2, 2], True), ([3, 4], True)]


def test_a_long_transaction_is_encoded_in_parts_but_not_cut() -> None:
    found = chunks([batch([1] * 9 + [2])], bytes_max=10**6, rows_max=2, whole_transactions=True)
    assert sum(len(rows) for rows, _ in found) == 10
    assert len(found) > 2
    for (rows, may_cut), (following, _) in itertools.pairwise(found):
        assert may_cut == (rows[-1] != following[0])


def test_weights_are_of_the_slice() -> None:
    rows = batch([0, 1, 2], ["aaaa", "bb", ""])
    assert row_weights(rows).tolist() == [20, 18, 16]
    assert row_weights(rows.slice(1)).tolist() == [18, 16]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=60),
    st.lists(st.integers(1, 25), min_size=1, max_size=10),
    st.lists(st.integers(1, 25), min_size=1, max_size=10),
    st.booleans(),
)
def test_chunks_depend_on_rows_alone(rows: list[tuple[int, int]], one: list[int], other: list[int], whole: bool) -> None:
    ts = np.cumsum([step for step, _ in rows]).tolist()
    everything = batch(ts, ["x" * size for _, size in rows])

    def divided(sizes: list[int]) -> list[pa.RecordBatch]:
        events, at = [], 0
        for size in itertools.cycle(sizes):
            if at >= everything.num_rows:
                return events
            events.append(everything.slice(at, size))
            at += size
        return events

    results = [chunks(divided(sizes), bytes_max=150, rows_max=6, whole_transactions=whole) for sizes in (one, other)]
    assert results[0] == results[1]
    assert [t for c, _ in results[0] for t in c] == ts
    if whole:
        for (before, may_cut), (after, _) in itertools.pairwise(results[0]):
            assert not may_cut or before[-1] != after[0]


@pytest.mark.parametrize("whole", [False, True])
def test_nothing_in_nothing_out(whole: bool) -> None:
    assert chunks([batch([])], bytes_max=10, whole_transactions=whole) == []
