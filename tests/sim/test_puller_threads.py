"""A seeded run of data server, puller and a store over real gRPC and real threads, with faults.

``test_puller_sim.py`` runs the same parts under a scheduler that can be replayed; here the machine interleaves them, which no seed repeats.

Faults: streams cut or truncated mid-message, splits, merges and leader moves in the middle of a transaction, persist callbacks shuffled,
repeated and late, a quota so small that it is always exhausted, unsubscribing with callbacks in flight. Checked: the contract of the
resolved ts, no loss and no repeat, no hole in the span, a resolved ts that never goes back, a quota that returns to zero.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import table_prefix
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.ranged.region_worker import RegionWorkerSettings
from penstock.puller.span_pipeline import Finish, SpanPipeline, SpanPipelineSettings
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.rowcodec import encode_values
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.raw import RawBatch
from testing.twins.faulty_channel import StreamFault

WAIT_S = 60
KEYS = 60
Row = tuple[int, bytes, bytes | None, bytes | None]


@dataclass
class History:
    """What the workload committed: the oracle."""

    rows: list[Row] = field(default_factory=list)
    table: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def last_ts(self) -> int:
        return self.rows[-1][0] if self.rows else 0

    def commit(self, commit_ts: int, keys: list[bytes], values: list[bytes | None]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.rows.append((commit_ts, key, value, self.table.pop(key, None)))
            if value is not None:
                self.table[key] = value


def encode(table: TableSchema, text: str) -> bytes:
    """Return a row value that the server accepts."""
    id_column, text_column = table.columns
    value: bytes = encode_values(table, {id_column.field_name: pa.array([1], pa.int64()), text_column.field_name: pa.array([text])})[
        0
    ].as_py()
    return value


class Workload:
    """Random transactions on one table; calls ``meanwhile`` between prewrite and commit."""

    def __init__(self, upstream: DataServerUpstream, rng: random.Random) -> None:
        self._upstream = upstream
        self._rng = rng
        upstream.execute_ddl("CREATE DATABASE d")
        upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v TEXT)")
        table = upstream.table("d", "t")
        self.span = Span(table.table_id)
        self.prefix = table_prefix(table.table_id)
        self._table = table
        self.history = History()

    def transact(self, faults: Faults) -> None:
        rng = self._rng
        keys = sorted({self.prefix + rng.randrange(KEYS).to_bytes(8, "big") for _ in range(rng.randrange(1, 12))})
        deleted = [k in self.history.table and rng.random() < 0.3 for k in keys]
        values = [None if gone else encode(self._table, rng.randbytes(rng.randrange(30)).hex()) for gone in deleted]
        start_ts = self._upstream.begin()
        self._upstream.prewrite(start_ts, keys, values)
        faults.meanwhile(self)
        if rng.random() < 0.15:
            self._upstream.rollback(start_ts)
        else:
            self.history.commit(self._upstream.commit(start_ts), keys, values)


class Faults:
    """Moves ranges about."""

    def __init__(self, upstream: DataServerUpstream, rng: random.Random) -> None:
        self._upstream = upstream
        self._rng = rng

    def meanwhile(self, workload: Workload) -> None:
        if self._rng.random() > 0.25:
            return
        ranges = self._upstream.ranges(workload.span)
        what = self._rng.randrange(3)
        key = workload.prefix + self._rng.randrange(1, KEYS).to_bytes(8, "big")
        if what == 0 and len(ranges) < 6 and all(r.start_key != key for r in ranges):
            self._upstream.split(key)
        elif what == 1 and len(ranges) > 1:
            self._upstream.merge(ranges[self._rng.randrange(len(ranges) - 1)].range_id)
        else:
            self._upstream.move_leader(self._rng.choice(ranges).range_id, self._rng.randrange(1, 3))


class Store:
    """Persists shuffled, sometimes twice; checks the contract on every call."""

    def __init__(self, rng: random.Random, start_ts: int, slow_s: float) -> None:
        self.rows: list[Row] = []
        self.resolved_ts = start_ts
        self.broken: list[str] = []
        self.subscribed = False
        self._rng = rng
        self._waiting: list[tuple[int, int, Finish]] = []
        self._subscription = 0
        self._slow_s = slow_s
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._persist, daemon=True)
        self._thread.start()

    def begin(self) -> int:
        """Begin a subscription: rows above the resolved ts come again, as after a restart. Callbacks of the last one are still to come."""
        with self._changed:
            self._subscription += 1
            self.subscribed = True
            self.rows = [r for r in self.rows if r[0] <= self.resolved_ts]
            return self.resolved_ts

    def consume(self, raw: RawBatch, finish: Finish) -> bool:
        rows = [(r["commit_ts"], r["key"], r["value"], r["old_value"]) for r in raw.entries.to_pylist()]
        with self._changed:
            lowest = min(r[0] for r in rows)
            self._check(self.subscribed, "consume after unsubscribe")
            self._check(lowest > self.resolved_ts, f"row at {lowest}, resolved {self.resolved_ts}")
            self.rows.extend(rows)
            self._waiting.append((self._subscription, lowest, finish))
            self._changed.notify_all()
        return True

    def advance(self, ts: int) -> None:
        with self._changed:
            self._check(self.subscribed, "advance after unsubscribe")
            self._check(ts > self.resolved_ts, f"resolved went from {self.resolved_ts} to {ts}")
            earlier = [lowest for subscription, lowest, _ in self._waiting if subscription == self._subscription]
            self._check(all(lowest > ts for lowest in earlier), f"resolved {ts} before its data was persisted")
            self.resolved_ts = ts
            self._changed.notify_all()

    def wait_resolved(self, ts: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.resolved_ts >= ts or bool(self.broken), WAIT_S)

    def drain(self) -> None:
        """Wait until every callback was made, then stop."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._waiting, WAIT_S)
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _check(self, holds: bool, message: str) -> None:
        if not holds:
            self.broken.append(message)

    def _persist(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                # A slow persist: batches pile up meanwhile, and which one is persisted first is a matter of chance.
                self._changed.wait_for(lambda: self._closed, self._rng.random() * self._slow_s)
                if self._closed:
                    return
                *_, finish = self._waiting.pop(self._rng.randrange(len(self._waiting)))
                times = 2 if self._rng.random() < 0.2 else 1
                self._changed.notify_all()
            for _ in range(times):
                finish()


def run(seed: int, transactions: int) -> None:
    rng = random.Random(seed)
    fault = StreamFault(seed, rng.choice([0.0, 0.02, 0.1]))
    settings = LogPullerSettings(
        advance_interval_s=rng.choice([0.0, 0.01]),
        retry_min_s=0.002,
        retry_max_s=0.1,
        retry_busy_s=0.01,
        worker=RegionWorkerSettings(backoff_min_s=0.002, backoff_max_s=0.05, uninitialized_regions_max=rng.choice([1, 2, 64])),
    )
    quota_bytes = rng.choice([1, 300, 1 << 20])
    with DataServer(DataServerSettings(stores=2, resolved_interval_ms=10)) as server, DataServerUpstream(server.uri) as upstream:
        workload, faults = Workload(upstream, rng), Faults(upstream, rng)
        start_ts = upstream.current_ts()
        pipeline = SpanPipeline(SpanPipelineSettings(workers=2, quota_bytes=quota_bytes), SystemClock())
        puller = LogPuller(upstream, pipeline, settings, rng=random.Random(seed), channels=fault.channel)
        store = Store(random.Random(seed), start_ts, rng.choice([0.0, 0.01, 0.03]))
        failures: list[PenstockError] = []
        try:
            resubscribe_at = rng.randrange(transactions)
            for n in range(transactions):
                if n in {0, resubscribe_at}:
                    if store.subscribed:
                        puller.unsubscribe(workload.span.span_id)
                        store.subscribed = False
                    puller.subscribe(workload.span, store.begin(), store.consume, store.advance, failures.append)
                workload.transact(faults)
            fault.probability = 0.0
            assert store.wait_resolved(workload.history.last_ts), f"stuck: {puller.progress(workload.span.span_id)}"
            puller._spans[workload.span.span_id].check()
            puller.unsubscribe(workload.span.span_id)
            store.drain()
        finally:
            pipeline.close()
            puller.close()
    assert store.broken == []
    assert failures == []
    assert sorted(store.rows, key=lambda r: r[:2]) == sorted(workload.history.rows, key=lambda r: r[:2])
    assert pipeline.quota.held_bytes == 0


@pytest.mark.parametrize("seed", range(6))
def test_seeded_run_with_faults(seed: int) -> None:
    """Replay one seed with ``pytest tests/sim/test_puller_threads.py -k 'faults[SEED]'``."""
    run(seed, 30)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_seeded_run_with_faults_long(seed: int) -> None:
    run(seed, 120)
