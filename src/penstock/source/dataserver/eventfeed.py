"""The change stream of one store: registrations of ranges on a client's stream, incremental scans, live entries, resolved ts.

For a registration the client sees, in this order: the versions above its checkpoint as COMMITTED entries in commit-ts order, the locks of
that moment as PREWRITE, INITIALIZED, then live PREWRITE / COMMIT / ROLLBACK and resolved ts, and at the end at most one error. Events are
queued as references under the engine's lock and become messages in the stream's own thread. The queue is bounded in bytes: a registration
that would exceed it ends with ``congested``. Runs in the data server.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.source.dataserver.engine import Engine
from penstock.source.dataserver.ranges import EndReason, Lock, LogKind, LogRecord, RangeState
from penstock.source.proto import cdc_pb2

Row = cdc_pb2.Event.Row
_PUT, _DELETE = Row.PUT, Row.DELETE
_LOG_TYPES = {
    LogKind.PREWRITE: cdc_pb2.Event.PREWRITE,
    LogKind.COMMIT: cdc_pb2.Event.COMMIT,
    LogKind.ROLLBACK: cdc_pb2.Event.ROLLBACK,
}


@dataclass(frozen=True)
class EventFeedSettings:
    """Bounds of a stream."""

    pending_bytes_max: int = 64 << 20
    event_rows_max: int = 8_192
    event_bytes_max: int = 1 << 20


class Scan:
    """What a registration must be sent before it is initialized."""

    def __init__(self, records: list[LogRecord], locks: dict[bytes, Lock]) -> None:
        self.records = records
        self.locks = locks


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
        self.whole = (self.start_key, self.end_key) == (state.start_key, state.end_key)
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

    def chooses(self, key: bytes) -> bool:
        """Return whether a key lies in what was asked for."""
        return self.start_key <= key < self.end_key


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

    @property
    def pending_bytes(self) -> int:
        """Return how full the stream's queue is."""
        return self._pending_bytes

    def handle(self, request: cdc_pb2.ChangeDataRequest) -> None:
        """Register or deregister."""
        with self._engine.lock:
            if request.WhichOneof("request") == "deregister":
                self._deregister(int(request.request_id), int(request.region_id))
            else:
                self._register(request)

    def messages(self) -> Iterator[cdc_pb2.ChangeDataEvent]:
        """Yield what the client is sent, until the stream is closed."""
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
        self._push((registration, Scan(state.commits_after(int(request.checkpoint_ts)), dict(state.locks))))
        state.listeners.append(registration)

    def _refusal(self, state: RangeState | None, request: cdc_pb2.ChangeDataRequest) -> cdc_pb2.Error | None:
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

    def _encode(self, items: list[Pending]) -> Iterator[cdc_pb2.ChangeDataEvent]:
        """Turn queued items into messages: the records of one registration become one event, order inside a registration is kept."""
        rows: dict[int, tuple[Registration, list[Row], int]] = {}
        for item in items:
            if isinstance(item, dict):
                yield from _flush(rows)
                for (request_id, ts), regions in item.items():
                    yield cdc_pb2.ChangeDataEvent(resolved_ts=cdc_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request_id))
                continue
            if isinstance(item, cdc_pb2.Event):
                yield from _flush(rows)
                yield cdc_pb2.ChangeDataEvent(events=[item])
                continue
            registration, what = item
            if registration.closed:
                continue
            if isinstance(what, LogRecord):
                entry = rows.setdefault(id(registration), (registration, [], what.index))
                entry[1].extend(live_rows(registration, what))
                rows[id(registration)] = (registration, entry[1], what.index)
                if len(entry[1]) >= self._settings.event_rows_max:
                    yield from _flush(rows)
            else:
                yield from _flush(rows)
                yield from self._encode_scan(registration, what)
        yield from _flush(rows)

    def _encode_scan(self, registration: Registration, scan: Scan) -> Iterator[cdc_pb2.ChangeDataEvent]:
        rows: list[Row] = []
        size = 0
        for row in _scan_rows(registration, scan):
            rows.append(row)
            size += len(row.key) + len(row.value) + len(row.old_value)
            if len(rows) >= self._settings.event_rows_max or size >= self._settings.event_bytes_max:
                if registration.closed:
                    return
                yield _event(registration, rows, 0)
                rows, size = [], 0
        rows.append(Row(type=cdc_pb2.Event.INITIALIZED))
        yield _event(registration, rows, 0)


def live_rows(registration: Registration, record: LogRecord) -> list[Row]:
    """Return a record's entries. As in TiKV a prewrite carries the values and a commit only names the key."""
    kind, start_ts, commit_ts = _LOG_TYPES[record.kind], record.start_ts, record.commit_ts
    entries: Iterable[tuple[bytes, bytes | None, bytes | None]] = zip(record.keys, record.values, record.olds, strict=True)
    if not registration.whole:
        entries = [entry for entry in entries if registration.chooses(entry[0])]
    if record.kind == LogKind.PREWRITE:
        old = registration.read_old
        return [
            Row(start_ts=start_ts, type=kind, op_type=_DELETE if v is None else _PUT, key=k, value=v, old_value=o if old else None)
            for k, v, o in entries
        ]
    return [Row(start_ts=start_ts, commit_ts=commit_ts, type=kind, op_type=_DELETE if v is None else _PUT, key=k) for k, v, _ in entries]


def _scan_rows(registration: Registration, scan: Scan) -> Iterator[Row]:
    kind, old = cdc_pb2.Event.COMMITTED, registration.read_old
    for record in scan.records:
        for k, v, o in zip(record.keys, record.values, record.olds, strict=True):
            if registration.chooses(k):
                yield Row(
                    start_ts=record.start_ts,
                    commit_ts=record.commit_ts,
                    type=kind,
                    op_type=_DELETE if v is None else _PUT,
                    key=k,
                    value=v,
                    old_value=o if old else None,
                )
    for key, (start_ts, value, before) in scan.locks.items():
        if registration.chooses(key):
            op = _DELETE if value is None else _PUT
            held = before if old else None
            yield Row(start_ts=start_ts, type=cdc_pb2.Event.PREWRITE, op_type=op, key=key, value=value, old_value=held)


def _event(registration: Registration, rows: list[Row], index: int) -> cdc_pb2.ChangeDataEvent:
    entries = cdc_pb2.Event.Entries(entries=rows)
    event = cdc_pb2.Event(region_id=registration.region_id, request_id=registration.request_id, index=index, entries=entries)
    return cdc_pb2.ChangeDataEvent(events=[event])


def _flush(rows: dict[int, tuple[Registration, list[Row], int]]) -> Iterator[cdc_pb2.ChangeDataEvent]:
    for registration, entries, index in rows.values():
        if entries and not registration.closed:
            yield _event(registration, entries, index)
    rows.clear()


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
