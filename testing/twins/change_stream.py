"""A scripted store: a real gRPC server that says on its change stream what a test tells it to.

Messages are given as protobuf objects or as raw bytes, so a test can send what no store would. Also the smallest upstream that points at
such stores. Runs in tests, in process, on free loopback ports.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc
import pyarrow as pa

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.span import Span, cut
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.contract import Capability, LogPosition, SnapshotTicket
from penstock.source.proto import cdc_pb2
from penstock.source.ranged import Decoded, RangeEpoch, RangeInfo
from penstock.source.raw import RawBatch

WAIT_S = 120.0
_CUT = object()


class ScriptedStream:
    """One open change stream, as the store sees it."""

    def __init__(self) -> None:
        self.requests: queue.Queue[cdc_pb2.ChangeDataRequest] = queue.Queue()
        self.outgoing: queue.Queue[bytes | object] = queue.Queue()
        self.ended = threading.Event()

    def next_request(self, timeout_s: float = WAIT_S) -> cdc_pb2.ChangeDataRequest:
        """Return the client's next request; raises ``queue.Empty`` if none comes."""
        return self.requests.get(timeout=timeout_s)

    def send(self, message: cdc_pb2.ChangeDataEvent | bytes) -> None:
        """Send a message, or bytes that look like one."""
        self.outgoing.put(message if isinstance(message, bytes) else message.SerializeToString())

    def cut(self) -> None:
        """End the stream with an error, after what was sent before."""
        self.outgoing.put(_CUT)


class ScriptedStore:
    """A store on a free loopback port. Use as a context manager."""

    def __init__(self) -> None:
        self.streams: queue.Queue[ScriptedStream] = queue.Queue()
        self._open: list[ScriptedStream] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)])
        handler = grpc.stream_stream_rpc_method_handler(self._event_feed, request_deserializer=cdc_pb2.ChangeDataRequest.FromString)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeed": handler}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> ScriptedStore:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._open:
            stream.cut()
        self._server.stop(grace=None).wait()

    def next_stream(self, timeout_s: float = WAIT_S) -> ScriptedStream:
        """Return the next stream that a client opens; raises ``queue.Empty`` if none comes."""
        return self.streams.get(timeout=timeout_s)

    def _event_feed(self, requests: Iterator[cdc_pb2.ChangeDataRequest], context: Any) -> Iterator[bytes]:
        stream = ScriptedStream()
        self._open.append(stream)
        self.streams.put(stream)

        def read() -> None:
            try:
                for request in requests:
                    stream.requests.put(request)
            except Exception:  # noqa: BLE001 - gRPC raises a bare Exception when the client is gone
                stream.cut()
            else:
                stream.cut()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while True:
            item = stream.outgoing.get()
            if not isinstance(item, bytes):
                stream.ended.set()
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the script")
            else:
                yield item


TABLE = TableSchema(1, "d", "t", 1, (Column(1, "v", ColumnType(TypeKind.VARBINARY, length=255)),))


def named_tables(*names: str) -> list[TableSchema]:
    """Return tables of these full names, each with a BIGINT key."""
    key = Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True)
    parts = [name.split(".") for name in names]
    return [TableSchema(100 + at, schema, table, 1, (key,)) for at, (schema, table) in enumerate(parts)]


class ScriptedUpstream:
    """A ``RangedUpstream`` without rows of its own: tables and ranges are what a test sets, and streams say what it sends.

    Full keys are the span's own keys; the decoder keeps keys and values as they are. ``down`` lets every call fail.
    """

    capabilities = Capability.RANGES

    def __init__(self, ranges: Sequence[RangeInfo] = (), tables: Sequence[TableSchema] = (TABLE,)) -> None:
        self._ranges = list(ranges)
        self._tables = list(tables)
        self._lock = threading.Lock()
        self.lookups = 0
        self.down = False

    def set_ranges(self, *ranges: RangeInfo) -> None:
        """Change where ranges are."""
        with self._lock:
            self._ranges = list(ranges)

    def ranges(self, span: Span) -> Sequence[RangeInfo]:
        """Return the ranges that a test set and that touch a span."""
        with self._lock:
            self.lookups += 1
            self._answer()
            touching = [r for r in self._ranges if not r.end_key or r.end_key > span.start_key]
            return [r for r in touching if not span.end_key or r.start_key < span.end_key]

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return the span's keys."""
        return span.start_key, span.end_key

    def decoder(self) -> PlainDecoder:
        """Return a decoder."""
        return PlainDecoder()

    def current_ts(self) -> int:
        """Return a constant: nothing ever commits."""
        self._answer()
        return 1 << 50

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the tables."""
        self._answer()
        return list(self._tables)

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return the only version of a table."""
        found = [table for table in self.list_tables() if table.table_id == table_id]
        if not found:
            raise PenstockError("TABLE_UNKNOWN", f"no table has id {table_id}")
        return found

    def divide(self, span: Span, pieces_max: int | None = None) -> Sequence[Span]:
        """Cut a span at the borders of ranges."""
        return cut(span, [r.start_key for r in self.ranges(span)], pieces_max)

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        """Yield nothing: the script keeps no state."""
        self._answer()
        return iter(())

    def begin_snapshot(self) -> SnapshotTicket:
        """Take the ts."""
        return SnapshotTicket(LogPosition(self.current_ts(), ""))

    def read_snapshot(self, ticket: SnapshotTicket, span: Span, table: TableSchema, page_rows: int) -> Iterator[ChangeBatch]:
        """Yield nothing."""
        return self.read_now(span)

    def end_snapshot(self, ticket: SnapshotTicket) -> None:
        """Release nothing."""

    def close(self) -> None:
        """Answer nothing any more."""
        self.down = True

    def _answer(self) -> None:
        if self.down:
            raise PenstockError("UPSTREAM_UNREACHABLE", "dataserver://127.0.0.1:1 does not answer")


class PlainDecoder:
    """Every put is an INSERT of its value, every delete a DELETE of its old value."""

    def decode(self, span_id: int, raw: RawBatch) -> Decoded:
        """Decode one raw batch."""
        rows = sorted(raw.entries.to_pylist(), key=lambda r: (r["commit_ts"], r["key"]))
        changes = []
        for kind, op, raw_op, value in ((BatchKind.TOMBSTONE, Op.DELETE, 2, "old_value"), (BatchKind.DATA, Op.INSERT, 1, "value")):
            side = [r for r in rows if r["op"] == raw_op]
            if side:
                columns = [[r["commit_ts"] for r in side], [int(op)] * len(side), [r["key"] for r in side], [r[value] for r in side]]
                schema = TABLE.batch_schema()
                arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
                changes.append(ChangeBatch.of(span_id, TABLE, kind, pa.RecordBatch.from_arrays(arrays, schema=schema)))
        return Decoded(tuple(changes))


def range_info(range_id: int, store: ScriptedStore, start_key: bytes = b"", end_key: bytes = b"", version: int = 1) -> RangeInfo:
    """Return a range of table 1 on a scripted store."""
    return RangeInfo(range_id, 1, start_key, end_key, RangeEpoch(1, version), 1, store.address)


def row(kind: int, key: bytes, start_ts: int, commit_ts: int = 0, value: bytes = b"v", op: int = 1) -> cdc_pb2.Event.Row:
    """Return one entry."""
    return cdc_pb2.Event.Row(type=kind, key=key, start_ts=start_ts, commit_ts=commit_ts, value=value, op_type=op)  # type: ignore[arg-type]


def entries(request: cdc_pb2.ChangeDataRequest, *rows: cdc_pb2.Event.Row) -> cdc_pb2.ChangeDataEvent:
    """Return a message with one region event, for the region that was requested."""
    event = cdc_pb2.Event(region_id=request.region_id, request_id=request.request_id, entries=cdc_pb2.Event.Entries(entries=rows))
    return cdc_pb2.ChangeDataEvent(events=[event])


def initialized(request: cdc_pb2.ChangeDataRequest) -> cdc_pb2.ChangeDataEvent:
    """Return the message that ends a region's incremental scan."""
    return entries(request, cdc_pb2.Event.Row(type=cdc_pb2.Event.INITIALIZED))


def resolved(ts: int, *requests: cdc_pb2.ChangeDataRequest) -> cdc_pb2.ChangeDataEvent:
    """Return one resolved ts for one or more requested regions of one subscription."""
    regions = [r.region_id for r in requests]
    return cdc_pb2.ChangeDataEvent(resolved_ts=cdc_pb2.ResolvedTs(regions=regions, ts=ts, request_id=requests[0].request_id))


def region_failed(request: cdc_pb2.ChangeDataRequest, error: cdc_pb2.Error) -> cdc_pb2.ChangeDataEvent:
    """Return a message that ends a region's feed."""
    return cdc_pb2.ChangeDataEvent(events=[cdc_pb2.Event(region_id=request.region_id, request_id=request.request_id, error=error)])
