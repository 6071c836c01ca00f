"""Pulling the snapshot of a range: the client's side of register and pull snapshot.

Pages come in key order, each from the leader of the range; a call that nobody answers is repeated after the last key, under the same
version. Where the answer carries another version, the iterator was lost and the snapshot begins again: that is ``SNAPSHOT_LOST``,
and the caller drops what it has. Every request carries the range's epoch. Runs on executors. Not safe for many threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import grpc
import msgspec
import numpy as np
import pyarrow as pa

from penstock.kernels.jit import U64
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.source.proto import cdc_pb2, dataserver_pb2_grpc
from penstock.source.proto import dataserver_pb2 as pb
from penstock.source.ranged import RangeInfo

T = TypeVar("T")
PAGE_ROWS = 16_384
ATTEMPTS_MAX = 8
RETRY_S = 0.2
_MESSAGE_BYTES_MAX = 64 << 20
_MOVED = frozenset({"EPOCH_NOT_MATCH", "NOT_LEADER", "REGION_NOT_FOUND"})


class SnapshotPage(msgspec.Struct, frozen=True):
    """Rows of a range at one version, in key order. Keys are full keys."""

    version: int
    keys: pa.Array
    values: pa.Array
    commit_ts: U64


class SnapshotPuller:
    """Pulls ranges under a subscriber's name."""

    def __init__(self, subscriber: str, page_rows: int = PAGE_ROWS, timeout_s: float = 30.0, clock: Clock | None = None) -> None:
        self._subscriber = subscriber
        self._page_rows = page_rows
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._channels: dict[str, grpc.Channel] = {}

    def pages(self, info: RangeInfo) -> Iterator[SnapshotPage]:
        """Register and yield the pages of a range, all of one version; raises ``SNAPSHOT_LOST`` where that breaks."""
        stub = self._stub(info.store_addr)
        epoch = cdc_pb2.RegionEpoch(conf_ver=info.epoch.conf_ver, version=info.epoch.version)
        registration = pb.CdcRegisterRequest(range_id=info.range_id, range_epoch=epoch, subscriber_name=self._subscriber)
        _check(self._call(lambda: stub.CdcRegister(registration, timeout=self._timeout_s)).error)
        version, last_key, end = 0, b"", False
        while not end:
            request = pb.CdcPullSnapshotRequest(
                range_id=info.range_id,
                range_epoch=epoch,
                subscriber_name=self._subscriber,
                current_snapshot_version=version,
                last_key=last_key,
                limit_rows=self._page_rows,
            )
            answer = self._call(partial(stub.CdcPullSnapshot, request, timeout=self._timeout_s))
            _check(answer.error)
            if version and int(answer.current_snapshot_version) != version:
                raise _lost(f"range {info.range_id} has a new snapshot version")
            version, end = int(answer.current_snapshot_version), bool(answer.end)
            rows = answer.snapshot_data
            if rows:
                last_key = rows[-1].key
            yield SnapshotPage(
                version,
                pa.array([r.key for r in rows], pa.binary()),
                pa.array([r.value for r in rows], pa.binary()),
                np.array([r.commit_ts for r in rows], dtype=np.uint64),
            )

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def _stub(self, address: str) -> dataserver_pb2_grpc.DataServerStub:
        if address not in self._channels:
            options = [("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX), ("grpc.enable_http_proxy", 0)]
            self._channels[address] = grpc.insecure_channel(address, options=options)
        return dataserver_pb2_grpc.DataServerStub(self._channels[address])  # type: ignore[no-untyped-call]

    def _call(self, call: Callable[[], T]) -> T:
        """Call until someone answers, a bounded number of times. The same page may be asked for twice: answers do not depend on it."""
        never = threading.Event()
        for attempt in range(ATTEMPTS_MAX):
            try:
                return call()
            except grpc.RpcError as error:
                if attempt == ATTEMPTS_MAX - 1:
                    raise PenstockError("UPSTREAM_UNREACHABLE", f"the snapshot's store does not answer ({error.code().name})") from error
                self._clock.wait(never, RETRY_S * (attempt + 1))
        raise PenstockError("UPSTREAM_UNREACHABLE", "the snapshot's store does not answer")


def _lost(why: str) -> PenstockError:
    """Return that the range moved, was cut or merged, or that its iterator is gone."""
    return PenstockError("SNAPSHOT_LOST", why)


def _check(error: pb.CdcError) -> None:
    if error.code in _MOVED:
        raise _lost(f"{error.code}: {error.message}")
    if error.code:
        raise PenstockError(error.code, error.message)
