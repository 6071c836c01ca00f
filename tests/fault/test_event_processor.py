"""Bytes that no store sends, all the way through worker, processor and pipeline: an error, never a hang, a dead thread or a wrong row.

The stream is simulated, so a hang is a deadlock that the scheduler reports. Rows that arrive are compared with what protobuf reads from the
same bytes; a message that protobuf refuses must deliver nothing, and the stream is opened again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from penstock.model.span import Span
from penstock.puller import quota, span_pipeline
from penstock.puller.ranged import event_processor, log_puller, region_worker, request_cache, subscribed_span
from penstock.puller.ranged.event_processor import EventProcessorSettings
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.span_pipeline import Finish, SpanPipeline, SpanPipelineSettings
from penstock.source.proto import cdc_pb2 as pb
from penstock.source.ranged import RangeEpoch, RangeInfo
from penstock.source.raw import RawBatch
from testing.checks.interleaving import Interleaving

MODULES = (event_processor, log_puller, quota, region_worker, request_cache, span_pipeline, subscribed_span)
REGION = 7
LAST_TS = 1 << 60
Row = tuple[int, bytes, bytes | None, bytes | None]


class GarbledError(grpc.RpcError):
    """The stream's end."""


class Garbler:
    """A store whose messages are damaged, one in three; after so many streams it speaks clearly. Also the upstream that names its range."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._streams = 0
        self._ts = 100
        self.readable: set[Row] = set()
        """All that protobuf reads from what was sent, damaged or not."""
        self.streams_max = 12

    def key_span(self, _span: Span) -> tuple[bytes, bytes]:
        return b"", b""

    def ranges(self, span: Span) -> list[RangeInfo]:
        return [RangeInfo(REGION, span.table_id, b"", b"", RangeEpoch(1, 1), 1, "garbler")]

    def channel(self, _address: str) -> Any:
        return self

    def close(self) -> None:
        """Do nothing."""

    def stream_stream(self, _method: str, **_: Any) -> Callable[..., Any]:
        return lambda requests, **_: Garbled(self._messages(requests))

    def _messages(self, requests: Iterator[pb.ChangeDataRequest]) -> Iterator[bytes]:
        request = next(requests)
        self._streams += 1
        yield self._note(_entries(request, [pb.Event.Row(type=pb.Event.INITIALIZED)]))
        for _ in range(6):
            payload = self._some_rows(request)
            clear = self._streams > self.streams_max or self._rng.random() < 0.66
            yield self._note(payload if clear else self._damage(payload))
        if self._streams > self.streams_max:
            yield pb.ChangeDataEvent(
                resolved_ts=pb.ResolvedTs(regions=[REGION], ts=LAST_TS, request_id=request.request_id)
            ).SerializeToString()
        else:
            raise GarbledError

    def _some_rows(self, request: pb.ChangeDataRequest) -> bytes:
        rows = []
        for _ in range(self._rng.randrange(1, 5)):
            self._ts += 1
            value = self._rng.randbytes(self._rng.randrange(1, 20))
            rows.append(
                pb.Event.Row(
                    type=pb.Event.COMMITTED, op_type=1, start_ts=self._ts, commit_ts=self._ts + 1, key=b"k%d" % self._ts, value=value
                )
            )
            self._ts += 1
        return _entries(request, rows)

    def _damage(self, payload: bytes) -> bytes:
        data = bytearray(payload)
        for _ in range(self._rng.randrange(1, 4)):
            at = self._rng.randrange(len(data) or 1)
            what = self._rng.randrange(4)
            if what == 0:
                del data[at:]
            elif what == 1 and data:
                data[at] ^= 1 << self._rng.randrange(8)
            elif what == 2:
                data[at:at] = self._rng.randbytes(self._rng.randrange(1, 9))
            elif data:
                data[at : at + 4] = b"\xff\xff\xff\xff"
            if not data:
                break
        return bytes(data)

    def _note(self, payload: bytes) -> bytes:
        try:
            message = pb.ChangeDataEvent.FromString(payload)
        except DecodeError:
            return payload
        for event in message.events:
            for row in event.entries.entries:
                if row.type == pb.Event.COMMITTED:
                    self.readable.add((row.commit_ts, row.key, None if row.op_type == 2 else row.value, row.old_value or None))
        return payload


class Garbled:
    """An open stream."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages

    def __iter__(self) -> Iterator[bytes]:
        yield from self._messages
        raise GarbledError

    def cancel(self) -> None:
        """Do nothing: the script ends by itself."""


def _entries(request: pb.ChangeDataRequest, rows: list[pb.Event.Row]) -> bytes:
    event = pb.Event(region_id=request.region_id, request_id=request.request_id, entries=pb.Event.Entries(entries=rows))
    return bytes(pb.ChangeDataEvent(events=[event]).SerializeToString())


@pytest.mark.parametrize("seed", range(60))
def test_damaged_messages_never_hang_and_never_make_a_row(seed: int) -> None:
    sim, garbler = Interleaving(seed), Garbler(seed)
    rows: list[Row] = []
    failures: list[object] = []

    def main() -> None:
        pipeline = SpanPipeline(SpanPipelineSettings(workers=1), sim)
        settings = LogPullerSettings(processor=EventProcessorSettings(workers=1))
        puller = LogPuller(garbler, pipeline, settings, sim, random.Random(seed), channels=garbler.channel)
        done = sim.threading.Event()

        def consume(raw: RawBatch, finish: Finish) -> bool:
            rows.extend(tuple(r.values()) for r in raw.entries.select(["commit_ts", "key", "value", "old_value"]).to_pylist())
            finish()
            return True

        def advance(ts: int) -> None:
            if ts >= LAST_TS:
                done.set()

        def failed(error: object) -> None:
            # A damaged ts can look like a broken promise, which fails the span: loudly, and for its owner to decide.
            failures.append(error)
            done.set()

        puller.subscribe(Span(1), 1, consume, advance, failed)
        assert done.wait(3600.0), puller.progress(Span(1).span_id)
        puller.unsubscribe(Span(1).span_id)
        pipeline.close()
        puller.close()
        assert pipeline.quota.held_bytes == 0

    with sim.modules(*MODULES):
        sim.run(main)
    assert set(rows) <= garbler.readable
    assert rows
    assert all(str(f).startswith("[RESOLVED_TS_VIOLATED]") or str(f).startswith("[UPSTREAM_REFUSED]") for f in failures)
