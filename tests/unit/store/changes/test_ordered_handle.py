"""One side of a tail: several ordered sources merged, against a sort of all their rows."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.errors import InvariantError, PenstockError
from penstock.store.changes.ordered_handle import TS_END, OrderedHandle, SideReader
from testing.checks.change_batches import Row, change_batch, rows_of

SPAN_ID = 3
KEYS = st.tuples(st.integers(1, 6), st.integers(0, 9))


def batch(rows: list[Row]) -> ChangeBatch:
    return change_batch(SPAN_ID, rows, BatchKind.DATA)


def source(keys: set[tuple[int, int]], cuts: list[int]) -> list[ChangeBatch]:
    """Rows by ts and key, in batches."""
    rows = [(ts, Op.INSERT, key, f"{ts} {key}") for ts, key in sorted(keys)]
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    return [batch(rows[a:b]) for a, b in itertools.pairwise(edges)]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sets(KEYS, max_size=12), st.lists(st.integers(1, 11), max_size=3)), max_size=3),
    st.integers(1, 5),
    st.integers(5, 9),
)
def test_rows_come_in_the_order_of_ts_and_a_row_of_several_sources_once(
    sources: list[tuple[set[tuple[int, int]], list[int]]], rows_min: int, rows_max: int
) -> None:
    reader = SideReader([OrderedHandle(iter(source(keys, cuts))) for keys, cuts in sources], rows_min, rows_max)
    got: list[Row] = []
    while True:
        reader.fill()
        taken = [row for b in reader.take_below(reader.frontier_ts) for row in rows_of(b.records)]
        if not taken:
            # A transaction that is larger than the buffer.
            taken = [row for b in reader.take_below(reader.frontier_ts + 1) for row in rows_of(b.records)]
        if not taken:
            break
        got += taken
    wanted = sorted(set().union(*(keys for keys, _ in sources)))
    assert [(ts, key) for ts, _, key, _ in got] == wanted
    assert [(row[0], row[2], row[3]) for row in got] == [(ts, key, f"{ts} {key}") for ts, key in wanted]


def test_a_handle_gives_rows_up_to_a_bound_from_one_batch() -> None:
    handle = OrderedHandle(
        iter([batch([(1, Op.INSERT, 1, "a"), (2, Op.INSERT, 2, "b"), (3, Op.INSERT, 3, "c")]), batch([(4, Op.INSERT, 4, "d")])])
    )
    assert handle.next_ts == 1
    assert handle.take(1, 9) is None
    first = handle.take(3, 9)
    assert first is not None
    assert [row[0] for row in rows_of(first.records)] == [1, 2]
    assert [row[0] for row in rows_of(handle.peek(3, 9).records)] == [3]
    with pytest.raises(InvariantError):
        handle.peek(4, 9)
    handle.skip(1)
    assert handle.next_ts == 4
    handle.skip(1)
    assert (handle.next_ts, handle.take(TS_END, 9)) == (TS_END, None)


def test_a_source_that_goes_back_in_time_is_corrupt() -> None:
    handle = OrderedHandle(iter([batch([(5, Op.INSERT, 1, "a")]), batch([(4, Op.INSERT, 2, "b")])]))
    with pytest.raises(PenstockError, match="OBJECT_CORRUPT"):
        handle.skip(1)
