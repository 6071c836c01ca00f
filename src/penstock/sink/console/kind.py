"""A terminal as a kind of target: tasks keep the last rows of a window, and the server prints them when the window is delivered.

``penstock run --sink console:`` shows what happens in a database. What is printed is a tail, not a copy: of a large window the last rows
only, and a window whose commit is tried again may be printed twice. It cannot be read back and belongs to nobody. Invariant: what a task
holds and tells is bounded, whatever the window has. Runs on executors and in the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import msgspec
import pyarrow as pa

from penstock.format.file_rows import PreparedRows
from penstock.format.json.debezium import encode_into
from penstock.format.protocols import DataFormat, DebeziumSettings, Protocol
from penstock.format.sheet_kernels import ByteSpace
from penstock.model.batch import commit_ts_array
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError
from penstock.model.finding import Finding
from penstock.model.table import TableSchema
from penstock.sink.console.lines import Look, change_line, ddl_line, more_line, shortened
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport
from penstock.sink.kind import TargetKind
from penstock.sink.options import read_options
from penstock.target.kind import SinkRun

if TYPE_CHECKING:
    from penstock.target.storage import Guard

_MESSAGE_BYTES_MAX = 256 << 10
_ROW_CHARS_MAX = 4 << 10
"""A row that is larger tells no more than its line shows."""
_FORMAT = DataFormat(Protocol.DEBEZIUM, debezium=DebeziumSettings())


class Colours(StrEnum):
    """Whether lines are coloured: on a terminal unless NO_COLOR is set, always, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """What tunes a tail."""

    free_options: ClassVar[frozenset[str]] = frozenset({"flush_interval_ms", "rows", "colours"})
    cut_options: ClassVar[frozenset[str]] = frozenset()

    flush_interval_ms: int = field(default=5_000, metadata={"range": (100, 600_000)})
    rows: int = field(default=50, metadata={"range": (1, 1_000)})
    colours: Colours = Colours.AUTO

    format_name: ClassVar[str] = "lines"
    indexes_transactions: ClassVar[bool] = False
    numbers_events: ClassVar[bool] = False

    def needs_before(self, table: TableSchema) -> bool:
        """Return that old values travel: an update is shown by what it changed."""
        return True


@dataclass(slots=True)
class _Tail:
    """The last rows of a dispatcher, under the versions of its table."""

    prepared: PreparedRows = field(default_factory=lambda: PreparedRows(_FORMAT, split_key_updates=False))
    kept: list[tuple[TableSchema, pa.RecordBatch]] = field(default_factory=list)
    ddls: list[DdlEvent] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    last_ts: int = 0

    def keep(self, table: TableSchema, records: pa.RecordBatch, rows_max: int) -> None:
        if not records.num_rows:
            return
        self.rows += records.num_rows
        # A copy, so that the rest of a large event is not held.
        last = records.slice(max(0, records.num_rows - rows_max))
        self.kept.append((table, last.take(pa.array(range(last.num_rows)))))
        while sum(part.num_rows for _, part in self.kept[1:]) >= rows_max:
            del self.kept[0]


class _Told(msgspec.Struct, frozen=True):
    """What a task tells of a dispatcher: changes as lines of JSON, the columns that name a row, and DDLs."""

    changes: str
    key: tuple[str, ...] = ()
    ddls: tuple[DdlEvent, ...] = ()


class ConsoleSink:
    """Keeps tails; implements ``penstock.sink.contract.Sink``."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._open: dict[DispatcherId, _Tail] = {}

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        self._open[work.dispatcher] = _Tail()

    def add_dml_event(self, event: DmlEvent) -> None:
        """Keep the last rows; they are as durable as they will ever be."""
        tail = self._dispatcher(event.dispatcher)
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < tail.last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            tail.last_ts = int(ts[-1])
        tail.nbytes += event.records.nbytes
        for table, records in tail.prepared.add(event.table, event.records):
            tail.keep(table, records, self._settings.rows)
        for told in (event.post_enqueue, event.post_flush):
            if told is not None:
                told()

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Find nothing under way."""
        self._dispatcher(dispatcher)

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Keep the DDL, for as long as there are not too many."""
        tail = self._dispatcher(dispatcher)
        tail.ddls = [*tail.ddls, event][-self._settings.rows :]
        return ()

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Find nothing under way."""
        self._dispatcher(dispatcher)

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Return the tail, for the maintainer to print."""
        tail = self._dispatcher(dispatcher)
        for table, records in tail.prepared.finish():
            tail.keep(table, records, self._settings.rows)
        del self._open[dispatcher]
        message = msgspec.json.encode(_Told(_changes(tail), _key(tail), tuple(tail.ddls))) if tail.rows or tail.ddls else b""
        return DispatcherResult(dispatcher, {}, tail.rows, tail.nbytes, message=message)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Forget it: this never fails."""

    def report(self) -> TaskReport:
        """Return that nothing was measured."""
        return TaskReport()

    def close(self) -> None:
        """Forget what was not closed."""
        self._open.clear()

    def _dispatcher(self, dispatcher: DispatcherId) -> _Tail:
        if dispatcher not in self._open:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return self._open[dispatcher]


class ConsoleMaintainer:
    """Prints; implements ``penstock.sink.contract.SinkMaintainer``."""

    def __init__(self, settings: ConsoleSettings, out: TextIO | None = None) -> None:
        self._settings = settings
        self._out = out or sys.stdout
        self._terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        by_itself = self._terminal and not os.environ.get("NO_COLOR")
        self._colours = {Colours.AUTO: by_itself, Colours.ALWAYS: True, Colours.NEVER: False}[settings.colours]

    def check(self, feed: str) -> None:
        """Find it free."""

    def claim(self, feed: str) -> None:
        """Leave it nobody's."""

    def probe(self) -> None:
        """Find that it takes everything."""

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Print a DDL."""
        self._print([ddl_line(event, self._look)])
        return ()

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Print the last changes of a window, in the order of their commits."""
        found: list[tuple[int, str, int]] = []
        for told in (msgspec.json.decode(result.message, type=_Told) for result in results if result.message):
            # Texts of rows may have other line breaks, which stand in JSON as they are.
            events = [json.loads(line) for line in told.changes.split("\n") if line]
            found += [(int(event["source"]["commit_ts"]), change_line(event, self._look, told.key), 1) for event in events]
            found += [(ddl.commit_ts, ddl_line(ddl, self._look), 0) for ddl in told.ddls]
        found = sorted(found, key=lambda one: one[0])[-self._settings.rows :]
        lines = [line for _, line, _ in found]
        rows, shown = sum(result.rows for result in results), sum(row for _, _, row in found)
        if rows > shown:
            lines.insert(0, more_line(rows, shown, self._look))
        self._print(lines)

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Tell nobody."""

    def published_ts(self) -> int:
        """Return that none is published."""
        return 0

    @property
    def _look(self) -> Look:
        """Return how lines look now; people make windows narrower."""
        width = 0
        if self._terminal:
            with contextlib.suppress(OSError, ValueError):
                width = os.get_terminal_size(self._out.fileno()).columns
        return Look(self._colours, width)

    def _print(self, lines: Sequence[str]) -> None:
        if lines:
            # Whoever shows a line of progress on a terminal shows it again.
            text = ("\r\x1b[2K" if self._terminal else "") + "\n".join(lines) + "\n"
            encoding = self._out.encoding or "utf-8"
            # Nobody reads a pipe any more whose reader has enough; whoever writes to it next, and is not a feed, ends.
            with contextlib.suppress(BrokenPipeError):
                self._out.write(text.encode(encoding, "backslashreplace").decode(encoding))
                self._out.flush()


class ConsoleKind(TargetKind):
    """A tail on the server's standard output."""

    name = "console"
    shared = True
    option_keys = frozenset({"flush-interval", "rows", "colours"})

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, ConsoleSettings]:
        """Return the URI and the settings."""
        return read_options(ConsoleSettings, uri, options)

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> ConsoleSink:
        """Return the sink of one task."""
        return ConsoleSink(self.settings(uri, options)[1])

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> ConsoleMaintainer:
        """Return the part that prints."""
        return ConsoleMaintainer(self.settings(uri, options)[1])

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return that all is well."""
        return [Finding("target: reachable", True, "prints the last changes of each window", "for people who watch")]


def _changes(tail: _Tail) -> str:
    """Return the last rows of a tail as lines of JSON, so many that they are not too large."""
    space = ByteSpace()
    for table, records in tail.kept:
        encode_into(table, records, _FORMAT.debezium, space)
    key = _key(tail)
    lines = [line if len(line) <= _ROW_CHARS_MAX else shortened(line, key) for line in space.getvalue().decode().split("\n")[:-1]]
    size, first = 0, len(lines)
    while first and size + len(lines[first - 1]) < _MESSAGE_BYTES_MAX:
        first -= 1
        size += len(lines[first])
    return "\n".join(lines[first:])


def _key(tail: _Tail) -> tuple[str, ...]:
    """Return the names of the columns that name a row, as the newest version has them."""
    return tuple(column.name for column in tail.kept[-1][0].handle_columns) if tail.kept else ()


KIND = ConsoleKind()
