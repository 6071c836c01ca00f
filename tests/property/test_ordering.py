"""Ordering, merging and finding live rows, against the plain way to do it."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import COMMIT_TS, KEY, BatchKind, ChangeBatch, Op
from penstock.model.table import META_FIELDS
from penstock.store.changes.live_rows import key_numbers, live_rows
from penstock.store.changes.ordering import merge_step, order_records, window_rows
from penstock.store.contract import Changes, Hint
from penstock.store.memory import MemoryRows, SpanMemory
from testing.checks.change_batches import TABLE, change_batch, rows_of

KEYS = st.one_of(
    st.binary(max_size=12),
    st.integers(0, 40).map(lambda n: b"t" + n.to_bytes(8, "big")),
    st.integers(0, 2**70).map(lambda n: n.to_bytes(9, "big")),
)
EVENTS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6)), max_size=40, unique=True)


def records(rows: list[tuple[int, bytes]]) -> pa.RecordBatch:
    columns = [[ts for ts, _ in rows], [0] * len(rows), [key for _, key in rows]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, META_FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(META_FIELDS))


def pairs(batch: pa.RecordBatch) -> list[tuple[int, bytes]]:
    return list(zip(batch.column(COMMIT_TS).to_pylist(), batch.column(KEY).to_pylist(), strict=True))


@given(st.lists(st.tuples(st.integers(1, 9), KEYS), max_size=40), st.integers(0, 10), st.integers(0, 10))
@settings(max_examples=80, deadline=None)
def test_order_records_sorts_and_drops_what_is_repeated(rows: list[tuple[int, bytes]], from_ts: int, to_ts: int) -> None:
    assert pairs(order_records(records(rows))) == sorted(set(rows))
    assert pairs(window_rows(records(rows), from_ts, to_ts)) == [r for r in rows if from_ts < r[0] <= to_ts]
    ordered = order_records(records(rows))
    assert order_records(ordered) is ordered


@given(st.lists(st.lists(KEYS, min_size=1, max_size=10), min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_keys_as_numbers_keep_their_order(groups: list[list[bytes]]) -> None:
    numbers = key_numbers([pa.array([b"x", *g], pa.binary()).slice(1) for g in groups])
    keys = [key for group in groups for key in group]
    if numbers is None:
        assert len({len(k) for k in keys}) > 1 or not keys[0] or len(keys[0]) > 8
        return
    assert (np.argsort(numbers, kind="stable") == sorted(range(len(keys)), key=keys.__getitem__)).all()


def batch(rows: list[tuple[int, bytes]], kind: BatchKind) -> ChangeBatch:
    return ChangeBatch.of(1, TABLE, kind, records(sorted(rows)))


@given(st.lists(st.tuples(st.integers(1, 9), KEYS, st.booleans()), min_size=1, max_size=40, unique=True))
@settings(max_examples=80, deadline=None)
def test_live_rows_are_the_newest_of_their_key(events: list[tuple[int, bytes, bool]]) -> None:
    data = sorted((ts, key) for ts, key, gone in events if not gone)
    tombstones = sorted((ts, key) for ts, key, gone in events if gone)
    newest: dict[bytes, int | None] = {}
    for ts, gone, key in sorted((ts, not gone, key) for ts, key, gone in events):
        newest[key] = data.index((ts, key)) if gone else None
    expected = [row for _, row in sorted(newest.items()) if row is not None]
    if data:
        found = live_rows([batch(data, BatchKind.DATA)], [batch(tombstones, BatchKind.TOMBSTONE)] if tombstones else [])
        assert found.tolist() == expected


@given(EVENTS, EVENTS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_merging_a_step_puts_tombstones_first_at_one_ts(
    data: list[tuple[int, int]], tombstones: list[tuple[int, int]], keep_before: bool
) -> None:
    came = [(ts, Op.UPDATE, key, "after") for ts, key in sorted(data)]
    ceased = [(ts, Op.BEFORE if key % 2 else Op.DELETE, key, "before") for ts, key in sorted(tombstones)]
    step = Changes(
        tuple(change_batch(1, [r], BatchKind.DATA) for r in came),
        tuple(change_batch(1, [r], BatchKind.TOMBSTONE) for r in ceased),
        Hint.TAIL_DONE,
    )
    merged = merge_step(step, keep_before)
    kept = [r for r in ceased if keep_before or r[1] is not Op.BEFORE]
    expected = sorted([*kept, *came], key=lambda r: (r[0], r[1] is Op.UPDATE, r[2]))
    assert [row for _, records in merged for row in rows_of(records)] == expected
    assert all((KEY in r.schema.names) == keep_before and version == 1 for version, r in merged)


@given(st.lists(EVENTS.filter(bool), min_size=1, max_size=90), st.integers(0, 12), st.integers(0, 12))
@settings(max_examples=30, deadline=None)
def test_memory_gives_each_row_once_whatever_was_put_together(groups: list[list[tuple[int, int]]], flushed_ts: int, to_ts: int) -> None:
    memory = SpanMemory()
    for group in groups:
        memory.add(change_batch(1, [(ts, Op.INSERT, key, "x") for ts, key in group], BatchKind.DATA))
    memory.drop_through(flushed_ts)
    rows: MemoryRows = memory.rows()
    read = [row for source in rows.sources(BatchKind.DATA, 0, to_ts) for b in source for row in rows_of(b.records)]
    kept = {(ts, key) for group in groups for ts, key in group if flushed_ts < ts <= to_ts}
    assert [(r[0], r[2]) for r in read] == sorted(kept)
    assert memory.row_count == sum(b.header.rows for b in rows.data)
