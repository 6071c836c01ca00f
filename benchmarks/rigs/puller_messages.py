"""Change-data messages for ``make bench NAME=puller``, and the straightforward reader that they are compared with.

A round is a fixed set of messages; each later round is the same bytes with every ts moved, so millions of entries cost next to nothing to
make. The reader parses with protobuf and matches entry by entry in dictionaries: what one writes first. Runs in the benchmark only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.source.proto import cdc_pb2
from penstock.source.raw import RAW_DELETE, RAW_PUT, RAW_SCHEMA

BASE_TS = 1_790_000_000_000 << 18
REQUEST_ID = 1
_TS_BYTES = 9
"""The length of a ts of these years as a varint."""
_TXN_ROWS = 8


class Rounds:
    """Messages of live transactions in ``regions`` regions: half of the entries prewrite, half commit what was prewritten before."""

    def __init__(self, regions: int, messages: int, entries: int, seed: int = 1) -> None:
        rng = random.Random(seed)
        parts = [_region_messages(rng, region, messages, entries) for region in range(1, regions + 1)]
        # As a store sends them: the regions take turns.
        payloads = [payload for turn in zip(*parts, strict=True) for payload in turn]
        self._regions = list(range(1, regions + 1))
        self._sizes = [len(p) for p in payloads]
        self._bytes = np.frombuffer(b"".join(payloads), dtype=np.uint8)
        self._at, self._ts, self.entries = _ts_places(payloads)
        self._span_ts = int(self._ts.max()) - BASE_TS + (1 << 18)

    def payloads(self, number: int) -> list[bytes]:
        """Return the messages of a round."""
        data = self._bytes.copy()
        ts = self._ts + np.uint64(number * self._span_ts)
        for k in range(_TS_BYTES):
            low = (ts >> np.uint64(7 * k)).astype(np.uint8) & np.uint8(0x7F)
            data[self._at + k] = low | np.uint8(0x80 if k < _TS_BYTES - 1 else 0)
        raw, at, out = data.tobytes(), 0, []
        for size in self._sizes:
            out.append(raw[at : at + size])
            at += size
        return out

    def resolved(self, number: int) -> tuple[int, bytes]:
        """Return the ts that ends a round, and the message that says so for all regions."""
        ts = BASE_TS + (number + 1) * self._span_ts - 1
        return ts, resolved_message(REQUEST_ID, self._regions, ts)


def resolved_message(request_id: int, regions: list[int], ts: int) -> bytes:
    """Return a batched resolved ts."""
    return cdc_pb2.ChangeDataEvent(resolved_ts=cdc_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request_id)).SerializeToString()


def initialized_message(request_id: int, region_id: int) -> bytes:
    """Return the end of a region's incremental scan."""
    rows = [cdc_pb2.Event.Row(type=cdc_pb2.Event.INITIALIZED)]
    event = cdc_pb2.Event(region_id=region_id, request_id=request_id, entries=cdc_pb2.Event.Entries(entries=rows))
    return cdc_pb2.ChangeDataEvent(events=[event]).SerializeToString()


def region_bounds(region_id: int) -> tuple[bytes, bytes]:
    """Return the keys of a region."""
    return b"r%08d" % region_id, b"r%08d" % (region_id + 1)


def _region_messages(rng: random.Random, region: int, messages: int, entries: int) -> list[bytes]:
    """Return a region's messages. A message of one entry is a prewrite or its commit, in two messages."""
    start_key, _ = region_bounds(region)
    half = max(1, entries // 2)
    out: list[bytes] = []
    open_txns: list[tuple[int, bytes]] = []
    ts = BASE_TS + region
    for at in range(messages):
        commits = []
        for start_ts, key in open_txns:
            commits.append(cdc_pb2.Event.Row(type=cdc_pb2.Event.COMMIT, start_ts=start_ts, commit_ts=ts + (1 << 12), key=key))
        open_txns = []
        prewrites = []
        for row in range(half if at < messages - 1 else 0):
            ts += 1 << 6 if row % _TXN_ROWS == 0 else 0
            key = start_key + b"%018d" % rng.randrange(1 << 40)
            kind = rng.random()
            put = kind >= 0.05
            prewrites.append(
                cdc_pb2.Event.Row(
                    type=cdc_pb2.Event.PREWRITE,
                    start_ts=ts,
                    op_type=cdc_pb2.Event.Row.PUT if put else cdc_pb2.Event.Row.DELETE,
                    key=key,
                    value=rng.randbytes(96) if put else b"",
                    old_value=rng.randbytes(96) if kind < 0.15 else b"",
                )
            )
            open_txns.append((ts, key))
        ts += 1 << 13
        parts = [commits + prewrites] if entries > 1 else [commits, prewrites]
        for rows in parts:
            if rows:
                event = cdc_pb2.Event(region_id=region, request_id=REQUEST_ID, entries=cdc_pb2.Event.Entries(entries=rows))
                out.append(cdc_pb2.ChangeDataEvent(events=[event]).SerializeToString())
    return out


def _ts_places(payloads: list[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], int]:
    """Return where every ts stands in the joined messages, its value, and the number of entries."""
    entries = 0
    places: list[int] = []
    values: list[int] = []
    base = 0
    for payload in payloads:
        at = 0
        for event in cdc_pb2.ChangeDataEvent.FromString(payload).events:
            entries += len(event.entries.entries)
            for row in event.entries.entries:
                for tag, ts in ((b"\x08", row.start_ts), (b"\x10", row.commit_ts)):
                    if ts:
                        at = payload.index(tag + _varint(ts), at) + 1
                        places.append(base + at)
                        values.append(ts)
        base += len(payload)
    return np.array(places, dtype=np.int64), np.array(values, dtype=np.uint64), entries


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class PerEntryReader:
    """The straightforward event processor: a protobuf object per entry, a dictionary of prewrites, lists that become a record batch."""

    def __init__(self) -> None:
        self._prewrites: dict[tuple[int, int, bytes], tuple[int, bytes, bytes]] = {}
        self._resolved_ts: dict[int, int] = {}

    def read(self, payload: bytes) -> Iterator[pa.RecordBatch]:
        """Yield one record batch per region event that commits something, as the event processor does."""
        message = cdc_pb2.ChangeDataEvent.FromString(payload)
        for event in message.events:
            columns: list[list[Any]] = [[] for _ in RAW_SCHEMA]
            for row in event.entries.entries:
                if row.type == cdc_pb2.Event.PREWRITE:
                    self._prewrites[event.region_id, row.start_ts, row.key] = (row.op_type, row.value, row.old_value)
                elif row.type == cdc_pb2.Event.COMMIT:
                    op, value, old = self._prewrites.pop((event.region_id, row.start_ts, row.key))
                    if row.commit_ts <= self._resolved_ts.get(event.region_id, 0):
                        raise ValueError(row.commit_ts)
                    gone = op == cdc_pb2.Event.Row.DELETE
                    fields = (row.commit_ts, row.start_ts, RAW_DELETE if gone else RAW_PUT, row.key, None if gone else value, old or None)
                    for column, field in zip(columns, fields, strict=True):
                        column.append(field)
                elif row.type == cdc_pb2.Event.ROLLBACK:
                    self._prewrites.pop((event.region_id, row.start_ts, row.key), None)
            if columns[0]:
                yield pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, RAW_SCHEMA, strict=True)], schema=RAW_SCHEMA)
        for region_id in message.resolved_ts.regions:
            self._resolved_ts[region_id] = message.resolved_ts.ts
