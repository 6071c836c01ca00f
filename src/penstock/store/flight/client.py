"""The client of the Flight service: plans on the driver, reads on executors.

A handle that it opens reads objects directly where it can reach them, streams them from the service where it cannot, and streams the
rows in memory. Objects that are far away are read with the options that the client was given, through the process's cache of blocks
(``reached_objects.py``). The client holds a location, a token and options only, so it is picklable; the connection is made where it is
first used, over TLS where the token has the certificates for it, and no secret shows in ``repr``. Runs on the driver and on executors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from penstock.model.batch import BATCH_ROWS_MAX, BATCH_ROWS_MIN, BatchHeader, BatchKind, ChangeBatch, commit_ts_array
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.store.changes.changes import SpanView, open_changes
from penstock.store.contract import ChangesHandle, WindowPlan, WindowWish
from penstock.store.flight.credentials import ReaderCertificates, split_token
from penstock.store.flight.reached_objects import StreamedObjects, reached_space
from penstock.store.flight.server import (
    ElsewhereEndpoint,
    Endpoint,
    MemoryEndpoint,
    ObjectEndpoint,
    ResnapshotRequest,
    WindowAnswer,
    WindowRequest,
)
from penstock.store.objects.objects import ObjectSpace
from penstock.store.stats import SpanStats

_OPTIONS = [("grpc.enable_http_proxy", 0)]
"""The proxy of an environment is for the web, and not for the event store."""
CALL_TIMEOUT_S = 30.0


class FlightStoreClient:
    """Talks to one event store's Flight service. Thread safe and picklable."""

    def __init__(self, location: str, token: str, storage_options: Mapping[str, str] | None = None) -> None:
        """``location`` as the server's ``location``; with ``storage_options``, objects that are not local are read directly.

        They are those of ``files/buckets.py``; what is not among them comes from the environment. Without them the service reads for it.
        """
        self.location = location
        self._token = token
        self._call_token, self._reader = split_token(token)
        self._storage_options = None if storage_options is None else dict(storage_options)
        self._connection: fl.FlightClient | None = None
        self._others: dict[str, FlightStoreClient] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FlightStoreClient({self.location!r})"

    def __reduce__(self) -> tuple[type[FlightStoreClient], tuple[str, str, dict[str, str] | None]]:
        return (FlightStoreClient, (self.location, self._token, self._storage_options))

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """Choose where a window ends; as ``EventStore.plan_window``."""
        return decoded(self._act("plan_window", msgspec.json.encode(wish)), WindowPlan)

    def plan_resnapshot(
        self, span_ids: Sequence[int], table_ids: Sequence[int], from_ts: int, patterns: Sequence[str] = (), end_ts: int = TS_MAX
    ) -> WindowPlan:
        """Choose the ts of a state that takes the place of lost history; as ``ColumnarEventStore.plan_resnapshot``."""
        body = msgspec.json.encode(ResnapshotRequest(tuple(span_ids), tuple(table_ids), from_ts, tuple(patterns), end_ts))
        return decoded(self._act("plan_resnapshot", body), WindowPlan)

    def schema_history(self, table_id: int) -> tuple[TableSchema, ...]:
        """Return a table's versions, oldest first."""
        return decoded(self._act("schema_history", msgspec.json.encode(table_id)), tuple[TableSchema, ...])

    def changed_histories(self, known: Mapping[int, tuple[int, int]]) -> dict[int, tuple[TableSchema, ...]]:
        """Return the versions of tables that are others than the known ones, by which are told: how many, and the last (0: none)."""
        body = msgspec.json.encode({str(table_id): mark for table_id, mark in known.items()})
        found = decoded(self._act("changed_histories", body), list[tuple[int, tuple[TableSchema, ...]]])
        return dict(found)

    def span_status(self) -> dict[int, SpanStats]:
        """Return the status of every span by its id."""
        statuses = decoded(self._act("span_status", b"null"), list[SpanStats])
        return {s.span_id: s for s in statuses}

    def report(self, body: bytes) -> bytes:
        """Send the report of a receiver; return the answer."""
        return self._act("receiver_report", body)

    def open_changes(
        self,
        span_id: int,
        from_ts: int,
        to_ts: int,
        columns: frozenset[str] | None = None,
        keys: tuple[bytes, bytes] | None = None,
    ) -> ChangesHandle:
        """Open a handle on ``(from_ts, to_ts]`` of a span; as ``EventStore.collect_changes``. ``SpanView`` says what else is left out."""
        view = msgspec.structs.replace(self.view(span_id, from_ts, to_ts, columns), columns=columns, keys=keys)
        return open_changes(view, from_ts, to_ts, BATCH_ROWS_MIN, BATCH_ROWS_MAX)

    def view(self, span_id: int, from_ts: int, to_ts: int, columns: frozenset[str] | None = None) -> SpanView:
        """Return the picture of a span that a handle on the window needs, from wherever it is served."""
        command = msgspec.json.encode(WindowRequest(span_id, from_ts, to_ts, None if columns is None else tuple(sorted(columns))))
        with _penstock_errors():
            info = self._connect().get_flight_info(fl.FlightDescriptor.for_command(command), self._options(CALL_TIMEOUT_S))
        told = [(decoded(endpoint.app_metadata, Endpoint), endpoint.ticket.ticket) for endpoint in info.endpoints]
        for what, _ in told:
            if isinstance(what, ElsewhereEndpoint):
                return self._other(what).view(span_id, from_ts, to_ts, columns)
        answer = decoded(info.app_metadata, WindowAnswer)
        streams: dict[tuple[BatchKind, int], bytes] = {}
        objects: dict[str, bytes] = {}
        for what, ticket in told:
            if isinstance(what, MemoryEndpoint):
                streams[what.side, what.schema_version] = ticket
            elif isinstance(what, ObjectEndpoint):
                objects[what.path] = ticket
        memory = _StreamedMemory(span_id, answer.state.span.table_id, streams, self.stream)
        return SpanView(answer.state, memory, self._space(answer.objects_uri, objects))

    def stream(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the record batches behind a ticket."""
        with _penstock_errors():
            reader = self._connect().do_get(fl.Ticket(ticket), self._options(None))
            try:
                for chunk in reader:
                    yield chunk.data
            finally:
                reader.cancel()

    def close(self) -> None:
        """Close the connection; it is made again if the client is used again."""
        with self._lock:
            connection, self._connection = self._connection, None
            others, self._others = self._others, {}
        if connection is not None:
            connection.close()
        for other in others.values():
            other.close()

    def _other(self, place: ElsewhereEndpoint) -> FlightStoreClient:
        """Return the client of another service that serves a span."""
        with self._lock:
            other = self._others.get(place.location)
            if other is None:
                other = self._others[place.location] = FlightStoreClient(place.location, place.token, self._storage_options)
            return other

    def _space(self, uri: str, tickets: Mapping[str, bytes]) -> ObjectSpace:
        """Read objects directly, unless they are out of reach: files of another machine or user, a bucket without options."""
        return reached_space(uri, self._storage_options, StreamedObjects(tickets, self.stream))

    def _act(self, name: str, body: bytes) -> bytes:
        with _penstock_errors():
            results = list(self._connect().do_action(fl.Action(name, body), self._options(CALL_TIMEOUT_S)))
        return bytes(results[0].body.to_pybytes())

    def _connect(self) -> fl.FlightClient:
        with self._lock:
            if self._connection is None:
                self._connection = fl.FlightClient(self.location, generic_options=_OPTIONS, **_certificates(self._reader))
            return self._connection

    def _options(self, timeout_s: float | None) -> fl.FlightCallOptions:
        return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {self._call_token}".encode())], timeout=timeout_s)


class _StreamedMemory:
    """Rows in the service's memory, streamed when they are read."""

    def __init__(
        self,
        span_id: int,
        table_id: int,
        tickets: Mapping[tuple[BatchKind, int], bytes],
        stream: Callable[[bytes], Iterator[pa.RecordBatch]],
    ) -> None:
        self._span_id = span_id
        self._table_id = table_id
        self._tickets = tickets
        self._stream = stream

    def sources(self, side: BatchKind, from_ts: int, to_ts: int) -> Sequence[Iterator[ChangeBatch]]:
        """Return one iterator per table version; the tickets already say the window."""
        return [self._batches(side, version, ticket) for (kind, version), ticket in sorted(self._tickets.items()) if kind is side]

    def _batches(self, side: BatchKind, version: int, ticket: bytes) -> Iterator[ChangeBatch]:
        for records in self._stream(ticket):
            ts = commit_ts_array(records)
            header = BatchHeader(
                self._span_id, self._table_id, version, side, int(ts[0]), int(ts[-1]), records.num_rows, max(1, records.nbytes)
            )
            yield ChangeBatch(header, records)


def _certificates(reader: ReaderCertificates | None) -> dict[str, bytes | str]:
    if reader is None:
        return {}
    known_by = {"override_hostname": reader.name} if reader.name else {}
    return {"tls_root_certs": reader.ca.encode(), "cert_chain": reader.certificate.encode(), "private_key": reader.key.encode(), **known_by}


@contextlib.contextmanager
def _penstock_errors() -> Iterator[None]:
    """Find the code again in an error that crossed Flight."""
    try:
        yield
    except (fl.FlightUnavailableError, fl.FlightTimedOutError) as error:
        raise PenstockError("STORE_UNREACHABLE", f"the event store does not answer: {type(error).__name__}") from error
    except (fl.FlightError, pa.ArrowException) as error:
        found = PenstockError.from_text(str(error).split(". Detail:")[0])
        if found.code == "FEED_FAILED":
            found = PenstockError("STORE_UNREACHABLE", f"the call failed: {found.detail}")
        raise found from error
