"""The data server's client: an upstream with ranges that reads the past, and the calls with which a workload writes.

Every call has a deadline; nobody answering is ``UPSTREAM_UNREACHABLE`` with the address. Runs in the log service, the server, on
executors, and with a workload. Safe for many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import ChangeBatch
from penstock.model.errors import CODES, PenstockError
from penstock.model.rows.row_key import full_span
from penstock.model.span import Span, cut
from penstock.model.table import TableSchema
from penstock.source.contract import Capability, LogPosition, SnapshotTicket
from penstock.source.dataserver.decoder import DataServerDecoder, SchemaCache
from penstock.source.dataserver.snapshot_pull import SnapshotPage, SnapshotPuller
from penstock.source.dataserver.transaction import Txn
from penstock.source.proto import dataserver_pb2 as pb
from penstock.source.proto import dataserver_pb2_grpc
from penstock.source.ranged import RangeEpoch, RangeInfo

T = TypeVar("T")
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True)
class ClientSettings:
    """Deadlines and page sizes."""

    call_timeout_s: float = 30.0
    read_timeout_s: float = 600.0
    read_page_rows: int = 8_192
    message_bytes_max: int = 64 << 20


class DataServerUpstream:
    """A connection to an embedded data server. Implements ``RangedUpstream`` and ``PastReader``."""

    capabilities = Capability.RANGES | Capability.PAST

    def __init__(self, uri: str, settings: ClientSettings | None = None) -> None:
        self.uri = uri
        self.address = parse_uri(uri)
        self._settings = settings or ClientSettings()
        limit = self._settings.message_bytes_max
        # A database is not reached through what the environment names for the web; gRPC would try, even on loopback.
        options = [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.insecure_channel(self.address, options=options)
        self._stub = dataserver_pb2_grpc.DataServerStub(self._channel)  # type: ignore[no-untyped-call]
        self._schemas = SchemaCache(self._fetch_history)
        self._decoder = DataServerDecoder(self._schemas)

    # -- Upstream

    def current_ts(self) -> int:
        """Return a ts that is larger than every commit acknowledged before."""
        return int(self._call(self._stub.GetTs, pb.Empty()).ts)

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the newest version of every table."""
        return self.list_tables_at(0)

    def list_tables_at(self, ts: int) -> Sequence[TableSchema]:
        """Return the tables that lived at a ts, in the version of that time; 0 is now."""
        answer = self._call(self._stub.ListTables, pb.ListTablesRequest(ts=ts))
        return [TableSchema.from_json(t) for t in answer.table_schemas]

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table, oldest first."""
        return list(self._fetch_history(table_id)[0])

    def divide(self, span: Span, pieces_max: int | None = None) -> Sequence[Span]:
        """Cut a span at the borders of the ranges that cover it now."""
        prefix = full_span(Span(span.table_id))[0]
        return cut(span, [r.start_key.removeprefix(prefix) for r in self.ranges(span) if r.start_key.startswith(prefix)], pieces_max)

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        """Yield the rows of a span as of the ts of the call."""
        return self.read_table(span, self.current_ts())

    def begin_snapshot(self) -> SnapshotTicket:
        """Take a ts: ranges answer at versions of their own, all at or after it, so the snapshot is not exact."""
        return SnapshotTicket(LogPosition(self.current_ts(), ""))

    def read_snapshot(self, ticket: SnapshotTicket, span: Span, table: TableSchema, page_rows: int) -> Iterator[ChangeBatch]:
        """Yield the rows of a span range by range. A row that committed after the ticket's ts is left to the log, which has it."""
        puller = SnapshotPuller(f"snapshot-{span.span_id}-{ticket.start.ts}", page_rows)
        position, end_key = full_span(span)
        try:
            while position < end_key:
                info = self._range_at(position, end_key)
                for page in puller.pages(info):
                    chosen = _rows_of(page, ticket.start.ts, position, end_key)
                    if not len(chosen.keys):
                        continue
                    ts = np.full(len(chosen.keys), ticket.start.ts, dtype=np.uint64)
                    yield from self._decoder.decode_rows(span.span_id, table, ts, chosen.keys, chosen.values)
                position = info.end_key or end_key
        finally:
            puller.close()

    def end_snapshot(self, ticket: SnapshotTicket) -> None:
        """Do nothing: iterators that nobody reads are pushed out by others."""

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return the full keys of a span."""
        return full_span(span)

    def ranges(self, span: Span) -> Sequence[RangeInfo]:
        """Return the ranges that cover a span now, in key order."""
        found = self.list_ranges(*full_span(span))
        if not found:
            raise PenstockError("TABLE_UNKNOWN", f"no table has id {span.table_id}")
        return found

    def decoder(self) -> DataServerDecoder:
        """Return the decoder that shares this client's schema cache."""
        return self._decoder

    def read_table(self, span: Span, ts: int) -> Iterator[ChangeBatch]:
        """Yield the state of a span as of a ts as INSERT rows of the version of that ts, in key order."""
        table = self._schemas.history(span.table_id, covers_ts=ts).at(ts)
        start_key, end_key = full_span(span)
        request = pb.ReadRowsRequest(start_key=start_key, end_key=end_key, ts=ts, limit_rows=self._settings.read_page_rows)
        pages = self._translated(lambda: self._stub.ReadRows(request, timeout=self._settings.read_timeout_s))
        while True:
            page = self._translated(lambda: next(pages, None))
            if page is None:
                return
            keys = pa.array(page.keys, pa.binary())
            values = pa.array(page.values, pa.binary())
            commit_ts = np.array(page.commit_ts, dtype=np.uint64)
            yield from self._decoder.decode_rows(span.span_id, table, commit_ts, keys, values)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> DataServerUpstream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- writing

    def txn(self) -> Txn:
        """Begin a transaction; use it in a ``with`` block."""
        return Txn(self)

    def begin(self) -> int:
        """Return the start ts of a new transaction."""
        return self.current_ts()

    def prewrite(self, start_ts: int, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Lock full keys with their new values (None: delete)."""
        mutations = [pb.Mutation(op=2 if v is None else 1, key=k, value=v) for k, v in zip(keys, values, strict=True)]
        self._call(self._stub.Prewrite, pb.PrewriteRequest(start_ts=start_ts, primary=keys[0] if keys else b"", mutations=mutations))

    def commit(self, start_ts: int) -> int:
        """Commit a transaction; return its commit ts."""
        return int(self._call(self._stub.Commit, pb.CommitRequest(start_ts=start_ts)).commit_ts)

    def rollback(self, start_ts: int) -> None:
        """Roll a transaction back."""
        self._call(self._stub.Rollback, pb.RollbackRequest(start_ts=start_ts))

    def execute_ddl(self, query: str) -> int:
        """Execute a DDL; return its commit ts."""
        return int(self._call(self._stub.ExecuteDdl, pb.DdlRequest(query=query)).commit_ts)

    def table(self, schema: str, table: str) -> TableSchema:
        """Return a live table by name."""
        for found in self.list_tables():
            if (found.schema.lower(), found.table.lower()) == (schema.lower(), table.lower()):
                return found
        raise PenstockError("TABLE_UNKNOWN", f"table {schema}.{table} does not exist")

    # -- placement

    def list_ranges(self, start_key: bytes, end_key: bytes) -> Sequence[RangeInfo]:
        """Return the ranges that touch ``[start_key, end_key)`` of the key space."""
        return _infos(self._call(self._stub.ListRanges, pb.ListRangesRequest(start_key=start_key, end_key=end_key)))

    def split(self, key: bytes) -> Sequence[RangeInfo]:
        """Split the range of a full key at that key."""
        return _infos(self._call(self._stub.Split, pb.SplitRequest(key=key)))

    def merge(self, left_range_id: int) -> Sequence[RangeInfo]:
        """Merge a range with its right neighbour."""
        return _infos(self._call(self._stub.Merge, pb.MergeRequest(left_range_id=left_range_id)))

    def move_leader(self, range_id: int, store_id: int) -> Sequence[RangeInfo]:
        """Let another store lead a range."""
        return _infos(self._call(self._stub.MoveLeader, pb.MoveLeaderRequest(range_id=range_id, store_id=store_id)))

    # -- parts

    def _range_at(self, position: bytes, end_key: bytes) -> RangeInfo:
        for info in self.list_ranges(position, end_key):
            if info.start_key <= position and (not info.end_key or position < info.end_key):
                return info
        raise PenstockError("REGION_NOT_FOUND", "no range covers the position of a snapshot")

    def _fetch_history(self, table_id: int) -> tuple[Sequence[TableSchema], int]:
        answer = self._call(self._stub.SchemaHistory, pb.SchemaHistoryRequest(table_id=table_id))
        return [TableSchema.from_json(t) for t in answer.table_schemas], int(answer.ts)

    def _call(self, method: Callable[..., T], request: object) -> T:
        return self._translated(lambda: method(request, timeout=self._settings.call_timeout_s))

    def _translated(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except grpc.RpcError as error:
            raise self._failure(error) from error
        except ValueError as error:
            # grpc's answer to the use of a closed channel.
            raise PenstockError("UPSTREAM_UNREACHABLE", f"the connection to {self.address} is closed") from error

    def _failure(self, error: grpc.RpcError) -> PenstockError:
        details = error.details() or ""
        if details.startswith("["):
            found = PenstockError.from_text(details)
            if found.code in CODES and found.code != "FEED_FAILED":
                return found
        if error.code() in _UNREACHABLE:
            return PenstockError("UPSTREAM_UNREACHABLE", f"the data server at {self.address} does not answer ({error.code().name})")
        return PenstockError("UPSTREAM_REFUSED", f"the data server at {self.address} answered {error.code().name}: {details}")


def _rows_of(page: SnapshotPage, start_ts: int, first: bytes, last: bytes) -> SnapshotPage:
    """Return the rows between two full keys that committed at or before a ts."""
    wanted = pc.and_(pc.greater_equal(page.keys, pa.scalar(first, pa.binary())), pa.array(page.commit_ts <= np.uint64(start_ts)))
    wanted = pc.and_(wanted, pc.less(page.keys, pa.scalar(last, pa.binary())))
    kept = wanted.to_numpy(zero_copy_only=False)
    return SnapshotPage(page.version, page.keys.filter(wanted), page.values.filter(wanted), page.commit_ts[kept])


def parse_uri(uri: str) -> str:
    """Return ``host:port`` of a ``dataserver://`` URI."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise PenstockError("CONFIG_INVALID", "upstream: expected dataserver://host:port, with a port up to 65535") from None
    if parts.scheme != "dataserver" or not parts.hostname or port is None or parts.path not in ("", "/"):
        raise PenstockError("CONFIG_INVALID", f"upstream: expected dataserver://host:port, got {parts.scheme}://{parts.hostname or ''}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"


def _infos(answer: pb.ListRangesResponse) -> list[RangeInfo]:
    return [
        RangeInfo(
            int(r.range_id),
            int(r.table_id),
            bytes(r.start_key),
            bytes(r.end_key),
            RangeEpoch(int(r.epoch.conf_ver), int(r.epoch.version)),
            int(r.store_id),
            r.store_addr,
        )
        for r in answer.ranges
    ]
