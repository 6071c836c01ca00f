"""The Kafka sink inside one task: rows become messages, and a transaction for each dispatcher makes them and its progress visible.

The steps of a dispatcher's window (rows, and DDLs between them) are counted in their order, which is the same for every attempt. An attempt
reads how many are in the target, after it has fenced every other one, and writes those behind them. Large windows are cut into several
transactions, so that none is open for long. An attempt that is fenced itself waits for the other to reach the same step.
Invariants: messages of one dispatcher are committed in their order, each step once; *flushed* fires after the commit. Runs on executors.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
import pyarrow as pa

from penstock.format.file_rows import PreparedRows
from penstock.model.batch import commit_ts_array
from penstock.model.clock import Clock, SystemClock
from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport
from penstock.sink.kafka.claim_check import ClaimCheck
from penstock.sink.kafka.clients import KafkaAddress, OvertakenError
from penstock.sink.kafka.control import ddl_message
from penstock.sink.kafka.encode.messages import TableMessages
from penstock.sink.kafka.encode.registry import SchemaRegistry
from penstock.sink.kafka.lanes import Lanes
from penstock.sink.kafka.progress import Progress, dispatcher_name, found_progress
from penstock.sink.kafka.settings import Announce, Format, OnDoubt
from penstock.sink.kafka.topics import Topics
from penstock.sink.kafka.transactions import KEPT, Stream
from penstock.sink.kafka.witness import newest_row_ts
from penstock.target.kind import SinkRun

_LANES = 4
TRANSACTION_BYTES = 64 << 20
"""A transaction with more than this is committed before the next event: its readers need not wait for a whole snapshot."""
_AGE_DIVISOR = 4
_POLL_S = 0.1


@dataclass
class _Dispatcher:
    work: DispatcherWork
    lane: int
    rows: PreparedRows
    last_ts: int = 0
    stream: Stream | None = None
    done: Progress | None = None
    """What is committed; None until that was asked for."""
    steps: int = 0
    """Steps that this attempt has come to, those that were skipped too."""
    added_rows: int = 0
    added_bytes: int = 0
    dirty: bool = False
    begun_s: float = 0.0
    overtaken: bool = False
    flushes: list[Callable[[], None]] = field(default_factory=list)
    sealed: Future[None] | None = None
    tables: dict[int, TableMessages] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    """Those of the topics that this window has rows for."""


class KafkaSink:
    """The sink of one task; implements ``penstock.sink.contract.Sink``."""

    def __init__(self, address: KafkaAddress, run: SinkRun, guard: Callable[[], None] | None = None, clock: Clock | None = None) -> None:
        self._address = address
        self._settings = address.settings
        self._run = run
        self._guard = guard
        self._clock = clock or SystemClock()
        self._topics = Topics(address, self._clock)
        self._claims = ClaimCheck(self._settings.claim_check, guard)
        self._open: dict[DispatcherId, _Dispatcher] = {}
        self._numbers = itertools.count()
        self._age_s = self._settings.transaction_timeout_ms / 1000 / _AGE_DIVISOR
        self._lanes = Lanes(_LANES, self._idle, self._age_s)

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        self._lanes.check()
        lane = next(self._numbers) % _LANES
        self._open[work.dispatcher] = _Dispatcher(work, lane, PreparedRows(self._settings.data_format, split_key_updates=True))

    def add_dml_event(self, event: DmlEvent) -> None:
        """Queue the event in its dispatcher's lane."""
        state = self._dispatcher(event.dispatcher)
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < state.last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            state.last_ts = int(ts[-1])
        self._lanes.submit(state.lane, lambda: self._take(state, event))

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Commit everything that came before the DDL."""
        state = self._dispatcher(dispatcher)
        self._lanes.wait(self._lanes.submit(state.lane, lambda: self._drain(state)))

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Write a DDL between the rows of a dispatcher, as a step of its own."""
        state = self._dispatcher(dispatcher)
        self._lanes.wait(self._lanes.submit(state.lane, lambda: self._write_ddl(state, event)))
        return (self._address.topics.control,)

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Begin to commit the rest."""
        state = self._dispatcher(dispatcher)
        if state.sealed is None:
            state.sealed = self._lanes.submit(state.lane, lambda: self._finish(state))

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Commit what is left, and return what was done."""
        state = self._dispatcher(dispatcher)
        self.seal_dispatcher(dispatcher)
        assert state.sealed is not None
        self._lanes.wait(state.sealed)
        del self._open[dispatcher]
        done = state.done or Progress()
        return DispatcherResult(dispatcher, dict(state.work.position), done.rows, done.nbytes)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have this called once the sink has failed."""
        self._lanes.on_failure(callback)

    def report(self) -> TaskReport:
        """Return that nothing was measured beside what results tell."""
        return TaskReport()

    def close(self) -> None:
        """Drop what was not committed."""
        self._lanes.close()
        for state in self._open.values():
            if state.stream is not None:
                state.stream.close()
        self._open.clear()

    def _dispatcher(self, dispatcher: DispatcherId) -> _Dispatcher:
        self._lanes.check()
        if dispatcher not in self._open:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return self._open[dispatcher]

    def _take(self, state: _Dispatcher, event: DmlEvent) -> None:
        for table, rows in state.rows.add(event.table, event.records):
            self._write(state, table, rows)
        if event.post_flush is not None:
            state.flushes.append(event.post_flush)
        if event.post_enqueue is not None:
            event.post_enqueue()
        if state.added_bytes >= TRANSACTION_BYTES or (state.dirty and self._clock.monotonic_s() > state.begun_s + self._age_s):
            self._commit(state)

    def _idle(self, lane: int) -> None:
        """Commit what waits for rows that do not come, before the brokers give its transaction up."""
        for state in list(self._open.values()):
            if state.lane == lane and state.dirty:
                self._commit(state)

    def _write(self, state: _Dispatcher, table: TableSchema, rows: pa.RecordBatch) -> None:
        """Write the rows that are not in the target yet."""
        if not rows.num_rows:
            return
        done = self._progress(state)
        skipped = min(max(done.steps - state.steps, 0), rows.num_rows)
        state.steps += rows.num_rows
        if skipped == rows.num_rows or state.overtaken:
            return
        with _overtaking(state):
            stream = self._stream(state)
            made = self._messages(state, stream, table)
            encoded = made.encode(rows.slice(skipped))
            for at in encoded.large:
                encoded.values[at] = self._claims.put(made.topic, encoded.values[at], self._settings.max_message_bytes)
            self._begin(state)
            stream.write(made.messages(encoded))
            state.added_rows += rows.num_rows - skipped
            state.added_bytes += encoded.nbytes

    def _write_ddl(self, state: _Dispatcher, event: DdlEvent) -> None:
        if self._settings.ddls is Announce.NONE:
            return None
        done = self._progress(state)
        state.steps += 1
        if done.steps >= state.steps or state.overtaken:
            return self._commit(state)
        with _overtaking(state):
            stream, topics = self._stream(state), self._address.topics
            places = [(topics.control, 0)]
            if self._settings.ddls is Announce.PARTITIONS:
                names = sorted({topics.of(t.schema, t.table) for t in event.tables})
                places += [(name, at) for name in names for at in range(self._topics.partitions(stream, name))]
            self._begin(state)
            stream.write(ddl_message(self._settings, self._run.feed, name, at, event) for name, at in places)
        return self._commit(state)

    def _begin(self, state: _Dispatcher) -> None:
        if not state.dirty:
            state.dirty, state.begun_s = True, self._clock.monotonic_s()

    def _drain(self, state: _Dispatcher) -> None:
        for table, rows in state.rows.finish():
            self._write(state, table, rows)
        self._commit(state)

    def _finish(self, state: _Dispatcher) -> None:
        self._drain(state)
        if state.stream is not None:
            KEPT.give_back(self._address, state.stream)
            state.stream = None

    def _commit(self, state: _Dispatcher) -> None:
        """Make what was written durable, or see that another attempt has."""
        if state.dirty and not state.overtaken:
            with _overtaking(state):
                self._commit_own(state)
        if state.overtaken and state.steps > (state.done or Progress()).steps:
            self._await_other(state)
        state.dirty, state.added_rows, state.added_bytes = False, 0, 0
        if not state.rows.holding:
            flushes, state.flushes = state.flushes, []
            for flushed in flushes:
                flushed()

    def _commit_own(self, state: _Dispatcher) -> None:
        done, stream = state.done, state.stream
        assert done is not None
        assert stream is not None
        if self._guard is not None:
            self._guard()
        ahead = msgspec.structs.replace(done, steps=state.steps, rows=done.rows + state.added_rows, nbytes=done.nbytes + state.added_bytes)
        # Topics that this window has no rows for are those of names that the table had before.
        by = {"partitions": state.partitions, "rule": self._settings.partition_rule} if state.partitions else {}
        ahead = msgspec.structs.replace(ahead, epoch=self._run.epoch, by=stream.id, **by)
        stream.commit(state.work.to_ts, msgspec.json.encode(ahead).decode())
        state.done = ahead

    def _await_other(self, state: _Dispatcher) -> None:
        """Wait until the attempt that fenced this one has done as many steps; it writes the same."""
        name = self._name(state)
        watcher = Stream(self._address, name)
        limit = self._clock.monotonic_s() + (self._settings.transaction_timeout_ms + self._settings.request_timeout_ms) / 1000
        try:
            while True:
                text = watcher.progress()[1]
                found = decoded(text.encode(), Progress) if text else Progress()
                if found.to_ts == state.work.to_ts and found.steps >= state.steps:
                    state.done = found
                    return
                if found.to_ts > state.work.to_ts or self._clock.monotonic_s() > limit:
                    text = f"{name}: another attempt has taken this over at step {state.steps}, and stands at {found.steps}"
                    raise PenstockError("SINK_UNAVAILABLE", text)
                self._lanes.check()
                self._clock.wait(threading.Event(), _POLL_S)
        finally:
            watcher.close()

    def _progress(self, state: _Dispatcher) -> Progress:
        """Return what is in the target of the dispatcher's window; asked once, after everybody else was fenced."""
        if state.done is None:
            state.done = Progress(state.work.from_ts, state.work.to_ts, epoch=self._run.epoch)
            with _overtaking(state):
                stream = self._stream(state)
                # The first look hinders nobody: one that is overtaken must not fence the one that has overtaken it.
                self._topics.partitions(stream, self._address.topics.control)
                state.done = self._found(state, stream)
                if stream.rested and state.done.by != stream.id:
                    stream.begin_anew()
                if stream.fence():
                    state.done = self._found(state, stream)
                if not state.done.by:
                    self._check_not_there(state, stream)
        return state.done

    def _found(self, state: _Dispatcher, stream: Stream) -> Progress:
        return found_progress(stream.progress()[1], self._run, state.work.from_ts, state.work.to_ts, stream.name)

    def _check_not_there(self, state: _Dispatcher, stream: Stream) -> None:
        """Raise where brokers know of no progress of the dispatcher, and its topic has rows of the window all the same."""
        settings, work = self._settings, state.work
        # Rows of other dispatchers, and those from before a table began again, tell nothing.
        own = work.dispatcher.spans == 1 and work.from_ts != TS_ZERO and {"schema", "table"} <= settings.topic_places
        if not (own and settings.headers and settings.doubts_progress):
            return
        topic = self._address.topics.of(work.table.schema, work.table.table)
        newest = newest_row_ts(self._address, topic, self._topics.partitions(stream, topic), self._run.feed)
        if newest > work.from_ts:
            found = f"topic {topic} has rows up to {newest}, of the window from {work.from_ts}"
            raise PenstockError("SINK_PROGRESS_LOST", f"{stream.name}: nothing says how far this is, and {found}")

    def _stream(self, state: _Dispatcher) -> Stream:
        if state.stream is None:
            state.stream = KEPT.take(self._address, self._name(state))
        return state.stream

    def _messages(self, state: _Dispatcher, stream: Stream, table: TableSchema) -> TableMessages:
        found = state.tables.get(table.version)
        if found is None:
            topic = self._address.topics.of(table.schema, table.table)
            count = self._topics.partitions(stream, topic)
            self._check_partitions(state, topic, count)
            found = state.tables[table.version] = TableMessages(
                self._settings, table, topic, count, self._run.feed, registry_of(self._address)
            )
        return found

    def _check_partitions(self, state: _Dispatcher, topic: str, count: int) -> None:
        """Raise where keys would go to other partitions than they went to, unless that is what was chosen."""
        done, rule = state.done or Progress(), self._settings.partition_rule
        known, wrong = done.partitions | state.partitions, ""
        if known.get(topic, count) != count:
            wrong = f"topic {topic} has {count} partitions and had {known[topic]}"
        elif topic in done.partitions and rule != done.rule:
            wrong = f"partitions of topic {topic} are by {rule}, and were by {done.rule}"
        if wrong and self._settings.new_partitions is not OnDoubt.GO_ON:
            hint = "Let readers come to the end of the topic, then set sink.new-partitions = go-on."
            raise PenstockError("SINK_UNWRITABLE", f"{wrong}: changes of one key would be in two of them", hint)
        state.partitions[topic] = count

    def _name(self, state: _Dispatcher) -> str:
        return dispatcher_name(self._address.topics.control, self._run.feed, state.work.dispatcher)


@lru_cache(maxsize=16)
def registry_of(address: KafkaAddress) -> SchemaRegistry | None:
    """Return the schema registry of a target of Avro, the same for every task of a process."""
    if address.settings.protocol is not Format.AVRO:
        return None
    timeout_s = address.settings.request_timeout_ms / 1000
    return SchemaRegistry(address.parameter("schema-registry"), address.parameter("schema-registry-ca"), timeout_s)


class _overtaking:  # noqa: N801
    """Notes that another attempt has fenced this one, whose stream is of no use any more."""

    def __init__(self, state: _Dispatcher) -> None:
        self._state = state

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, OvertakenError):
            self._state.overtaken = True
            stream, self._state.stream = self._state.stream, None
            if stream is not None:
                stream.close()
                if stream.rested:
                    # Somebody fenced it while it rested, and need not be there any more: nobody to wait for.
                    raise PenstockError("SINK_UNAVAILABLE", f"{stream.name}: another attempt had this name meanwhile") from error
            return True
        return False
