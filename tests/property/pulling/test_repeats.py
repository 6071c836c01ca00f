"""Rows that an earlier feed delivered are recognised exactly: against a set, through splits and merges of priors."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.puller.ranged.repeats import DeliveredLog, Prior, drop_replayed, relevant
from penstock.source.raw import RAW_SCHEMA

Row = tuple[int, bytes]
rows = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([b"a", b"b", b"c", b"d", b"e"])), min_size=1, max_size=12)
priors = st.lists(
    st.tuples(st.sampled_from([b"", b"b", b"c"]), st.sampled_from([b"", b"c", b"e"]), st.integers(0, 8), st.lists(rows, max_size=3)),
    max_size=3,
)


def records(batch: list[Row]) -> pa.RecordBatch:
    columns = {
        "commit_ts": [ts for ts, _ in batch],
        "start_ts": [0] * len(batch),
        "op": [1] * len(batch),
        "key": [key for _, key in batch],
        "value": list(map(str, range(len(batch)))),
        "old_value": [None] * len(batch),
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in RAW_SCHEMA], schema=RAW_SCHEMA)


@settings(max_examples=200, deadline=None)
@given(rows, priors, st.integers(0, 6))
def test_exactly_what_was_delivered_is_dropped(
    batch: list[Row], given_priors: list[tuple[bytes, bytes, int, list[list[Row]]]], floor: int
) -> None:
    built = []
    for start, end, resolved_ts, delivered in given_priors:
        log = DeliveredLog()
        for part in delivered:
            log.add(records(part), max(ts for ts, _ in part))
        log.prune(floor)
        built.append(Prior(start, end, resolved_ts, log.batches(resolved_ts)))

    def repeated(row: Row) -> bool:
        ts, key = row
        for start, end, resolved_ts, delivered in given_priors:
            inside = key >= start and (not end or key < end)
            if inside and (ts <= resolved_ts or any(row in part for part in delivered)):
                return True
        return False

    # A feed goes on above its floor, so rows at or below it do not come.
    coming = [row for row in batch if row[0] > floor]
    if not coming:
        return
    kept = drop_replayed(records(coming), relevant(tuple(built), floor))
    got = list(zip(kept.column(0).to_pylist(), kept.column(3).to_pylist(), strict=True))
    assert got == [row for row in coming if not repeated(row)]
    assert kept.schema == RAW_SCHEMA
