"""The Flight service of the event store: how executors plan and read.

``get_flight_info`` answers a span and a window with endpoints: one per object, which the reader opens itself at the URI (or streams,
where it cannot reach it), and one per side and table version of the rows in memory. A memory endpoint names its rows by ts, so it
gives the same rows when they have been flushed meanwhile. Actions plan windows and tell schemas and status. Every call carries the
token; every ticket is signed. Errors keep their ``[CODE]`` text. gRPC takes a message whole before anybody is asked for the token, so
strangers are kept from sending one: where all readers are of this machine and user it listens on a socket of theirs, which no other user
can open, and on a port it asks callers for a certificate in the handshake (``credentials.py``). Runs in the log service.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from penstock.model.batch import BatchKind, ChangeBatch
from penstock.model.clock import Clock, SystemClock
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.store.changes.changes import SpanState, SpanView, drain, only_columns, open_changes, side_handles
from penstock.store.contract import WindowPlan, WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.credentials import ServiceTls, join_token
from penstock.store.flight.places import Places
from penstock.store.flight.ticket import ObjectTicket, RowsTicket, TicketSigner, call_token
from penstock.store.memory import MemoryRows

OBJECT_CHUNK_BYTES = 4 * 1024 * 1024
OBJECT_STREAM_SCHEMA = pa.schema([pa.field("bytes", pa.large_binary(), False)])
MIDDLEWARE = "penstock-token"


class WindowRequest(msgspec.Struct, frozen=True):
    """The command of ``get_flight_info``."""

    span_id: int
    from_ts: int
    to_ts: int
    columns: tuple[str, ...] | None = None


class ResnapshotRequest(msgspec.Struct, frozen=True):
    """The body of the ``plan_resnapshot`` action."""

    span_ids: tuple[int, ...]
    table_ids: tuple[int, ...]
    from_ts: int
    patterns: tuple[str, ...] = ()
    end_ts: int = TS_MAX


class MemoryEndpoint(msgspec.Struct, frozen=True, tag="memory"):
    """Says which rows a memory endpoint streams."""

    side: BatchKind
    schema_version: int


class ObjectEndpoint(msgspec.Struct, frozen=True, tag="object"):
    """Says which object an endpoint is."""

    path: str


class ElsewhereEndpoint(msgspec.Struct, frozen=True, tag="elsewhere"):
    """Says who serves the span: the caller asks there. Holds a secret."""

    location: str
    token: str

    def __repr__(self) -> str:
        return f"ElsewhereEndpoint({self.location!r})"


Endpoint = MemoryEndpoint | ObjectEndpoint | ElsewhereEndpoint


class WindowAnswer(msgspec.Struct, frozen=True):
    """The ``app_metadata`` of a flight info: the span's state and where its objects are."""

    state: SpanState
    objects_uri: str


class FlightService(fl.FlightServerBase):  # type: ignore[misc]
    """Serves one event store. ``token`` is what clients get; ``location`` is where they call."""

    def __init__(
        self,
        store: ColumnarEventStore,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: bytes | None = None,
        clock: Clock | None = None,
        advertised_host: str | None = None,
        socket: Path | None = None,
        tls: ServiceTls | None = None,
        advertised_port: int | None = None,
        places: Places | None = None,
    ) -> None:
        """Listen at once; with port 0 on a free one. What is advertised is how others reach it, where that differs.

        With ``socket``, listen there and on no port; it lies where only this user comes. With ``tls``, callers need a certificate of it.
        With ``places``, others serve the spans: they are planned there, and readers are told where.
        """
        secret = secret or secrets.token_bytes(32)
        calls = call_token(secret)
        self.token = join_token(calls, tls.reader if tls else None)
        self._store = store
        self._places = places
        self._host = advertised_host or host
        self._port = advertised_port
        self._socket = socket
        self._scheme = "grpc+tls" if tls else "grpc"
        self._signer = TicketSigner(secret, clock or SystemClock())
        place = _location(self._scheme, host, port) if socket is None else f"grpc+unix://{socket}"
        super().__init__(place, middleware={MIDDLEWARE: _TokenCheck(calls)}, **_protection(tls))

    @property
    def location(self) -> str:
        """Return the URI that a client connects to."""
        if self._socket is not None:
            return f"grpc+unix://{self._socket}"
        return _location(self._scheme, self._host, self._port or self.port)

    def close(self) -> None:
        """Stop serving; streams that run are cancelled. May be called twice."""
        self.shutdown()

    def get_flight_info(self, context: Any, descriptor: Any) -> fl.FlightInfo:
        """Answer a window of a span with its endpoints."""
        with _coded_errors():
            request = decoded(descriptor.command or b"", WindowRequest)
            elsewhere = self._places.address_of(request.span_id) if self._places is not None else None
            if elsewhere is not None:
                told = msgspec.json.encode(ElsewhereEndpoint(elsewhere.location, elsewhere.token))
                there = fl.FlightEndpoint(b"", [elsewhere.location], app_metadata=told)
                return fl.FlightInfo(OBJECT_STREAM_SCHEMA, descriptor, [there], -1, -1)
            view = self._store.view(request.span_id, request.from_ts, request.to_ts)
            # The reader opens the objects itself: they are kept for as long as its tickets hold.
            self._store.needs.lease_until(request.span_id, request.from_ts or request.to_ts, self._signer.expires_ms())
            open_changes(view, request.from_ts, request.to_ts).close()
            state = view.state
            wanted = state.needed(request.from_ts, request.to_ts)
            answer = WindowAnswer(msgspec.structs.replace(state, objects=tuple(wanted)), self._store.objects.uri)
            endpoints = [self._object_endpoint(request.span_id, o.path) for o in wanted]
            if isinstance(view.memory, MemoryRows):
                endpoints.extend(self._memory_endpoints(request, state, view.memory))
            return fl.FlightInfo(
                OBJECT_STREAM_SCHEMA, descriptor, endpoints, sum(o.rows for o in wanted), -1, app_metadata=msgspec.json.encode(answer)
            )

    def do_get(self, context: Any, ticket: Any) -> fl.FlightDataStream:
        """Stream what a signed ticket names."""
        with _coded_errors():
            asked = self._signer.check(ticket.ticket)
            if isinstance(asked, ObjectTicket):
                return fl.GeneratorStream(OBJECT_STREAM_SCHEMA, _object_chunks(self._store.object_bytes(asked.span_id, asked.path)))
            batches = self._rows(asked)
            first = next(batches, None)
            schema = _wanted(asked, first.records).schema if first else self._schema(asked)
            return fl.GeneratorStream(schema, _records(asked, first, batches))

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answer an action with one JSON result."""
        with _coded_errors():
            body = action.body.to_pybytes()
            return iter([self._act(action.type, body)])

    def list_actions(self, context: Any) -> Sequence[fl.ActionType]:
        """Return the actions."""
        return [
            fl.ActionType("plan_window", "choose where a window ends"),
            fl.ActionType("plan_resnapshot", "choose the ts of a state that takes the place of lost history"),
            fl.ActionType("schema_history", "the versions of a table"),
            fl.ActionType("changed_histories", "the versions of tables that have others than the known ones"),
            fl.ActionType("span_status", "resolved ts and sizes of all spans"),
            fl.ActionType("receiver_report", "what a receiver captures, answered with its orders"),
        ]

    def _act(self, name: str, body: bytes) -> bytes:
        if name == "plan_window":
            wish = decoded(body, WindowWish)
            # A feed plans from its checkpoint for as long as it lives, and nothing above that may leave meanwhile.
            for span_id in wish.span_ids if wish.from_ts else ():
                self._store.needs.pin_until(span_id, wish.from_ts, self._signer.expires_ms())
            return msgspec.json.encode((self._places or self._store).plan_window(wish))
        if name == "plan_resnapshot":
            return msgspec.json.encode(self._plan_resnapshot(decoded(body, ResnapshotRequest)))
        if name == "schema_history":
            return msgspec.json.encode(self._store.schema_history(decoded(body, int)))
        if name == "changed_histories":
            return msgspec.json.encode(self._changed_histories(decoded(body, dict[int, tuple[int, int]])))
        if name == "span_status":
            return msgspec.json.encode(self._places.span_stats() if self._places is not None else self._store.stats().spans)
        if name == "receiver_report" and self._places is not None:
            return self._places.report(body)
        raise PenstockError("TICKET_INVALID", f"no action {name!r}")

    def _changed_histories(self, known: Mapping[int, tuple[int, int]]) -> list[tuple[int, tuple[TableSchema, ...]]]:
        found = [(table_id, self._store.schema_history(table_id), mark) for table_id, mark in known.items()]
        return [(table_id, v) for table_id, v, mark in found if mark != (len(v), v[-1].version if v else 0)]

    def _plan_resnapshot(self, request: ResnapshotRequest) -> WindowPlan:
        plan = (self._places or self._store).plan_resnapshot(*msgspec.structs.astuple(request))
        # The window is read again after a crash, so its state may not leave before it is committed.
        for span_id in request.span_ids if plan.to_ts > request.from_ts else ():
            self._store.needs.pin_until(span_id, plan.to_ts, self._signer.expires_ms())
        return plan

    def _object_endpoint(self, span_id: int, path: str) -> fl.FlightEndpoint:
        ticket = self._signer.sign(ObjectTicket(span_id, path, self._signer.expires_ms()))
        uri = f"{self._store.objects.uri.rstrip('/')}/{path}"
        return fl.FlightEndpoint(ticket, [uri], app_metadata=msgspec.json.encode(ObjectEndpoint(path)))

    def _memory_endpoints(self, request: WindowRequest, state: SpanState, memory: MemoryRows) -> Iterator[fl.FlightEndpoint]:
        from_ts = max(request.from_ts, state.flushed_ts)
        for side in BatchKind:
            headers = [b.header for b in memory.side(side)]
            for version in sorted({h.schema_version for h in headers if h.max_ts > from_ts and h.min_ts <= request.to_ts}):
                expires_ms, start_ts = self._signer.expires_ms(), state.history_start_ts
                ticket = RowsTicket(request.span_id, side, version, from_ts, request.to_ts, expires_ms, start_ts, request.columns)
                yield fl.FlightEndpoint(self._signer.sign(ticket), [], app_metadata=msgspec.json.encode(MemoryEndpoint(side, version)))

    def _rows(self, ticket: RowsTicket) -> Iterator[ChangeBatch]:
        """Yield the ticket's rows from memory, or from objects where a flush has taken them there."""
        try:
            yield from self._found_rows(ticket, self._view_of(ticket))
        except PenstockError as error:
            if error.code == "OBJECT_MISSING":
                self._view_of(ticket)  # Where it was collected meanwhile, that says so.
            raise

    def _view_of(self, ticket: RowsTicket) -> SpanView:
        view = self._store.view(ticket.span_id, max(ticket.from_ts, 1), ticket.to_ts)
        start_ts = view.state.history_start_ts
        if start_ts > ticket.history_start_ts and ticket.from_ts < start_ts:
            raise PenstockError("OBJECT_COLLECTED", f"span {ticket.span_id}: its rows above ts {ticket.from_ts} were merged")
        return view

    def _found_rows(self, ticket: RowsTicket, view: SpanView) -> Iterator[ChangeBatch]:
        handles = side_handles(view, ticket.side, ticket.from_ts, ticket.to_ts, bulk=False)
        found = drain(handles, self._store.settings.batch_rows_min, self._store.settings.batch_rows_max)
        yield from (b for b in found if b.header.schema_version == ticket.schema_version)

    def _schema(self, ticket: RowsTicket) -> pa.Schema:
        table_id = self._store.view(ticket.span_id).state.span.table_id
        table = next((t for t in self._store.schema_history(table_id) if t.version == ticket.schema_version), None)
        if table is None:
            raise PenstockError("SCHEMA_UNKNOWN", f"table {table_id} has no version {ticket.schema_version}")
        kept = [f for f in table.batch_schema() if ticket.columns is None or f.name.startswith("_") or f.name in ticket.columns]
        return pa.schema(kept)


def _location(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _protection(tls: ServiceTls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    # Otherwise gRPC writes a line for every stranger whose handshake fails.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    return {"tls_certificates": [(tls.certificate, tls.key)], "verify_client": True, "root_certificates": tls.readers_ca}


def _wanted(ticket: RowsTicket, records: pa.RecordBatch) -> pa.RecordBatch:
    return records if ticket.columns is None else only_columns(records, ticket.columns)


def _records(ticket: RowsTicket, first: ChangeBatch | None, rest: Iterator[ChangeBatch]) -> Iterator[pa.RecordBatch]:
    with _coded_errors():
        if first is not None:
            yield _wanted(ticket, first.records)
        for batch in rest:
            yield _wanted(ticket, batch.records)


def _object_chunks(payload: pa.Buffer) -> Iterator[pa.RecordBatch]:
    for start in range(0, payload.size, OBJECT_CHUNK_BYTES):
        part = payload.slice(start, min(OBJECT_CHUNK_BYTES, payload.size - start))
        offsets = pa.array([0, part.size], pa.int64()).buffers()[1]
        chunk = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, part])
        yield pa.RecordBatch.from_arrays([chunk], schema=OBJECT_STREAM_SCHEMA)


@contextlib.contextmanager
def _coded_errors() -> Iterator[None]:
    """Send errors as text that begins with their code; malformed requests count as invalid tickets."""
    try:
        yield
    except PenstockError as error:
        raise fl.FlightServerError(str(error)) from error
    except msgspec.DecodeError as error:
        raise fl.FlightServerError(f"[TICKET_INVALID] the request does not parse: {error}") from error


class _TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call without the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}"

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Check the authorization header; called before each method."""
        presented = next(iter(headers.get("authorization", [])), "")
        if not hmac.compare_digest(presented.encode(), self._expected.encode()):
            raise fl.FlightUnauthenticatedError("[TICKET_INVALID] the call carries no valid token")
