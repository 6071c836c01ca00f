"""The storage consumer against real database servers: what arrives is what the files replay to."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.consumer import StorageConsumer
from penstock.readback.replay_database import ReplayDatabase
from penstock.readback.replay_opening import open_database
from testing.paths.storage_lab import StorageLab
from testing.servers.loopback_server import mariadb, postgres

pytestmark = pytest.mark.integration

K = TypeKind
T0 = compose_ts(1_700_000_000_000)
ID = Column(1, "id", ColumnType(K.BIGINT, unsigned=True, length=20), False, True)
NAME = Column(2, 'na"me`s', ColumnType(K.VARCHAR, length=40))
PRICE = Column(3, "price", ColumnType(K.DECIMAL, length=30, scale=10))
BODY = Column(4, "body", ColumnType(K.BLOB))
SEEN = Column(5, "seen", ColumnType(K.DATETIME, scale=6))
KIND = Column(6, "kind", ColumnType(K.ENUM, elems=("x", "it's")), default="it's")
_schemas = itertools.count()


@pytest.fixture(scope="module", params=[postgres, mariadb], ids=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("database")
    with request.param(directory) as uri:
        yield uri


@pytest.fixture
def database(server: str) -> Iterator[ReplayDatabase]:
    opened = open_database(server)
    # A database takes one target, and each test has its own.
    opened.execute("DROP TABLE IF EXISTS penstock_replay")
    yield opened
    opened.close()


def found(database: ReplayDatabase, schema: str, table: str, columns: str) -> list[tuple[object, ...]]:
    rows = database._fetch(f"SELECT {columns} FROM {database.dialect.table(schema, table)} ORDER BY id", ())
    return [
        tuple(
            bytes(v) if isinstance(v, memoryview | bytearray) else v if isinstance(v, bytes) else None if v is None else str(v) for v in r
        )
        for r in rows
    ]


def test_rows_structures_and_resumption(database: ReplayDatabase, server: str) -> None:
    schema = f"replay_{next(_schemas)}"
    lab = StorageLab(f"memory://databases-{schema}-{database.dialect.name}/?protocol=canal-json")
    first = TableSchema(1, schema, "t", T0, (ID, NAME, PRICE, BODY, SEEN))
    lab.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", first, schema=schema)
    moment = "2023-05-09 01:02:03.000045"
    lab.write(
        first,
        [
            (T0 + 1, Op.INSERT, 2**64 - 1, "quote \" ' \\ %s 😀", "12345678901234567890.0123456789", b"\x00\xff", moment),
            (T0 + 2, Op.INSERT, 2, None, None, None, None),
            (T0 + 3, Op.INSERT, 3, "c", "-1.0000000000", b"", moment),
        ],
    )
    lab.checkpoint(T0 + 2)
    assert StorageConsumer(lab.reader(), database).run_round().rows == 2
    lab.write(first, [(T0 + 4, Op.BEFORE, 2, None, None, None, None), (T0 + 4, Op.UPDATE, 2, "b", None, None, None)])
    second = TableSchema(1, schema, "t", T0 + 10, (ID, NAME, PRICE, BODY, KIND))
    lab.ddl(T0 + 10, DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE t DROP seen, ADD kind ENUM('x','it''s')", second, schema=schema)
    lab.write(second, [(T0 + 11, Op.DELETE, 3, "c", "-1.0000000000", b"", 1), (T0 + 12, Op.INSERT, 4, "d", None, b"z", 1)])
    lab.checkpoint(T0 + 20)
    again = open_database(server)
    try:
        assert StorageConsumer(lab.reader(), again).run_round().rows == 5
        assert StorageConsumer(lab.reader(), again).run_round().rows == 0
    finally:
        again.close()
    quoted = database.dialect.identifier(NAME.name)
    assert found(database, schema, "t", f"id, {quoted}, price, body, kind") == [
        ("2", "b", None, None, "it's"),
        ("4", "d", None, b"z", "x"),
        (str(2**64 - 1), "quote \" ' \\ %s 😀", "12345678901234567890.0123456789", b"\x00\xff", "it's"),
    ]


def test_tables_without_a_key(database: ReplayDatabase) -> None:
    schema = f"replay_{next(_schemas)}"
    lab = StorageLab(f"memory://databases-{schema}-{database.dialect.name}/?csv.output-old-value=true")
    table = TableSchema(1, schema, "k", T0, (Column(1, "id", ColumnType(K.INT)), Column(2, "note", ColumnType(K.VARCHAR, length=9))))
    lab.write(table, [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 1, "a"), (T0 + 3, Op.INSERT, None, None)])
    lab.checkpoint(T0 + 5)
    StorageConsumer(lab.reader(), database).run_round()
    lab.write(table, [(T0 + 6, Op.DELETE, 1, "a"), (T0 + 7, Op.BEFORE, None, None), (T0 + 7, Op.UPDATE, 2, None)])
    lab.checkpoint(T0 + 9)
    StorageConsumer(lab.reader(), database).run_round()
    assert found(database, schema, "k", "id, note") == [("1", "a"), ("2", None)]


ODD = [
    "",
    "\\N",
    '"',
    "'",
    "\\",
    "\\'",
    "\r\n",
    "\t",
    ",",
    "%s",
    "%",
    "{}",
    "$1",
    "é😀",
    "NULL",
    "x" * 300_000,
    " trailing ",
    "a\u2028b",
    ";--",
    "\\.",
]


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_many_rows_and_odd_texts_arrive_in_bulk(database: ReplayDatabase, keyed: bool) -> None:
    schema = f"replay_{next(_schemas)}"
    lab = StorageLab(f"memory://databases-{schema}-{database.dialect.name}/?csv.output-old-value=true")
    columns = (
        Column(1, "id", ColumnType(K.BIGINT), not keyed, keyed),
        Column(2, "text", ColumnType(K.LONGTEXT)),
        Column(3, "body", ColumnType(K.LONGBLOB)),
        Column(4, "ratio", ColumnType(K.DOUBLE)),
    )
    table = TableSchema(1, schema, "b", T0, columns)
    size = 3000 if keyed else 90
    texts = {n: ODD[n % len(ODD)] if n < 60 else f"note {n}" for n in range(-size, size)}
    rows = {n: (n, text, text.encode()[:9] or None, n / 7) for n, text in texts.items()}
    lab.write(table, [(T0 + 1, Op.INSERT, *row) for row in rows.values()])
    changed = {n: (n, f"{rows[n][1]}!", b"\x00\\'", None) for n in range(0, size, 3)}
    gone = range(1, size, 3)
    lab.write(
        table,
        [
            *((T0 + 2, Op.BEFORE, *rows[n]) for n in changed),
            *((T0 + 2, Op.DELETE, *rows[n]) for n in gone),
            *((T0 + 2, Op.UPDATE, *row) for row in changed.values()),
        ],
    )
    lab.checkpoint(T0 + 9)
    StorageConsumer(lab.reader(), database).run_round()
    expected = {n: row for n, row in (rows | changed).items() if n not in gone}
    answer = database._fetch(f"SELECT id, text, body, ratio FROM {database.dialect.table(schema, 'b')} ORDER BY id", ())
    assert [(n, t, None if b is None else bytes(b), r) for n, t, b, r in answer] == [expected[n] for n in sorted(expected)]
    if keyed:
        assert StorageConsumer(lab.reader(), database).run_round().rows == 0


def test_as_many_copies_go_as_went(database: ReplayDatabase) -> None:
    schema = f"replay_{next(_schemas)}"
    lab = StorageLab(f"memory://databases-{schema}-{database.dialect.name}/")
    table = TableSchema(1, schema, "k", T0, (Column(1, "id", ColumnType(K.INT)), Column(2, "note", ColumnType(K.VARCHAR, length=9))))
    lab.write(table, [*[(T0 + 1, Op.INSERT, 1, None)] * 5, *[(T0 + 1, Op.INSERT, 2, "it's")] * 3, *[(T0 + 1, Op.INSERT, 1, "")] * 2])
    lab.checkpoint(T0 + 1)
    StorageConsumer(lab.reader(), database).run_round()
    lab.write(table, [*[(T0 + 2, Op.DELETE, 1, None)] * 3, *[(T0 + 2, Op.DELETE, 2, "it's")] * 3, (T0 + 2, Op.DELETE, 1, "")])
    lab.checkpoint(T0 + 2)
    StorageConsumer(lab.reader(), database).run_round()
    assert sorted(found(database, schema, "k", "id, note"), key=str) == [("1", ""), ("1", None), ("1", None)]


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(PenstockError) as caught:
        open_database("postgresql://me:hunter2@127.0.0.1:1/x")
    assert caught.value.code == "SINK_UNWRITABLE"
    assert "hunter2" not in str(caught.value)


def test_rows_that_are_alike_in_a_new_key_do_not_stop_it(database: ReplayDatabase) -> None:
    schema = f"rekeyed_{next(_schemas)}"
    lab = StorageLab(f"memory://databases-{schema}-{database.dialect.name}/")
    first = TableSchema(1, schema, "t", T0, (NAME,))
    lab.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", first, schema=schema)
    lab.write(first, [(T0 + n, Op.INSERT, "a") for n in (1, 2, 3)])
    keyed = TableSchema(1, schema, "t", T0 + 10, (NAME, Column(7, "id", ColumnType(K.BIGINT), False, True, initial_default="0")))
    lab.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD id BIGINT AUTO_INCREMENT PRIMARY KEY", keyed, schema=schema)
    lab.write(keyed, [(T0 + 20, Op.DELETE, "a", 0), *((T0 + 20, Op.INSERT, "a", n) for n in (1, 2, 3))])
    lab.checkpoint(T0 + 30)
    StorageConsumer(lab.reader(), database).run_round()
    assert found(database, schema, "t", "id") == [("1",), ("2",), ("3",)]


def test_nothing_of_a_schema_file_is_run_as_sql(database: ReplayDatabase) -> None:
    schema = f"hostile_{next(_schemas)}"
    lab = StorageLab(f"memory://hostile-{schema}-{database.dialect.name}/")
    elements = ("x\\", ") AS SELECT 7 AS id, (SELECT 8) AS x -- ", "it's")
    kind = Column(2, "ki%nd", ColumnType(K.ENUM, elems=elements))
    table = TableSchema(1, schema, 't`"; DROP TABLE x; --', T0, (ID, kind, Column(3, "name", NAME.type)))
    lab.write(table, [(T0 + 1, Op.INSERT, 1, 1, "a"), (T0 + 2, Op.INSERT, 2, 3, "b")])
    rate = Column(4, "rate%", ColumnType(K.INT), default="5")
    after = TableSchema(1, schema, table.table, T0 + 10, (*table.columns, rate))
    lab.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD `rate%` INT DEFAULT 5", after, schema=schema)
    lab.checkpoint(T0 + 20)
    StorageConsumer(lab.reader(), database).run_round()
    columns = ", ".join(database.dialect.identifier(c) for c in ("id", "ki%nd", "name", "rate%"))
    assert found(database, schema, table.table, columns) == [("1", "x\\", "a", "5"), ("2", "it's", "b", "5")]


@pytest.mark.parametrize("schema", ["mysql", "SYS", "pg_catalog", "information_schema"])
def test_schemas_of_the_server_are_left_alone(database: ReplayDatabase, schema: str) -> None:
    if schema in {"mysql", "SYS"} and database.dialect.name != "mysql":
        return
    if schema == "pg_catalog" and database.dialect.name != "postgresql":
        return
    lab = StorageLab(f"memory://system-{schema}-{database.dialect.name}/")
    lab.write(TableSchema(1, schema, "global_priv", T0, (ID, NAME)), [(T0 + 1, Op.INSERT, 1, "a")])
    lab.checkpoint(T0 + 20)
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        StorageConsumer(lab.reader(), database, take_over=True).run_round()


def test_names_stay_apart_whatever_the_database_compares_by(database: ReplayDatabase, server: str) -> None:
    odd = f"odd_{next(_schemas)}"
    if database.dialect.name == "mysql":
        database.execute(f"CREATE DATABASE {odd}_notes CHARACTER SET latin1")
        server = server.replace("/replay", f"/{odd}_notes")
    again = open_database(server)
    again.execute("DROP TABLE IF EXISTS penstock_replay")
    if again.dialect.name == "mysql":
        again.execute("CREATE TABLE penstock_replay (item VARCHAR(700) NOT NULL PRIMARY KEY, note LONGTEXT NOT NULL)")
    lab = StorageLab(f"memory://odd-{odd}-{database.dialect.name}/")
    names = ["Orders", "orders", "日本", "penstock_stage", "orders__penstock"]
    for number, name in enumerate(names, 1):
        lab.write(TableSchema(number, odd, name, T0, (ID, NAME)), [(T0 + number, Op.INSERT, number, name)])
    wider = TableSchema(2, odd, "orders", T0 + 10, (ID, NAME, PRICE))
    lab.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE orders ADD price DECIMAL(30,10)", wider, schema=odd)
    lab.checkpoint(T0 + 20)
    for rows in (len(names), 0):
        assert StorageConsumer(lab.reader(), again).run_round().rows == rows
    shown = again.dialect.identifier(NAME.name)
    assert [found(again, odd, name, f"id, {shown}") for name in names] == [[(str(n), name)] for n, name in enumerate(names, 1)]
    again.close()
