"""Kafka as a target against a bare producer with the same bytes: rows a second of a window, to the brokers of librdkafka's mock cluster.

The bare producer has the messages ready, in its own format, and sends them in one transaction; the sink begins with change rows. Both send
the same topics, keys, values, headers, partitions and timestamps, in turns. The mock cluster forgets the texts of offsets, so each window
of the sink begins as in a new process. A part of the bench of targets.
"""

from __future__ import annotations

import gc

import pyarrow as pa

from benchmarks.report import Bar
from penstock.model.batch import Op
from penstock.model.clock import SystemClock
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.kafka.clients import KafkaAddress
from penstock.sink.kafka.encode.messages import TableMessages
from penstock.sink.kafka.kind import KIND
from penstock.sink.kafka.sink import KafkaSink
from penstock.sink.kafka.transactions import KEPT, Stream
from penstock.target.kind import SinkRun
from testing.servers.kafka.mock_cluster import mock_cluster

_T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(
    7,
    "shop",
    "orders",
    _T0,
    (
        Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),
        Column(2, "note", ColumnType(TypeKind.VARCHAR, length=80)),
        Column(3, "amount", ColumnType(TypeKind.DECIMAL, length=10, scale=2)),
        Column(4, "state", ColumnType(TypeKind.INT)),
    ),
)
_EVENT_ROWS = 20_000


def part(quick: bool) -> tuple[list[Bar], dict[str, float | int | str]]:
    """Return the bars and figures of this target."""
    ours, bare = rows_per_second(200_000 if quick else 400_000)
    figures: dict[str, float | int | str] = {"kafka_rows_per_s": round(ours), "kafka_bare_rows_per_s": round(bare)}
    return [Bar("Kafka: rows/s to a bare producer of the same bytes", ours / bare, 0.5)], figures


def rows_per_second(rows: int, attempts: int = 4) -> tuple[float, float]:
    """Return the best of some attempts: rows a second of the sink, and of the bare producer."""
    clock = SystemClock()
    events = [event_of(at, min(_EVENT_ROWS, rows - at)) for at in range(0, rows, _EVENT_ROWS)]
    sink_s, bare_s = [], []
    with mock_cluster() as brokers:
        # This cluster keeps no offsets of transactions, so nobody could say how far a window before has come.
        address = KafkaAddress(*KIND.settings(f"kafka://{brokers}/bench?lost-progress=go-on", {}))
        _window(address, events[:1], 0)
        bare = Stream(address, "bare")
        bare.fence()
        made = TableMessages(address.settings, TABLE, "bench.shop.orders", bare.partitions("bench.shop.orders"), "bench")
        messages = [message for event in events for message in made.messages(made.encode(_paired(address, event)))]
        # What stays for the whole run is nothing that either of them should be held up by.
        gc.collect()
        gc.freeze()
        for at in range(attempts):
            begun = clock.monotonic_s()
            _window(address, events, at + 1)
            sink_s.append(clock.monotonic_s() - begun)
            begun = clock.monotonic_s()
            bare.write(messages)
            bare.commit(at, "")
            bare_s.append(clock.monotonic_s() - begun)
        bare.close()
        KEPT.close(address)
        gc.unfreeze()
    return rows / min(sink_s), rows / min(bare_s)


def _window(address: KafkaAddress, events: list[pa.RecordBatch], at: int) -> None:
    sink = KafkaSink(address, SinkRun("bench", 1))
    sink.open_dispatcher(DispatcherWork(DispatcherId(7), TABLE, _T0 + at, _T0 + at + 1))
    for event in events:
        sink.add_dml_event(DmlEvent(DispatcherId(7), TABLE, event))
    sink.close_dispatcher(DispatcherId(7))
    sink.close()


def event_of(start: int, count: int) -> pa.RecordBatch:
    """Return so many rows that come to be."""
    ids = range(start, start + count)
    columns = [
        pa.array([_T0 + 1 + i for i in ids], pa.uint64()),
        pa.array([Op.INSERT] * count, pa.uint8()),
        pa.array(ids, pa.int64()),
        pa.array([f"the note of order {i}, which is of usual length" for i in ids], pa.string()),
        pa.array([f"{i % 1000}.25" for i in ids], pa.string()),
        pa.array([i % 7 for i in ids], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", *(c.field_name for c in TABLE.columns)])


def _paired(address: KafkaAddress, event: pa.RecordBatch) -> pa.RecordBatch:
    from penstock.format.file_rows import FileRows

    return FileRows(TABLE, address.settings.data_format).add(event)
