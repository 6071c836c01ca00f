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
from penstock.model.raw import RawBatch
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.contract import Decoded, RangeEpoch, RangeInfo
from penstock.source.proto import cdc_pb2

WAIT_S = 30.0
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


class ScriptedUpstream:
    """Ranges that a test sets; full keys are the span's own keys; a decoder that keeps keys and values as they are."""

    def __init__(self, ranges: Sequence[RangeInfo] = ()) -> None:
        self._ranges = list(ranges)
        self._lock = threading.Lock()
        self.lookups = 0
        self.down = False

    def set_ranges(self, *ranges: RangeInfo) -> None:
        """Change where ranges are."""
        with self._lock:
            self._ranges = list(ranges)

    def ranges(self, span: Span) -> Sequence[RangeInfo]:
        """Return the ranges that a test set."""
        with self._lock:
            self.lookups += 1
            if self.down:
                raise PenstockError("UPSTREAM_UNREACHABLE", "the script says so")
            return list(self._ranges)

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return the span's keys."""
        return span.start_key, span.end_key

    def current_ts(self) -> int:
        """Return a constant."""
        return 1

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the one table."""
        return [TABLE]

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return the one version."""
        return [TABLE]

    def decoder(self) -> PlainDecoder:
        """Return a decoder."""
        return PlainDecoder()

    def read_table(self, span: Span, ts: int) -> Iterator[ChangeBatch]:
        """Yield nothing: the script keeps no state."""
        return iter(())

    def close(self) -> None:
        """Release nothing."""


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
