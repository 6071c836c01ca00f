"""The gRPC services of one store: the change stream and the data server's own calls, over the shared engine.

An error travels as a status whose details begin with ``[CODE]``; the client turns it back. Any store answers placement, schema,
transaction and read calls; the change stream and the pull calls are answered for the ranges that the store leads. Runs in the data
server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import grpc
import pyarrow as pa

from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.rows.row_key import PREFIX_BYTES, table_id_of
from penstock.source.dataserver.engine.engine import Engine
from penstock.source.dataserver.rowcodec import decode_values, schema_versions
from penstock.source.dataserver.service.eventfeed import EventFeedSettings, Stream
from penstock.source.dataserver.service.pull import PullService
from penstock.source.proto import cdc_pb2, dataserver_pb2_grpc
from penstock.source.proto import dataserver_pb2 as pb
from penstock.source.ranged import RangeInfo

log = logging.getLogger(__name__)
T = TypeVar("T")
READ_PAGE_ROWS = 4_096
READ_PAGE_ROWS_MAX = 65_536
_STATUS = {ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT, ErrorKind.TRANSIENT: grpc.StatusCode.ABORTED}


class StoreService(dataserver_pb2_grpc.DataServerServicer):
    """Both services of one store."""

    def __init__(self, engine: Engine, store_id: int, settings: EventFeedSettings) -> None:
        self._engine = engine
        self._store_id = store_id
        self._settings = settings
        self._pull = PullService(engine, store_id)
        self._streams: set[Stream] = set()
        self._lock = threading.Lock()

    def add_to(self, server: grpc.Server) -> None:
        """Register both services."""
        dataserver_pb2_grpc.add_DataServerServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        # Not through the generated code: it would serialize messages that are bytes already.
        feed = grpc.stream_stream_rpc_method_handler(self.EventFeed, request_deserializer=cdc_pb2.ChangeDataRequest.FromString)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeed": feed}),))

    def close_streams(self) -> None:
        """End all change streams, so that their threads return."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def EventFeed(  # noqa: N802
        self, request_iterator: Iterator[cdc_pb2.ChangeDataRequest], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Serve one change stream; its messages are serialized already."""
        stream = Stream(self._engine, self._store_id, self._settings)
        with self._lock:
            self._streams.add(stream)
        if not context.add_callback(stream.close):
            stream.close()
        reader = threading.Thread(target=_read_requests, args=(request_iterator, stream), name=f"eventfeed-{self._store_id}", daemon=True)
        reader.start()
        try:
            yield from stream.messages()
        finally:
            stream.close()
            with self._lock:
                self._streams.discard(stream)

    def GetTs(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.TsResponse:  # noqa: N802
        """Return a fresh ts."""
        return pb.TsResponse(ts=self._engine.current_ts())

    def ListTables(self, request: pb.ListTablesRequest, context: grpc.ServicerContext) -> pb.ListTablesResponse:  # noqa: N802
        """Return the tables of now or of a ts."""

        def answer() -> pb.ListTablesResponse:
            ts = int(request.ts) or self._engine.current_ts()
            return pb.ListTablesResponse(ts=ts, table_schemas=[t.to_json() for t in self._engine.list_tables(ts)])

        return _guarded(context, answer)

    def SchemaHistory(self, request: pb.SchemaHistoryRequest, context: grpc.ServicerContext) -> pb.SchemaHistoryResponse:  # noqa: N802
        """Return all versions of a table."""

        def answer() -> pb.SchemaHistoryResponse:
            versions, ts = self._engine.schema_history(int(request.table_id))
            return pb.SchemaHistoryResponse(table_schemas=[v.to_json() for v in versions], ts=ts)

        return _guarded(context, answer)

    def ListRanges(self, request: pb.ListRangesRequest, context: grpc.ServicerContext) -> pb.ListRangesResponse:  # noqa: N802
        """Return the ranges of a part of the key space."""
        return _guarded(context, lambda: _ranges(self._engine.list_ranges(request.start_key, request.end_key)))

    def ExecuteDdl(self, request: pb.DdlRequest, context: grpc.ServicerContext) -> pb.DdlResponse:  # noqa: N802
        """Execute a DDL."""
        return _guarded(context, lambda: pb.DdlResponse(commit_ts=self._engine.execute_ddl(request.query)))

    def Prewrite(self, request: pb.PrewriteRequest, context: grpc.ServicerContext) -> pb.TxnResponse:  # noqa: N802
        """Lock the keys of a transaction."""

        def answer() -> pb.TxnResponse:
            keys = [m.key for m in request.mutations]
            values = [m.value if m.op == 1 else None for m in request.mutations]
            self._check_values(keys, values)
            self._engine.prewrite(int(request.start_ts), keys, values)
            return pb.TxnResponse()

        return _guarded(context, answer)

    def Commit(self, request: pb.CommitRequest, context: grpc.ServicerContext) -> pb.TxnResponse:  # noqa: N802
        """Commit a transaction."""
        return _guarded(context, lambda: pb.TxnResponse(commit_ts=self._engine.commit(int(request.start_ts))))

    def Rollback(self, request: pb.RollbackRequest, context: grpc.ServicerContext) -> pb.TxnResponse:  # noqa: N802
        """Roll a transaction back."""

        def answer() -> pb.TxnResponse:
            self._engine.rollback(int(request.start_ts))
            return pb.TxnResponse()

        return _guarded(context, answer)

    def Split(self, request: pb.SplitRequest, context: grpc.ServicerContext) -> pb.ListRangesResponse:  # noqa: N802
        """Split a range."""
        return _guarded(context, lambda: _ranges(self._engine.split(request.key)))

    def Merge(self, request: pb.MergeRequest, context: grpc.ServicerContext) -> pb.ListRangesResponse:  # noqa: N802
        """Merge two neighbours."""
        return _guarded(context, lambda: _ranges(self._engine.merge(int(request.left_range_id))))

    def MoveLeader(self, request: pb.MoveLeaderRequest, context: grpc.ServicerContext) -> pb.ListRangesResponse:  # noqa: N802
        """Move a range's leader."""
        return _guarded(context, lambda: _ranges(self._engine.move_leader(int(request.range_id), int(request.store_id))))

    def CdcRegister(self, request: pb.CdcRegisterRequest, context: grpc.ServicerContext) -> pb.CdcRegisterResponse:  # noqa: N802
        """Register a subscriber for a range."""
        return _guarded(context, lambda: self._pull.register(request))

    def CdcPullSnapshot(self, request: pb.CdcPullSnapshotRequest, context: grpc.ServicerContext) -> pb.CdcPullSnapshotResponse:  # noqa: N802
        """Return a page of a snapshot."""
        return _guarded(context, lambda: self._pull.pull_snapshot(request))

    def CdcPullLog(self, request: pb.CdcPullLogRequest, context: grpc.ServicerContext) -> pb.CdcPullLogResponse:  # noqa: N802
        """Return a page of the log."""
        return _guarded(context, lambda: self._pull.pull_log(request))

    def ReadRows(self, request: pb.ReadRowsRequest, context: grpc.ServicerContext) -> Iterator[pb.ReadRowsResponse]:  # noqa: N802
        """Stream the state of a part of the key space as of a ts."""
        page_rows = min(request.limit_rows or READ_PAGE_ROWS, READ_PAGE_ROWS_MAX)
        pages = self._engine.read(request.start_key, request.end_key, int(request.ts), page_rows)
        while True:
            page = _guarded(context, lambda: next(pages, None))
            if page is None:
                return
            yield pb.ReadRowsResponse(keys=page[0], values=page[1], commit_ts=page[2])

    def _check_values(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Refuse rows that no reader could decode. Rows of another version are the engine's to refuse: they are a conflict, not damage."""
        by_table: dict[bytes, list[bytes]] = {}
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                by_table.setdefault(key[:PREFIX_BYTES], []).append(value)
        for prefix, rows in by_table.items():
            table = self._engine.live_table(table_id_of(prefix))
            encoded = pa.array(rows, pa.binary())
            if table is not None and bool((schema_versions(encoded) == table.version).all()):
                decode_values(table, encoded)


def _read_requests(requests: Iterator[cdc_pb2.ChangeDataRequest], stream: Stream) -> None:
    try:
        for request in requests:
            stream.handle(request)
    except grpc.RpcError:
        log.debug("change stream was cancelled by its client")
    except Exception:
        # A stream whose requests are not read any more would look alive: it must end, and say why here.
        log.exception("change stream failed")
        stream.close()


def _ranges(infos: list[RangeInfo]) -> pb.ListRangesResponse:
    return pb.ListRangesResponse(
        ranges=[
            pb.RangeInfo(
                range_id=i.range_id,
                table_id=i.table_id,
                start_key=i.start_key,
                end_key=i.end_key,
                epoch=cdc_pb2.RegionEpoch(conf_ver=i.epoch.conf_ver, version=i.epoch.version),
                store_id=i.store_id,
                store_addr=i.store_addr,
            )
            for i in infos
        ]
    )


def _guarded(context: grpc.ServicerContext, answer: Callable[[], T]) -> T:
    """Return the answer, or end the call with the error's code in its details."""
    try:
        return answer()
    except PenstockError as error:
        context.abort(_STATUS.get(error.kind, grpc.StatusCode.FAILED_PRECONDITION), str(error))
        raise
