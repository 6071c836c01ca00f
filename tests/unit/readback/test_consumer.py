"""The storage consumer: a target applied to a database is the table that replay gives, however often and wherever it is stopped."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.consumer import StorageConsumer
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.readback.replay_database import ReplayDatabase, shown
from penstock.readback.replay_opening import open_database
from penstock.target.settings import from_uri
from testing.paths.storage_lab import StorageLab

K = TypeKind
T0 = compose_ts(1_700_000_000_000)
ID = Column(1, "id", ColumnType(K.BIGINT), False, True)
NAME = Column(2, "name", ColumnType(K.VARCHAR, length=40))
PRICE = Column(3, "price", ColumnType(K.DECIMAL, length=10, scale=2))
STOCK = Column(4, "stock", ColumnType(K.INT, unsigned=True), default="7")
KIND = Column(5, "kind", ColumnType(K.ENUM, elems=("x", "y")), default="y")
_numbers = itertools.count()
PROTOCOLS = ["", "csv.output-old-value=true", "protocol=canal-json", "protocol=parquet", "protocol=debezium&compression=zstd"]


def version(ts: int, *columns: Column, table: str = "t", table_id: int = 1) -> TableSchema:
    return TableSchema(table_id, "s", table, ts, columns)


def lab(query: str = "") -> StorageLab:
    return StorageLab(f"memory://consumer-{next(_numbers)}/?{query}")


@pytest.fixture(params=["sqlite", "duckdb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplayDatabase]:
    opened = open_database(f"{request.param}:///{tmp_path}/replay.db")
    yield opened
    opened.close()


def rows_in(database: ReplayDatabase, table: str = "t") -> list[tuple[object, ...]]:
    found = database._fetch(f"SELECT * FROM {database.dialect.table('s', table)}", ())
    return sorted(tuple(None if v is None else str(v) for v in row) for row in found)


def rows_replayed(source: StorageLab, database: ReplayDatabase, table: str = "t") -> list[tuple[object, ...]]:
    reader = source.reader()
    newest = reader.versions("s", table)[-1].table
    frame = replay_table(reader, "s", table)
    frame = frame.rename({c.name: c.field_name for c in newest.columns})
    return sorted(tuple(None if v is None else str(v) for v in row) for row in shown(frame, newest.columns, database.dialect).rows())


def history(source: StorageLab) -> None:
    first = version(T0, ID, NAME, PRICE)
    source.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", first)
    source.write(first, [(T0 + 1, Op.INSERT, 1, "a", "1.50"), (T0 + 2, Op.INSERT, 2, "b", "2.00"), (T0 + 3, Op.INSERT, 3, "c", None)])
    source.write(first, [(T0 + 4, Op.BEFORE, 1, "a", "1.50"), (T0 + 4, Op.UPDATE, 1, "a2", "1.75"), (T0 + 5, Op.DELETE, 2, "b", "2.00")])
    added = version(T0 + 10, ID, NAME, PRICE, STOCK, KIND)
    source.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD stock INT UNSIGNED DEFAULT 7, ADD kind ENUM('x','y') DEFAULT 'y'", added)
    source.write(added, [(T0 + 11, Op.INSERT, 4, "d", "4.00", 5, 1)])
    dropped = version(T0 + 20, ID, NAME, STOCK, KIND)
    source.ddl(T0 + 20, DdlType.DROP_COLUMN, "ALTER TABLE t DROP COLUMN price", dropped)
    source.write(dropped, [(T0 + 21, Op.INSERT, 5, "e", 6, 2)])
    source.checkpoint(T0 + 100)


@pytest.mark.parametrize("query", PROTOCOLS)
def test_rows_and_structures_arrive(query: str, database: ReplayDatabase) -> None:
    source = lab(query)
    history(source)
    done = StorageConsumer(source.reader(), database).run_round()
    assert (done.ddls, done.checkpoint_ts) == (3, T0 + 100)
    assert rows_in(database) == rows_replayed(source, database)
    assert rows_in(database) == [
        ("1", "a2", "7", "y"),
        ("3", "c", "7", "y"),
        ("4", "d", "5", "x"),
        ("5", "e", "6", "y"),
    ]


def test_it_goes_on_where_it_stopped_and_applies_nothing_twice(database: ReplayDatabase) -> None:
    source = lab("csv.output-old-value=true")
    keyless = version(T0, NAME)
    source.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", keyless)
    source.write(keyless, [(T0 + 1, Op.INSERT, "a"), (T0 + 2, Op.INSERT, "a"), (T0 + 3, Op.INSERT, None)])
    source.checkpoint(T0 + 2)
    assert StorageConsumer(source.reader(), database).run_round().rows == 2
    assert rows_in(database) == [("a",), ("a",)]
    for _ in range(2):
        assert StorageConsumer(source.reader(), database).run_round().rows == 0
    source.write(keyless, [(T0 + 4, Op.DELETE, "a"), (T0 + 5, Op.BEFORE, None), (T0 + 5, Op.UPDATE, "b")])
    source.checkpoint(T0 + 10)
    consumer = StorageConsumer(source.reader(), database)
    assert consumer.run_round().rows == 4
    assert consumer.run_round().rows == 0
    assert rows_in(database) == [("a",), ("b",)]


@pytest.mark.parametrize("period", [1, 2, 5])
def test_a_step_that_fails_leaves_nothing_and_is_done_again(database: ReplayDatabase, period: int) -> None:
    source = lab("csv.output-old-value=true")
    history(source)
    statements = itertools.count(1)
    # Further and further apart, so that every step succeeds at last.
    faults = {period * n * (n + 1) // 2 for n in range(1, 40)}

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if next(statements) in faults and sql != "ROLLBACK":
            raise OSError("the database went away")
        return database._fetch(sql, values)

    faulty = ReplayDatabase(database.dialect, database._connection, fetch)
    stops = 0
    for _ in range(60):
        try:
            StorageConsumer(source.reader(), faulty).run_round()
        except PenstockError as error:
            assert "the database went away" in error.detail  # noqa: PT017
            stops += 1
        else:
            break
    assert stops
    assert rows_in(database) == rows_replayed(source, database)


def test_renames_truncates_and_drops(database: ReplayDatabase) -> None:
    source = lab()
    first = version(T0, ID, NAME)
    source.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", first)
    source.write(first, [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 2, "b")])
    renamed = version(T0 + 10, ID, NAME, table="u")
    source.ddl(T0 + 10, DdlType.RENAME_TABLE, "RENAME TABLE s.t TO s.u", renamed, old_names=((1, "s", "t"),))
    source.write(renamed, [(T0 + 11, Op.DELETE, 1, "a"), (T0 + 12, Op.INSERT, 3, "c")])
    source.checkpoint(T0 + 20)
    consumer = StorageConsumer(source.reader(), database)
    consumer.run_round()
    assert rows_in(database, "u") == [("2", "b"), ("3", "c")]
    truncated = version(T0 + 30, ID, NAME, table="u", table_id=2)
    source.ddl(T0 + 30, DdlType.TRUNCATE_TABLE, "TRUNCATE TABLE s.u", truncated)
    source.write(truncated, [(T0 + 31, Op.INSERT, 9, "z")])
    source.checkpoint(T0 + 40)
    consumer.run_round()
    assert rows_in(database, "u") == [("9", "z")]
    source.ddl(T0 + 50, DdlType.DROP_TABLE, "DROP TABLE s.u")
    source.checkpoint(T0 + 60)
    consumer.run_round()
    with pytest.raises(Exception, match="u"):
        rows_in(database, "u")


def test_every_type_arrives(database: ReplayDatabase) -> None:
    source = lab("protocol=canal-json")
    values = {
        K.DECIMAL: "12.30",
        K.DATE: "2000-01-02",
        K.DATETIME: "2000-01-02 03:04:05",
        K.TIMESTAMP: "2000-01-02 03:04:05",
        K.TIME: "-1:00:00",
    }
    columns = [ID]
    row: list[object] = [1]
    for at, kind in enumerate(K):
        ctype = ColumnType(kind, elems=("a", "b") if kind in {K.ENUM, K.SET} else (), scale=2 if kind is K.DECIMAL else None)
        columns.append(Column(100 + at, f"c_{kind.value.lower()}", ctype))
        dtype = ctype.arrow()
        row.append(values.get(kind, "x" if str(dtype) == "string" else b"\x00\xff" if str(dtype) == "binary" else 1))
    table = version(T0, *columns, Column(99, "big", ColumnType(K.BIGINT, unsigned=True)))
    source.write(table, [(T0 + 1, Op.INSERT, *row, 2**64 - 1), (T0 + 2, Op.INSERT, 2, *[None] * len(columns))])
    source.checkpoint(T0 + 9)
    StorageConsumer(source.reader(), database).run_round()
    assert rows_in(database) == rows_replayed(source, database)
    assert str(2**64 - 1) in rows_in(database)[0]


def test_keyless_updates_without_old_values_are_refused(database: ReplayDatabase) -> None:
    source = lab()
    table = version(T0, NAME)
    source.write(table, [(T0 + 1, Op.INSERT, "a"), (T0 + 2, Op.UPDATE, "b")])
    source.checkpoint(T0 + 9)
    with pytest.raises(PenstockError, match="no primary key"):
        StorageConsumer(source.reader(), database).run_round()


def test_a_target_without_checkpoint_is_not_ready(database: ReplayDatabase) -> None:
    source = lab()
    source.write(version(T0, ID), [(T0 + 1, Op.INSERT, 1)])
    with pytest.raises(PenstockError) as caught:
        StorageConsumer(source.reader(), database).run_round()
    assert caught.value.code == "CHECKPOINT_MISSING"


@pytest.mark.parametrize("uri", ["oracle://x/y", "sqlite://", "", "mysql://root@127.0.0.1:1/"])
def test_uris_that_cannot_be_meant(uri: str) -> None:
    with pytest.raises(PenstockError) as caught:
        open_database(uri)
    assert caught.value.code == "SINK_URI_INVALID"


@pytest.mark.parametrize("query", PROTOCOLS)
def test_a_unique_key_names_the_rows_of_a_table_without_a_primary_key(query: str, database: ReplayDatabase) -> None:
    source = lab(query)
    row, mail = Column(3, "row", ColumnType(K.BIGINT)), Column(1, "mail", ColumnType(K.VARCHAR, length=20), False)
    table = TableSchema(1, "s", "t", T0, (row, mail, NAME), unique_keys=((1,),))
    source.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE", table)
    swapped = [
        (T0 + 2, Op.BEFORE, 1, "a", "1"),
        (T0 + 2, Op.BEFORE, 2, "b", "2"),
        (T0 + 2, Op.UPDATE, 1, "b", "1"),
        (T0 + 2, Op.UPDATE, 2, "a", "2"),
    ]
    changed = [
        (T0 + 3, Op.BEFORE, 3, "c", "3"),
        (T0 + 3, Op.UPDATE, 3, "c", "33"),
        (T0 + 4, Op.BEFORE, 3, "c", "33"),
        (T0 + 4, Op.UPDATE, 3, "d", "33"),
    ]
    source.write(
        table, [(T0 + 1, Op.INSERT, 1, "a", "1"), (T0 + 1, Op.INSERT, 2, "b", "2"), (T0 + 1, Op.INSERT, 3, "c", "3"), *swapped, *changed]
    )
    source.checkpoint(T0 + 9)
    StorageConsumer(source.reader(), database).run_round()
    assert rows_in(database) == rows_replayed(source, database) == [("1", "b", "1"), ("2", "a", "2"), ("3", "d", "33")]


def test_tables_carry_their_primary_key(database: ReplayDatabase) -> None:
    source = lab()
    history(source)
    StorageConsumer(source.reader(), database).run_round()
    name = database.dialect.table("s", "t")
    key = database._fetch(f"SELECT id FROM {name} LIMIT 1", ())[0][0]
    with pytest.raises(PenstockError, match=r"(?i)unique|duplicate|primary"):
        database.execute(f"INSERT INTO {name} (id) VALUES ({key})")


def removed(source: StorageLab, part: str) -> None:
    for path in [p for p in source.target.paths() if part in p]:
        source.target.delete(path)


@pytest.mark.parametrize(
    ("part", "code"), [("CDC.index", "OBJECT_MISSING"), ("schema_", "FILE_MALFORMED"), ("CDC00000000000000000001.csv", "OBJECT_MISSING")]
)
def test_what_is_missing_is_an_error_and_not_nothing_to_read(database: ReplayDatabase, part: str, code: str) -> None:
    source = lab()
    table = version(T0, ID, NAME)
    source.write(table, [(T0 + 1, Op.INSERT, 1, "a")])
    source.checkpoint(T0 + 10)
    removed(source, part)
    with pytest.raises(PenstockError, match=code):
        StorageConsumer(source.reader(), database).run_round()


def test_what_expired_after_it_was_applied_and_what_is_not_published_yet_is_no_error(database: ReplayDatabase) -> None:
    source = lab()
    table = version(T0, ID, NAME)
    source.write(table, [(T0 + 1, Op.INSERT, 1, "a")])
    source.checkpoint(T0 + 10)
    assert StorageConsumer(source.reader(), database).run_round().rows == 1
    removed(source, "CDC.index")
    assert StorageConsumer(source.reader(), database).run_round().rows == 0
    other = version(T0, ID, NAME, table="u", table_id=2)
    source.write(other, [(T0 + 11, Op.INSERT, 1, "a")])
    removed(source, "s/u/" + str(T0) + "/2023-11-14/meta")
    assert StorageConsumer(source.reader(), database).run_round().rows == 0
    source.checkpoint(T0 + 11)
    with pytest.raises(PenstockError, match="OBJECT_MISSING"):
        StorageConsumer(source.reader(), database).run_round()


@pytest.mark.parametrize(("written", "read"), [("date-separator=month", ""), ("", "date-separator=month"), ("", "date-separator=none")])
def test_a_target_read_with_other_settings_is_an_error(database: ReplayDatabase, written: str, read: str) -> None:
    source = lab(written)
    source.write(version(T0, ID, NAME), [(T0 + 1, Op.INSERT, 1, "a")])
    source.checkpoint(T0 + 10)
    reader = StorageReader(source.target, from_uri(f"memory://x/?{read}")[1])
    with pytest.raises(PenstockError, match="FILE_MALFORMED") as wrong:
        StorageConsumer(reader, database).run_round()
    assert "date-separator" in wrong.value.hint


def test_rows_that_are_alike_in_a_new_key_wait_for_their_corrections(database: ReplayDatabase) -> None:
    """As after ``ADD id BIGINT AUTO_INCREMENT PRIMARY KEY``: rows show the column's default until the table was read again."""
    source = lab("csv.output-old-value=true")
    name = Column(2, "name", ColumnType(K.VARCHAR, length=40))
    first = version(T0, name)
    source.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", first)
    source.write(first, [(T0 + n, Op.INSERT, "a") for n in (1, 2, 3)])
    keyed = version(T0 + 10, name, Column(3, "id", ColumnType(K.BIGINT), False, True, initial_default="0"))
    source.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD id BIGINT AUTO_INCREMENT PRIMARY KEY", keyed)
    source.checkpoint(T0 + 15)
    StorageConsumer(source.reader(), database).run_round()
    assert rows_in(database) == [("a", "0")]
    source.write(keyed, [(T0 + 20, Op.DELETE, "a", 0), *((T0 + 20, Op.INSERT, "a", n) for n in (1, 2, 3))])
    source.checkpoint(T0 + 30)
    StorageConsumer(source.reader(), database).run_round()
    assert rows_in(database) == rows_replayed(source, database) == [("a", "1"), ("a", "2"), ("a", "3")]


def one_row(source: StorageLab, schema: str, table: str, number: int, *columns: Column) -> TableSchema:
    described = TableSchema(number, schema, table, T0, columns or (ID, NAME))
    source.write(described, [(T0 + 1, Op.INSERT, number, f"row of {number}")])
    return described


def held(database: ReplayDatabase, schema: str, table: str) -> list[tuple[Any, ...]]:
    return [tuple(r) for r in database._fetch(f"SELECT id, name FROM {database.dialect.table(schema, table)}", ())]


NAMES = [("a.b", "c"), ("a", "b.c"), ("a%2Eb", "c"), ("a/b", "c"), ("a", "b/c"), ("s", "blank "), ("s", "blank"), ("s", "日本")]


def test_tables_whose_names_look_alike_stay_apart(database: ReplayDatabase) -> None:
    source = lab()
    for number, (schema, table) in enumerate(NAMES, 1):
        one_row(source, schema, table, number)
    source.checkpoint(T0 + 10)
    for rows in (len(NAMES), 0):
        assert StorageConsumer(source.reader(), database).run_round().rows == rows
    assert [held(database, *name) for name in NAMES] == [[(n, f"row of {n}")] for n in range(1, len(NAMES) + 1)]


def test_a_name_that_differs_by_case_only_is_an_error_where_the_database_does_not_tell(database: ReplayDatabase) -> None:
    source = lab()
    one_row(source, "s", "orders", 1)
    one_row(source, "s", "Orders", 2)
    source.checkpoint(T0 + 10)
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        StorageConsumer(source.reader(), database).run_round()
    assert held(database, "s", "Orders") == []


def test_a_table_that_looks_like_a_temporary_one_survives_an_alter(database: ReplayDatabase) -> None:
    source = lab()
    first = one_row(source, "s", "orders", 1)
    source.checkpoint(T0 + 2)
    StorageConsumer(source.reader(), database).run_round()
    spare = database.spare_name("s", "orders", "new")
    for number, name in enumerate(("orders__penstock", "orders__gone", spare, "penstock_stage", "penstock_rows"), 2):
        one_row(source, "s", name, number)
    wider = TableSchema(1, "s", "orders", T0 + 10, (ID, NAME, STOCK))
    source.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE orders ADD stock INT UNSIGNED DEFAULT 7", wider)
    source.checkpoint(T0 + 20)
    StorageConsumer(source.reader(), database).run_round()
    assert held(database, "s", first.table) == [(1, "row of 1")]
    assert held(database, "s", "orders__penstock") == [(2, "row of 2")]
    assert held(database, "s", spare) == [(4, "row of 4")]


def test_a_column_with_a_percent_sign_may_be_added_to_and_be_added(database: ReplayDatabase) -> None:
    source = lab()
    rate = Column(3, "rate%s", ColumnType(K.INT), default="5")
    first = TableSchema(1, "s", "t", T0, (ID, Column(2, "50%", NAME.type)))
    source.write(first, [(T0 + 1, Op.INSERT, 1, "a")])
    after = TableSchema(1, "s", "t", T0 + 10, (*first.columns, rate))
    source.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD `rate%s` INT DEFAULT 5", after)
    source.checkpoint(T0 + 20)
    StorageConsumer(source.reader(), database).run_round()
    assert rows_in(database) == [("1", "a", "5")]


def test_a_database_takes_one_target_and_no_table_of_somebody_else(database: ReplayDatabase) -> None:
    sources = [lab(), lab()]
    for number, source in enumerate(sources, 1):
        one_row(source, "s", "t", number)
        source.checkpoint(T0 + 10)
    first, second = sources
    if database.dialect.has_schemas:
        database.execute("CREATE SCHEMA s")
    name = database.dialect.table("s", "t")
    database.execute(f"CREATE TABLE {name} (id BIGINT, name VARCHAR)")
    database.execute(f"INSERT INTO {name} VALUES (9, 'mine')")
    with pytest.raises(PenstockError, match="SINK_OCCUPIED") as wrong:
        StorageConsumer(first.reader(), database).run_round()
    assert "--take-over" in wrong.value.hint
    assert held(database, "s", "t") == [(9, "mine")]
    assert StorageConsumer(first.reader(), database, take_over=True).run_round().rows == 1
    assert held(database, "s", "t") == [(1, "row of 1")]
    with pytest.raises(PenstockError, match="holds a replay of"):
        StorageConsumer(second.reader(), database).run_round()
    assert StorageConsumer(second.reader(), database, take_over=True).run_round().rows == 1
    assert held(database, "s", "t") == [(2, "row of 2")]


def test_only_the_tables_that_are_asked_for_arrive_and_none_of_the_servers_own(database: ReplayDatabase) -> None:
    source = lab()
    one_row(source, "s", "t", 1)
    one_row(source, "information_schema", "x", 2)
    renamed = TableSchema(3, "s", "kept", T0 + 5, (ID, NAME))
    one_row(source, "s", "left", 3)
    source.ddl(T0 + 5, DdlType.RENAME_TABLE, "RENAME TABLE s.left TO s.kept", renamed, old_names=((3, "s", "left"),))
    source.checkpoint(T0 + 10)
    if database.dialect.has_schemas:
        with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*server itself"):
            StorageConsumer(source.reader(), database).run_round()
    with pytest.raises(PenstockError, match="which the patterns leave out"):
        StorageConsumer(source.reader(), database, ["s.t", "s.kept"]).run_round()
    assert StorageConsumer(source.reader(), database, ["s.t"]).run_round().rows == 1
    assert held(database, "s", "t") == [(1, "row of 1")]
    assert not database.exists("s", "kept")
