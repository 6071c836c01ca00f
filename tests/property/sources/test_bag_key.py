"""Tables without a key: what a transaction leaves, and what a state holds, against counting by hand."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import KEY, BatchKind, ChangeBatch
from penstock.model.rows.bag_key import CONTENT_BYTES, bag_keys
from penstock.model.table import META_FIELDS
from penstock.source.bags import fold_bag
from penstock.source.postgres.rows.transaction_spool import TransactionSpool
from penstock.store.changes.live_rows import Words, live_rows, live_rows_by_content
from testing.checks.change_batches import TABLE

CONTENTS = st.sampled_from([b"a", b"b", b"c"]).map(lambda c: c * CONTENT_BYTES)
EVENTS = st.lists(st.tuples(st.integers(1, 4), CONTENTS, st.booleans()), max_size=30)
BAG = msgspec.structs.replace(TABLE, columns=tuple(msgspec.structs.replace(c, primary_key=False) for c in TABLE.columns))


@dataclasses.dataclass(frozen=True)
class Side:
    ts: np.ndarray
    content: pa.Array


def side(rows: list[tuple[int, bytes]]) -> Side:
    return Side(np.array([ts for ts, _ in rows], dtype=np.uint64), pa.array([c for _, c in rows], pa.binary()))


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_a_transaction_leaves_the_copies_that_came_or_ceased(events: list[tuple[int, bytes, bool]]) -> None:
    ceased = [(ts, content) for ts, content, came in events if not came]
    became = [(ts, content) for ts, content, came in events if came]
    gone, new = side(ceased), side(became)
    left_gone, left_new = fold_bag(gone.ts, gone.content, new.ts, new.content)
    net = Counter(became)
    net.subtract(Counter(ceased))
    assert Counter(ceased[row] for row in left_gone.rows) == Counter({k: -n for k, n in net.items() if n < 0})
    assert Counter(became[row] for row in left_new.rows) == Counter({k: n for k, n in net.items() if n > 0})
    for left, rows in ((left_gone, ceased), (left_new, became)):
        keys = left.keys.to_pylist()
        whole = [(rows[row][0], key) for row, key in zip(left.rows, keys, strict=True)]
        assert whole == sorted(set(whole)), "ordered by (ts, key), each once"
        assert all(key.startswith(rows[row][1]) for row, key in zip(left.rows, keys, strict=True))


def batch(rows: list[tuple[int, bytes]], kind: BatchKind) -> ChangeBatch:
    ts = np.array([t for t, _ in rows], dtype=np.uint64)
    keys = bag_keys(np.frombuffer(b"".join(c for _, c in rows), dtype=np.uint8), ts, np.arange(len(rows)))
    columns = [pa.array(ts), pa.array(np.zeros(len(rows), dtype=np.uint8)), keys]
    return ChangeBatch.of(1, BAG, kind, pa.RecordBatch.from_arrays(columns, schema=pa.schema(META_FIELDS)))


@given(EVENTS)
@settings(max_examples=150, deadline=None)
def test_a_state_has_as_many_copies_as_came_and_did_not_cease(events: list[tuple[int, bytes, bool]]) -> None:
    data = sorted((ts, content) for ts, content, came in events if came)
    tombstones = sorted((ts, content) for ts, content, came in events if not came)
    if not data:
        return
    alive: Counter[bytes] = Counter()
    for _, came, content in sorted((ts, came, content) for ts, content, came in events):
        alive[content] = max(0, alive[content] + (1 if came else -1))
    found = live_rows(
        [batch(data, BatchKind.DATA)], [batch(tombstones, BatchKind.TOMBSTONE)] if tombstones else [], frozenset({BAG.version})
    )
    assert Counter(data[row][1] for row in found) == Counter({c: n for c, n in alive.items() if n})
    assert [data[row] for row in found] == sorted((data[row] for row in found), key=lambda r: (r[1], r[0]))


def test_rows_under_other_keys_stay_beside_the_bag() -> None:
    old = pa.RecordBatch.from_arrays(
        [pa.array([1, 2], pa.uint64()), pa.array([0, 0], pa.uint8()), pa.array([b"k" * 8, b"z" * 8])], schema=pa.schema(META_FIELDS)
    )
    data = [ChangeBatch.of(1, BAG, BatchKind.DATA, old), batch([(3, b"m" * CONTENT_BYTES), (4, b"m" * CONTENT_BYTES)], BatchKind.DATA)]
    gone = [batch([(5, b"m" * CONTENT_BYTES)], BatchKind.TOMBSTONE)]
    found = live_rows(data, gone, frozenset({BAG.version}))
    assert found.tolist() == [0, 3, 1]
    assert [data[0 if r < 2 else 1].records.column(KEY)[r % 2].as_py()[:1] for r in found] == [b"k", b"m", b"z"]


@given(st.lists(st.tuples(st.integers(0, 3), CONTENTS, st.booleans()), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_the_pieces_of_a_transaction_count_together(events: list[tuple[int, bytes, bool]]) -> None:
    spool = TransactionSpool(7)
    net: Counter[bytes] = Counter()
    for piece in range(4):
        mine = [(content, came) for at, content, came in events if at == piece]
        net.update(c for c, came in mine if came)
        net.subtract(c for c, came in mine if not came)
        gone, new = side([(7, c) for c, came in mine if not came]), side([(7, c) for c, came in mine if came])
        left = zip(BatchKind, reversed(fold_bag(gone.ts, gone.content, new.ts, new.content)), strict=True)
        spool.add([keyed(kind, s.keys) for kind, s in left if len(s.rows)], [], len(mine), {BAG.table_id})
    found: Counter[bytes] = Counter()
    keys: list[tuple[BatchKind, bytes]] = []
    for change in spool.batches():
        own = change.records.column(KEY).to_pylist()
        keys += [(change.header.kind, k) for k in own]
        found.update({c: n if change.header.kind is BatchKind.DATA else -n for c, n in Counter(k[:CONTENT_BYTES] for k in own).items()})
    spool.close()
    assert len(set(keys)) == len(keys)
    assert {c: n for c, n in found.items() if n} == {c: n for c, n in net.items() if n}
    assert len({k[:CONTENT_BYTES] for _, k in keys}) == len({(kind, k[:CONTENT_BYTES]) for kind, k in keys}), "one side of each content"


def keyed(kind: BatchKind, keys: pa.Array) -> ChangeBatch:
    columns = [pa.array(np.full(len(keys), 7, dtype=np.uint64)), pa.array(np.zeros(len(keys), dtype=np.uint8)), keys]
    return ChangeBatch.of(1, BAG, kind, pa.RecordBatch.from_arrays(columns, schema=pa.schema(META_FIELDS)))


EVENTS_OF_VERSIONS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=24)


@given(EVENTS_OF_VERSIONS)
@settings(max_examples=100, deadline=None)
def test_copies_count_together_through_changes_of_shape_and_key(events: list[tuple[int, int, bool]]) -> None:
    """Version 1 names rows by a key, 2 and 3 count them; keys of each version are of their own, only values tell what is alike."""
    sides: dict[BatchKind, list[ChangeBatch]] = {BatchKind.DATA: [], BatchKind.TOMBSTONE: []}
    values: dict[int, list[int]] = {}
    rows: list[int] = []
    alive: Counter[int] = Counter()
    for ts, (version, value, came) in enumerate(sorted(events, key=lambda e: e[0]), start=1):
        table = msgspec.structs.replace(TABLE if version == 1 else BAG, version=version)
        key = bytes([value]) * 4 if version == 1 else bytes([version, value, ts]) * 8
        kind = BatchKind.DATA if came else BatchKind.TOMBSTONE
        columns = [pa.array([ts], pa.uint64()), pa.array([0], pa.uint8()), pa.array([key], pa.binary())]
        change = ChangeBatch.of(1, table, kind, pa.RecordBatch.from_arrays(columns, schema=pa.schema(META_FIELDS)))
        sides[kind].append(change)
        values[id(change)] = [value]
        if came:
            rows.append(value)
        alive[value] = max(0, (1 if came else 0) if version == 1 else alive[value] + (1 if came else -1))

    def contents(batches: Sequence[ChangeBatch]) -> Words:
        held = np.array([v for b in batches for v in values[id(b)]], dtype=np.uint64)
        return held, held

    found = live_rows_by_content(
        sides[BatchKind.DATA], sides[BatchKind.TOMBSTONE], frozenset({2, 3}), contents, np.empty(0, dtype=np.int64)
    )
    assert Counter(rows[row] for row in found) == Counter({v: n for v, n in alive.items() if n})
