"""Compares two orders of tombstones in appendable objects: by (ts, key), as they are written, and by row id with a sort by ts when read.

Prints what `docs/design/2026-11-15-tombstones-by-ts.md` shows: ``python scripts/tombstone_order.py [ROWS]``. Both layouts are read through
the store's own object space: batches of a window in ts order, one object at a time, as a changes handle asks for them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.model.batch import BATCH_ROWS_MAX, COMMIT_TS, KEY, BatchKind, ChangeBatch, Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.store.changes.ordering import order_records
from penstock.store.objects.object_file import ObjectKind, ObjectMeta, ObjectWriter
from penstock.store.objects.objects import ObjectSpace

TABLE = TableSchema(
    1,
    "bench",
    "t",
    1,
    (
        Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True),
        Column(2, "v", ColumnType(TypeKind.VARCHAR, length=64)),
        Column(3, "n", ColumnType(TypeKind.BIGINT)),
    ),
)
OBJECT_ROWS = 600_000
RUNS = 3


def tombstones(rows: int, seed: int) -> pa.RecordBatch:
    """Return tombstones of random rows, one transaction each, in ts order."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(rows).astype(np.uint64) + np.uint64(1 << 63)
    keys = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), rows, [None, pa.py_buffer(ids.byteswap().tobytes())]).cast(pa.binary())
    columns = [
        pa.array(np.arange(1, rows + 1, dtype=np.uint64) + np.uint64(seed * rows)),
        pa.array(np.full(rows, int(Op.DELETE), dtype=np.uint8)),
        keys,
        pa.array(ids.astype(np.int64)),
        pa.array(np.char.add("value ", ids.astype("U20"))),
        pa.array(rng.integers(0, 1 << 40, rows)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TABLE.batch_schema())


def write(space: ObjectSpace, name: str, records: pa.RecordBatch) -> ObjectMeta:
    """Write records as one appendable object, in their order."""
    batches = (
        ChangeBatch.of(1, TABLE, BatchKind.TOMBSTONE, records.slice(start, BATCH_ROWS_MAX))
        for start in range(0, records.num_rows, BATCH_ROWS_MAX)
    )
    writer = ObjectWriter(f"{name}.arrow", ObjectKind.APPENDABLE, batches, [TABLE])
    space.put_new(writer._path, writer.parts())
    return writer.meta


def by_ts(space: ObjectSpace, objects: list[ObjectMeta], from_ts: int, to_ts: int) -> Iterator[pa.RecordBatch]:
    """Read a window of objects in ts order."""
    for meta in objects:
        if meta.max_ts > from_ts and meta.min_ts <= to_ts:
            yield from (b.records for b in space.batches(meta, from_ts, to_ts))


def by_row_id(space: ObjectSpace, objects: list[ObjectMeta], from_ts: int, to_ts: int) -> Iterator[pa.RecordBatch]:
    """Read a window of objects in row id order: each object whole, its rows of the window sorted by ts."""
    for meta in objects:
        if meta.max_ts > from_ts and meta.min_ts <= to_ts:
            parts = []
            for batch in space.batches(meta, 0, 1 << 62):
                ts = batch.records.column(COMMIT_TS).to_numpy()
                inside = (ts > from_ts) & (ts <= to_ts)
                parts.append(batch.records if inside.all() else batch.records.filter(pa.array(inside)))
            ordered = order_records(pa.concat_batches(parts))
            for start in range(0, ordered.num_rows, BATCH_ROWS_MAX):
                yield ordered.slice(start, BATCH_ROWS_MAX)


def best(read: Callable[[], Iterator[pa.RecordBatch]]) -> tuple[float, int, int]:
    """Return the best time of some runs, the rows, and the most Arrow memory that a run held."""
    times, rows, held = [], 0, 0
    for _ in range(RUNS):
        before = pa.total_allocated_bytes()
        began = time.perf_counter()
        rows = 0
        for records in read():
            rows += records.num_rows
            held = max(held, pa.total_allocated_bytes() - before)
        times.append(time.perf_counter() - began)
    return min(times), rows, held


def main(rows: int) -> None:
    """Write both layouts and read them."""
    objects = max(1, rows // OBJECT_ROWS)
    with tempfile.TemporaryDirectory() as directory:
        space = ObjectSpace(Path(directory).as_uri())
        parts = [tombstones(OBJECT_ROWS, at) for at in range(objects)]
        layouts = {
            "by (ts, key)": (by_ts, [write(space, f"ts-{at}", p) for at, p in enumerate(parts)]),
            "by row id": (by_row_id, [write(space, f"row-{at}", p.sort_by([(KEY, "ascending")])) for at, p in enumerate(parts)]),
        }
        top = objects * OBJECT_ROWS
        windows = {
            "whole tail": (0, top),
            "1 % of the tail": (top // 2, top // 2 + top // 100),
            "one transaction": (top // 2, top // 2 + 1),
        }
        print(f"{top:,} tombstones in {objects} objects of {sum(o.size for o in layouts['by (ts, key)'][1]) / objects / 2**20:.0f} MiB")
        for name, (from_ts, to_ts) in windows.items():
            for layout, (read, metas) in layouts.items():
                seconds, found, held = best(lambda r=read, m=metas, w=(from_ts, to_ts): r(space, m, *w))
                print(f"{name:16} {layout:14} {found:>10,} rows {seconds * 1000:>9.1f} ms {held / 2**20:>7.1f} MiB held")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4 * OBJECT_ROWS)
