import pyarrow as pa
import pytest

from penstock.model.batch import BATCH_ROWS_MAX, BatchKind, Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import full_span, table_prefix
from penstock.model.span import DDL_TABLE_ID, Span
from penstock.source.dataserver.decoder import DataServerDecoder, SchemaCache
from penstock.source.dataserver.engine.engine import Engine
from penstock.source.dataserver.transaction import Txn
from penstock.source.raw import RAW_DELETE, RAW_PUT, RAW_SCHEMA, RawBatch


class Case:
    """An engine whose log is decoded as raw batches."""

    def __init__(self):
        self.engine = Engine()
        self.fetches = 0
        self.engine.execute_ddl("CREATE DATABASE d")
        self.engine.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v VARCHAR(50))")
        self.decoder = DataServerDecoder(SchemaCache(self._fetch))

    def _fetch(self, table_id):
        self.fetches += 1
        return self.engine.schema_history(table_id)

    @property
    def table(self):
        return self.engine.table("d", "t")

    def put(self, **columns):
        with Txn(self.engine) as txn:
            keys = txn.put(self.table, {name: pa.array(cells) for name, cells in columns.items()})
        return txn.commit_ts, keys

    def delete(self, keys):
        with Txn(self.engine) as txn:
            txn.delete(self.table, keys)
        return txn.commit_ts

    def raw(self, table_id=None, reverse=False):
        info = self.engine.list_ranges(*full_span(Span(self.table.table_id if table_id is None else table_id)))[0]
        rows = [
            (r.commit_ts, r.start_ts, RAW_DELETE if v is None else RAW_PUT, k, v, o)
            for r in self.engine.find(info.range_id).log
            for k, v, o in zip(r.keys, r.values, r.olds, strict=True)
        ]
        if reverse:
            rows.reverse()
        columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(RAW_SCHEMA)]
        return RawBatch(info.range_id, pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA))

    def decode(self, **options):
        return self.decoder.decode(11, self.raw(**options))


@pytest.fixture
def case():
    return Case()


def rows(batch, *columns):
    names = ["_ts", "_op", *columns]
    return list(zip(*[batch.records.column(n).to_pylist() for n in names], strict=True))


def test_inserts_updates_and_deletes_become_data_and_tombstones(case):
    t1, keys = case.put(id=[1, 2], v=["a", None])
    t2, _ = case.put(id=[2], v=["b"])
    t3 = case.delete(keys.slice(0, 1))
    tombstones, data = case.decode().changes
    assert (tombstones.header.kind, data.header.kind) == (BatchKind.TOMBSTONE, BatchKind.DATA)
    assert rows(data, "c1", "c2") == [(t1, Op.INSERT, 1, "a"), (t1, Op.INSERT, 2, None), (t2, Op.UPDATE, 2, "b")]
    assert rows(tombstones, "c1", "c2") == [(t2, Op.BEFORE, 2, None), (t3, Op.DELETE, 1, "a")]
    assert data.records.schema == case.table.batch_schema()
    assert (data.header.span_id, data.header.rows, data.header.min_ts, data.header.max_ts) == (11, 3, t1, t2)
    assert tombstones.records.column("_key").to_pylist() == [keys[1].as_py(), keys[0].as_py()]


def test_batches_are_ordered_by_ts_and_key_whatever_the_order_of_the_entries(case):
    case.put(id=[3, 1, 2], v=["a", "b", "c"])
    case.put(id=[1], v=["d"])
    straight, reversed_ = case.decode(), case.decode(reverse=True)
    assert [c.records for c in straight.changes] == [c.records for c in reversed_.changes]
    keys = [(r["_ts"], r["_key"]) for r in reversed_.changes[1].records.to_pylist()]
    assert keys == sorted(keys)


def test_old_rows_are_projected_to_the_version_of_the_new_row(case):
    _, keys = case.put(id=[1, 2, 3], v=["a", "b", "c"])
    old_version = case.table.version
    case.engine.execute_ddl("ALTER TABLE d.t ADD COLUMN n INT NOT NULL DEFAULT 7 FIRST")
    case.put(n=[1], id=[1], v=["A"])
    case.engine.execute_ddl("ALTER TABLE d.t DROP COLUMN v")
    t3, _ = case.put(n=[2, 3], id=[1, 2])
    t4 = case.delete(keys.slice(2, 1))
    by_version = {(c.header.schema_version, c.header.kind): c for c in case.decode().changes}
    newest = case.table.version
    assert rows(by_version[newest, BatchKind.DATA], "c3", "c1") == [(t3, Op.UPDATE, 2, 1), (t3, Op.UPDATE, 3, 2)]
    # Row 1 was of the second version, row 2 of the first: one batch, in order, with the default that the first had not stored.
    assert rows(by_version[newest, BatchKind.TOMBSTONE], "c3", "c1") == [
        (t3, Op.BEFORE, 1, 1),
        (t3, Op.BEFORE, 7, 2),
        (t4, Op.DELETE, 7, 3),
    ]
    assert by_version[newest, BatchKind.TOMBSTONE].records.schema == case.table.batch_schema()
    assert (old_version, BatchKind.TOMBSTONE) not in by_version


def test_schemas_are_fetched_once_as_long_as_they_are_known(case):
    case.put(id=[1], v=["a"])
    case.decode()
    case.put(id=[1], v=["b"])
    case.decode()
    assert case.fetches == 1
    case.engine.execute_ddl("ALTER TABLE d.t ADD COLUMN n INT")
    case.put(id=[1], v=["c"], n=[1])
    case.decode()
    assert case.fetches == 2


def test_an_unknown_version_says_so(case):
    case.put(id=[1], v=["a"])
    raw = case.raw()
    value = bytearray(raw.entries.column("value")[0].as_py())
    value[1:9] = (5).to_bytes(8, "little")
    entries = raw.entries.set_column(4, RAW_SCHEMA.field(4), pa.array([bytes(value)], pa.binary()))
    with pytest.raises(PenstockError, match="SCHEMA_UNKNOWN"):
        case.decoder.decode(1, RawBatch(1, entries))


def test_ddl_entries_become_events(case):
    ts = case.engine.execute_ddl("ALTER TABLE d.t ADD COLUMN n INT")
    decoded = case.decode(table_id=DDL_TABLE_ID)
    assert [e.type for e in decoded.ddls] == [DdlType.CREATE_SCHEMA, DdlType.CREATE_TABLE, DdlType.ADD_COLUMN]
    assert decoded.ddls[-1].commit_ts == ts
    assert decoded.ddls[-1].tables == (case.table,)
    assert decoded.changes == ()


@pytest.mark.parametrize("damage", ["op", "no value", "no old", "short value", "ddl"])
def test_damaged_entries_do_not_decode(case, damage):
    _, keys = case.put(id=[1], v=["a"])
    case.delete(keys)
    raw = case.raw(table_id=DDL_TABLE_ID if damage == "ddl" else None)
    entries = raw.entries
    if damage == "op":
        entries = entries.set_column(2, RAW_SCHEMA.field(2), pa.array([1, 9], pa.uint8()))
    elif damage == "no value":
        entries = entries.set_column(4, RAW_SCHEMA.field(4), pa.array([None, None], pa.binary()))
    elif damage == "no old":
        entries = entries.set_column(5, RAW_SCHEMA.field(5), pa.array([None, None], pa.binary()))
    elif damage == "short value":
        entries = entries.set_column(4, RAW_SCHEMA.field(4), pa.array([b"\x01\x02", None], pa.binary()))
    else:
        entries = entries.set_column(0, RAW_SCHEMA.field(0), pa.array([1] * entries.num_rows, pa.uint64()))
    with pytest.raises(PenstockError, match="DECODE_FAILED"):
        case.decoder.decode(1, RawBatch(1, entries))


def test_large_batches_are_cut_and_empty_ones_give_nothing(case):
    count = BATCH_ROWS_MAX + 10
    case.put(id=list(range(count)), v=["x"] * count)
    changes = case.decode().changes
    assert [c.header.rows for c in changes] == [BATCH_ROWS_MAX, 10]
    assert [n for c in changes for n in c.records.column("c1").to_pylist()] == list(range(count))
    raw = case.raw()
    empty = case.decoder.decode(1, RawBatch(1, raw.entries.slice(0, 0)))
    assert (empty.changes, empty.ddls) == ((), ())


def test_keys_of_another_table_in_the_batch_are_an_error(case):
    case.put(id=[1, 2], v=["a", "b"])
    raw = case.raw()
    keys = [raw.entries.column("key")[0].as_py(), table_prefix(99) + b"k"]
    entries = raw.entries.set_column(3, RAW_SCHEMA.field(3), pa.array(keys, pa.binary()))
    with pytest.raises(PenstockError, match="several tables"):
        case.decoder.decode(1, RawBatch(1, entries))
