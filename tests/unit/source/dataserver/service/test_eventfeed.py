import pyarrow as pa
import pytest

from penstock.model.rows.row_key import encode_row_keys, table_end, table_prefix
from penstock.source.dataserver.engine.engine import Engine, EngineSettings
from penstock.source.dataserver.service.eventfeed import EventFeedSettings, Stream
from penstock.source.dataserver.transaction import Txn
from penstock.source.proto import cdc_pb2
from testing.twins.stream_reader import StreamReader, deregister, register

PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = 1, 2, 3, 4, 5


class Case:
    def __init__(self, **settings):
        self.engine = Engine(EngineSettings(stores=2))
        self.engine.execute_ddl("CREATE DATABASE d")
        self.engine.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v VARCHAR(5000))")
        self.table = self.engine.table("d", "t")
        self.settings = EventFeedSettings(**settings)
        self.streams = []

    def open(self, store_id=None, read=True):
        stream = Stream(self.engine, store_id or self.ranges()[0].store_id, self.settings)
        self.streams.append(stream)
        return stream, StreamReader(stream.messages()) if read else None

    def ranges(self):
        return self.engine.list_ranges(table_prefix(self.table.table_id), table_end(self.table.table_id))

    def key(self, number):
        return encode_row_keys(self.table, {"c1": pa.array([number])}, table_prefix(self.table.table_id))[0].as_py()

    def put(self, *numbers, v="x", commit=True):
        txn = Txn(self.engine)
        txn.put(self.table, {"id": pa.array(numbers, pa.int64()), "v": pa.array([v] * len(numbers))})
        txn.prewrite()
        if commit:
            txn.commit()
        return txn

    def state(self, ts):
        start, end = table_prefix(self.table.table_id), table_end(self.table.table_id)
        return {k: v for keys, values, _ in self.engine.read(start, end, ts, 100) for k, v in zip(keys, values, strict=True)}


@pytest.fixture
def case():
    made = Case()
    yield made
    for stream in made.streams:
        stream.close()


def test_scan_then_locks_then_initialized_then_live(case):
    first = case.put(1, 2)
    second = case.put(2, v="y")
    held = case.put(3, commit=False)
    doomed = case.put(4, commit=False)
    stream, reader = case.open()
    info = case.ranges()[0]
    stream.handle(register(info, 7, checkpoint_ts=first.commit_ts))
    reader.wait_for(lambda: (7, info.range_id) in reader.initialized)
    assert reader.kinds == [COMMITTED, PREWRITE, PREWRITE, INITIALIZED]
    held.commit()
    doomed.rollback()
    third = case.put(5)
    ts = case.engine.publish_resolved()
    reader.wait_resolved(ts, [(7, info.range_id)])
    assert reader.kinds[4:] == [COMMIT, ROLLBACK, PREWRITE, COMMIT]
    assert [(c[0], c[1]) for c in reader.committed] == [
        (second.commit_ts, case.key(2)),
        (held.commit_ts, case.key(3)),
        (third.commit_ts, case.key(5)),
    ]
    assert reader.committed[0][3] is not None, "the old value was asked for"
    assert reader.violations == []


def test_old_values_come_only_when_asked_for(case):
    case.put(1)
    case.put(1, v="y")
    stream, reader = case.open()
    request = register(case.ranges()[0], 1)
    request.extra_op = cdc_pb2.ChangeDataRequest.Noop
    stream.handle(request)
    case.put(1, v="z")
    reader.wait_for(lambda: len(reader.committed) == 3)
    assert [c[3] for c in reader.committed] == [None, None, None]


def test_resolved_ts_stays_below_an_open_lock_and_moves_after_it(case):
    held = case.put(1, commit=False)
    stream, reader = case.open()
    info = case.ranges()[0]
    stream.handle(register(info, 1))
    case.engine.publish_resolved()
    reader.wait_for(lambda: bool(reader.resolved))
    assert reader.resolved[1, info.range_id] == held.start_ts - 1
    held.commit()
    reader.wait_resolved(case.engine.publish_resolved(), [(1, info.range_id)])
    assert reader.violations == []


def test_a_sub_range_gets_only_its_keys(case):
    case.put(*range(10))
    held = case.put(20, 5, commit=False)
    stream, reader = case.open()
    stream.handle(register(case.ranges()[0], 1, start_key=case.key(3), end_key=case.key(6)))
    held.commit()
    case.put(1, 4, 9, v="z")
    reader.wait_for(lambda: len(reader.committed) == 5)
    assert [c[1] for c in reader.committed] == [case.key(n) for n in (3, 4, 5, 5, 4)]
    assert reader.violations == []


@pytest.mark.parametrize("end", ["split", "merge", "move"])
def test_a_topology_change_ends_the_registration_and_the_successors_go_on_without_loss(case, end):
    case.put(*range(10))
    if end == "merge":
        case.engine.split(case.key(5))
    before = case.ranges()
    stream, reader = case.open(before[0].store_id)
    for info in before:
        stream.handle(register(info, 1))
    case.engine.publish_resolved()
    reader.wait_for(lambda: len(reader.resolved) == len(before))
    open_txn = case.put(2, 7, v="mid", commit=False)
    if end == "split":
        case.engine.split(case.key(5))
    elif end == "merge":
        case.engine.merge(before[0].range_id)
    else:
        case.engine.move_leader(before[0].range_id, 3 - before[0].store_id)
    wanted = "not_leader" if end == "move" else "epoch_not_match"
    reader.wait_for(lambda: len(reader.errors) == len(before))
    assert {e[2] for e in reader.errors} == {wanted}
    open_txn.commit()
    case.put(1, 8, v="end")
    checkpoint = min(reader.resolved.values())
    after = case.ranges()
    readers = []
    for info in after:
        again, its_reader = case.open(info.store_id)
        again.handle(register(info, 2, checkpoint_ts=checkpoint))
        readers.append((its_reader, info))
    ts = case.engine.publish_resolved()
    seen = reader.state(checkpoint)
    for its_reader, info in readers:
        its_reader.wait_resolved(ts, [(2, info.range_id)])
        assert its_reader.violations == []
        seen |= its_reader.state(ts)
    assert seen == case.state(ts)


def test_who_goes_on_from_before_the_server_began_knows_another_one(case):
    info = case.ranges()[0]
    stream, reader = case.open()
    before = register(info, 1)
    before.checkpoint_ts = case.engine.born_ts - 1
    stream.handle(before)
    reader.wait_for(lambda: len(reader.errors) == 1)
    assert reader.errors == [(1, info.range_id, "cluster_id_mismatch")]
    since = register(info, 2)
    since.checkpoint_ts = case.engine.born_ts
    stream.handle(since)
    case.put(1)
    reader.wait_for(lambda: len(reader.by_region[2, info.range_id]) == 1)
    assert len(reader.errors) == 1


def test_wrong_requests_get_their_errors(case):
    info = case.ranges()[0]
    stream, reader = case.open()
    stale = register(info, 1)
    stale.region_epoch.version += 1
    missing = register(info, 2)
    missing.region_id = 999
    for request in (stale, missing, register(info, 3), register(info, 3)):
        stream.handle(request)
    other, elsewhere = case.open(3 - info.store_id)
    other.handle(register(info, 4))
    reader.wait_for(lambda: len(reader.errors) == 3)
    elsewhere.wait_for(lambda: len(elsewhere.errors) == 1)
    assert reader.errors == [(1, info.range_id, "epoch_not_match"), (2, 999, "region_not_found"), (3, info.range_id, "duplicate_request")]
    assert elsewhere.errors == [(4, info.range_id, "not_leader")]


def test_two_requests_for_one_range_are_independent_and_deregister_ends_one(case):
    info = case.ranges()[0]
    stream, reader = case.open()
    stream.handle(register(info, 1))
    stream.handle(register(info, 2))
    case.put(1)
    ts = case.engine.publish_resolved()
    reader.wait_resolved(ts, [(1, info.range_id), (2, info.range_id)])
    assert len(reader.committed) == 2
    stream.handle(deregister(1))
    case.put(2)
    ts = case.engine.publish_resolved()
    reader.wait_resolved(ts, [(2, info.range_id)])
    assert len(reader.committed) == 3
    assert reader.resolved[1, info.range_id] < ts
    stream.handle(register(info, 1, checkpoint_ts=ts))
    reader.wait_resolved(case.engine.publish_resolved(), [(1, info.range_id)])
    assert reader.errors == []


def test_a_client_that_does_not_read_is_told_so_and_holds_bounded_memory():
    case = Case(pending_bytes_max=20_000)
    stream, _ = case.open(read=False)
    info = case.ranges()[0]
    stream.handle(register(info, 1))
    for number in range(50):
        case.put(number, v="x" * 2000)
        case.engine.publish_resolved()
        assert stream._pending_bytes <= 20_000
    reader = StreamReader(stream.messages())
    reader.wait_for(lambda: bool(reader.errors))
    assert reader.errors == [(1, info.range_id, "congested")]
    checkpoint = reader.resolved.get((1, info.range_id), 0)
    stream.handle(register(info, 1, checkpoint_ts=checkpoint))
    ts = case.engine.publish_resolved()
    reader.wait_resolved(ts, [(1, info.range_id)])
    assert reader.state(ts) == case.state(ts)
    stream.close()


def test_resolved_rounds_of_a_slow_client_do_not_pile_up(case):
    stream, _ = case.open(read=False)
    info = case.ranges()[0]
    stream.handle(register(info, 1))
    for _ in range(100):
        ts = case.engine.publish_resolved()
    messages = map(cdc_pb2.ChangeDataEvent.FromString, stream.messages())
    assert next(messages).events[0].entries.entries[0].type == INITIALIZED
    assert next(messages).resolved_ts.ts == ts


def test_large_scans_come_in_bounded_messages():
    case = Case(event_rows_max=100, event_bytes_max=4096)
    case.put(*range(1000), v="x" * 20)
    stream, _ = case.open(read=False)
    stream.handle(register(case.ranges()[0], 1))
    sizes = []
    for message in map(cdc_pb2.ChangeDataEvent.FromString, stream.messages()):
        sizes.append(message.ByteSize())
        if message.events[0].entries.entries[-1].type == INITIALIZED:
            break
    assert len(sizes) > 10
    assert max(sizes) < 10_000
    stream.close()


def test_closing_ends_the_reader_and_frees_the_range(case):
    stream, reader = case.open()
    info = case.ranges()[0]
    stream.handle(register(info, 1))
    reader.wait_for(lambda: bool(reader.initialized))
    stream.close()
    stream.close()
    reader.wait_for(lambda: reader.ended)
    assert case.engine.find(info.range_id).listeners == []
