"""Reading a target back: order, versions, renames, what is missing."""

import itertools

import polars as pl
import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.sink import StorageSink
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget

_names = itertools.count()
T0 = compose_ts(1_700_000_000_000)
ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
NAME = Column(2, "name", ColumnType(TypeKind.VARCHAR, length=40))
PRICE = Column(3, "price", ColumnType(TypeKind.DECIMAL, length=10, scale=2))


class Bench:
    """A target and the means to write to it."""

    def __init__(self, query: str = "") -> None:
        uri, self.settings = from_uri(f"memory://replay-{next(_names)}/?{query}")
        self.target = ObjectTarget.open(uri)
        self.maintainer = StorageMaintainer(self.target, self.settings)

    def write(self, table: TableSchema, rows: list[tuple[object, ...]], dispatcher: DispatcherId | None = None) -> DispatcherResult:
        chosen = dispatcher or DispatcherId(table.table_id)
        schema = table.batch_schema().remove(2)
        data = list(zip(*rows, strict=True))
        records = pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(data, schema, strict=True)], schema=schema)
        sink = StorageSink(self.target, self.settings)
        sink.open_dispatcher(DispatcherWork(chosen, table, T0, T0 + 10**9))
        sink.add_dml_event(DmlEvent(chosen, table, records))
        result = sink.close_dispatcher(chosen)
        sink.close()
        return result

    def ddl(self, ts: int, kind: DdlType, query: str, *tables: TableSchema, **more: object) -> None:
        self.maintainer.write_block_event(DdlEvent(ts, kind, query, "s", tables, **more))  # type: ignore[arg-type]

    def state(self, table: str = "t", up_to_ts: int = T0 + 10**6) -> pl.DataFrame:
        self.maintainer.publish_checkpoint(up_to_ts)
        return replay_table(StorageReader(self.target, self.settings), "s", table)


def version(ts: int, *columns: Column, table: str = "t", table_id: int = 1) -> TableSchema:
    return TableSchema(table_id, "s", table, ts, columns)


def test_schema_changes_are_applied_to_older_rows() -> None:
    bench = Bench()
    first = version(T0, ID, NAME, PRICE)
    bench.write(first, [(T0 + 1, Op.INSERT, 1, "a", "1.50"), (T0 + 2, Op.INSERT, 2, "b", "2.00"), (T0 + 3, Op.INSERT, 3, "c", None)])
    stock = Column(4, "stock", ColumnType(TypeKind.INT, unsigned=True), default="7")
    kind = Column(5, "kind", ColumnType(TypeKind.ENUM, elems=("x", "y")), default="y")
    added = version(T0 + 10, ID, NAME, PRICE, stock, kind)
    bench.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD stock INT UNSIGNED DEFAULT 7, ADD kind ENUM('x','y') DEFAULT 'y'", added)
    bench.write(added, [(T0 + 11, Op.UPDATE, 2, "b2", "2.10", 9, 1)])
    title = Column(2, "title", NAME.type)
    renamed = version(T0 + 20, ID, title, PRICE, stock, kind)
    bench.ddl(T0 + 20, DdlType.MODIFY_COLUMN, "ALTER TABLE t RENAME COLUMN `name` TO title", renamed)
    wide = Column(3, "price", ColumnType(TypeKind.DECIMAL, length=12, scale=4))
    final = version(T0 + 30, ID, title, wide, kind)
    bench.ddl(T0 + 30, DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE t DROP COLUMN stock, MODIFY price DECIMAL(12,4)", final)
    bench.write(final, [(T0 + 31, Op.DELETE, 3, "c", None, 2), (T0 + 32, Op.INSERT, 4, "d", "4.0001", None)])
    assert bench.state().sort("id").rows(named=True) == [
        {"id": 1, "title": "a", "price": "1.5000", "kind": 2},
        {"id": 2, "title": "b2", "price": "2.1000", "kind": 1},
        {"id": 4, "title": "d", "price": "4.0001", "kind": None},
    ]
    reader = StorageReader(bench.target, bench.settings)
    assert replay_table(reader, "s", "t", T0 + 12).columns == ["id", "name", "price", "stock", "kind"]
    assert replay_table(reader, "s", "t", T0 + 12).sort("id").get_column("stock").to_list() == [7, 9, 7]
    assert [d.type for d in reader.ddls("s", "t")] == [5, 12, 61]


def test_integers_widen_and_become_text() -> None:
    bench = Bench()
    number = Column(2, "n", ColumnType(TypeKind.INT))
    bench.write(version(T0, ID, number), [(T0 + 1, Op.INSERT, 1, -5)])
    bench.ddl(
        T0 + 5, DdlType.MODIFY_COLUMN, "ALTER TABLE t MODIFY n BIGINT", version(T0 + 5, ID, Column(2, "n", ColumnType(TypeKind.BIGINT)))
    )
    assert bench.state(up_to_ts=T0 + 6).schema["n"] == pl.Int64
    bench.ddl(T0 + 7, DdlType.MODIFY_COLUMN, "ALTER TABLE t MODIFY n VARCHAR(9)", version(T0 + 7, ID, Column(2, "n", NAME.type)))
    assert bench.state(up_to_ts=T0 + 8).rows() == [(1, "-5")]


def test_truncate_drop_and_create_again_clear() -> None:
    bench = Bench()
    bench.write(version(T0, ID), [(T0 + 1, Op.INSERT, 1)])
    bench.ddl(T0 + 5, DdlType.TRUNCATE_TABLE, "TRUNCATE TABLE t", version(T0 + 5, ID, table_id=2))
    assert bench.state(up_to_ts=T0 + 6).rows() == []
    bench.write(version(T0 + 5, ID, table_id=2), [(T0 + 7, Op.INSERT, 2)])
    assert bench.state(up_to_ts=T0 + 8).rows() == [(2,)]
    bench.ddl(T0 + 9, DdlType.DROP_TABLE, "DROP TABLE t", dropped_table_ids=(2,))
    assert bench.state(up_to_ts=T0 + 10).rows() == []
    again = version(T0 + 11, ID, NAME, table_id=3)
    bench.ddl(T0 + 11, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", again)
    bench.write(again, [(T0 + 12, Op.INSERT, 3, "x")])
    assert bench.state(up_to_ts=T0 + 13).rows() == [(3, "x")]


def test_a_renamed_table_takes_its_rows_along() -> None:
    bench = Bench()
    bench.write(version(T0, ID, NAME), [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 2, "b")])
    renamed = version(T0 + 5, ID, NAME, table="t2")
    bench.ddl(T0 + 5, DdlType.RENAME_TABLE, "ALTER TABLE t RENAME TO t2", renamed, old_names=((1, "s", "t"),))
    bench.write(renamed, [(T0 + 6, Op.UPDATE, 2, "B"), (T0 + 7, Op.INSERT, 3, "c")])
    assert bench.state("t2").sort("id").rows() == [(1, "a"), (2, "B"), (3, "c")]


def test_dispatchers_of_one_table_are_merged_by_commit_ts() -> None:
    bench = Bench()
    table = version(T0, ID, NAME)
    bench.write(table, [(T0 + 1, Op.INSERT, 1, "unsplit"), (T0 + 2, Op.INSERT, 2, "unsplit")])
    bench.write(table, [(T0 + 9, Op.UPDATE, 1, "late"), (T0 + 12, Op.DELETE, 2, "unsplit")], DispatcherId(1, 0, 2))
    bench.write(table, [(T0 + 5, Op.UPDATE, 1, "early"), (T0 + 6, Op.UPDATE, 2, "early")], DispatcherId(1, 1, 2))
    assert bench.state().rows() == [(1, "late")]
    reader = StorageReader(bench.target, bench.settings)
    parts = list(reader.changes("s", "t"))
    ts = [t for _, frame in parts for t in frame.get_column("_ts")]
    assert ts == sorted(ts)
    assert len(reader.data_files("s", "t")) == 3


def test_many_changes_are_compacted_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.readback.replay.COMPACT_ROWS_MIN", 50)
    bench = Bench("file-size=1024")
    changes: list[tuple[object, ...]] = [(T0 + 1 + i, Op.INSERT, i, "first") for i in range(100)]
    changes += [(T0 + 101 + i, Op.DELETE, i, "first") for i in range(0, 100, 2)]
    changes += [(T0 + 301 + i, Op.UPDATE, i, f"second {i}") for i in range(1, 100, 4)]
    changes += [(T0 + 501, Op.INSERT, 0, "again")]
    bench.write(version(T0, ID, NAME), changes)
    expected = dict.fromkeys(range(1, 100, 2), "first") | {i: f"second {i}" for i in range(1, 100, 4)} | {0: "again"}
    assert dict(bench.state().rows()) == expected


def test_tables_without_a_key_are_counted() -> None:
    bench = Bench("csv.output-old-value=true")
    table = version(T0, NAME)
    rows = [
        (T0 + 1, Op.INSERT, "a"),
        (T0 + 2, Op.INSERT, "a"),
        (T0 + 3, Op.INSERT, None),
        (T0 + 4, Op.BEFORE, "a"),
        (T0 + 4, Op.UPDATE, "b"),
        (T0 + 5, Op.INSERT, "a"),
    ]
    bench.write(table, rows)
    assert sorted(r[0] or "" for r in bench.state().rows()) == ["", "a", "a", "b"]
    plain = Bench()
    plain.write(table, [(T0 + 1, Op.INSERT, "a"), (T0 + 2, Op.UPDATE, "b")])
    with pytest.raises(PenstockError, match="no primary key"):
        plain.state()


def test_only_what_an_index_names_is_read_and_all_of_it_must_be_there() -> None:
    bench = Bench("file-size=1024")
    result = bench.write(version(T0, ID, NAME), [(T0 + 1 + i, Op.INSERT, i, "x" * 20) for i in range(100)])
    path = result.files[-1].path
    number = len(result.files)
    bench.target.put(path.replace(f"{number:020d}", f"{number + 1:020d}"), b"not named by the index, not read")
    assert bench.state().height == 100
    bench.target.delete(result.files[1].path)
    with pytest.raises(PenstockError, match="OBJECT_MISSING"):
        bench.state()


def test_damage_is_named() -> None:
    bench = Bench()
    result = bench.write(version(T0, ID, NAME), [(T0 + 1, Op.INSERT, 1, "a")])
    bench.target.put(result.files[0].path, b"rubbish\r\n")
    with pytest.raises(PenstockError, match=f"FILE_MALFORMED.*{result.files[0].path}: line 1"):
        bench.state()
    (schema,) = [p for p in bench.target.paths() if "schema_" in p]
    bench.target.put(schema, bench.target.get(schema).replace(b"name", b"game"))
    with pytest.raises(PenstockError, match=r"FILE_MALFORMED.*checksum"):
        bench.state()


def test_before_the_first_checkpoint_there_is_nothing() -> None:
    bench = Bench()
    bench.write(version(T0, ID, NAME), [(T0 + 1, Op.INSERT, 1, "a")])
    reader = StorageReader(bench.target, bench.settings)
    assert reader.checkpoint_ts() is None
    assert reader.tables() == [("s", "t")]
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        replay_table(reader, "s", "t")
    bench.maintainer.publish_checkpoint(T0 + 5)
    reader.refresh()
    assert replay_table(reader, "s", "t").rows() == [(1, "a")]


def test_column_ids_in_schema_files_are_used() -> None:
    bench = Bench("output-column-id=true")
    bench.write(version(T0, ID, NAME), [(T0 + 1, Op.INSERT, 1, "a")])
    swapped = version(T0 + 5, ID, Column(9, "name", NAME.type), Column(2, "old_name", NAME.type))
    bench.ddl(T0 + 5, DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE t ...", swapped)
    assert bench.state().rows(named=True) == [{"id": 1, "name": None, "old_name": "a"}]
