"""One transaction of very many rows on its way from the event store to files, in a process of its own, whose memory is then known.

``python -m testing.paths.large_transaction FOLDER ROWS`` writes the rows as one commit into a store, lets a feed
without Spark deliver them, and prints one line of JSON: windows, rows, files, and the process's own memory before, when the store was
filled, and at its peak.
Runs in tests.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.feed.settings import FeedSettings
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.batch import BATCH_ROWS_MAX, BatchKind, ChangeBatch, Op
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService
from penstock.store.settings import StoreSettings
from testing.paths.local_feed import LocalFeed

TABLE = TableSchema(
    7,
    "shop",
    "orders",
    5,
    (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=60))),
)
SPAN = Span(TABLE.table_id)
BEGIN_TS, COMMIT_TS, END_TS = 10, 1 << 40, (1 << 40) + 10
FLUSH_BYTES = 32 << 20
_LOOK_S = 0.01


def batch(first: int, rows: int) -> ChangeBatch:
    """Return rows of the transaction, in key order."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    keys = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), rows, [None, pa.py_buffer((ids + (1 << 62)).astype(">i8").tobytes())])
    notes = pa.array(np.char.add("a note of some length, number ", ids.astype("U")), pa.string())
    arrays = [
        pa.array(np.full(rows, COMMIT_TS, dtype=np.uint64)),
        pa.array(np.full(rows, int(Op.INSERT), dtype=np.uint8)),
        keys.cast(pa.binary()),
        pa.array(ids),
        notes,
    ]
    return ChangeBatch.of(SPAN.span_id, TABLE, BatchKind.DATA, pa.RecordBatch.from_arrays(arrays, schema=TABLE.batch_schema()))


def fill(store: ColumnarEventStore, rows: int) -> None:
    """Append the transaction piece by piece, each when the one before is durable."""
    store.put_schemas([TABLE])
    for span in (DDL_SPAN, SPAN):
        store.register_span(span.span_id, span, BEGIN_TS)
    for first in range(0, rows, BATCH_ROWS_MAX):
        durable = threading.Event()
        store.append(SPAN.span_id, [batch(first, min(BATCH_ROWS_MAX, rows - first))], durable.set)
        if not durable.wait(60):
            raise TimeoutError("the store did not persist a batch")
    for span in (DDL_SPAN, SPAN):
        store.advance_resolved_ts(span.span_id, END_TS)


def deliver(folder: Path, store: ColumnarEventStore) -> tuple[int, int, int]:
    """Deliver everything; return windows, rows and files."""
    url = f"sqlite:///{folder / 'meta.db'}"
    (folder / "files").mkdir()
    with MetaDatabase(url) as meta, contextlib.closing(FlightService(store)) as flight:
        meta.create_feed(FeedRecord("f", "u", "{}", checkpoint_ts=BEGIN_TS), [])
        epoch = meta.claim("f", "test", 3_600_000) or 0
        context = FeedContext(
            feed="f",
            epoch=epoch,
            meta_url=url,
            flight_location=flight.location,
            flight_token=flight.token,
            sink_uri=(folder / "files").as_uri(),
            sink_options={"file-size": "16777216"},
            dispatchers=(Dispatcher(DispatcherId(TABLE.table_id), SPAN, TABLE.schema, TABLE.table),),
            # A window is cut by bytes, but never inside a transaction.
            settings=FeedSettings(window_bytes_max=1 << 20),
            snapshot_ts=0,
            partitions=1,
        )
        LocalFeed(context).drain(COMMIT_TS, 3_600)
        progress = meta.progress("f")
    return progress.windows, progress.rows, progress.files


def own_mib() -> int:
    """Return the memory that is the process's own; pages of files that it has mapped are the file system's."""
    line = next(line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) // 1024


class MemoryPeak:
    """Watches the process's own memory while it is open."""

    def __init__(self) -> None:
        self.mib = own_mib()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-peak", daemon=True)

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.mib = max(self.mib, own_mib())


def main(folder: Path, rows: int) -> None:
    """Do it, and say what it took."""
    # Everything is imported and has allocated its own by now.
    batch(0, 10)
    before = own_mib()
    with MemoryPeak() as peak, ColumnarEventStore(folder / "store", StoreSettings(flush_bytes=FLUSH_BYTES)) as store:
        fill(store, rows)
        filled = peak.mib
        windows, delivered, files = deliver(folder, store)
    mib = {"before_mib": before, "filled_mib": filled, "peak_mib": peak.mib}
    print(json.dumps({"windows": windows, "rows": delivered, "files": files} | mib))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
