"""Data server, puller and store in one process under a seeded scheduler: what happened can be replayed, step by step.

The real engine and change streams of the data server, the real puller and span pipeline; threads, time and the network are simulated.
Apart from each other: the workload (transactions), the faults, and the checkers, which only look on. Runs in tests.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pyarrow as pa

from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import full_span, table_prefix
from penstock.model.span import Span
from penstock.puller import quota, span_pipeline
from penstock.puller.ranged import event_processor, log_puller, region_worker, request_cache, subscribed_span
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.ranged.region_worker import RegionWorkerSettings
from penstock.puller.span_pipeline import Finish, Payload, Registration, SpanPipeline, SpanPipelineSettings
from penstock.source.dataserver.engine import engine as engine_module
from penstock.source.dataserver.engine.engine import Engine, EngineSettings
from penstock.source.dataserver.rowcodec import encode_values
from penstock.source.dataserver.service import eventfeed
from penstock.source.dataserver.service.eventfeed import EventFeedSettings, Stream
from penstock.source.ranged import RangeInfo
from penstock.source.raw import RawBatch
from testing.checks.interleaving import Interleaving

MODULES = (event_processor, log_puller, quota, region_worker, request_cache, span_pipeline, subscribed_span, engine_module, eventfeed)
KEYS = 40
STORES = 3
ON_THE_WAY_MAX = 8
GIVE_UP_S = 300.0
Row = tuple[int, bytes, bytes | None, bytes | None]


class CutError(grpc.RpcError):
    """A stream that broke."""


# -- checkers: they look on, and know nothing of the workload's dice


class Checkers:
    """What must hold at every step. A broken rule is noted, and fails the run at its end."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def check(self, holds: bool, message: str) -> None:
        """Note a rule that does not hold."""
        if not holds:
            self.broken.append(message)


class CheckedPipeline(SpanPipeline):
    """The span pipeline, watched at its entrance: which batches came before which resolved ts."""

    def __init__(self, settings: SpanPipelineSettings, clock: Any, checkers: Checkers) -> None:
        super().__init__(settings, clock)
        self._checkers = checkers
        self._arrived: dict[Registration, set[int]] = {}
        self._barriers: dict[Registration, list[tuple[int, set[int]]]] = {}
        self._alive: list[Payload] = []

    def enqueue_data(self, registration: Registration, batch: Payload) -> bool:
        """Hand over a batch, and note that it came."""
        self._alive.append(batch)
        taken = super().enqueue_data(registration, batch)
        if taken:
            self._arrived.setdefault(registration, set()).add(id(batch))
        return taken

    def enqueue_resolved(self, registration: Registration, ts: int) -> bool:
        """Hand over a resolved ts, and note which batches came before."""
        before = set(self._arrived.get(registration, ()))
        self._barriers.setdefault(registration, []).append((ts, before))
        return super().enqueue_resolved(registration, ts)

    def on_advance(self, registration: Registration, ts: int, persisted: set[int]) -> None:
        """Check the contract: all that came before a resolved ts is persisted when it is advanced."""
        for barrier_ts, before in self._barriers.get(registration, ()):
            if barrier_ts <= ts:
                missing = len(before - persisted)
                self._checkers.check(missing == 0, f"advance to {ts}: {missing} batches that came before {barrier_ts} are not persisted")
        held, limit = self.quota.held_bytes, self.settings.quota_bytes
        self._checkers.check(held <= limit or self.quota.holders == 1, f"{held} bytes in flight, {limit} allowed")


# -- the parts that a run is made of


class Upstream:
    """Where ranges are, asked of the engine directly; now and then nobody answers."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng
        self.failing = 0.0

    def current_ts(self) -> int:
        """Return the ts of the engine."""
        return self._engine.current_ts()

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return full keys."""
        return full_span(span)

    def ranges(self, span: Span) -> list[RangeInfo]:
        """Return the ranges of a span."""
        if self._rng.random() < self.failing:
            raise PenstockError("UPSTREAM_UNREACHABLE", "nobody answers")
        return self._engine.list_ranges(*full_span(span))


class Network:
    """Channels to the stores. Streams are cut, truncated, or stand still; stores crash and come back."""

    def __init__(self, sim: Interleaving, engine: Engine, rng: random.Random, settings: EventFeedSettings) -> None:
        self.sim = sim
        self.rng = rng
        self.probability = 0.0
        self.down: set[str] = set()
        self._engine = engine
        self._settings = settings
        self._calls: list[Call] = []

    def channel(self, address: str) -> Any:
        """Return a channel to a store."""
        return Channel(self, address)

    def open(self, address: str, requests: Iterator[Any]) -> Call:
        """Open a change stream."""
        call = Call(self, address, Stream(self._engine, int(address), self._settings), requests)
        self._calls.append(call)
        return call

    def crash(self, address: str) -> None:
        """End all streams of a store and refuse new ones."""
        self.down.add(address)
        for call in self._calls:
            if call.address == address:
                call.break_off()

    def restart(self, address: str) -> None:
        """Accept streams again."""
        self.down.discard(address)


class Channel:
    """A channel, as far as a region worker uses it."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address

    def stream_stream(self, _method: str, **_: Any) -> Callable[..., Call]:
        """Return what opens a stream."""
        return lambda requests, **_: self._network.open(self._address, requests)

    def close(self) -> None:
        """Do nothing: calls are cancelled one by one."""


class Call:
    """An open stream, with the threads that gRPC would have: one for requests, one for messages, of which some are on the way."""

    def __init__(self, network: Network, address: str, stream: Stream, requests: Iterator[Any]) -> None:
        self.address = address
        self._network = network
        self._stream = stream
        self._broken = False
        self._cancelled = network.sim.threading.Event()
        self._on_the_way: deque[bytes] = deque()
        self._ended = False
        self._changed = network.sim.threading.Condition()
        network.sim.threading.Thread(target=self._send, args=(requests,), name=f"send-{address}").start()
        network.sim.threading.Thread(target=self._bring, name=f"bring-{address}").start()

    def __iter__(self) -> Iterator[bytes]:
        network = self._network
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._on_the_way or self._ended)
                if not self._on_the_way or self._broken or self.address in network.down:
                    break
                payload = self._on_the_way.popleft()
                self._changed.notify_all()
            fault = network.rng.random()
            if fault >= network.probability:
                yield payload
            elif fault < network.probability / 3:
                yield payload[: network.rng.randrange(len(payload))]
                break
            elif fault < network.probability / 2:
                # Nothing more comes, and nobody says so: the puller's watchdog must notice.
                self._cancelled.wait()
                break
            else:
                break
        self.break_off()
        raise CutError

    def cancel(self) -> None:
        """End the stream from the client's side."""
        self._cancelled.set()
        self.break_off()

    def break_off(self) -> None:
        """End the stream from the store's side; what is on the way is lost."""
        self._stream.close()
        with self._changed:
            self._broken = self._ended = True
            self._changed.notify_all()

    def _bring(self) -> None:
        for payload in self._stream.messages():
            with self._changed:
                self._changed.wait_for(lambda: len(self._on_the_way) < ON_THE_WAY_MAX or self._ended)
                self._on_the_way.append(payload)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _send(self, requests: Iterator[Any]) -> None:
        for request in requests:
            self._network.sim.threading.Event().wait(0.0)
            self._stream.handle(request)


class Store:
    """One span's place in an event store: persists slowly, in any order, sometimes twice; crashes and loses what was not persisted."""

    def __init__(self, sim: Interleaving, rng: random.Random, checkers: Checkers, pipeline: CheckedPipeline, start_ts: int) -> None:
        self.resolved_ts = start_ts
        self.rows: dict[tuple[int, bytes], Row] = {}
        self.failing = 0.0
        self.slow_s = 0.0
        self.subscription: Subscription | None = None
        self._sim = sim
        self._rng = rng
        self._checkers = checkers
        self._pipeline = pipeline
        self._waiting: list[tuple[Subscription, int, list[Row], Finish]] = []
        self._changed = sim.threading.Condition()
        self._closed = False
        self._thread = sim.threading.Thread(target=self._persist, name="persist")
        self._thread.start()

    def crash(self) -> None:
        """Lose what is not persisted; whoever subscribes next begins at the resolved ts. Callbacks of lost batches still come."""
        self._waiting = [(s, b, [], f) for s, b, _, f in self._waiting]

    def consume(self, subscription: Subscription, raw: RawBatch, finish: Finish) -> bool:
        """Take over a batch."""
        rows = [tuple(r.values()) for r in raw.entries.select(["commit_ts", "key", "value", "old_value"]).to_pylist()]
        checkers = self._checkers
        checkers.check(self.subscription is subscription, "consume after unsubscribe")
        checkers.check(all(r[0] > self.resolved_ts for r in rows), f"a row at or below the resolved ts {self.resolved_ts}")
        names = [(r[0], r[1]) for r in rows]
        checkers.check(subscription.delivered.isdisjoint(names) and len(set(names)) == len(names), "a row came twice in one subscription")
        if self._rng.random() < self.failing:
            raise PenstockError("STORE_FAILED", "disk full")
        subscription.delivered.update(names)
        with self._changed:
            self._waiting.append((subscription, id(raw), rows, finish))
            self._changed.notify_all()
        return True

    def advance(self, subscription: Subscription, ts: int) -> None:
        """Advance the resolved ts."""
        self._checkers.check(self.subscription is subscription, "advance after unsubscribe")
        self._checkers.check(ts > self.resolved_ts, f"the resolved ts went from {self.resolved_ts} to {ts}")
        self._pipeline.on_advance(subscription.registration(), ts, subscription.persisted)
        with self._changed:
            self.resolved_ts = ts
            self._changed.notify_all()

    def wait_resolved(self, ts: int) -> bool:
        """Wait until a ts is resolved."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self.resolved_ts >= ts, GIVE_UP_S))

    def drain(self) -> None:
        """Wait until every callback was made, then stop."""
        with self._changed:
            self._checkers.check(self._changed.wait_for(lambda: not self._waiting, GIVE_UP_S), "a batch was never persisted")
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _persist(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
            if self.slow_s:
                self._sim.pause(self._rng.random() * self.slow_s)
            with self._changed:
                subscription, batch, rows, finish = self._waiting.pop(self._rng.randrange(len(self._waiting)))
                self.rows.update({(r[0], r[1]): r for r in rows})
                subscription.persisted.add(batch)
                self._changed.notify_all()
            for _ in range(2 if self._rng.random() < 0.2 else 1):
                finish()


class Subscription:
    """One subscription of one span, and what is known of its rows."""

    def __init__(self, puller: LogPuller, span: Span, store: Store, failed: Callable[[Subscription], None]) -> None:
        self.delivered: set[tuple[int, bytes]] = set()
        self.persisted: set[int] = set()
        self.failures: list[PenstockError] = []
        self._puller = puller
        self._span = span
        self._failed = failed
        store.subscription = self
        puller.subscribe(
            span,
            store.resolved_ts,
            lambda raw, finish: store.consume(self, raw, finish),
            lambda ts: store.advance(self, ts),
            self._on_failed,
        )

    def registration(self) -> Registration:
        """Return its place in the pipeline."""
        return self._puller._spans[self._span.span_id].registration

    def _on_failed(self, error: PenstockError) -> None:
        self.failures.append(error)
        self._failed(self)


class Workload:
    """Random transactions on two tables, and the history that they make: the oracle."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng
        self.rows: dict[int, dict[tuple[int, bytes], Row]] = {}
        self._tables: dict[bytes, dict[bytes, bytes]] = {}
        self.spans: list[Span] = []
        self._values: dict[bytes, list[bytes]] = {}
        engine.execute_ddl("CREATE DATABASE d")
        for name in ("a", "b"):
            engine.execute_ddl(f"CREATE TABLE d.{name} (id BIGINT PRIMARY KEY, v TEXT)")
            table = engine.table("d", name)
            prefix = table_prefix(table.table_id)
            texts = pa.array([rng.randbytes(rng.randrange(30)).hex() for _ in range(16)])
            fields = [c.field_name for c in table.columns]
            self._values[prefix] = encode_values(table, {fields[0]: pa.array(range(16), pa.int64()), fields[1]: texts}).to_pylist()
            self._tables[prefix] = {}
            self.rows[table.table_id] = {}
            self.spans.append(Span(table.table_id))
        self._prefixes = dict(zip(self._tables, self.spans, strict=True))

    def key(self) -> bytes:
        """Return some key of some table."""
        return self._rng.choice(list(self._tables)) + self._rng.randrange(KEYS).to_bytes(8, "big")

    def transact(self, meanwhile: Callable[[], None]) -> None:
        """Prewrite, let something happen, commit or roll back."""
        rng, engine = self._rng, self._engine
        keys = sorted({self.key() for _ in range(rng.randrange(1, 10))})
        values: list[bytes | None] = []
        for key in keys:
            gone = key in self._tables[key[:-8]] and rng.random() < 0.3
            values.append(None if gone else rng.choice(self._values[key[:-8]]))
        start_ts = engine.begin()
        engine.prewrite(start_ts, keys, values)
        meanwhile()
        if rng.random() < 0.15:
            engine.rollback(start_ts)
            return
        commit_ts = engine.commit(start_ts)
        for key, value in zip(keys, values, strict=True):
            table = self._tables[key[:-8]]
            self.rows[self._prefixes[key[:-8]].table_id][commit_ts, key] = (commit_ts, key, value, table.pop(key, None))
            if value is not None:
                table[key] = value


class Faults:
    """Moves ranges about and breaks things, one at a time."""

    def __init__(self, run: Run, rng: random.Random) -> None:
        self._run = run
        self._rng = rng
        self.kinds = [self.split, self.merge, self.move, self.crash_store, self.restart_stores, self.crash_event_store, self.resubscribe]

    def meanwhile(self) -> None:
        """Perhaps let something happen, perhaps let time pass."""
        if self._rng.random() < 0.3:
            self._rng.choice(self.kinds)()
        if self._rng.random() < 0.5:
            # Mostly a moment; sometimes long enough that backoffs grow and silent streams are cut.
            self._run.sim.pause(self._rng.random() * (0.05 if self._rng.random() < 0.9 else 5.0))

    def split(self) -> None:
        """Split a range."""
        if len(self._ranges()) < 8:
            self._run.engine.split(self._run.workload.key())

    def merge(self) -> None:
        """Merge two ranges."""
        span = self._rng.choice(self._run.workload.spans)
        ranges = self._run.upstream_ranges(span)
        if len(ranges) > 1:
            self._run.engine.merge(ranges[self._rng.randrange(len(ranges) - 1)].range_id)

    def move(self) -> None:
        """Move a leader."""
        self._run.engine.move_leader(self._rng.choice(self._ranges()).range_id, self._rng.randrange(1, STORES + 1))

    def crash_store(self) -> None:
        """Let a store die; its ranges are led from elsewhere, some at once, some when somebody moves them."""
        store_id = self._rng.randrange(1, STORES + 1)
        self._run.network.crash(str(store_id))
        for info in self._ranges():
            if info.store_id == store_id and self._rng.random() < 0.7:
                self._run.engine.move_leader(info.range_id, store_id % STORES + 1)

    def restart_stores(self) -> None:
        """Bring every store back."""
        for address in list(self._run.network.down):
            self._run.network.restart(address)

    def crash_event_store(self) -> None:
        """Let the event store lose what it had not persisted, and subscribe its span anew."""
        span = self._rng.choice(self._run.workload.spans)
        self._run.unsubscribe(span)
        self._run.stores[span.span_id].crash()
        self._run.subscribe(span)

    def resubscribe(self) -> None:
        """Unsubscribing with callbacks in flight; rows that are persisted later come again."""
        span = self._rng.choice(self._run.workload.spans)
        self._run.unsubscribe(span)
        if self._rng.random() < 0.5:
            self._run.sim.pause(self._rng.random() * 0.1)
        self._run.subscribe(span)

    def _ranges(self) -> list[RangeInfo]:
        return [r for span in self._run.workload.spans for r in self._run.upstream_ranges(span)]


class Run:
    """One seed."""

    def __init__(self, seed: int, transactions: int, sim: Interleaving) -> None:
        self.sim = sim
        self.rng = rng = random.Random(seed)
        self._transactions = transactions
        self.checkers = Checkers()
        self.engine = Engine(EngineSettings(stores=STORES), sim)
        self.engine.addresses = {n: str(n) for n in range(1, STORES + 1)}
        self.workload = Workload(self.engine, rng)
        pending_bytes = rng.choice([2_000, 64 << 20])
        self.network = Network(sim, self.engine, rng, EventFeedSettings(pending_bytes, rng.choice([2, 8192]), rng.choice([500, 1 << 20])))
        self.network.probability = rng.choice([0.0, 0.02, 0.1])
        self.upstream = Upstream(self.engine, rng)
        self.upstream.failing = rng.choice([0.0, 0.2])
        quota_bytes = rng.choice([1, 300, 1 << 20])
        pipeline = SpanPipelineSettings(workers=rng.choice([1, 2, 3]), queue_size=rng.choice([1, 4, 4096]), quota_bytes=quota_bytes)
        self.pipeline = CheckedPipeline(pipeline, sim, self.checkers)
        settings = LogPullerSettings(
            advance_interval_s=rng.choice([0.0, 0.01, 0.1]),
            processor=event_processor.EventProcessorSettings(rng.choice([1, 2]), rng.choice([1, 4096]), rng.choice([1, 64 << 20])),
            worker=RegionWorkerSettings(uninitialized_regions_max=rng.choice([1, 2, 64])),
        )
        self.puller = LogPuller(self.upstream, self.pipeline, settings, sim, random.Random(seed), channels=self.network.channel)
        self.stores: dict[int, Store] = {}
        self._failed: list[Subscription] = []
        self._published = sim.threading.Event()

    @property
    def broken(self) -> list[str]:
        """Return the rules that did not hold."""
        return self.checkers.broken

    def play(self) -> None:
        """Play the whole run: workload and faults, then quiet, then the end."""
        self.sim.threading.Thread(target=self._publish, name="resolved").start()
        rng, faults = self.rng, Faults(self, self.rng)
        start_ts = self.engine.current_ts()
        for span in self.workload.spans:
            store = self.stores[span.span_id] = Store(self.sim, rng, self.checkers, self.pipeline, start_ts)
            store.slow_s = rng.choice([0.0, 0.01, 0.2])
            store.failing = rng.choice([0.0, 0.0, 0.02])
            self.subscribe(span)
        for _ in range(self._transactions):
            self.workload.transact(faults.meanwhile)
            self._heal()
            self._check_spans()
        self._calm()
        last_ts = self.engine.current_ts()
        for span in self.workload.spans:
            resolved = self._wait_resolved(span, last_ts)
            self.checkers.check(resolved, f"stuck: {self.puller.progress(span.span_id)}")
        self._check_spans()
        for span in self.workload.spans:
            self.unsubscribe(span)
            self.stores[span.span_id].drain()
        self._published.set()
        self.pipeline.close()
        self.puller.close()
        self._check_end()

    def subscribe(self, span: Span) -> None:
        """Subscribe a span."""
        Subscription(self.puller, span, self.stores[span.span_id], self._failed.append)

    def unsubscribe(self, span: Span) -> None:
        """Unsubscribe a span."""
        self.puller.unsubscribe(span.span_id)
        self.stores[span.span_id].subscription = None

    def upstream_ranges(self, span: Span) -> list[RangeInfo]:
        """Return the ranges of a span."""
        return self.engine.list_ranges(*full_span(span))

    def _wait_resolved(self, span: Span, ts: int) -> bool:
        for _ in range(100):
            self._heal()
            store = self.stores[span.span_id]
            with store._changed:
                if store._changed.wait_for(lambda: store.resolved_ts >= ts or self._failed, GIVE_UP_S) and store.resolved_ts >= ts:  # noqa: B023
                    return True
        return False

    def _heal(self) -> None:
        """Subscribe spans that failed anew, as the log service does."""
        failed, self._failed[:] = list(self._failed), []
        for subscription in failed:
            error = subscription.failures[0]
            self.checkers.check(error.code == "STORE_FAILED" and len(subscription.failures) == 1, f"a span failed: {subscription.failures}")
            if self.stores[subscription._span.span_id].subscription is subscription:
                self.unsubscribe(subscription._span)
                self.subscribe(subscription._span)

    def _calm(self) -> None:
        """End the faults: what is left must come right by itself."""
        self.network.probability = self.upstream.failing = 0.0
        for address in list(self.network.down):
            self.network.restart(address)
        for store in self.stores.values():
            store.failing = store.slow_s = 0.0

    def _publish(self) -> None:
        while not self._published.wait(0.02):
            self.engine.publish_resolved()

    def _check_spans(self) -> None:
        """No hole and no overlap in any span."""
        for span in list(self.puller._spans.values()):
            span.check()

    def _check_end(self) -> None:
        for span in self.workload.spans:
            store, expected = self.stores[span.span_id], self.workload.rows[span.table_id]
            lost, extra = expected.keys() - store.rows.keys(), store.rows.keys() - expected.keys()
            self.checkers.check(not lost and not extra, f"{len(lost)} rows lost, {len(extra)} rows that nobody wrote")
            wrong = [name for name, row in store.rows.items() if expected.get(name) != row]
            self.checkers.check(not wrong, f"{len(wrong)} rows differ from what was written")
        self.checkers.check(self.pipeline.quota.held_bytes == 0, f"{self.pipeline.quota.held_bytes} bytes of quota are not given back")
