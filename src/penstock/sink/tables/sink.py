"""The sink of targets that are tables, inside one Spark task: the facade over workers, each a thread with connections of its own.

The way of an event: ``add_dml_event`` queues it for the worker of its dispatcher, which takes it over (*enqueued*), gathers rows and
applies them in transactions (*flushed*). A DDL of a dispatcher takes the same way and is waited for. Invariants: everything of one
dispatcher goes through one worker in order; after a failure neither acknowledgement fires, nothing more is applied, and every call raises.
Runs on executors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import commit_ts_array
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.tables.books import Books
from penstock.sink.tables.database import Database, Guard, Patience, Transactions
from penstock.sink.tables.settings import TableSinkSettings
from penstock.sink.tables.structure import Structure
from penstock.sink.tables.whole_transactions import HeldRows, apply_whole
from penstock.sink.tables.worker import DispatcherWriter, Gathering, TableEngine
from penstock.target.kind import SinkRun

Job = Callable[[DispatcherWriter], None]


@dataclass(slots=True)
class _Dispatcher:
    """The state of an open dispatcher, as its caller sees it."""

    gathering: Gathering
    worker: _Worker
    rows: int = 0
    nbytes: int = 0
    last_ts: int = 0
    held: list[tuple[TableSchema, pa.RecordBatch]] | None = None
    """Its rows, where they are applied with those of all other tables."""
    told: list[Callable[[], None]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    sealed: bool = False


class TableSink:
    """Writes the windows of dispatchers into tables; implements ``penstock.sink.contract.Sink``."""

    def __init__(
        self, database: Database, settings: TableSinkSettings, run: SinkRun, guard: Guard | None = None, patience: Patience | None = None
    ) -> None:
        books = Books(database, settings)
        self._engine = TableEngine(database, settings, books, Structure(database, settings, books), run)
        self._guard, self._patience = guard, patience
        self._stop = threading.Event()
        self._latch = FailureLatch()
        self._told = self._latch.condition()
        self._workers: list[_Worker] = []
        self._dispatchers: dict[DispatcherId, _Dispatcher] = {}
        self._opened = 0

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        self._latch.check()
        if work.dispatcher in self._dispatchers:
            raise InvariantError(f"dispatcher {work.dispatcher} is open already")
        if len(self._workers) < self._engine.settings.connections:
            self._workers.append(_Worker(self._engine, self._open_transactions, self._latch, self._told))
        worker = self._workers[self._opened % len(self._workers)]
        self._opened += 1
        # A first state is of no transaction: it goes by itself.
        held = self._engine.settings.indexes_transactions and work.from_ts != TS_ZERO
        state = self._dispatchers[work.dispatcher] = _Dispatcher(Gathering(work), worker, held=[] if held else None)
        if work.is_difference:
            # What the target holds is read when this returns.
            self._wait(state, lambda writer: writer.begin_difference(state.gathering))

    def add_dml_event(self, event: DmlEvent) -> None:
        """Queue an event for its worker."""
        self._latch.check()
        state = self._dispatcher(event.dispatcher)
        if state.sealed:
            raise InvariantError(f"dispatcher {event.dispatcher} is sealed")
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < state.last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            state.last_ts = int(ts[-1])
        state.rows += len(ts)
        state.nbytes += _bytes_of(event.records)
        if state.held is not None:
            state.held.append((event.table, event.records))
            state.told += [event.post_flush] if event.post_flush is not None else []
            if event.post_enqueue is not None:
                event.post_enqueue()
            return

        def take(writer: DispatcherWriter) -> None:
            if event.post_enqueue is not None:
                event.post_enqueue()
            writer.add(state.gathering, event.table, event.records, event.post_flush)

        state.worker.submit(take)

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Apply everything that the dispatcher was given before the DDL."""
        state = self._dispatcher(dispatcher)
        if state.held is not None:
            raise InvariantError(f"dispatcher {dispatcher}: a DDL inside a window whose transactions are applied whole")
        self._wait(state, lambda writer: writer.flush(state.gathering))

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Apply a DDL that this dispatcher alone is involved in."""
        state = self._dispatcher(dispatcher)
        if state.last_ts > event.commit_ts:
            raise InvariantError(f"dispatcher {dispatcher} has rows beyond the DDL at {event.commit_ts}")
        done: list[str] = []
        self._wait(state, lambda writer: done.extend(writer.alter(state.gathering, event)))
        return done

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Apply the rest of the window while other dispatchers go on."""
        state = self._dispatcher(dispatcher)
        if not state.sealed:
            state.sealed = True
            if state.held is not None:
                return

            def end(writer: DispatcherWriter) -> None:
                writer.end(state.gathering)
                state.ended.set()

            state.worker.submit(end)

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Apply the rest of the window and return what was done."""
        self.seal_dispatcher(dispatcher)
        state = self._dispatcher(dispatcher)
        if state.held is not None and not state.ended.is_set():
            self._apply_held()
        self._wait_for(state.ended)
        del self._dispatchers[dispatcher]
        return DispatcherResult(dispatcher, dict(state.gathering.work.position), state.rows, state.nbytes)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have this called once the sink has failed."""
        self._latch.listen(callback)

    def report(self) -> TaskReport:
        """Return that nothing was measured."""
        return TaskReport()

    def close(self) -> None:
        """End all threads; what was not applied is dropped and comes again with the next attempt."""
        self._latch.trip(PenstockError("CANCELLED", "the sink is closed"))
        self._stop.set()
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        self._dispatchers.clear()

    def _apply_held(self) -> None:
        """Apply the rows of all dispatchers whose transactions are applied whole; all of them are sealed by now."""
        states = [state for state in self._dispatchers.values() if state.held is not None]
        if not all(state.sealed for state in states):
            raise InvariantError("a dispatcher is closed before all others have their rows, which transactions may share")
        held = [HeldRows(state.gathering, state.held) for state in states if state.held]
        if held:
            self._wait(states[0], lambda writer: apply_whole(writer, held))
        for state in states:
            state.ended.set()
            for tell in state.told:
                tell()

    def _open_transactions(self) -> Transactions:
        engine = self._engine
        return Transactions(engine.database, self._guard, self._patience, self._stop, make_ready=engine.books.ensure)

    def _wait(self, state: _Dispatcher, job: Job) -> None:
        done = threading.Event()

        def do(writer: DispatcherWriter) -> None:
            job(writer)
            done.set()

        state.worker.submit(do)
        self._wait_for(done)

    def _wait_for(self, event: threading.Event) -> None:
        """Wait for what a worker does; raise the failure if it comes first."""
        with self._latch.lock:
            self._latch.wait_for(self._told, event.is_set)

    def _dispatcher(self, dispatcher: DispatcherId) -> _Dispatcher:
        state = self._dispatchers.get(dispatcher)
        if state is None:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return state


class _Worker:
    """One thread and its queue. What it is given is bounded by its caller's wake gate."""

    def __init__(
        self, engine: TableEngine, open_transactions: Callable[[], Transactions], latch: FailureLatch, told: threading.Condition
    ) -> None:
        self._engine, self._open, self._latch, self._told = engine, open_transactions, latch, told
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="table-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._latch.check()
        self._jobs.put(job)

    def join(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        writer: DispatcherWriter | None = None
        try:
            while (job := self._jobs.get()) is not None and self._latch.error is None:
                if writer is None:
                    writer = DispatcherWriter(self._engine, self._open)
                job(writer)
                with self._latch.lock:
                    self._told.notify_all()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the task fails by it
            self._latch.trip(error)
        finally:
            if writer is not None:
                writer.close()


def _bytes_of(records: pa.RecordBatch) -> int:
    """Return the size of the values of rows, however they are cut."""
    total = 0
    for column in records.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            total += int(pc.sum(pc.binary_length(column)).as_py() or 0)
        else:
            total += column.type.bit_width * len(column) // 8
    return total
