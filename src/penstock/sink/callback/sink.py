"""The sink of a task whose target is a callable: rows go to files of a spool, which the server's process reads and deletes.

A file is one dispatcher's rows of one table version, as an Arrow stream; what stands where is told in the result's message. Its name is
made of the dispatcher and the window, and it is there whole or not at all, so attempts of one window may run at the same time. Invariant: a
task holds one event at a time. Runs on executors.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.model.batch import commit_ts_array
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import TableSchema
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport


class SpooledPart(msgspec.Struct, frozen=True):
    """Rows of one table version in a file of the spool, or a DDL that came after those before it."""

    table: TableSchema
    file: str = ""
    ddl: DdlEvent | None = None


@dataclass(slots=True)
class _Open:
    work: DispatcherWork
    parts: list[SpooledPart] = field(default_factory=list)
    writer: pa.ipc.RecordBatchStreamWriter | None = None
    file: pa.OSFile | None = None
    partial: Path | None = None
    rows: int = 0
    nbytes: int = 0
    last_ts: int = 0
    flushed: list[Callable[[], None]] = field(default_factory=list)


class CallbackSink:
    """Spools rows; implements ``penstock.sink.contract.Sink``."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._open: dict[DispatcherId, _Open] = {}

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        self._open[work.dispatcher] = _Open(work)

    def add_dml_event(self, event: DmlEvent) -> None:
        """Append the rows to the file of their table version."""
        one = self._dispatcher(event.dispatcher)
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < one.last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            one.last_ts = int(ts[-1])
            self._append(one, event)
        if event.post_enqueue is not None:
            event.post_enqueue()
        if event.post_flush is not None:
            one.flushed.append(event.post_flush)

    def _append(self, one: _Open, event: DmlEvent) -> None:
        with _spool_errors(self._spool):
            if one.writer is None or one.parts[-1].table.version != event.table.version:
                self._finish(one)
                window = one.work
                one.parts.append(SpooledPart(event.table, f"{window.dispatcher}-{window.from_ts}-{window.to_ts}-{len(one.parts)}.arrows"))
                handle, name = tempfile.mkstemp(dir=self._spool, suffix=".partial")
                os.close(handle)
                one.partial, one.file = Path(name), pa.OSFile(name, "wb")
                one.writer = pa.ipc.new_stream(one.file, event.records.schema)
            one.writer.write_batch(event.records)
        one.rows += event.records.num_rows
        one.nbytes += event.records.nbytes

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Finish the file that is open."""
        self._finish(self._dispatcher(dispatcher))

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Put the DDL after the rows that came before it."""
        one = self._dispatcher(dispatcher)
        self._finish(one)
        table = event.tables[0] if event.tables else one.work.table
        one.parts.append(SpooledPart(table, ddl=event))
        return ()

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Find nothing under way."""
        self._dispatcher(dispatcher)

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Return where the rows are, for the maintainer to read."""
        one = self._dispatcher(dispatcher)
        self._finish(one)
        del self._open[dispatcher]
        return DispatcherResult(dispatcher, {}, one.rows, one.nbytes, message=msgspec.json.encode(one.parts) if one.parts else b"")

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Forget it: every failure is raised by the call that meets it."""

    def report(self) -> TaskReport:
        """Return that nothing was measured."""
        return TaskReport()

    def close(self) -> None:
        """Forget what was not closed."""
        for one in self._open.values():
            _close(one)
            if one.partial is not None:
                one.partial.unlink(missing_ok=True)
        self._open.clear()

    def _dispatcher(self, dispatcher: DispatcherId) -> _Open:
        if dispatcher not in self._open:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return self._open[dispatcher]

    def _finish(self, one: _Open) -> None:
        """Let the file that is open be there."""
        with _spool_errors(self._spool):
            _close(one)
            if one.partial is not None:
                one.partial.replace(self._spool / one.parts[-1].file)
                one.partial = None
        flushed, one.flushed = one.flushed, []
        for told in flushed:
            told()


def _close(one: _Open) -> None:
    for open_ in (one.writer, one.file):
        if open_ is not None:
            open_.close()
    one.writer = one.file = None


@contextmanager
def _spool_errors(spool: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PenstockError("SPOOL_FAILED", f"{spool}: {error.strerror or type(error).__name__}") from error
