"""Random transactions through the whole path, without Spark, end in the same table state as an oracle, change by change.

The parts are the real ones: data server over gRPC, log service, event store, Flight, planner, storage sink. Between windows ranges
split and leaders move, the log service and the store are closed and opened again, and windows crash before their commit.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.feed.assignment import FeedContext, assign_dispatchers
from penstock.feed.following import live_dispatchers
from penstock.feed.settings import FeedSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.batch import COMMIT_TS, OP
from penstock.model.errors import PenstockError
from penstock.puller.log_service import LogService
from penstock.server.verification import open_reader, verify_target
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.keys import table_prefix
from penstock.source.dataserver.server import DataServer, DataServerSettings
from penstock.store.event_store import ColumnarEventStore, StoreSettings
from penstock.store.flight import FlightService
from penstock.testing.local_feed import LocalFeed

IDS = st.integers(-3, 12)
TEXT = st.one_of(st.none(), st.text(max_size=6))
WRITE = st.tuples(st.just("write"), st.lists(st.tuples(st.sampled_from(["a", "b"]), IDS, TEXT), min_size=1, max_size=6))
REMOVE = st.tuples(st.just("remove"), st.lists(st.tuples(st.sampled_from(["a", "b"]), IDS), min_size=1, max_size=4))
OTHER = st.sampled_from(
    [("rollback",), ("ddl",), ("split",), ("move",), ("window",), ("window",), ("crash",), ("restart",), ("flush",), ("window",)]
)
STEPS = st.lists(st.one_of(WRITE, WRITE, REMOVE, OTHER), min_size=4, max_size=24)


class WholePath:
    """The whole path in one process."""

    def __init__(self, root: Path, spans_per_table: int) -> None:
        self.root = root
        self.parts = contextlib.ExitStack()
        server = DataServer(DataServerSettings(resolved_interval_ms=10)).start()
        self.parts.callback(server.stop)
        self.upstream = DataServerUpstream(server.uri)
        self.parts.callback(self.upstream.close)
        self.upstream.execute_ddl("CREATE DATABASE d")
        self.upstream.execute_ddl("CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))")
        self.upstream.execute_ddl("CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40), n BIGINT DEFAULT 7)")
        self.oracle: dict[str, dict[int, str | None]] = {"a": {}, "b": {}}
        self.changes = {"a": 0, "b": 0}
        self.ddls = 0
        self.split_at = 0
        if spans_per_table > 1:
            for name in "ab":
                self.upstream.split(self.full_key(name, 3))
        tables = [self.table(n) for n in "ab"]
        self.dispatchers = assign_dispatchers(tables, self.upstream, spans_per_table)
        self.snapshot_ts = self.upstream.current_ts()
        self.meta_url = f"sqlite:///{root / 'meta.db'}"
        with contextlib.closing(MetaDatabase(self.meta_url)) as meta:
            meta.create_feed(FeedRecord("f", "u", "{}", checkpoint_ts=0), [])
            self.epoch = meta.claim("f", "test", 3_600_000) or 0
        (root / "files").mkdir()
        self.services = contextlib.ExitStack()
        self.open_services()

    def open_services(self) -> None:
        store = ColumnarEventStore(self.root / "store", StoreSettings(flush_bytes=1 << 30))
        self.services.callback(store.close)
        self.store = store
        flight = FlightService(store)
        self.services.callback(flight.close)
        self.log = LogService(self.upstream, store).start()
        self.services.callback(self.log.close)
        self.meta = MetaDatabase(self.meta_url)
        self.services.callback(self.meta.close)
        context = FeedContext(
            feed="f",
            epoch=self.epoch,
            meta_url=self.meta_url,
            flight_location=flight.location,
            flight_token=flight.token,
            sink_uri=(self.root / "files").as_uri(),
            sink_options={},
            dispatchers=self.dispatchers,
            settings=FeedSettings(),
            snapshot_ts=self.snapshot_ts,
            partitions=2,
            tables=("d.*",),
        )
        self.context = context
        self.feed = LocalFeed(context, before_window=self.capture)
        self.capture()

    def capture(self) -> None:
        for dispatcher in live_dispatchers(self.context, self.meta):
            self.log.ensure_span(dispatcher.span, 0)

    def close(self) -> None:
        self.services.close()
        self.parts.close()

    def table(self, name: str):
        return self.upstream.table("d", name)

    def full_key(self, name: str, row_id: int) -> bytes:
        return table_prefix(self.table(name).table_id) + (row_id ^ (1 << 63) if row_id >= 0 else row_id + (1 << 63)).to_bytes(8, "big")

    def transact(self, writes: list[tuple[str, int, str | None]], removals: list[tuple[str, int]], *, commit: bool = True) -> None:
        wanted = {(t, i): v for t, i, v in writes}
        gone = {(t, i) for t, i in removals if i in self.oracle[t]} - set(wanted)
        txn = self.upstream.txn()
        for name in "ab":
            rows = {i: v for (t, i), v in wanted.items() if t == name}
            if rows:
                ids, values = pa.array(list(rows), pa.int32()), pa.array(list(rows.values()), pa.string())
                txn.put(self.table(name), {"id": ids, "v": values})
            keys = [self.full_key(name, i)[-8:] for t, i in gone if t == name]
            if keys:
                txn.delete(self.table(name), pa.array(keys, pa.binary()))
        if not commit:
            txn.prewrite() if txn.rows else None
            txn.rollback()
            return
        txn.commit()
        for (name, row_id), value in wanted.items():
            self.oracle[name][row_id] = value
            self.changes[name] += 1
        for name, row_id in gone:
            del self.oracle[name][row_id]
            self.changes[name] += 1

    def step(self, step: tuple) -> None:
        kind = step[0]
        if kind == "write":
            self.transact(step[1], [])
        elif kind == "remove":
            self.transact([], step[1])
        elif kind == "rollback":
            self.transact([("a", 1, "never"), ("b", 2, "never")], [], commit=False)
        elif kind == "ddl":
            self.ddls += 1
            self.upstream.execute_ddl(f"ALTER TABLE d.a ADD COLUMN x{self.ddls} INT DEFAULT {self.ddls}")
        elif kind == "split":
            self.split_at += 1
            with contextlib.suppress(PenstockError):
                self.upstream.split(self.full_key("a", self.split_at))
        elif kind == "move":
            info = self.upstream.ranges(self.dispatchers[0].span)[0]
            self.upstream.move_leader(info.range_id, 3 - info.store_id)
        elif kind == "window":
            self.feed.run_window()
        elif kind == "crash":
            self.feed.run_window(commit=False)
        elif kind == "flush":
            for dispatcher in self.dispatchers:
                self.store.flush(dispatcher.span.span_id)
        else:
            self.services.close()
            self.open_services()

    def drain(self) -> None:
        self.feed.drain(self.upstream.current_ts(), 30)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(STEPS, st.sampled_from([1, 2]))
def test_the_files_replay_to_the_oracle(steps, spans_per_table):
    with tempfile.TemporaryDirectory() as root, contextlib.closing(WholePath(Path(root), spans_per_table)) as path:
        for step in steps:
            path.step(step)
        path.drain()
        reader = open_reader((Path(root) / "files").as_uri(), {})
        verdict = verify_target(reader, path.upstream, [path.table(n).table_id for n in "ab"])
        verdict.check()
        for name, rows in path.oracle.items():
            parts = reader.changes("d", name)
            frames = [frame.select(COMMIT_TS, OP, pl.col(table.column("id").field_name).alias("id")) for table, frame in parts]
            delivered = pl.concat(frames) if frames else pl.DataFrame({COMMIT_TS: [], OP: [], "id": []})
            # Windows before the first write deliver an empty snapshot, so every change is its own row, once.
            assert delivered.n_unique() == delivered.height
            late = delivered.filter(pl.col(COMMIT_TS) > path.snapshot_ts)
            assert late.height == path.changes[name]
            assert len(rows) == next(t for t in verdict.tables if t.name == f"d.{name}").rows


@pytest.mark.parametrize("spans_per_table", [1, 2])
def test_a_truncate_is_followed(tmp_path, spans_per_table):
    with contextlib.closing(WholePath(tmp_path, spans_per_table)) as path:
        path.transact([("a", 1, "x"), ("b", 1, "y")], [])
        path.drain()
        path.upstream.execute_ddl("TRUNCATE TABLE d.a")
        path.oracle["a"] = {}
        path.transact([("a", 2, "z")], [])
        path.drain()
        verdict = verify_target(open_reader((tmp_path / "files").as_uri(), {}), path.upstream, [path.table(n).table_id for n in "ab"])
        verdict.check()
        assert [t.rows for t in verdict.tables] == [1, 1]
