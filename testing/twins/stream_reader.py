"""A change stream's reader for tests: matches entries one by one, keeps every committed version, and notes each broken promise.

It is the slow and obvious implementation that fast ones are compared with. It reads any iterator of messages in a thread of its own, be
it a gRPC call or a store's stream in the same process. Runs in tests.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable

import grpc

from penstock.source.proto import cdc_pb2
from penstock.source.ranged import RangeInfo

WAIT_S_MAX = 120.0
Committed = tuple[int, bytes, bytes | None, bytes | None]
"""Commit ts, key, value (None: deleted), old value (None: none)."""


def register(
    info: RangeInfo, request_id: int, checkpoint_ts: int = 0, start_key: bytes = b"", end_key: bytes = b""
) -> cdc_pb2.ChangeDataRequest:
    """Return the request that registers a range with old values."""
    return cdc_pb2.ChangeDataRequest(
        region_id=info.range_id,
        region_epoch=cdc_pb2.RegionEpoch(conf_ver=info.epoch.conf_ver, version=info.epoch.version),
        checkpoint_ts=checkpoint_ts,
        start_key=start_key,
        end_key=end_key,
        request_id=request_id,
        extra_op=cdc_pb2.ChangeDataRequest.ReadOldValue,
        register=cdc_pb2.ChangeDataRequest.Register(),
    )


def deregister(request_id: int, region_id: int = 0) -> cdc_pb2.ChangeDataRequest:
    """Return the request that ends one range of a subscription, or all of them."""
    return cdc_pb2.ChangeDataRequest(request_id=request_id, region_id=region_id, deregister=cdc_pb2.ChangeDataRequest.Deregister())


class StreamReader:
    """Reads messages until they end. Everything public is guarded by ``changed``; wait with ``wait_for``."""

    def __init__(self, messages: Iterable[cdc_pb2.ChangeDataEvent | bytes]) -> None:
        self.changed = threading.Condition()
        self.committed: list[Committed] = []
        self.by_region: dict[tuple[int, int], list[Committed]] = defaultdict(list)
        """By request id and region id."""
        self.initialized: set[tuple[int, int]] = set()
        self.errors: list[tuple[int, int, str]] = []
        """Request id, region id, and the name of the error's field."""
        self.resolved: dict[tuple[int, int], int] = {}
        self.violations: list[str] = []
        self.kinds: list[int] = []
        self.ended = False
        self._prewrites: dict[tuple[int, bytes], tuple[bytes | None, bytes | None]] = {}
        self._thread = threading.Thread(target=self._read, args=(messages,), name="stream-reader", daemon=True)
        self._thread.start()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the reader holds."""
        with self.changed:
            if not self.changed.wait_for(condition, WAIT_S_MAX):
                raise TimeoutError(
                    f"not reached: errors={self.errors} resolved={self.resolved} rows={len(self.committed)} ended={self.ended}"
                )

    def wait_resolved(self, ts: int, regions: Iterable[tuple[int, int]]) -> None:
        """Wait until each (request id, region id) is resolved up to a ts."""
        wanted = list(regions)
        self.wait_for(lambda: all(self.resolved.get(r, 0) >= ts for r in wanted))

    def state(self, ts: int) -> dict[bytes, bytes]:
        """Return the rows as of a ts, as the stream told them."""
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        with self.changed:
            for commit_ts, key, value, _ in self.committed:
                if commit_ts <= ts and commit_ts >= newest.get(key, (0, None))[0]:
                    newest[key] = (commit_ts, value)
        return {key: value for key, (_, value) in newest.items() if value is not None}

    def _read(self, messages: Iterable[cdc_pb2.ChangeDataEvent | bytes]) -> None:
        try:
            for message in messages:
                with self.changed:
                    self._take(cdc_pb2.ChangeDataEvent.FromString(message) if isinstance(message, bytes) else message)
                    self.changed.notify_all()
        except grpc.RpcError:
            pass
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def _take(self, message: cdc_pb2.ChangeDataEvent) -> None:
        for event in message.events:
            name = (int(event.request_id), int(event.region_id))
            if event.WhichOneof("event") == "error":
                self.errors.append((*name, str(event.error.ListFields()[0][0].name)))
            for row in event.entries.entries:
                self._take_row(name, row)
        if message.HasField("resolved_ts"):
            for region in message.resolved_ts.regions:
                name = (int(message.resolved_ts.request_id), int(region))
                if message.resolved_ts.ts <= self.resolved.get(name, 0):
                    self.violations.append(f"resolved ts of {name} fell or stood still at {message.resolved_ts.ts}")
                if name not in self.initialized:
                    self.violations.append(f"resolved ts of {name} before it was initialized")
                self.resolved[name] = int(message.resolved_ts.ts)

    def _take_row(self, name: tuple[int, int], row: cdc_pb2.Event.Row) -> None:
        self.kinds.append(int(row.type))
        value = bytes(row.value) if row.op_type == cdc_pb2.Event.Row.PUT else None
        lock = (int(row.start_ts), bytes(row.key))
        if row.type == cdc_pb2.Event.INITIALIZED:
            self.initialized.add(name)
        elif row.type == cdc_pb2.Event.PREWRITE:
            self._prewrites[lock] = (value, bytes(row.old_value) or None)
        elif row.type == cdc_pb2.Event.ROLLBACK:
            self._prewrites.pop(lock, None)
        elif row.type == cdc_pb2.Event.COMMIT:
            found = self._prewrites.pop(lock, None)
            if found is None:
                self.violations.append(f"a commit without its prewrite at {row.commit_ts}")
            else:
                self._commit(name, int(row.commit_ts), bytes(row.key), *found)
        else:
            self._commit(name, int(row.commit_ts), bytes(row.key), value, bytes(row.old_value) or None)

    def _commit(self, name: tuple[int, int], commit_ts: int, key: bytes, value: bytes | None, old: bytes | None) -> None:
        if commit_ts <= self.resolved.get(name, 0):
            self.violations.append(f"a commit at {commit_ts}, at or below the resolved ts of {name}")
        of_region = self.by_region[name]
        if of_region and of_region[-1][0] > commit_ts:
            self.violations.append(f"commits of {name} out of order at {commit_ts}")
        of_region.append((commit_ts, key, value, old))
        self.committed.append((commit_ts, key, value, old))
