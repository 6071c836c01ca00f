"""HTTP as a target against a bare client that posts the same bodies: rows a second of a window, to a receiver that does nothing with them.

The bare client has the bodies and their headers ready, and posts those of a lane one after the other over a connection of its own, as the
sink does; the sink begins with change rows, and makes bodies, ids and signatures. Both take turns. A part of the bench of targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow as pa

from benchmarks.report import Bar
from benchmarks.rigs.body_receiver import body_receiver
from benchmarks.targets.kafka import TABLE, event_of
from penstock.model.clock import SystemClock
from penstock.model.timestamp import compose_ts
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.http.batches import LaneBatches
from penstock.sink.http.kind import KIND
from penstock.sink.http.messages import Message
from penstock.sink.http.settings import HttpSettings
from penstock.target.kind import SinkRun

_T0 = compose_ts(1_700_000_000_000)
_EVENT_ROWS = 20_000
_DISPATCHER = DispatcherId(7)
_WINDOW = DispatcherWork(_DISPATCHER, TABLE, _T0, _T0 + 10**6)


def part(quick: bool) -> tuple[list[Bar], dict[str, float | int | str]]:
    """Return the bars and figures of this target."""
    ours, bare = rows_per_second(200_000 if quick else 1_000_000)
    figures: dict[str, float | int | str] = {"http_rows_per_s": round(ours), "http_bare_rows_per_s": round(bare)}
    return [Bar("HTTP: rows/s to a bare client that posts the same bodies", ours / bare, 0.6)], figures


def rows_per_second(rows: int, attempts: int = 4) -> tuple[float, float]:
    """Return the best of some attempts in turns: rows a second of the sink, and of the bare client."""
    clock = SystemClock()
    events = [_keyed(event_of(at, min(_EVENT_ROWS, rows - at))) for at in range(0, rows, _EVENT_ROWS)]
    sink_s, bare_s = [], []
    with body_receiver() as port:
        uri = f"http+json://127.0.0.1:{port}/changes"
        settings = KIND.settings(uri, {})[1]
        bodies = _bodies(settings, events)
        _post(port, [lane[:1] for lane in bodies])
        _window(uri, events[:1])
        for _ in range(attempts):
            begun = clock.monotonic_s()
            _window(uri, events)
            sink_s.append(clock.monotonic_s() - begun)
            begun = clock.monotonic_s()
            _post(port, bodies)
            bare_s.append(clock.monotonic_s() - begun)
    return rows / min(sink_s), rows / min(bare_s)


def _keyed(event: pa.RecordBatch) -> pa.RecordBatch:
    return event.add_column(2, "_key", event.column("c1").cast(pa.string()).cast(pa.binary()))


def _window(uri: str, events: Sequence[pa.RecordBatch]) -> None:
    sink = KIND.make_sink(uri, {}, None, SinkRun("bench", 1))
    sink.open_dispatcher(_WINDOW)
    for event in events:
        sink.add_dml_event(DmlEvent(_DISPATCHER, TABLE, event))
    sink.close_dispatcher(_DISPATCHER)
    sink.close()


def _bodies(settings: HttpSettings, events: Sequence[pa.RecordBatch]) -> list[list[Message]]:
    made = LaneBatches(_WINDOW, settings, "bench")
    lanes: list[list[Message]] = [[] for _ in range(settings.lanes)]
    for found in (*(made.add(TABLE, event) for event in events), made.finish()):
        for lane, message in found:
            lanes[lane].append(message)
    return lanes


def _post(port: int, lanes: Sequence[Sequence[Message]]) -> None:
    def post(messages: Sequence[Message]) -> None:
        with httpx.Client(trust_env=False) as client:
            for message in messages:
                headers = {"Content-Type": message.content_type, "Idempotency-Key": message.id}
                client.post(f"http://127.0.0.1:{port}/changes", content=message.body, headers=headers).raise_for_status()

    with ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(post, lanes))
