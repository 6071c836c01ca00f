"""A storage sink on a scripted target, and events whose acknowledgements are noted in order. Runs in tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.model import failpoints
from penstock.model.batch import Op
from penstock.model.clock import Clock
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.storage.sink import EngineSettings, StorageSink
from penstock.target.settings import StorageSinkSettings, from_uri
from testing.paths.storage_target import ScriptedTarget

WAIT_S = 60.0
T0 = compose_ts(1_700_000_000_000)
D = DispatcherId(7)
_COLUMNS = (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=400)))


def table_of(table_id: int, version: int = T0) -> TableSchema:
    """Return a table with a key and a note."""
    return TableSchema(table_id, "shop", f"t{table_id}", version, _COLUMNS)


def rows(start: int, count: int, width: int = 40, ts: int | None = None) -> pa.RecordBatch:
    """Return inserts of so many rows, each at a ts of its own unless one is given."""
    columns = [
        pa.array([T0 + 1 + (ts if ts is not None else start + i) for i in range(count)], pa.uint64()),
        pa.array([Op.INSERT] * count, pa.uint8()),
        pa.array(range(start, start + count), pa.int64()),
        pa.array([f"{i:0{width}d}" for i in range(start, start + count)]),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", "c1", "c2"])


def settings_of(query: str = "file-size=4096") -> StorageSinkSettings:
    """Return the settings of a sink URI's query."""
    return from_uri(f"memory:///?{query}")[1]


def work(dispatcher: DispatcherId = D, from_ts: int = T0) -> DispatcherWork:
    """Return the work of a dispatcher in a long window."""
    return DispatcherWork(dispatcher, table_of(dispatcher.table_id), from_ts, T0 + 10**9)


class Acks:
    """What an event's callbacks said, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._changed = threading.Condition()

    def note(self, text: str) -> Callable[[], None]:
        """Return a callback that notes a text."""

        def append() -> None:
            with self._changed:
                self.seen.append(text)
                self._changed.notify_all()

        return append

    def event(self, name: int, records: pa.RecordBatch, dispatcher: DispatcherId = D) -> DmlEvent:
        """Return an event that notes when it is enqueued and when it is flushed."""
        return DmlEvent(dispatcher, table_of(dispatcher.table_id), records, self.note(f"enqueued {name}"), self.note(f"flushed {name}"))

    def count(self, kind: str) -> int:
        """Return how many of a kind came."""
        return sum(text.startswith(kind) for text in self.seen)

    def wait(self, kind: str, count: int) -> bool:
        """Wait for so many of a kind; return whether they came."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count(kind) >= count, WAIT_S)


@contextmanager
def closing_sinks() -> Iterator[list[StorageSink]]:
    """Give a list whose sinks are closed at the end, with every failpoint off."""
    sinks: list[StorageSink] = []
    try:
        yield sinks
    finally:
        failpoints.arm("")
        for sink in sinks:
            sink.close()


def open_sink(
    made: list[StorageSink], target: ScriptedTarget, settings: StorageSinkSettings, clock: Clock | None = None, **engine: object
) -> StorageSink:
    """Open a sink and add it to those that will be closed."""
    sink = StorageSink(target, settings, clock, EngineSettings(**engine))  # type: ignore[arg-type]
    made.append(sink)
    return sink
