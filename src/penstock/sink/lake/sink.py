"""The sink of a lake inside one Spark task: rows become Parquet files, which the maintainer commits.

One thread takes events over in their order; some more write files. Invariants: nothing that a task writes is part of a table before the
maintainer commits the window, so attempts that end early, or go on beside another, leave files that nothing names; after a failure
neither acknowledgement fires and every call raises. Runs on executors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.model.batch import commit_ts_array
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError, PenstockError
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport, WrittenFile
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.dispatcher_rows import DispatcherRows, Written
from penstock.sink.lake.format import LakeFormat
from penstock.sink.lake.message import DispatcherMessage
from penstock.target.storage import ObjectTarget

T = TypeVar("T")
_WRITERS = 3
_UNDER_WAY_MAX = 3


@dataclass(slots=True)
class _Dispatcher:
    rows: DispatcherRows
    count: int = 0
    last_ts: int = 0
    flushed: list[Callable[[], None]] = field(default_factory=list)
    """What is told when all that was taken in is durable."""
    end: Future[DispatcherMessage] | None = None


class LakeSink:
    """Writes the windows of dispatchers as files that wait; implements ``penstock.sink.contract.Sink``."""

    def __init__(self, target: ObjectTarget, shape: LakeShape, open_lake: Callable[[], LakeFormat]) -> None:
        """``open_lake`` is called where rows come that differ from what a table holds."""
        self._target = target
        self._open_lake = open_lake
        self._shape = shape
        self._open: dict[DispatcherId, _Dispatcher] = {}
        self._steps: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._listeners: list[Callable[[], None]] = []
        self._writers = ThreadPoolExecutor(_WRITERS, "lake-writer")
        self._room = threading.BoundedSemaphore(_UNDER_WAY_MAX)
        self._thread = threading.Thread(target=self._run, name="lake-sink", daemon=True)
        self._thread.start()

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        self._check()
        if work.dispatcher in self._open:
            raise InvariantError(f"dispatcher {work.dispatcher} is open already")
        seen_ts = None
        if work.is_difference:
            # The table is read when this returns: the maintainer looks whether it is still the same.
            found = self._open_lake().open(work.table.schema, work.table.table)
            seen_ts = 0 if found is None else found.mark.window_ts
        self._open[work.dispatcher] = _Dispatcher(DispatcherRows(work, self._target, self._shape, self._submit, seen_ts))

    def add_dml_event(self, event: DmlEvent) -> None:
        """Queue an event."""
        self._check()
        state = self._dispatcher(event.dispatcher)
        if state.end is not None:
            raise InvariantError(f"dispatcher {event.dispatcher} is sealed")
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < state.last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            state.last_ts = int(ts[-1])
        state.count += len(ts)
        self._steps.put(lambda: self._take(state, event))

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Have everything durable that the dispatcher was given before."""
        state = self._dispatcher(dispatcher)
        self._wait(self._ask(lambda: self._drain(state)))

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Take note of the table's new version; the maintainer changes the table where it commits the window."""
        self._check()
        state = self._dispatcher(dispatcher)
        newest = next((t for t in event.tables if t.table_id == dispatcher.table_id), None)
        if newest is not None:
            self._wait(self._ask(lambda: state.rows.note_version(newest)))
        return ()

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Have the rest written while other dispatchers go on."""
        self._check()
        state = self._dispatcher(dispatcher)
        if state.end is None:
            state.end = self._ask(lambda: self._finish(state))

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Write what is left of the window; return the files that wait for the maintainer."""
        self.seal_dispatcher(dispatcher)
        state = self._dispatcher(dispatcher)
        assert state.end is not None
        message = self._wait(state.end)
        del self._open[dispatcher]
        files = tuple(WrittenFile(f.path, f.rows, f.nbytes) for segment in message.segments for f in segment.files)
        nbytes = sum(f.nbytes for f in files)
        return DispatcherResult(dispatcher, {}, state.count, nbytes, files, message.to_json())

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have this called once the sink has failed."""
        with self._lock:
            if self._failure is None:
                self._listeners.append(callback)
                return
        callback()

    def report(self) -> TaskReport:
        """Return that nothing was counted beside rows, bytes and files."""
        return TaskReport()

    def close(self) -> None:
        """End all threads; files that no result names stay until they expire."""
        self._fail(PenstockError("CANCELLED", "the sink is closed"))
        self._steps.put(None)
        self._thread.join()
        self._writers.shutdown(cancel_futures=True)
        self._open.clear()

    def _take(self, state: _Dispatcher, event: DmlEvent) -> None:
        state.rows.add(event.table, event.records)
        if event.post_flush is not None:
            state.flushed.append(event.post_flush)
        if event.post_enqueue is not None:
            event.post_enqueue()

    def _drain(self, state: _Dispatcher) -> None:
        state.rows.drain()
        told, state.flushed = state.flushed, []
        for tell in told:
            tell()

    def _finish(self, state: _Dispatcher) -> DispatcherMessage:
        self._drain(state)
        return state.rows.message()

    def _submit(self, write: Callable[[], object]) -> Written:
        """Have files written by another thread, unless too many are under way: then wait."""
        self._room.acquire()
        try:
            job: Written = self._writers.submit(write)  # type: ignore[arg-type]
        except BaseException:
            self._room.release()
            raise
        job.add_done_callback(lambda _: self._room.release())
        return job

    def _ask(self, step: Callable[[], T]) -> Future[T]:
        """Have a step done behind all others."""
        self._check()
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(step())
            except BaseException as error:
                answer.set_exception(error)
                raise

        self._steps.put(run)
        return answer

    def _wait(self, answer: Future[T]) -> T:
        """Wait for a step; raise the failure where the sink failed before it came to it."""

        def give_up() -> None:
            answer.cancel()

        self.on_failure(give_up)
        try:
            return answer.result()
        except BaseException:
            self._check()
            raise

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            if self._failure is None:
                try:
                    step()
                except BaseException as error:  # noqa: BLE001 - whatever it is, the caller raises it
                    self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _dispatcher(self, dispatcher: DispatcherId) -> _Dispatcher:
        if dispatcher not in self._open:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return self._open[dispatcher]
