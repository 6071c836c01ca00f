"""What every upstream must do, whatever it is. A new source adds itself to ``upstreams``."""

import contextlib

import pyarrow as pa
import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.errors import PenstockError
from penstock.model.row_key import with_prefix
from penstock.model.span import DDL_SPAN, Span
from penstock.source.catalog import open_upstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.proto import dataserver_pb2 as pb
from penstock.source.raw import RAW_DELETE, RAW_PUT, RAW_SCHEMA, RawBatch


@contextlib.contextmanager
def embedded():
    with DataServer(DataServerSettings(resolved_interval_ms=20)) as server:
        upstream = open_upstream(server.uri)
        try:
            upstream.execute_ddl("CREATE DATABASE d")
            upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v VARCHAR(50), n INT)")
            yield upstream
        finally:
            upstream.close()


upstreams = {"dataserver": embedded}


@pytest.fixture(params=sorted(upstreams))
def upstream(request):
    with upstreams[request.param]() as opened:
        yield opened


def put(upstream, ids, values):
    table = upstream.list_tables()[0]
    with upstream.txn() as txn:
        keys = txn.put(table, {"id": pa.array(ids, pa.int64()), "v": pa.array(values), "n": pa.array([1] * len(ids))})
    return txn.commit_ts, keys


def read(upstream, span, ts):
    return [row for batch in upstream.read_table(span, ts) for row in batch.records.to_pylist()]


def test_current_ts_grows_and_is_above_every_acknowledged_commit(upstream):
    before = upstream.current_ts()
    commit_ts, _ = put(upstream, [1], ["a"])
    assert before < commit_ts < upstream.current_ts()


def test_tables_and_their_history(upstream):
    table = upstream.list_tables()[0]
    assert (table.full_name, [c.name for c in table.columns]) == ("d.t", ["id", "v", "n"])
    assert upstream.schema_history(table.table_id) == [table]
    upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN z INT")
    newer = upstream.list_tables()[0]
    assert newer.version > table.version
    assert upstream.schema_history(table.table_id) == [table, newer]
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        upstream.schema_history(999)


def test_ranges_cover_a_span_in_order_without_holes(upstream):
    table = upstream.list_tables()[0]
    _, keys = put(upstream, list(range(20)), ["x"] * 20)
    for number in (5, 12):
        upstream.split(with_prefix(table.table_id, keys.slice(number, 1))[0].as_py())
    start, end = upstream.key_span(Span(table.table_id))
    found = upstream.ranges(Span(table.table_id))
    assert len(found) == 3
    assert (found[0].start_key, found[-1].end_key) == (start, end)
    assert [r.start_key for r in found[1:]] == [r.end_key for r in found[:-1]]
    assert all(r.store_addr and r.table_id == table.table_id for r in found)
    part = Span(table.table_id, keys[6].as_py(), keys[8].as_py())
    assert [r.range_id for r in upstream.ranges(part)] == [found[1].range_id]
    assert len(upstream.ranges(DDL_SPAN)) == 1
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        upstream.ranges(Span(999))


def test_read_table_gives_the_state_of_a_ts_as_inserts_in_key_order(upstream):
    table = upstream.list_tables()[0]
    first, keys = put(upstream, [3, 1, 2], ["c", "a", "b"])
    second, _ = put(upstream, [1], ["A"])
    rows = read(upstream, Span(table.table_id), second)
    assert [(r["_ts"], r["_op"], r["c1"], r["c2"]) for r in rows] == [
        (second, Op.INSERT, 1, "A"),
        (first, Op.INSERT, 2, "b"),
        (first, Op.INSERT, 3, "c"),
    ]
    assert [r["c2"] for r in read(upstream, Span(table.table_id), first)] == ["a", "b", "c"]
    assert read(upstream, Span(table.table_id), first - 1) == []
    by_number = sorted(keys.to_pylist())
    assert [r["c1"] for r in read(upstream, Span(table.table_id, by_number[1], by_number[2]), second)] == [2]


def test_read_table_uses_the_schema_of_the_ts(upstream):
    table = upstream.list_tables()[0]
    before, _ = put(upstream, [1], ["a"])
    upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN z INT NOT NULL DEFAULT 9")
    upstream.execute_ddl("ALTER TABLE d.t DROP COLUMN n")
    batch = next(iter(upstream.read_table(Span(table.table_id), upstream.current_ts())))
    assert batch.records.select(["c1", "c2", "c4"]).to_pylist() == [{"c1": 1, "c2": "a", "c4": 9}]
    assert batch.records.schema == upstream.list_tables()[0].batch_schema()
    old = next(iter(upstream.read_table(Span(table.table_id), before)))
    assert old.records.schema == table.batch_schema()
    assert old.header.schema_version == table.version


def test_the_decoder_turns_pulled_changes_into_batches(upstream):
    table = upstream.list_tables()[0]
    info = upstream.ranges(Span(table.table_id))[0]
    t1, _ = put(upstream, [1, 2], ["a", "b"])
    t2, _ = put(upstream, [1], ["A"])
    entries = pull_log(upstream, info)
    changes = upstream.decoder().decode(5, RawBatch(info.range_id, entries)).changes
    rows = {(c.header.kind, r["_ts"], r["_op"], r["c1"], r["c2"]) for c in changes for r in c.records.to_pylist()}
    assert rows == {
        (BatchKind.DATA, t1, Op.INSERT, 1, "a"),
        (BatchKind.DATA, t1, Op.INSERT, 2, "b"),
        (BatchKind.DATA, t2, Op.UPDATE, 1, "A"),
        (BatchKind.TOMBSTONE, t2, Op.BEFORE, 1, "a"),
    }


def pull_log(upstream, info):
    """Read a range's whole log through the pull protocol: register first, then everything since the table's birth is after index 1."""
    name = {
        "range_id": info.range_id,
        "range_epoch": {"conf_ver": info.epoch.conf_ver, "version": info.epoch.version},
        "subscriber_name": "t",
    }
    import grpc

    from penstock.source.proto import dataserver_pb2_grpc

    with grpc.insecure_channel(info.store_addr) as channel:
        stub = dataserver_pb2_grpc.DataServerStub(channel)
        assert not stub.CdcRegister(pb.CdcRegisterRequest(**name), timeout=5).error.code
        data = stub.CdcPullLog(pb.CdcPullLogRequest(**name, last_log_index=1), timeout=5).log_data
    columns = [
        [d.commit_ts for d in data],
        [0 for _ in data],
        [RAW_DELETE if d.type else RAW_PUT for d in data],
        [d.key for d in data],
        [d.value or None for d in data],
        [d.old_value or None for d in data],
    ]
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, RAW_SCHEMA, strict=True)], schema=RAW_SCHEMA)


def test_a_closed_or_dead_upstream_is_unreachable(upstream):
    upstream.close()
    with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
        upstream.current_ts()
    with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
        list(upstream.read_table(Span(1), 1))
