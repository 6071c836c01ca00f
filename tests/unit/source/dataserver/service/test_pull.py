import pyarrow as pa
import pytest

from penstock.model.rows.row_key import encode_row_keys, table_end, table_prefix
from penstock.source.dataserver.engine.engine import Engine, EngineSettings
from penstock.source.dataserver.engine.ranges import ITERATORS_MAX
from penstock.source.dataserver.service.pull import PullService
from penstock.source.dataserver.transaction import Txn
from penstock.source.proto import cdc_pb2
from penstock.source.proto import dataserver_pb2 as pb


class Puller:
    """The client's side of the protocol for one table: all ranges, from their leaders."""

    def __init__(self):
        self.engine = Engine(EngineSettings(stores=2))
        self.engine.execute_ddl("CREATE DATABASE d")
        self.engine.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v VARCHAR(50))")
        self.table = self.engine.table("d", "t")

    def ranges(self):
        return self.engine.list_ranges(table_prefix(self.table.table_id), table_end(self.table.table_id))

    def call(self, method, request, info):
        request.range_id = info.range_id
        request.range_epoch.CopyFrom(cdc_pb2.RegionEpoch(conf_ver=info.epoch.conf_ver, version=info.epoch.version))
        request.subscriber_name = request.subscriber_name or "s"
        return getattr(PullService(self.engine, info.store_id), method)(request)

    def register(self, info):
        return self.call("register", pb.CdcRegisterRequest(), info)

    def snapshot_page(self, info, version=0, last_key=b"", limit=3):
        return self.call(
            "pull_snapshot", pb.CdcPullSnapshotRequest(current_snapshot_version=version, last_key=last_key, limit_rows=limit), info
        )

    def log_page(self, info, index=0, limit=3):
        return self.call("pull_log", pb.CdcPullLogRequest(last_log_index=index, limit_rows=limit), info)

    def put(self, *numbers, v="x"):
        with Txn(self.engine) as txn:
            txn.put(self.table, {"id": pa.array(numbers, pa.int64()), "v": pa.array([v] * len(numbers))})
        return txn.commit_ts

    def delete(self, *numbers):
        with Txn(self.engine) as txn:
            txn.delete(self.table, encode_row_keys(self.table, {"c1": pa.array(numbers, pa.int64())}))
        return txn.commit_ts

    def key(self, number):
        return encode_row_keys(self.table, {"c1": pa.array([number])}, table_prefix(self.table.table_id))[0].as_py()

    def snapshot(self, info):
        rows, version, last = {}, 0, b""
        while True:
            page = self.snapshot_page(info, version, last)
            if page.current_snapshot_version != version:
                rows, version = {}, page.current_snapshot_version
            rows.update((d.key, d.value) for d in page.snapshot_data)
            last = page.snapshot_data[-1].key if page.snapshot_data else last
            if page.end:
                return rows

    def log(self, info, index=0):
        changes = []
        while True:
            page = self.log_page(info, index)
            changes += [(d.commit_ts, d.key, None if d.type else d.value) for d in page.log_data]
            if not page.log_data:
                return changes, page.current_log_index, page.resolved_ts
            index = page.current_log_index

    def state(self):
        start, end = table_prefix(self.table.table_id), table_end(self.table.table_id)
        pages = self.engine.read(start, end, self.engine.current_ts(), 100)
        return {k: v for keys, values, _ in pages for k, v in zip(keys, values, strict=True)}


@pytest.fixture
def puller():
    return Puller()


def apply(rows, changes):
    for _, key, value in changes:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    return rows


def test_snapshot_and_log_together_give_the_table(puller):
    puller.put(*range(10))
    info = puller.ranges()[0]
    start = puller.register(info).init_snapshot_version
    puller.put(3, 11, v="between")
    rows = puller.snapshot(info)
    puller.put(3, v="later")
    puller.delete(4, 11)
    changes, index, resolved_ts = puller.log(info)
    assert min(c[0] for c in changes) > start
    assert [c[0] for c in changes] == sorted(c[0] for c in changes)
    assert apply(rows, changes) == puller.state()
    assert resolved_ts > changes[-1][0]
    assert puller.log(info, index)[0] == []


def test_a_page_of_the_log_never_promises_more_than_it_gave(puller):
    info = puller.ranges()[0]
    puller.register(info)
    stamps = [puller.put(n, n + 100) for n in range(5)]
    index, seen = 0, []
    for _ in stamps:
        page = puller.log_page(info, index, limit=2)
        seen += [d.commit_ts for d in page.log_data]
        assert {t for t in stamps if t <= page.resolved_ts} <= set(seen)
        index = page.current_log_index
    assert seen == sorted(stamps * 2)


def test_a_lost_iterator_makes_a_new_version_and_starts_again(puller):
    puller.put(*range(10))
    info = puller.ranges()[0]
    puller.register(info)
    first = puller.snapshot_page(info)
    puller.put(0, v="new")
    puller.engine.move_leader(info.range_id, 3 - info.store_id)
    moved = puller.ranges()[0]
    assert puller.snapshot_page(info, first.current_snapshot_version).error.code == "NOT_LEADER"
    again = puller.snapshot_page(moved, first.current_snapshot_version, first.snapshot_data[-1].key)
    assert again.current_snapshot_version > first.current_snapshot_version
    assert [d.key for d in again.snapshot_data] == [puller.key(n) for n in range(3)]
    assert puller.snapshot(moved) == puller.state()


def test_a_page_may_be_asked_for_again(puller):
    puller.put(*range(10))
    info = puller.ranges()[0]
    puller.register(info)
    first = puller.snapshot_page(info)
    once = puller.snapshot_page(info, first.current_snapshot_version, first.snapshot_data[-1].key)
    twice = puller.snapshot_page(info, first.current_snapshot_version, first.snapshot_data[-1].key)
    assert once == twice
    assert [d.key for d in once.snapshot_data] == [puller.key(n) for n in (3, 4, 5)]


def test_rows_that_vanished_do_not_end_a_snapshot_early(puller):
    puller.put(*range(12))
    puller.delete(*range(3, 9))
    info = puller.ranges()[0]
    puller.register(info)
    assert list(puller.snapshot(info)) == [puller.key(n) for n in (0, 1, 2, 9, 10, 11)]
    puller.delete(0, 1, 2, 9, 10, 11)
    assert puller.snapshot(info) == {}


def test_too_many_iterators_lose_the_oldest(puller):
    puller.put(*range(5))
    info = puller.ranges()[0]
    puller.register(info)
    first = puller.snapshot_page(info).current_snapshot_version
    for _ in range(ITERATORS_MAX):
        puller.snapshot_page(info)
    assert puller.snapshot_page(info, first).current_snapshot_version != first


def test_the_halves_of_a_split_inherit_the_registration_and_the_log_and_a_merge_keeps_both(puller):
    info = puller.ranges()[0]
    puller.register(info)
    puller.put(1, 8)
    _, index, _ = puller.log(info)
    puller.put(2, 9)
    puller.engine.split(puller.key(5))
    assert puller.log_page(info).error.code == "EPOCH_NOT_MATCH"
    puller.put(3, 7)
    left, right = puller.ranges()
    assert [c[1] for c in puller.log(left, index)[0]] == [puller.key(2), puller.key(3)]
    assert [c[1] for c in puller.log(right, index)[0]] == [puller.key(9), puller.key(7)]
    assert [c[1] for c in puller.log(right)[0]] == [puller.key(8), puller.key(9), puller.key(7)]
    puller.engine.merge(left.range_id)
    merged = puller.ranges()[0]
    assert sorted(c[1] for c in puller.log(merged, index)[0]) == sorted(puller.key(n) for n in (2, 9, 3, 7))


def test_errors_have_codes(puller):
    info = puller.ranges()[0]
    assert puller.log_page(info).error.code == "UPSTREAM_REFUSED"
    assert puller.snapshot_page(info).error.code == "UPSTREAM_REFUSED"
    service = PullService(puller.engine, 1)
    assert service.register(pb.CdcRegisterRequest(range_id=99)).error.code == "REGION_NOT_FOUND"
    first = puller.register(info).init_snapshot_version
    assert puller.register(info).init_snapshot_version == first
