"""The change stream of one store: registrations of ranges on a client's stream, incremental scans, live entries, resolved ts.

For a registration the client sees, in this order: the versions above its checkpoint as COMMITTED entries in commit-ts order, the locks of
that moment as PREWRITE, INITIALIZED, then live PREWRITE / COMMIT / ROLLBACK and resolved ts, and at the end at most one error. Events are
queued as references under the engine's lock and become messages in the stream's own thread. The queue is bounded in bytes: a registration
that would exceed it ends with ``congested``. Runs in the data server.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from penstock.source.dataserver.engine.engine import Engine
from penstock.source.dataserver.engine.ranges import EndReason, Lock, LogKind, LogRecord, RangeState, make_record
from penstock.source.dataserver.service.wire import INITIALIZED_ROW, encode_event, encode_rows, pieces
from penstock.source.proto import cdc_pb2


@dataclass(frozen=True)
class EventFeedSettings:
    """Bounds of a stream."""

    pending_bytes_max: int = 64 << 20
    event_rows_max: int = 8_192
    event_bytes_max: int = 1 << 20


class Scan(msgspec.Struct, frozen=True):
    """What a registration must be sent before it is initialized."""

    records: list[LogRecord]
    locks: list[LogRecord]


class Registration:
    """One range on one stream; a listener of the range."""

    def __init__(self, stream: Stream, request: cdc_pb2.ChangeDataRequest, state: RangeState) -> None:
        self.stream = stream
        self.request_id = int(request.request_id)
        self.region_id = int(request.region_id)
        self.read_old = request.extra_op == cdc_pb2.ChangeDataRequest.ReadOldValue
        self.state = state
        self.start_key = max(state.start_key, request.start_key)
        self.end_key = min(state.end_key, request.end_key) if request.end_key else state.end_key
        self.sent_resolved_ts = 0
        self.closed = False

    def on_record(self, record: LogRecord) -> None:
        """Queue a live record."""
        if not self.stream.offer(self, record):
            self.state.listeners.remove(self)
            self.stream.end(self, cdc_pb2.Error(congested=cdc_pb2.Congested(region_id=self.region_id)))

    def on_end(self, reason: EndReason, successors: list[RangeState]) -> None:
        """Queue the error that ends the registration."""
        if reason == EndReason.NOT_LEADER:
            self.stream.end(self, not_leader(successors[0]))
        else:
            self.stream.end(self, epoch_not_match(successors))


Pending = tuple[Registration, LogRecord | Scan] | dict[tuple[int, int], list[int]] | cdc_pb2.Event
"""A record or a scan of a registration, a round of resolved ts (regions by request id and ts), or an error."""


class Stream:
    """One client's stream to one store."""

    def __init__(self, engine: Engine, store_id: int, settings: EventFeedSettings) -> None:
        self._engine = engine
        self._store_id = store_id
        self._settings = settings
        self._registrations: dict[tuple[int, int], Registration] = {}
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        engine.watch_resolved(self._on_resolved)

    def handle(self, request: cdc_pb2.ChangeDataRequest) -> None:
        """Register or deregister."""
        with self._engine.lock:
            if request.WhichOneof("request") == "deregister":
                self._deregister(int(request.request_id), int(request.region_id))
            else:
                self._register(request)

    def messages(self) -> Iterator[bytes]:
        """Yield the serialized messages that the client is sent, until the stream is closed."""
        while True:
            taken = self._take()
            if taken is None:
                return
            yield from self._encode(taken)

    def close(self) -> None:
        """End the stream and all its registrations. May be called twice and from any thread."""
        self._engine.unwatch_resolved(self._on_resolved)
        with self._engine.lock:
            for registration in list(self._registrations.values()):
                self._drop(registration)
        with self._changed:
            self._closed = True
            self._pending.clear()
            self._changed.notify_all()

    def offer(self, registration: Registration, record: LogRecord) -> bool:
        """Queue a record; False where the queue is full."""
        with self._changed:
            if self._pending and self._pending_bytes + record.nbytes > self._settings.pending_bytes_max:
                return False
            self._pending.append((registration, record))
            self._pending_bytes += record.nbytes
            self._changed.notify_all()
            return True

    def end(self, registration: Registration, error: cdc_pb2.Error) -> None:
        """Queue a registration's last event."""
        self._registrations.pop((registration.request_id, registration.region_id), None)
        self._push(cdc_pb2.Event(region_id=registration.region_id, request_id=registration.request_id, error=error))

    def _register(self, request: cdc_pb2.ChangeDataRequest) -> None:
        state = self._engine.find(int(request.region_id))
        name = (int(request.request_id), int(request.region_id))
        error = self._refusal(state, request)
        if state is None or error is not None:
            self._push(cdc_pb2.Event(region_id=name[1], request_id=name[0], error=error))
            return
        registration = Registration(self, request, state)
        self._registrations[name] = registration
        self._push((registration, Scan(state.commits_after(int(request.checkpoint_ts)), _lock_records(state.locks))))
        state.listeners.append(registration)

    def _refusal(self, state: RangeState | None, request: cdc_pb2.ChangeDataRequest) -> cdc_pb2.Error | None:
        if 0 < int(request.checkpoint_ts) < self._engine.born_ts:
            return cdc_pb2.Error(cluster_id_mismatch=cdc_pb2.ClusterIDMismatch(current=self._engine.born_ts))
        if state is None:
            return region_not_found(int(request.region_id))
        if state.store_id != self._store_id:
            return not_leader(state)
        if (state.epoch.conf_ver, state.epoch.version) != (request.region_epoch.conf_ver, request.region_epoch.version):
            return epoch_not_match([state])
        if (int(request.request_id), state.range_id) in self._registrations:
            return cdc_pb2.Error(duplicate_request=cdc_pb2.DuplicateRequest(region_id=state.range_id))
        return None

    def _deregister(self, request_id: int, region_id: int) -> None:
        for (request, region), registration in list(self._registrations.items()):
            if request == request_id and region_id in (0, region):
                self._drop(registration)

    def _drop(self, registration: Registration) -> None:
        registration.closed = True
        self._registrations.pop((registration.request_id, registration.region_id), None)
        if registration in registration.state.listeners:
            registration.state.listeners.remove(registration)

    def _on_resolved(self) -> None:
        groups: dict[tuple[int, int], list[int]] = {}
        for registration in self._registrations.values():
            ts = registration.state.resolved_ts
            if ts > registration.sent_resolved_ts:
                registration.sent_resolved_ts = ts
                groups.setdefault((registration.request_id, ts), []).append(registration.region_id)
        if not groups:
            return
        with self._changed:
            last = self._pending[-1] if self._pending else None
            if isinstance(last, dict):
                # Nothing came between: the newer ts says more, so a client that does not read holds one round, not all of them.
                _replace_resolved(last, groups)
            else:
                self._pending.append(groups)
            self._changed.notify_all()

    def _push(self, item: Pending) -> None:
        with self._changed:
            self._pending.append(item)
            self._changed.notify_all()

    def _take(self) -> list[Pending] | None:
        """Return what is queued up to and including the next resolved round, bounded by bytes; None when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed)
            if self._closed:
                return None
            taken: list[Pending] = []
            size = 0
            while self._pending and size < self._settings.event_bytes_max:
                item = self._pending.popleft()
                taken.append(item)
                if isinstance(item, dict):
                    break
                if isinstance(item, cdc_pb2.Event):
                    continue
                if isinstance(item[1], LogRecord):
                    size += item[1].nbytes
                    self._pending_bytes -= item[1].nbytes
                if isinstance(item[1], Scan):
                    break
            return taken

    def _encode(self, items: list[Pending]) -> Iterator[bytes]:
        """Turn queued items into messages: the records of one registration become one event, order inside a registration is kept."""
        records: dict[int, tuple[Registration, list[LogRecord]]] = {}
        for item in items:
            if isinstance(item, tuple) and isinstance(item[1], LogRecord):
                records.setdefault(id(item[0]), (item[0], []))[1].append(item[1])
                continue
            for registration, its_records in records.values():
                yield from self._encode_records(registration, its_records, scanned=False)
            records.clear()
            if isinstance(item, tuple) and isinstance(item[1], Scan):
                yield from self._encode_scan(item[0], item[1])
            elif isinstance(item, dict):
                for (request_id, ts), regions in item.items():
                    resolved = cdc_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request_id)
                    yield cdc_pb2.ChangeDataEvent(resolved_ts=resolved).SerializeToString()
            elif isinstance(item, cdc_pb2.Event):
                yield cdc_pb2.ChangeDataEvent(events=[item]).SerializeToString()
        for registration, its_records in records.values():
            yield from self._encode_records(registration, its_records, scanned=False)

    def _encode_records(self, registration: Registration, records: list[LogRecord], scanned: bool) -> Iterator[bytes]:
        """Yield messages of bounded size."""
        rows_max, bytes_max = self._settings.event_rows_max, self._settings.event_bytes_max
        chunk: list[LogRecord] = []
        rows = size = 0
        for record in records:
            for piece in pieces(record, rows_max, bytes_max):
                if chunk and (rows + len(piece.keys) > rows_max or size + piece.nbytes > bytes_max):
                    yield from _message(registration, chunk, scanned)
                    chunk, rows, size = [], 0, 0
                chunk.append(piece)
                rows += len(piece.keys)
                size += piece.nbytes
        yield from _message(registration, chunk, scanned)

    def _encode_scan(self, registration: Registration, scan: Scan) -> Iterator[bytes]:
        yield from self._encode_records(registration, scan.records, scanned=True)
        yield from self._encode_records(registration, scan.locks, scanned=True)
        if not registration.closed:
            yield encode_event(registration.region_id, registration.request_id, 0, INITIALIZED_ROW)


def _message(registration: Registration, records: list[LogRecord], scanned: bool) -> Iterator[bytes]:
    if not records or registration.closed:
        return
    entries, rows = encode_rows(records, registration.start_key, registration.end_key, registration.read_old, scanned)
    if rows:
        yield encode_event(registration.region_id, registration.request_id, 0 if scanned else records[-1].index, entries)


def _lock_records(locks: dict[bytes, Lock]) -> list[LogRecord]:
    """Return locks as the prewrites that placed them, one record for each transaction."""
    by_txn: dict[int, tuple[list[bytes], list[bytes | None], list[bytes | None]]] = {}
    for key, (start_ts, value, old) in locks.items():
        keys, values, olds = by_txn.setdefault(start_ts, ([], [], []))
        keys.append(key)
        values.append(value)
        olds.append(old)
    return [make_record(LogKind.PREWRITE, 0, start_ts, 0, *columns) for start_ts, columns in by_txn.items()]


def _replace_resolved(last: dict[tuple[int, int], list[int]], newer: dict[tuple[int, int], list[int]]) -> None:
    fresh = {(request_id, region) for (request_id, _), regions in newer.items() for region in regions}
    for name in list(last):
        last[name] = [region for region in last[name] if (name[0], region) not in fresh]
        if not last[name]:
            del last[name]
    for name, regions in newer.items():
        last.setdefault(name, []).extend(regions)


def region_not_found(region_id: int) -> cdc_pb2.Error:
    """Return the error for a range that this server does not have."""
    return cdc_pb2.Error(region_not_found=cdc_pb2.RegionNotFound(region_id=region_id))


def not_leader(state: RangeState) -> cdc_pb2.Error:
    """Return the error that names the leader."""
    peer = cdc_pb2.Peer(id=state.store_id, store_id=state.store_id)
    return cdc_pb2.Error(not_leader=cdc_pb2.NotLeader(region_id=state.range_id, leader=peer))


def epoch_not_match(states: list[RangeState]) -> cdc_pb2.Error:
    """Return the error that names the ranges which hold the keys now."""
    regions = [
        cdc_pb2.Region(
            id=s.range_id,
            start_key=s.start_key,
            end_key=s.end_key,
            region_epoch=cdc_pb2.RegionEpoch(conf_ver=s.epoch.conf_ver, version=s.epoch.version),
            peers=[cdc_pb2.Peer(id=s.store_id, store_id=s.store_id)],
        )
        for s in states
    ]
    return cdc_pb2.Error(epoch_not_match=cdc_pb2.EpochNotMatch(current_regions=regions))
