"""``kill -9`` of the process that owns a store, while it flushes, merges and lets history go: nothing that was acknowledged is lost,
nothing is there twice."""

import subprocess
import sys
import threading
from pathlib import Path

from penstock.model.batch import Op
from penstock.model.span import Span
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.object_file import ObjectKind
from testing.checks.change_batches import TABLE, both_sides, read_rows

SPAN = Span(TABLE.table_id)
WRITER = """
import itertools, sys, threading
from penstock.model.batch import Op
from penstock.model.span import Span
from penstock.store.event_store import ColumnarEventStore
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, both_sides
span = Span(TABLE.table_id)
settings = StoreSettings(
    flush_bytes=20_000, wal_segment_bytes=10_000, wal_bytes_max=60_000, resolved_max_delay_s=0.001,
    merge_bytes_min=10_000, merge_ratio=0.1, merge_lull_s=0.0, history_seconds=0, checkpoint_seconds=10**10, gc_interval_s=0.0,
)
store = ColumnarEventStore(sys.argv[1], settings)
resolved = store.register_span(span.span_id, span, 0)
store.put_schemas([TABLE])
print("resolved", resolved, flush=True)
slots = threading.Semaphore(8)
said = threading.Lock()
for ts in itertools.count(resolved + 1):
    rows = [(ts, Op.INSERT, ts * 10 + n, f"{ts}/{n}") for n in range(10)]
    rows += [(ts, Op.DELETE, (ts - 1) * 10 + n, f"{ts - 1}/{n}") for n in range(3) if ts > 1]
    slots.acquire()
    def done(ts=ts):
        store.advance_resolved_ts(span.span_id, ts - 2)
        with said:
            print("acked", ts, flush=True)
        slots.release()
    store.append(span.span_id, both_sides(span.span_id, rows), done)
"""


def rows_at(ts: int) -> list[tuple[int, Op, int, str]]:
    gone = [(ts, Op.DELETE, (ts - 1) * 10 + n, f"{ts - 1}/{n}") for n in range(3) if ts > 1]
    return [*gone, *((ts, Op.INSERT, ts * 10 + n, f"{ts}/{n}") for n in range(10))]


def alive_at(ts: int) -> set[int]:
    return {at * 10 + n for at in range(1, ts + 1) for n in range(3 if at < ts else 0, 10)}


def test_acknowledged_rows_survive_kill_9(tmp_path: Path) -> None:
    acked = 0
    for lines in (3, 60, 250):
        acked = max(acked, write_and_kill(tmp_path, lines))
        expected = [row for ts in range(2, acked + 1) for row in rows_at(ts)]
        with ColumnarEventStore(tmp_path) as store:
            resolved = store.register_span(SPAN.span_id, SPAN, 0)
            assert resolved <= acked
            store.advance_resolved_ts(SPAN.span_id, acked)
            assert read_rows(store.collect_changes(SPAN.span_id, 1, acked)) == expected
            assert {r[2] for r in read_rows(store.collect_changes(SPAN.span_id, 0, acked))} == alive_at(acked)
            pull_again(store, [row for ts in range(resolved + 1, acked + 1) for row in rows_at(ts)])
            assert read_rows(store.collect_changes(SPAN.span_id, 1, acked)) == expected
            merged = [o for o in store.view(SPAN.span_id).state.objects if o.object_kind is ObjectKind.MERGED]
    assert merged
    assert store.view(SPAN.span_id).state.history_start_ts > 0, "history went to checkpoints, and the tail was read from them"


def pull_again(store: ColumnarEventStore, rows: list[tuple[int, Op, int, str]]) -> None:
    durable = threading.Event()
    assert store.append(SPAN.span_id, both_sides(SPAN.span_id, rows), durable.set)
    assert durable.wait(120)


def write_and_kill(directory: Path, lines: int) -> int:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True)
    acked = 0
    assert process.stdout is not None
    with process.stdout:
        for count, line in enumerate(process.stdout):
            word, number = line.split()
            if word == "acked":
                acked = int(number)
            if count >= lines:
                break
        process.kill()
        for line in process.stdout:  # what was said before the kill counts as well
            if line.endswith("\n") and line.startswith("acked"):
                acked = int(line.split()[1])
    assert process.wait(120) == -9
    return acked
