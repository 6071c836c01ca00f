"""The HTTP sink inside one Spark task: an encoder thread makes messages of rows, and lanes post them.

The way of an event: ``add_dml_event`` queues it; the encoder adds its rows to the bodies of their lanes and hands on those that are full,
which is when it may have to wait, then *enqueued* fires. *Flushed* fires when the dispatcher is drained. Invariants: a repeated attempt
of a window makes the same messages, with the same ids; after a failure neither acknowledgement fires and every call raises. Runs on
executors.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.model.batch import commit_ts_array
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.metrics.names import DEAD_LETTERS
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.http.batches import LaneBatches
from penstock.sink.http.dead_letters import DeadLetters
from penstock.sink.http.delivery import Delivery
from penstock.sink.http.lanes import Lanes
from penstock.sink.http.messages import DDL_LANE, Message, Place, ddl_message, sequence_of
from penstock.sink.http.settings import Address, HttpSettings
from penstock.target.storage import Guard


@dataclass(slots=True)
class _Dispatcher:
    batches: LaneBatches
    rows: int = 0
    nbytes: int = 0
    last_ts: int = 0
    ddls: dict[int, int] = field(default_factory=dict)
    flushed: list[Callable[[], None]] = field(default_factory=list)
    end: threading.Event | None = None


class HttpSink:
    """Posts the windows of dispatchers; implements ``penstock.sink.contract.Sink``."""

    def __init__(
        self,
        address: Address,
        settings: HttpSettings,
        feed: str,
        guard: Guard | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._feed = feed
        self._latch = FailureLatch()
        self._letters = DeadLetters.at(settings.dead_letter, feed, guard, settings.dead_letters_max) if settings.dead_letter else None
        clock, rng = clock or SystemClock(), rng or system_random()
        self._lanes = Lanes(settings.lanes, lambda: Delivery(address, settings, clock, rng, guard, self._letters), self._latch)
        self._dispatchers: dict[DispatcherId, _Dispatcher] = {}
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._encoder = threading.Thread(target=self._encode, name="http-encoder", daemon=True)
        self._encoder.start()
        self._closed = False

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        self._latch.check()
        if work.dispatcher in self._dispatchers:
            raise InvariantError(f"dispatcher {work.dispatcher} is open already")
        self._dispatchers[work.dispatcher] = _Dispatcher(LaneBatches(work, self._settings, self._feed))

    def add_dml_event(self, event: DmlEvent) -> None:
        """Queue an event for the encoder."""
        self._latch.check()
        state = self._dispatcher(event.dispatcher)
        if state.end is not None:
            raise InvariantError(f"dispatcher {event.dispatcher} is sealed")
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < state.last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            state.last_ts = int(ts[-1])
        if event.post_flush is not None:
            state.flushed.append(event.post_flush)
        self._work.put(lambda: self._take(state, event))

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Drain everything that the dispatcher was given before the DDL."""
        self._drain(self._dispatcher(dispatcher), self._flush(self._dispatcher(dispatcher)))

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Post a DDL that this dispatcher alone is involved in."""
        self._latch.check()
        state = self._dispatcher(dispatcher)
        if not self._settings.ddl:
            return ()
        number = state.ddls[event.commit_ts] = state.ddls.get(event.commit_ts, 0) + 1
        place = Place(self._feed, f"{dispatcher}/{DDL_LANE}", sequence_of(event.commit_ts, number))
        message = ddl_message(self._settings, place, event)
        self._lanes.put(0, message)
        self._lanes.drain()
        return (message.id,)

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Hand on what is left of the window while other dispatchers go on."""
        state = self._dispatcher(dispatcher)
        if state.end is None:
            state.end = self._flush(state)

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Wait until the window is taken; return what was done."""
        self.seal_dispatcher(dispatcher)
        state = self._dispatcher(dispatcher)
        assert state.end is not None
        self._drain(state, state.end)
        del self._dispatchers[dispatcher]
        return DispatcherResult(dispatcher, {}, state.rows, state.nbytes)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have this called once the sink has failed."""
        self._latch.listen(callback)

    def report(self) -> TaskReport:
        """Return how many messages became dead letters."""
        count = 0 if self._letters is None else self._letters.count
        return TaskReport({DEAD_LETTERS.key: float(count)} if count else {})

    def close(self) -> None:
        """End all threads; what was not taken comes again with the next attempt."""
        if not self._closed:
            self._closed = True
            self._latch.trip(PenstockError("CANCELLED", "the sink is closed"))
            self._work.put(None)
            self._encoder.join()
            self._lanes.join()
            self._dispatchers.clear()

    def _flush(self, state: _Dispatcher) -> threading.Event:
        """Have the encoder hand on everything that the dispatcher has; return what tells that it has."""
        done = threading.Event()

        def hand_on() -> None:
            self._hand_on(state, state.batches.finish())
            done.set()

        self._latch.listen(done.set)
        self._work.put(hand_on)
        return done

    def _drain(self, state: _Dispatcher, encoded: threading.Event) -> None:
        encoded.wait()
        self._latch.check()
        self._lanes.drain()
        told, state.flushed = state.flushed, []
        for tell in told:
            tell()

    def _take(self, state: _Dispatcher, event: DmlEvent) -> None:
        self._hand_on(state, state.batches.add(event.table, event.records))
        if event.post_enqueue is not None:
            event.post_enqueue()

    def _hand_on(self, state: _Dispatcher, messages: Iterable[tuple[int, Message]]) -> None:
        for lane, message in messages:
            state.rows += message.rows
            state.nbytes += len(message.body)
            self._lanes.put(lane, message)

    def _encode(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                self._latch.check()
                work()
        except BaseException as error:  # noqa: BLE001 - whatever ends a thread ends the sink
            self._latch.trip(error if isinstance(error, PenstockError) else InvariantError(f"the encoder failed: {error!r}"))

    def _dispatcher(self, dispatcher: DispatcherId) -> _Dispatcher:
        state = self._dispatchers.get(dispatcher)
        if state is None:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return state
