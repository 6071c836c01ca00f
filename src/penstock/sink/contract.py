"""What a target is to a feed, whatever it is.

A sink lives inside one Spark task for one window. Events of one dispatcher are FIFO through one channel; nothing is promised across
dispatchers but the window. Runs on executors; a ``SinkMaintainer`` runs beside the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.model.ddl import DdlEvent
from penstock.model.table import TableSchema
from penstock.target.dispatcher import DispatcherId, DispatcherWork


class DmlEvent(msgspec.Struct):
    """Ordered change rows of one dispatcher and one table version: ``_ts``, ``_op``[, ``_key``], then the table's columns.

    ``_key`` and BEFORE rows are there only where the sink asked for old values. Rows are ordered by commit ts, at one ts tombstones
    first, then by key. ``post_enqueue`` fires once when the sink has taken the event over (wake), ``post_flush`` once when it is
    durable in the target. A failure fires neither.
    """

    dispatcher: DispatcherId
    table: TableSchema
    records: pa.RecordBatch
    post_enqueue: Callable[[], None] | None = None
    post_flush: Callable[[], None] | None = None


class WrittenFile(msgspec.Struct, frozen=True):
    """One file that a window published, with the checksum of its bytes and the transactions of its rows, where the sink keeps them."""

    path: str
    rows: int
    nbytes: int
    checksum: str = ""
    transactions: bytes = b""
    """Packed (``format/transaction_runs.py``); empty where its rows are of none."""


class DispatcherResult(msgspec.Struct, frozen=True):
    """What one dispatcher did in one window; it crosses from the task to the driver in the commit message."""

    dispatcher: DispatcherId
    position: dict[str, int]
    rows: int
    nbytes: int
    files: tuple[WrittenFile, ...] = ()
    message: bytes = b""
    """What the sink of the task tells the maintainer of its target, in their own words."""


class Histogram(msgspec.Struct, frozen=True):
    """Counted values: how many were at or below each bound (and above all of them, last), and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0


class TaskReport(msgspec.Struct, frozen=True):
    """What a sink counted in one task, by metric name and labels (``name{label=value}``); it travels in the commit message."""

    counters: dict[str, float] = {}
    peaks: dict[str, float] = {}
    """Gauges; of several tasks the largest counts."""
    histograms: dict[str, Histogram] = {}


class Sink(Protocol):
    """A target inside one task. Not thread safe towards its caller: one thread calls it.

    For each dispatcher: open, then events and block events in order, then ``close_dispatcher``. Several dispatchers may be open at once.
    """

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window. Called once per dispatcher and attempt, before its first event."""

    def add_dml_event(self, event: DmlEvent) -> None:
        """Take over an event. Never waits and never does slow I/O: callers bound how many events were not woken yet (``WakeGate``).

        Raises the failure of anything that the sink did before.
        """

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Drain everything the dispatcher was given before; durable when it returns. Called for every involved dispatcher."""

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Write a DDL that involves this dispatcher only, after it passed the DDL; return what was written. Idempotent."""

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Say that no more events come, so that the rest is flushed while other dispatchers go on. Never waits. May be left out."""

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Flush what is left of the window and return the result; everything is durable when it returns."""

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have this called once the sink has failed, from any thread; at once if it has. The next call of the sink then raises."""

    def report(self) -> TaskReport:
        """Return what was counted so far. Called once, before ``close``."""

    def close(self) -> None:
        """Release resources. What was not closed by ``close_dispatcher`` is dropped; after an error nothing more is flushed."""


class SinkMaintainer(Protocol):
    """The part of a target that acts once per feed, beside the driver."""

    def check(self, feed: str) -> None:
        """Raise unless the target is writable and empty or this feed's own. Called at creation; leaves nothing behind when it raises."""

    def claim(self, feed: str) -> None:
        """Mark the target as this feed's. Idempotent."""

    def probe(self) -> None:
        """Raise unless the target takes something; leaves nothing behind."""

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Write the DDL to the target, after every involved dispatcher passed it. Idempotent; returns what it wrote."""

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Make a window that every task has delivered whole in the target, before its DDL barrier and before progress moves. Idempotent.

        Files: their checksums and transactions; tables of a lake: the version that has the window. ``results`` stand in the order of their
        dispatchers.
        """

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Publish that every row with a commit ts at or below this one is in the target, but for some tables. Never goes back."""

    def published_ts(self) -> int:
        """Return the checkpoint that is published, 0 where none is."""


__all__ = [
    "DispatcherId",
    "DispatcherResult",
    "DispatcherWork",
    "DmlEvent",
    "Histogram",
    "Sink",
    "SinkMaintainer",
    "TaskReport",
    "WrittenFile",
]
