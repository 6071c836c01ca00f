"""The pull protocol: register, pull the snapshot page by page, pull the log.

A registration fixes the ts at which the log phase starts; snapshot and log overlap, never leave a gap. A snapshot iterator lives with the
range's leader: after a leader move, a split, a merge or an eviction it is lost, and the answer then carries a new snapshot version and
its first page, from which the caller starts again. A registration is inherited by the halves of a split and survives a move. Every
request carries the range's epoch. Runs in the data server.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from penstock.model.errors import PenstockError
from penstock.source.dataserver.engine.engine import Engine
from penstock.source.dataserver.engine.ranges import LogRecord, RangeState
from penstock.source.dataserver.service.wire import encode_event, encode_rows
from penstock.source.proto import cdc_pb2
from penstock.source.proto import dataserver_pb2 as pb

PAGE_ROWS = 4_096
PAGE_BYTES = 8 << 20
_WRITE, _DELETE = 0, 1


class PullService:
    """Answers the pull calls of one store."""

    def __init__(self, engine: Engine, store_id: int) -> None:
        self._engine = engine
        self._store_id = store_id

    def register(self, request: pb.CdcRegisterRequest) -> pb.CdcRegisterResponse:
        """Subscribe a name to a range; registering again keeps the first start."""
        with self._engine.lock:
            try:
                state = self._led(int(request.range_id), request.range_epoch)
            except PenstockError as error:
                return pb.CdcRegisterResponse(error=_error(error))
            version = state.subscribers.setdefault(request.subscriber_name, self._engine.current_ts())
            return pb.CdcRegisterResponse(init_snapshot_version=version)

    def pull_snapshot(self, request: pb.CdcPullSnapshotRequest) -> pb.CdcPullSnapshotResponse:
        """Return the next page of a snapshot. Version 0 asks for a new one."""
        with self._engine.lock:
            try:
                state = self._led(int(request.range_id), request.range_epoch)
                self._start_of(state, request.subscriber_name)
            except PenstockError as error:
                return pb.CdcPullSnapshotResponse(error=_error(error))
            name, version, last_key = request.subscriber_name, int(request.current_snapshot_version), request.last_key
            keys = state.iterators.get((name, version))
            if keys is None:
                version, last_key = self._engine.current_ts(), b""
                keys = state.keep_iterator(name, version)
            state.iterators.move_to_end((name, version))
            limit = request.limit_rows or PAGE_ROWS
            first = bisect.bisect_right(keys, last_key) if last_key else 0
            rows = state.read(keys[first : first + limit], version)
            while not rows[0] and first + limit < len(keys):
                # The caller goes on after the last row that it got: a page without rows of this version must not be its answer.
                first += limit
                rows = state.read(keys[first : first + limit], version)
            end = first + limit >= len(keys)
        data = [pb.CdcChangeData(type=_WRITE, key=k, value=v, commit_ts=t) for k, v, t in zip(*rows, strict=True)]
        return pb.CdcPullSnapshotResponse(current_snapshot_version=version, snapshot_data=data, end=end)

    def pull_log(self, request: pb.CdcPullLogRequest) -> pb.CdcPullLogResponse:
        """Return committed changes after a log index; index 0 means "where the registration starts".

        A transaction's part in the range is never torn. As a stream, the rows are what a scan of the change stream would send, above
        any ts.
        """
        with self._engine.lock:
            try:
                state = self._led(int(request.range_id), request.range_epoch)
                start_ts = self._start_of(state, request.subscriber_name)
            except PenstockError as error:
                return pb.CdcPullLogResponse(error=_error(error))
            last = int(request.last_log_index)
            records = state.records_after(last) if last else state.commits_after(int(request.start_ts) if request.as_stream else start_ts)
            resolved_ts = self._engine.resolved_ts(state)
            start_key, end_key = state.start_key, state.end_key
        limit, page, rows, nbytes = request.limit_rows or PAGE_ROWS, 0, 0, 0
        while page < len(records) and rows < limit and nbytes < PAGE_BYTES:
            rows += sum(start_key <= key < end_key for key in records[page].keys)
            nbytes += records[page].nbytes
            page += 1
        if page < len(records):
            # Later records have larger commit ts, so this page promises everything up to its own last one.
            resolved_ts = min(resolved_ts, records[page - 1].commit_ts)
        records = records[:page]
        answer = pb.CdcPullLogResponse(
            current_log_index=records[-1].index if records else last, resolved_ts=resolved_ts, previous_log_index=last
        )
        if request.as_stream:
            answer.change_data_event = _as_stream(int(request.range_id), records, start_key, end_key)
        else:
            answer.log_data.extend(_as_rows(records, start_key, end_key))
        return answer

    def _led(self, range_id: int, epoch: cdc_pb2.RegionEpoch) -> RangeState:
        state = self._engine.find(range_id)
        if state is None:
            raise PenstockError("REGION_NOT_FOUND", f"range {range_id} does not exist")
        if state.store_id != self._store_id:
            raise PenstockError("NOT_LEADER", f"range {range_id} is led by store {state.store_id}")
        if (state.epoch.conf_ver, state.epoch.version) != (epoch.conf_ver, epoch.version):
            raise PenstockError("EPOCH_NOT_MATCH", f"range {range_id} is at epoch {state.epoch.conf_ver}.{state.epoch.version}")
        return state

    def _start_of(self, state: RangeState, subscriber: str) -> int:
        start_ts = state.subscribers.get(subscriber)
        if start_ts is None:
            raise PenstockError(
                "UPSTREAM_REFUSED", f"subscriber {subscriber} is not registered for range {state.range_id}", "Register first."
            )
        return start_ts


def _as_rows(records: Sequence[LogRecord], start_key: bytes, end_key: bytes) -> Iterator[pb.CdcChangeData]:
    for record in records:
        for key, value, old in zip(record.keys, record.values, record.olds, strict=True):
            if start_key <= key < end_key:
                kind = _DELETE if value is None else _WRITE
                yield pb.CdcChangeData(type=kind, key=key, value=value, commit_ts=record.commit_ts, old_value=old)


def _as_stream(range_id: int, records: Sequence[LogRecord], start_key: bytes, end_key: bytes) -> bytes:
    if not records:
        return b""
    entries, rows = encode_rows(records, start_key, end_key, with_old=True, scanned=True)
    return encode_event(range_id, 0, 0, entries) if rows else b""


def _error(error: PenstockError) -> pb.CdcError:
    return pb.CdcError(code=error.code, message=error.detail)
