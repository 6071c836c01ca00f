"""The log puller against the embedded data server: what arrives is the server's history, through splits, merges and leader moves."""

from __future__ import annotations

import random
import threading

import pyarrow as pa
import pytest

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import table_prefix
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.puller.ranged.log_pull import LogPullSettings
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.span_pipeline import Finish, SpanPipeline, SpanPipelineSettings
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.rowcodec import encode_values
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.raw import RawBatch
from testing.servers.waiting import wait_until
from testing.twins.faulty_channel import StreamRefusal

pytestmark = pytest.mark.integration
WAIT_S = 60


def encode(table: TableSchema, text: str) -> bytes:
    """Return a row value that the server accepts."""
    id_column, text_column = table.columns
    value: bytes = encode_values(table, {id_column.field_name: pa.array([1], pa.int64()), text_column.field_name: pa.array([text])})[
        0
    ].as_py()
    return value


class Collector:
    """Persists late and out of order, and checks the contract on the way."""

    def __init__(self, seed: int) -> None:
        self.rows: list[dict[str, object]] = []
        self.resolved: list[int] = []
        self.violations: list[str] = []
        self._waiting: list[tuple[int, Finish]] = []
        self._unpersisted: set[int] = set()
        self._rng = random.Random(seed)
        self._changed = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._persist)
        self._thread.start()

    def consume(self, raw: RawBatch, finish: Finish) -> bool:
        with self._changed:
            min_ts = min(raw.entries.column("commit_ts").to_pylist())
            if self.resolved and min_ts <= self.resolved[-1]:
                self.violations.append(f"row at {min_ts} after resolved {self.resolved[-1]}")
            self.rows.extend(raw.entries.to_pylist())
            self._waiting.append((min_ts, finish))
            self._changed.notify_all()
        return True

    def advance(self, ts: int) -> None:
        with self._changed:
            if self.resolved and ts <= self.resolved[-1]:
                self.violations.append(f"resolved went from {self.resolved[-1]} to {ts}")
            if any(min_ts <= ts for min_ts, _ in self._waiting):
                self.violations.append(f"resolved {ts} before its data was persisted")
            self.resolved.append(ts)
            self._changed.notify_all()

    def wait_resolved(self, ts: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.resolved) and self.resolved[-1] >= ts, WAIT_S), "resolved ts stuck"

    def close(self) -> None:
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join()

    def _persist(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stop)
                if self._stop:
                    return
                _, finish = self._waiting.pop(self._rng.randrange(len(self._waiting)))
            finish()


@pytest.mark.parametrize("seed", [1, 2])
def test_collected_rows_equal_the_history(seed: int) -> None:
    rng = random.Random(seed)
    with DataServer(DataServerSettings(stores=3, resolved_interval_ms=20)) as server, DataServerUpstream(server.uri) as upstream:
        upstream.execute_ddl("CREATE DATABASE d")
        upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v TEXT)")
        table = upstream.table("d", "t")
        prefix = table_prefix(table.table_id)
        start_ts = upstream.current_ts()
        pipeline = SpanPipeline(SpanPipelineSettings(workers=2, quota_bytes=1 << 16), SystemClock())
        puller = LogPuller(upstream, pipeline, LogPullerSettings(advance_interval_s=0.01))
        collector = Collector(seed)
        failures: list[PenstockError] = []
        model: dict[bytes, bytes] = {}
        history: list[tuple[int, bytes, bytes | None, bytes | None]] = []
        try:
            puller.subscribe(Span(table.table_id), start_ts, collector.consume, collector.advance, failures.append)
            for step in range(150):
                keys = sorted({prefix + rng.randrange(200).to_bytes(8, "big") for _ in range(rng.randrange(1, 20))})
                values = [
                    None if k in model and rng.random() < 0.3 else encode(table, rng.randbytes(rng.randrange(100)).hex()) for k in keys
                ]
                txn_ts = upstream.begin()
                upstream.prewrite(txn_ts, keys, values)
                if rng.random() < 0.15:
                    upstream.rollback(txn_ts)
                else:
                    if rng.random() < 0.3:
                        _move_things(upstream, table.table_id, prefix, rng)
                    commit_ts = upstream.commit(txn_ts)
                    for key, value in zip(keys, values, strict=True):
                        history.append((commit_ts, key, value, model.pop(key, None)))
                        if value is not None:
                            model[key] = value
                if step % 50 == 25:
                    collector.wait_resolved(upstream.current_ts() if not history else history[-1][0])
            collector.wait_resolved(history[-1][0])
        finally:
            puller.unsubscribe(Span(table.table_id).span_id)
            held = pipeline.quota
            pipeline.close()
            puller.close()
            collector.close()
        assert not failures
        assert not collector.violations
        got = sorted((r["commit_ts"], r["key"], r["value"], r["old_value"]) for r in collector.rows)
        assert got == sorted(history, key=lambda h: (h[0], h[1]))
        assert held.held_bytes == 0
        # The run was worth something: regions moved under it, and rows came again and were recognised.
        count = puller.metrics.registry.get_sample_value
        assert (count("penstock_log_puller_errors_total", {"code": "EPOCH_NOT_MATCH"}) or 0) > 3
        assert (count("penstock_log_puller_replayed_entries_total") or 0) > 0


def test_a_range_whose_stream_is_refused_is_pulled_and_goes_back_to_the_stream() -> None:
    refusal = StreamRefusal()
    rng = random.Random(3)
    settings = LogPullerSettings(advance_interval_s=0.0, pull=LogPullSettings(interval_s=0.005, stream_again_s=0.2, page_rows=3))
    with DataServer(DataServerSettings(stores=3, resolved_interval_ms=20)) as server, DataServerUpstream(server.uri) as upstream:
        upstream.execute_ddl("CREATE DATABASE d")
        upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v TEXT)")
        table = upstream.table("d", "t")
        prefix = table_prefix(table.table_id)
        start_ts = upstream.current_ts()
        history: list[tuple[int, bytes, bytes | None, bytes | None]] = []
        model: dict[bytes, bytes] = {}

        def write(rounds: int, move: bool = True) -> None:
            for _ in range(rounds):
                keys = sorted({prefix + rng.randrange(60).to_bytes(8, "big") for _ in range(rng.randrange(1, 6))})
                values = [None if k in model and rng.random() < 0.3 else encode(table, rng.randbytes(8).hex()) for k in keys]
                txn_ts = upstream.begin()
                upstream.prewrite(txn_ts, keys, values)
                if move and rng.random() < 0.3:
                    _move_things(upstream, table.table_id, prefix, rng)
                commit_ts = upstream.commit(txn_ts)
                for key, value in zip(keys, values, strict=True):
                    history.append((commit_ts, key, value, model.pop(key, None)))
                    if value is not None:
                        model[key] = value

        # What is there before anybody pulls comes in many pages.
        write(20, move=False)
        pipeline = SpanPipeline(SpanPipelineSettings(workers=2, quota_bytes=1 << 16), SystemClock())
        puller = LogPuller(upstream, pipeline, settings, channels=refusal.channel)
        collector, failures = Collector(3), list[PenstockError]()
        try:
            puller.subscribe(Span(table.table_id), start_ts, collector.consume, collector.advance, failures.append)
            collector.wait_resolved(history[-1][0])
            assert refusal.refusals > 0
            write(40)
            collector.wait_resolved(history[-1][0])
            refusal.refusing = False
            wait_until(lambda: not any(p.regions() for p in puller._pullers.values()), "the stream is taken again", WAIT_S)
            before = refusal.refusals
            write(20)
            collector.wait_resolved(history[-1][0])
            assert refusal.refusals == before
            refusal.refuse()
            write(20)
            collector.wait_resolved(history[-1][0])
            assert refusal.refusals > before
        finally:
            puller.unsubscribe(Span(table.table_id).span_id)
            pipeline.close()
            puller.close()
            collector.close()
        assert not failures
        assert not collector.violations
        got = sorted((r["commit_ts"], r["key"], r["value"], r["old_value"]) for r in collector.rows)
        assert got == sorted(history, key=lambda h: (h[0], h[1]))


def _move_things(upstream: DataServerUpstream, table_id: int, prefix: bytes, rng: random.Random) -> None:
    ranges = upstream.ranges(Span(table_id))
    what = rng.randrange(3)
    if what == 0 and len(ranges) < 8:
        key = prefix + rng.randrange(200).to_bytes(8, "big")
        if all(r.start_key != key for r in ranges):
            upstream.split(key)
    elif what == 1 and len(ranges) > 1:
        left = rng.randrange(len(ranges) - 1)
        upstream.merge(ranges[left].range_id)
    else:
        upstream.move_leader(rng.choice(ranges).range_id, rng.randrange(1, 4))
