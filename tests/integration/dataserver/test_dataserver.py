"""The data server over the network: streams that follow a live workload through splits, merges and moves, and the process itself."""

import json
import queue
import signal
import subprocess
import sys
import threading

import grpc
import msgspec
import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import full_key
from penstock.model.span import DDL_SPAN, Span
from penstock.source.catalog import open_upstream
from penstock.source.dataserver.rowcodec import encode_values
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from penstock.source.proto import cdc_pb2_grpc
from testing.twins.stream_reader import StreamReader, register

pytestmark = pytest.mark.integration


class StoreStream:
    """A gRPC change stream to one store."""

    def __init__(self, address):
        self._requests = queue.Queue(maxsize=1000)
        self._channel = grpc.insecure_channel(address)
        self.call = cdc_pb2_grpc.ChangeDataStub(self._channel).EventFeed(iter(self._requests.get, None))
        self.reader = StreamReader(self.call)

    def send(self, request):
        self._requests.put(request, timeout=120)

    def close(self):
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()


@pytest.fixture
def server():
    with DataServer(DataServerSettings(stores=2, resolved_interval_ms=20)) as running:
        yield running


@pytest.fixture
def upstream(server):
    opened = open_upstream(server.uri)
    yield opened
    opened.close()


def test_streams_follow_a_workload_through_topology_changes(server, upstream):
    workload = Workload(server.engine, WorkloadSettings(rows=8000, txn_rows=40, seed=9))
    workload.setup()
    tables = {t.table: t for t in upstream.list_tables()}
    spans = [Span(t.table_id) for t in tables.values()] + [DDL_SPAN]
    streams = {r.store_addr: StoreStream(r.store_addr) for s in spans for r in upstream.ranges(s)}
    assert len(streams) == 2
    follower = Follower(upstream, streams, spans)
    try:
        follower.follow()
        workload.start()
        orders = Span(tables["orders"].table_id)
        for step in range(6):
            ranges = upstream.ranges(orders)
            upstream.move_leader(ranges[0].range_id, 3 - ranges[0].store_id)
            if step % 2:
                upstream.merge(ranges[0].range_id)
            else:
                upstream.split(ranges[1].start_key + b"\x00")
            follower.follow()
        report = workload.join(200)
        assert report.rows == 8000
        follower.follow()
        ts = upstream.current_ts()
        follower.wait(ts)
        for table in tables.values():
            start, end = upstream.key_span(Span(table.table_id))
            read = {k: v for keys, values, _ in server.engine.read(start, end, ts, 500) for k, v in zip(keys, values, strict=True)}
            assert follower.state(Span(table.table_id), ts) == read
            assert len(read) > 100
        ddls = follower.state(DDL_SPAN, ts)
        assert len(ddls) == len(tables) + 1 + report.ddls
        for stream in streams.values():
            assert stream.reader.violations == []
    finally:
        for stream in streams.values():
            stream.close()


class Follower:
    """Registers every range that it does not follow in its present epoch; from the beginning, so nothing depends on its own progress."""

    def __init__(self, upstream, streams, spans):
        self._upstream = upstream
        self._streams = streams
        self._spans = spans
        self._names = {}

    def follow(self):
        for info in (r for s in self._spans for r in self._upstream.ranges(s)):
            if (info.range_id, info.epoch) not in self._names:
                number = len(self._names) + 1
                self._names[info.range_id, info.epoch] = number
                self._streams[info.store_addr].send(register(info, number))

    def wait(self, ts):
        for info in (r for s in self._spans for r in self._upstream.ranges(s)):
            name = (self._names[info.range_id, info.epoch], info.range_id)
            self._streams[info.store_addr].reader.wait_resolved(ts, [name])

    def state(self, span, ts):
        rows = {}
        for info in self._upstream.ranges(span):
            told = self._streams[info.store_addr].reader.state(ts)
            rows |= {k: v for k, v in told.items() if info.start_key <= k < info.end_key}
        return rows


def test_transactions_and_errors_cross_the_network(upstream):
    upstream.execute_ddl("CREATE DATABASE d")
    upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v LONGTEXT)")
    table = upstream.table("D", "T")
    locker = upstream.txn()
    locker.put(table, {"id": pa.array([1]), "v": pa.array(["x"])})
    locker.prewrite()
    with pytest.raises(PenstockError) as caught, upstream.txn() as other:
        other.put(table, {"id": pa.array([1]), "v": pa.array(["y"])})
    assert caught.value.code == "TXN_CONFLICT"
    locker.commit()
    with pytest.raises(PenstockError) as caught:
        upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN v INT")
    assert caught.value.code == "UPSTREAM_REFUSED"
    assert "column v exists" in str(caught.value)
    with pytest.raises(PenstockError, match="REGION_NOT_FOUND"):
        upstream.merge(99)
    with pytest.raises(PenstockError, match="future"):
        list(upstream.read_table(Span(table.table_id), upstream.current_ts() + (1 << 50)))
    with upstream.txn() as large:
        large.put(table, {"id": pa.array(range(2, 12)), "v": pa.array(["z" * 700_000] * 10)})
    rows = [r for b in upstream.read_table(Span(table.table_id), upstream.current_ts()) for r in b.records.column("c2").to_pylist()]
    assert [len(r) for r in rows] == [1] + [700_000] * 10


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        (b"", b"x", "DECODE_FAILED"),
        (b"junk" * 5, b"x", "DECODE_FAILED"),
        ("row", b"", "DECODE_FAILED"),
        ("row", b"\x01short", "DECODE_FAILED"),
        ("row", "cut", "DECODE_FAILED"),
        ("row", "old", "TXN_CONFLICT"),
        ("elsewhere", "good", "TABLE_UNKNOWN"),
    ],
)
def test_rows_that_nobody_could_read_are_refused_and_leave_no_lock(upstream, key, value, code):
    upstream.execute_ddl("CREATE DATABASE d")
    upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v TEXT)")
    table = upstream.table("d", "t")
    good = encode_values(table, {"c1": pa.array([1]), "c2": pa.array(["x"])})[0].as_py()
    stale = encode_values(msgspec.structs.replace(table, version=5), {"c1": pa.array([1]), "c2": pa.array(["x"])})[0].as_py()
    keys = {"row": full_key(table.table_id, bytes(8)), "elsewhere": full_key(99, bytes(8))}
    values = {"good": good, "cut": good[:-1], "old": stale}
    with pytest.raises(PenstockError) as caught:
        upstream.prewrite(upstream.begin(), [keys.get(key, key)], [values.get(value, value)])
    assert caught.value.code == code
    start_ts = upstream.begin()
    upstream.prewrite(start_ts, [keys["row"]], [good])
    assert upstream.commit(start_ts) > start_ts


def test_a_client_that_goes_away_is_forgotten(server, upstream):
    upstream.execute_ddl("CREATE DATABASE d")
    upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY)")
    info = upstream.ranges(Span(upstream.table("d", "t").table_id))[0]
    stream = StoreStream(info.store_addr)
    stream.send(register(info, 1))
    stream.reader.wait_for(lambda: bool(stream.reader.resolved))
    gone = threading.Event()
    server.engine.watch_resolved(lambda: gone.set() if not server.engine.find(info.range_id).listeners else None)
    stream.close()
    assert gone.wait(120)


def test_stopping_the_server_ends_its_streams(upstream, server):
    info = upstream.ranges(DDL_SPAN)[0]
    stream = StoreStream(info.store_addr)
    stream.send(register(info, 1))
    stream.reader.wait_for(lambda: bool(stream.reader.initialized))
    server.stop()
    stream.reader.wait_for(lambda: stream.reader.ended)
    stream.close()
    with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
        upstream.current_ts()


def test_a_taken_port_is_a_clear_error(server):
    port = int(server.address.rsplit(":", 1)[1])
    with pytest.raises(PenstockError, match=rf"CONFIG_INVALID.*port.*{port}"):
        DataServer(DataServerSettings(port=port)).start()


def test_the_process_serves_prints_its_address_and_ends_on_sigterm():
    command = [sys.executable, "-c", "from penstock.cli.servers.dataserver import dataserver; dataserver()"]
    process = subprocess.Popen(
        [*command, "--workload", "--rate", "0", "--rows", "3000", "--stores", "3"], stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on dataserver://127.0.0.1:")
        upstream = open_upstream(line.split()[2])
        tables = upstream.list_tables()
        assert {t.full_name for t in tables} == {"shop.orders", "shop.order_items", "shop.products", "shop.assets"}
        assert len({r.store_addr for t in tables for r in upstream.ranges(Span(t.table_id))}) == 3
        upstream.close()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
        assert json.loads(out)["workload"]["rows"] >= 0
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_bad_options_exit_with_2_and_a_hint(server):
    port = server.address.rsplit(":", 1)[1]
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "dataserver"]
    done = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "[CONFIG_INVALID]" in done.stderr
    assert "hint:" in done.stderr
