"""The part of ``make bench NAME=targets`` about lakes: Delta tables by Penstock's sink and maintainer against bare delta-rs calls.

Append: changes as the event store holds them become a version of a table of changes; bare: ``write_deltalake`` of the same rows, typed and
in memory already. Merge: a window of updates and deletes into a table that has rows; bare: ``DeltaTable.merge`` of the same window,
folded and typed already. Runs in the benchmark's process.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.report import Bar, say
from benchmarks.rigs.workload import BASE_TS, ORDERS, changes
from penstock.model.batch import BATCH_ROWS_MIN, Op, commit_ts_array, without_before
from penstock.model.timestamp import TS_ZERO
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.folding import folded
from penstock.sink.lake.settings import LakeSettings, Mode
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced

RUNS = 3
RUN = SinkRun("bench", 1)
WHOLE = DispatcherId(ORDERS.table_id)
APPEND_MIN, MERGE_MIN = 0.6, 0.8


def part(quick: bool) -> tuple[list[Bar], dict[str, float | int | str]]:
    """Measure both modes."""
    rows = 300_000 if quick else 1_500_000
    records = _records(rows)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        append, append_bare = _append(root, records)
        merge, merge_bare = _merge(root, records)
    say(f"delta append: {rows / append:,.0f} rows/s, bare {rows / append_bare:,.0f}")
    say(f"delta merge: {merge:.2f} s, bare {merge_bare:.2f} s")
    bars = [
        Bar("Delta append over a bare write_deltalake", append_bare / append, APPEND_MIN),
        Bar("Delta merge over a bare merge", merge_bare / merge, MERGE_MIN),
    ]
    return bars, {"delta_rows": rows, "delta_append_rows_per_s": round(rows / append), "delta_merge_s": round(merge, 3)}


def _records(rows: int) -> list[pa.RecordBatch]:
    """Return changes in commit order, in batches of the size that a task hands over."""
    found = []
    for step in changes(0, 1, rows):
        merged = pa.concat_tables([pa.Table.from_batches([without_before(b.records)]) for b in step if b.records.num_rows])
        order = np.argsort(merged.column("_ts").to_numpy(), kind="stable")
        found += merged.drop_columns(["_key"]).take(pa.array(order)).combine_chunks().to_batches(BATCH_ROWS_MIN * 2)
    return found


def _deliver(uri: str, records: Sequence[pa.RecordBatch], from_ts: int, to_ts: int) -> None:
    kind = kind_of(uri)
    sink = kind.make_sink(uri, {}, None, RUN)
    try:
        sink.open_dispatcher(DispatcherWork(WHOLE, ORDERS, from_ts, to_ts))
        for batch in records:
            sink.add_dml_event(DmlEvent(WHOLE, ORDERS, batch))
        result = sink.close_dispatcher(WHOLE)
    finally:
        sink.close()
    kind.make_maintainer(uri, {}, unfenced, RUN).record_window(from_ts, to_ts, [result])


def _append(root: Path, records: list[pa.RecordBatch]) -> tuple[float, float]:
    shape = LakeShape(LakeSettings(mode=Mode.APPEND), True)
    typed = shape.rows(ORDERS, pa.Table.from_batches(records))
    end = int(commit_ts_array(records[-1])[-1])
    ours, bare = [], []
    for run in range(RUNS):
        bare.append(_seconds(partial(write_deltalake, str(root / f"bare{run}"), typed)))
        ours.append(_seconds(partial(_deliver, f"delta+file://{root}/append{run}?mode=append", records, BASE_TS, end)))
        there = pl.scan_delta(str(root / f"append{run}" / "shop" / "orders")).select(pl.len()).collect().item()
        assert there == typed.num_rows
    return median(ours), median(bare)


def _merge(root: Path, records: list[pa.RecordBatch]) -> tuple[float, float]:
    shape = LakeShape(LakeSettings(), True)
    end = int(commit_ts_array(records[-1])[-1])
    inserts = [b.filter(pa.array(b.column("_op").to_numpy() == np.uint8(Op.INSERT))) for b in records]
    base = [b for b in inserts if b.num_rows]
    window = _window(base, end)
    rows, keys = folded(shape, ORDERS, pa.Table.from_batches(window))
    source = pl.DataFrame(keys).join(pl.DataFrame(rows), on="id", how="left", maintain_order="left")
    gone = pl.DataFrame(keys).join(pl.DataFrame(rows), on="id", how="anti").get_column("id")
    given = source.with_columns(pl.col("id").is_in(gone.implode()).alias("_gone")).to_arrow()
    ours, bare = [], []
    for run in range(RUNS):
        uri, place = f"delta+file://{root}/merge{run}", str(root / f"merge{run}" / "shop" / "orders")
        _deliver(uri, base, TS_ZERO, end)
        other = str(root / f"bare-merge{run}")
        write_deltalake(other, shape.rows(ORDERS, pa.Table.from_batches(base)))
        bare.append(_seconds(partial(_bare_merge, other, given)))
        ours.append(_seconds(partial(_deliver, uri, window, end, end + 100_000)))
        found, want = (pl.read_delta(p).sort("id") for p in (place, other))
        assert found.equals(want.select(found.columns)), "both hold the same rows"
    return median(ours), median(bare)


def _window(base: Sequence[pa.RecordBatch], end: int) -> list[pa.RecordBatch]:
    """Return updates of every tenth row, and deletes of every hundredth."""
    whole = pa.Table.from_batches(base)
    at = np.arange(0, whole.num_rows, 10)
    taken = whole.take(pa.array(at)).combine_chunks()
    ops = np.where(at % 100 == 0, np.uint8(Op.DELETE), np.uint8(Op.UPDATE)).astype(np.uint8)
    ts = (end + 1 + np.arange(len(at)) // 20).astype(np.uint64)
    taken = taken.set_column(0, "_ts", pa.array(ts)).set_column(1, "_op", pa.array(ops))
    taken = taken.set_column(taken.schema.names.index("c2"), "c2", pa.array(np.arange(len(at)), pa.int32()))
    found: list[pa.RecordBatch] = taken.to_batches(BATCH_ROWS_MIN * 2)
    return found


def _bare_merge(place: str, given: pa.Table) -> None:
    columns = {name: f"s.{name}" for name in given.column_names if name != "_gone"}
    merging = DeltaTable(place).merge(given, "t.id = s.id", source_alias="s", target_alias="t")
    merging = merging.when_matched_delete("s._gone").when_matched_update(columns)
    merging.when_not_matched_insert(columns, "not s._gone").execute()


def _seconds(call: Callable[[], None]) -> float:
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
