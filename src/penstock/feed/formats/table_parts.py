"""Divides a read of a table into parts that tasks read side by side.

Changes are divided by time, so that each part is in order and parts follow each other; a state is divided by keys, where objects of the
store end, so that each part opens its own objects. Filters leave out parts that can have no row. Invariant: the parts together have every
row once that the filters may let pass. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import Filter

from penstock.feed.formats.pushed_filters import keys_of, window_of
from penstock.feed.formats.table_read import TablePart, TableRead
from penstock.model.rows.bag_key import is_bag
from penstock.model.timestamp import TS_ZERO
from penstock.store.contract import WindowWish
from penstock.store.flight.client import FlightStoreClient
from penstock.store.objects.object_file import ObjectKind

WINDOWS_MAX = 1_000


def plan_parts(client: FlightStoreClient, plan: TableRead, nbytes: int, filters: Sequence[Filter] = ()) -> list[TablePart]:
    """Return what the tasks read, about so many bytes each; a state in the order of keys, changes in that of time."""
    keys = keys_of(filters, plan.table, plan.versions)
    if plan.from_ts == TS_ZERO:
        found = [part for span_id in plan.span_ids for part in _state_parts(client, plan, span_id, nbytes)]
    else:
        windows = list(_windows(client, plan, *window_of(filters, plan.from_ts, plan.to_ts), nbytes))
        found = [TablePart(span_id, *window) for window in windows for span_id in plan.span_ids]
    if keys is None:
        return found
    bounds = {s.span_id: (s.start_key, s.end_key) for s in client.span_status().values()}
    cut = [_cut(_cut(part, *bounds[part.span_id]), *keys) for part in found]
    return [part for part in cut if not part.end_key or part.start_key < part.end_key]


def _cut(part: TablePart, start: bytes, end: bytes) -> TablePart:
    ends = [key for key in (part.end_key, end) if key]
    return TablePart(part.span_id, part.from_ts, part.to_ts, max(part.start_key, start), min(ends, default=b""))


def _windows(client: FlightStoreClient, plan: TableRead, from_ts: int, to_ts: int, nbytes: int) -> Iterator[tuple[int, int]]:
    start = from_ts
    for _ in range(WINDOWS_MAX - 1):
        if start >= to_ts:
            return
        end = client.plan_window(WindowWish(plan.span_ids, (), start, nbytes, end_ts=to_ts)).to_ts
        if not start < end < to_ts:
            break
        yield start, end
        start = end
    if start < to_ts:
        yield start, to_ts


def _state_parts(client: FlightStoreClient, plan: TableRead, span_id: int, nbytes: int) -> Iterator[TablePart]:
    """Yield ranges of keys that begin where objects do of which each has keys of its own."""
    if any(is_bag(version) for version in plan.versions):
        yield TablePart(span_id, plan.from_ts, plan.to_ts)
        return
    kinds = (ObjectKind.BULK, ObjectKind.MERGED)
    objects = [
        o for o in client.view(span_id, TS_ZERO, plan.to_ts).state.needed(TS_ZERO, plan.to_ts) if o.object_kind in kinds and o.max_key
    ]
    start, held = b"", 0
    for one in sorted(objects, key=lambda o: o.min_key):
        if held >= nbytes and one.min_key > start:
            yield TablePart(span_id, plan.from_ts, plan.to_ts, start, one.min_key)
            start, held = one.min_key, 0
        held += one.nbytes
    yield TablePart(span_id, plan.from_ts, plan.to_ts, start)
