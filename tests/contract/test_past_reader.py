"""What a source adds that reads the past. A new one adds itself to ``upstreams``."""

import contextlib

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.source.catalog import open_upstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings


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


def test_the_ts_of_now_is_above_every_acknowledged_commit(upstream):
    before = upstream.current_ts()
    commit_ts, _ = put(upstream, [1], ["a"])
    assert before < commit_ts < upstream.current_ts()


def test_every_version_of_a_table_is_known(upstream):
    table = upstream.list_tables()[0]
    assert upstream.schema_history(table.table_id) == [table]
    upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN z INT")
    newer = upstream.list_tables()[0]
    assert newer.version > table.version
    assert upstream.schema_history(table.table_id) == [table, newer]


def test_the_past_of_an_upstream_that_is_gone(upstream):
    upstream.close()
    with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
        list(upstream.read_table(Span(1), 1))
