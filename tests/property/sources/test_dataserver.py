"""Random histories on the data server: what the change stream tells equals what the tables say, and no resolved ts is ever broken."""

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys, table_end, table_prefix
from penstock.source.dataserver.engine.engine import Engine, EngineSettings
from penstock.source.dataserver.service.eventfeed import EventFeedSettings, Stream
from penstock.source.dataserver.transaction import Txn
from testing.twins.stream_reader import StreamReader, register

KEYS = st.lists(st.integers(0, 19), min_size=1, max_size=6, unique=True)
BEGIN = st.tuples(st.just("begin"), KEYS, KEYS)
COMMIT = st.tuples(st.just("commit"), st.integers(0, 5))
OTHERS = [
    st.tuples(st.just("rollback"), st.integers(0, 5)),
    st.tuples(st.just("resolve")),
    st.tuples(st.just("register")),
    st.tuples(st.just("split"), st.integers(1, 19)),
    st.tuples(st.just("merge"), st.integers(0, 5)),
    st.tuples(st.just("move"), st.integers(0, 5), st.integers(1, 2)),
    st.tuples(st.just("ddl")),
]
# Writes stand three times and the lists have a least length: short histories without a commit find nothing.
STEPS = st.lists(st.one_of(BEGIN, COMMIT, BEGIN, COMMIT, BEGIN, COMMIT, *OTHERS), min_size=12, max_size=60)


def expect_conflict(error):
    if error.code != "TXN_CONFLICT":
        raise error


class History:
    """Runs steps on an engine, keeps its own idea of the table, and follows it with streams that re-register as a region worker would."""

    def __init__(self):
        self.engine = Engine(EngineSettings(stores=2))
        self.engine.execute_ddl("CREATE DATABASE d")
        self.engine.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v VARCHAR(20))")
        self.open = []
        self.expected = {}
        self.counter = 0
        self.streams = {store: Stream(self.engine, store, EventFeedSettings()) for store in (1, 2)}
        self.readers = {store: StreamReader(stream.messages()) for store, stream in self.streams.items()}
        self.request_id = 0
        self.registered = {}

    @property
    def table(self):
        return self.engine.table("d", "t")

    def ranges(self):
        return self.engine.list_ranges(table_prefix(self.table.table_id), table_end(self.table.table_id))

    def run(self, step):
        getattr(self, step[0])(*step[1:])

    def begin(self, puts, deletes):
        self.counter += 1
        table, txn = self.table, Txn(self.engine)
        asked = [d for d in deletes if d not in puts]
        # Of a row that is not there nothing is deleted, even if another transaction brings it before this one commits.
        deleted = [d for d in asked if d in self.expected]
        txn.put(table, {"id": pa.array(puts, pa.int64()), "v": pa.array([f"v{self.counter}"] * len(puts))})
        if asked:
            txn.delete(table, encode_row_keys(table, {"c1": pa.array(asked, pa.int64())}))
        try:
            txn.prewrite()
        except PenstockError as error:
            expect_conflict(error)
            txn.rollback()
            return
        self.open.append((txn, puts, deleted, f"v{self.counter}", table.version))

    def commit(self, at):
        if not self.open:
            return
        txn, puts, deleted, value, version = self.open.pop(at % len(self.open))
        try:
            txn.commit()
        except PenstockError as error:
            expect_conflict(error)
            assert version != self.table.version, "only a DDL may abort a prewritten transaction"
            return
        assert version == self.table.version, "a row of an old version committed after the DDL"
        self.expected |= dict.fromkeys(puts, value)
        for number in deleted:
            self.expected.pop(number, None)

    def rollback(self, at):
        if self.open:
            self.open.pop(at % len(self.open))[0].rollback()

    def resolve(self):
        self.engine.publish_resolved()

    def register(self):
        """Follow every range that no stream follows now, from what was resolved for all of the table."""
        followed = {(r.range_id, r.epoch.conf_ver, r.epoch.version) for r in self.registered.values()}
        for info in self.ranges():
            if (info.range_id, info.epoch.conf_ver, info.epoch.version) not in followed:
                self.request_id += 1
                self.registered[self.request_id] = info
                self.streams[info.store_id].handle(register(info, self.request_id))

    def split(self, number):
        key = encode_row_keys(self.table, {"c1": pa.array([number])}, table_prefix(self.table.table_id))[0].as_py()
        self.engine.split(key)

    def merge(self, at):
        found = self.ranges()
        if len(found) > 1:
            self.engine.merge(found[at % (len(found) - 1)].range_id)

    def move(self, at, store):
        found = self.ranges()
        self.engine.move_leader(found[at % len(found)].range_id, store)

    def ddl(self):
        self.counter += 1
        self.engine.execute_ddl(f"ALTER TABLE d.t ADD COLUMN n{self.counter} INT")

    def check(self):
        while self.open:
            self.rollback(0)
        self.register()
        ts = self.engine.publish_resolved()
        current = {(r.range_id, r.epoch.conf_ver, r.epoch.version): n for n, r in sorted(self.registered.items())}
        told = {}
        for info in self.ranges():
            number = current[info.range_id, info.epoch.conf_ver, info.epoch.version]
            reader = self.readers[info.store_id]
            reader.wait_resolved(ts, [(number, info.range_id)])
            told |= {k: v for k, v in reader.state(ts).items() if info.start_key <= k < info.end_key}
        start, end = table_prefix(self.table.table_id), table_end(self.table.table_id)
        read = {k: v for keys, values, _ in self.engine.read(start, end, ts, 3) for k, v in zip(keys, values, strict=True)}
        assert told == read
        assert sorted(int.from_bytes(k[-8:], "big") - (1 << 63) for k in read) == sorted(self.expected)
        for key, value in read.items():
            assert value.endswith(self.expected[int.from_bytes(key[-8:], "big") - (1 << 63)].encode())
        for reader in self.readers.values():
            assert reader.violations == []

    def close(self):
        for stream in self.streams.values():
            stream.close()


@settings(max_examples=120, deadline=None)
@given(STEPS)
@example([("begin", [0], [1]), ("begin", [1], []), ("commit", 1), ("commit", 0)])
def test_the_stream_tells_what_the_tables_say(steps):
    history = History()
    try:
        history.register()
        for step in steps:
            history.run(step)
        history.check()
    finally:
        history.close()
