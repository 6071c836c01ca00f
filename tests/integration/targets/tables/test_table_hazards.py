"""Tables of a database target in which rows would be lost without a word: the feed is refused them, by name, and no row goes."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import check_target, kind_of, open_state
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.mysql.database import MySqlDatabase
from penstock.sink.mysql.settings import MySqlSettings
from penstock.sink.tables.database import Patience
from penstock.sink.tables.sink import TableSink
from penstock.target.kind import SinkRun
from testing.servers.loopback_server import mariadb
from testing.targets.database_kit import MYSQL, TargetDatabase
from tests.integration.targets.tables.test_table_rows import END, T0, deliver, records
from tests.integration.targets.tables.test_table_users import LATER, NAMED, TABLE, later, ready, table_of

pytestmark = pytest.mark.integration
K = TypeKind
UNIQUE = table_of(ColumnType(K.BIGINT), ColumnType(K.VARCHAR, length=40), unique_keys=((2,),))
KINDS = pytest.mark.parametrize("kind", ["mariadb", "postgres", MYSQL])
EXACT = {"postgres": "", **{k: f"CHARACTER SET utf8mb4 COLLATE utf8mb4_{c}" for k, c in (("mariadb", "nopad_bin"), ("mysql", "0900_bin"))}}


@KINDS
def test_foreign_keys_do_not_act_on_rows_that_only_change(kind: str) -> None:
    """Rows whose unique values may change hands are deleted and put in again."""
    target = ready(kind, f"CREATE TABLE {{t}} (id BIGINT PRIMARY KEY, note VARCHAR(40) {EXACT[kind]} UNIQUE)")
    name, child = target.name("shop", "orders"), f"{target.prefix}shop.child"
    target.run(
        f"CREATE TABLE {child} (id BIGINT PRIMARY KEY, parent BIGINT, FOREIGN KEY (parent) REFERENCES {name} (id) ON DELETE CASCADE)"
    )
    target.run(f"INSERT INTO {name} VALUES (1, 'a')", f"INSERT INTO {child} VALUES (5, 1)")
    acting: dict[str, str] = {"existing-rows": "keep"} | ({} if kind == "postgres" else {"check-foreign-keys": "true"})
    quiet = {"existing-rows": "keep"} | ({"replication-role": "true"} if kind == "postgres" else {})
    with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*foreign key"):
        deliver(target, UNIQUE, later((Op.UPDATE, 1, "b")), window=LATER, **acting)
    deliver(target, UNIQUE, later((Op.UPDATE, 1, "b")), window=LATER, **quiet)
    assert target.rows("shop", "orders") == [(1, "b")]
    assert target.run(f"SELECT id, parent FROM {child}") == [(5, 1)]


def test_a_key_that_differs_by_blanks_alone_is_not_another_row() -> None:
    target = ready("mariadb", "CREATE TABLE {t} (id VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, note VARCHAR(40))")
    with pytest.raises(PenstockError, match=r"column id has a text with blanks at its end"):
        deliver(target, NAMED, [[(1, Op.INSERT, "a", "1"), (1, Op.INSERT, "a ", "2")]])
    deliver(target, NAMED, [[(1, Op.INSERT, "a", "1"), (1, Op.INSERT, " a", "2")]])
    assert len(target.rows("shop", "orders")) == 2


def test_a_row_whose_unique_value_the_target_takes_for_equal_stays() -> None:
    loose = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    target = ready("mariadb", f"CREATE TABLE {{t}} (id BIGINT PRIMARY KEY, note VARCHAR(40) {loose} UNIQUE)")
    deliver(target, UNIQUE, [[(1, Op.INSERT, 1, "a"), (1, Op.INSERT, 2, "b")]])
    # Values change hands as ever.
    deliver(target, UNIQUE, later((Op.UPDATE, 1, "c"), (Op.UPDATE, 2, "a"), (Op.UPDATE, 1, "b")), window=LATER)
    assert target.rows("shop", "orders") == [(1, "b"), (2, "a")]
    kind = kind_of(target.uri)
    bare, settings = kind.settings(target.uri, target.options)
    assert isinstance(settings, MySqlSettings)
    sink = TableSink(MySqlDatabase(bare, settings), settings, SinkRun("f", 3), None, Patience(attempts_max=1))
    work = DispatcherWork(DispatcherId(7), UNIQUE, END + 10, END + 10**8)
    with contextlib.closing(sink):
        sink.open_dispatcher(work)
        sink.add_dml_event(DmlEvent(work.dispatcher, UNIQUE, records(UNIQUE, [(10**7, Op.INSERT, 3, "A")])))
        with pytest.raises(PenstockError, match=r"shop.orders.*another row holds a value of a unique key"):
            sink.close_dispatcher(work.dispatcher)
    assert target.rows("shop", "orders") == [(1, "b"), (2, "a")]


@pytest.mark.parametrize(
    ("kind", "made", "why"),
    [
        ("mariadb", "CREATE TABLE {t} (id BIGINT PRIMARY KEY, note VARCHAR(40)) ENGINE=MyISAM", "has no transactions"),
        ("mariadb", "CREATE VIEW {t} AS SELECT 1 AS id, 'x' AS note", "is no table"),
        ("postgres", "CREATE UNLOGGED TABLE {t} (id BIGINT PRIMARY KEY, note VARCHAR(40))", "is unlogged"),
        ("postgres", "CREATE VIEW {t} AS SELECT 1 AS id, 'x' AS note", "is no table"),
    ],
)
def test_tables_that_do_not_keep_a_transaction_are_refused(kind: str, made: str, why: str) -> None:
    with pytest.raises(PenstockError, match=why):
        deliver(ready(kind, made), TABLE, [[(1, Op.INSERT, 1, "a")]])


def test_rows_without_a_key_in_a_partitioned_table_are_counted_each_in_its_partition() -> None:
    parts = [f"CREATE TABLE {{t}}_{n} PARTITION OF {{t}} FOR VALUES IN ('{n}')" for n in "abc"]
    parts = [part.replace("{t}_", "{s}.p") for part in parts]
    target = TargetDatabase("postgres")
    name, schema = target.name("shop", "orders"), f"{target.prefix}shop"
    target.run(f"CREATE SCHEMA {schema}", f"CREATE TABLE {name} (id BIGINT, note TEXT) PARTITION BY LIST (note)")
    target.run(*(part.format(t=name, s=schema) for part in parts))
    bag = TableSchema(7, "shop", "orders", T0, (Column(1, "id", ColumnType(K.BIGINT)), Column(2, "note", ColumnType(K.LONGTEXT))))
    deliver(target, bag, [[(1, Op.INSERT, 1, n) for n in "abc"]])
    deliver(target, bag, later((Op.DELETE, 1, "a")), window=LATER)
    assert target.rows("shop", "orders", "note") == [("b",), ("c",)]


def test_a_column_whose_name_would_be_cut_is_refused() -> None:
    columns = (*TABLE.columns, Column(3, "ü" * 40, ColumnType(K.INT)))
    with pytest.raises(PenstockError, match="column names of 63 bytes"):
        deliver(TargetDatabase("postgres"), TableSchema(7, "shop", "orders", T0, columns), [[(1, Op.INSERT, 1, "a", 2)]])


@KINDS
def test_a_refused_value_is_told_with_its_table_and_column(kind: str) -> None:
    target = ready(kind, "CREATE TABLE {t} (id BIGINT PRIMARY KEY, note VARCHAR(3) NOT NULL)")
    for value in (None, "secret"):
        with pytest.raises(PenstockError, match="SINK_VALUE_REFUSED") as refused:
            deliver(target, TABLE, [[(1, Op.INSERT, n, value) for n in range(600)]], window=(TS_ZERO, END))
        assert "shop.orders" in refused.value.detail
        assert "note" in refused.value.detail
        assert "secret" not in str(refused.value)


def test_a_server_that_lowers_names_and_has_other_defaults() -> None:
    """Names that differ by case alone are one there; books are kept in transactions whatever engine is usual."""
    upper, lower = (TableSchema(at, "Shop", name, T0, TABLE.columns) for at, name in ((7, "Orders"), (8, "orders")))
    usual = ("--lower-case-table-names=1", "--default-storage-engine=MyISAM", "--sql-mode=", "--default-time-zone=+05:30")
    with tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with mariadb(Path(folder) / "server", usual) as uri:
            target, other = TargetDatabase("mariadb", uri), TargetDatabase("mariadb", uri)
            deliver(target, upper, [[(1, Op.INSERT, 1, "a")]])
            with pytest.raises(PenstockError, match=r"would hold Shop.Orders and Shop.orders"):
                deliver(target, lower, [[(1, Op.INSERT, 1, "b")]])
            assert target.rows("shop", "orders") == [(1, "a")]
            engines: Any = target.run(f"SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = '{target.home}'")
            assert engines == [("InnoDB",)]
            other.run(f"CREATE DATABASE {other.prefix}shop", f"CREATE TABLE {other.name('shop', 'orders')} (id BIGINT) ENGINE=InnoDB")
            with pytest.raises(PenstockError, match=r"was there before the feed"):
                deliver(other, upper, [[(1, Op.INSERT, 1, "a")]])


def test_a_server_that_takes_no_table_without_a_key() -> None:
    bag = TableSchema(8, "shop", "orders", T0, tuple(msgspec.structs.replace(c, primary_key=False) for c in TABLE.columns))
    with tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with mariadb(Path(folder) / "server", ("--innodb-force-primary-key=ON",)) as uri:
            target, other = TargetDatabase("mariadb", uri), TargetDatabase("mariadb", uri)
            target.kit().open_maintainer().check("mine")
            deliver(target, TABLE, [[(1, Op.INSERT, 1, "a")]])
            assert target.rows("shop", "orders") == [(1, "a")]
            with pytest.raises(PenstockError, match="SINK_UNWRITABLE") as refused:
                deliver(other, bag, [[(1, Op.INSERT, 1, "a")]])
            assert "AUTO_INCREMENT" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("kind", "column", "theirs", "value"),
    [
        ("mariadb", ColumnType(K.VARCHAR, length=40), "CHAR(10)", "a "),
        ("mariadb", ColumnType(K.VARCHAR, length=40), "VARCHAR(2)", "ab  "),
        ("mariadb", ColumnType(K.VARCHAR, length=40), "ENUM('a','b')", "A"),
        ("mariadb", ColumnType(K.VARCHAR, length=40), "INT", "007"),
        ("mariadb", ColumnType(K.VARBINARY, length=8), "BINARY(4)", b"\x01"),
        ("mariadb", ColumnType(K.INT), "YEAR", 5),
        ("mariadb", ColumnType(K.TIME), "DATETIME", "10:00:00"),
        ("mariadb", ColumnType(K.TIMESTAMP), "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", None),
        ("postgres", ColumnType(K.VARCHAR, length=40), "CHAR(10)", "a "),
        ("postgres", ColumnType(K.VARCHAR, length=40), "VARCHAR(2)", "ab  "),
        ("postgres", ColumnType(K.VARCHAR, length=40), "INTEGER", "007"),
    ],
)
def test_columns_that_would_hold_another_value_are_refused(kind: str, column: ColumnType, theirs: str, value: Any) -> None:
    table = table_of(ColumnType(K.BIGINT), column)
    for window in ((T0, END), (TS_ZERO, END)):
        target = ready(kind, f"CREATE TABLE {{t}} (id BIGINT PRIMARY KEY, note {theirs})")
        with pytest.raises(PenstockError, match=r"SINK_(OCCUPIED|VALUE_REFUSED).*note"):
            deliver(target, table, [[(1, Op.INSERT, 1, value)]], window=window)
        assert target.rows("shop", "orders") == []


@KINDS
def test_a_column_that_somebody_narrows_later_stops_the_feed(kind: str) -> None:
    table, target = table_of(ColumnType(K.BIGINT), ColumnType(K.DECIMAL, length=10, scale=4)), TargetDatabase(kind)
    deliver(target, table, [[(1, Op.INSERT, 1, "1.2500")]])
    change = "MODIFY note DECIMAL(10,2)" if kind != "postgres" else "ALTER note TYPE NUMERIC(10,2)"
    target.run(f"ALTER TABLE {target.name('shop', 'orders')} {change}")
    with pytest.raises(PenstockError, match=r"columns note would change values"):
        deliver(target, table, later((Op.INSERT, 2, "1.2345")), window=LATER)


def test_nulls_of_deletes_are_no_values() -> None:
    """A delete tells the key alone where the source logs no more."""
    table = table_of(ColumnType(K.BIGINT), ColumnType(K.TIMESTAMP))
    target = ready("mariadb", "CREATE TABLE {t} (id BIGINT PRIMARY KEY, note TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)")
    deliver(target, table, [[(1, Op.INSERT, 1, "2024-01-02 03:04:05")]])
    deliver(target, table, later((Op.DELETE, 1, None)), window=LATER)
    assert target.rows("shop", "orders") == []


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (("CREATE RULE r AS ON DELETE TO {t} DO INSTEAD NOTHING",), "has rules"),
        (("ALTER TABLE {t} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY", "CREATE POLICY p ON {t} USING (id > 1)"), "row-level"),
    ],
)
def test_deletes_that_somebody_turns_into_nothing_stop_the_feed(made: tuple[str, ...], why: str) -> None:
    target = TargetDatabase("postgres")
    user = f"writer{target.number}"
    target.run(f"CREATE ROLE {user} LOGIN", f"GRANT CREATE ON DATABASE postgres TO {user}")
    target.uri = target.uri.replace("penstock@", f"{user}@")
    deliver(target, TABLE, [[(1, Op.INSERT, 1, "a"), (1, Op.INSERT, 2, "b")]])
    target.run(*(statement.format(t=target.name("shop", "orders")) for statement in made))
    with pytest.raises(PenstockError, match=why):
        deliver(target, TABLE, later((Op.DELETE, 1, "a")), window=LATER)


@pytest.mark.parametrize("kind", ["mariadb", MYSQL])
@pytest.mark.parametrize("given", ["NAMES latin1", "autocommit = 0", "sql_big_selects = 0, max_join_size = 1", "sql_mode = 'ANSI_QUOTES'"])
def test_what_a_server_sets_for_every_session_does_not_hold(kind: str, given: str) -> None:
    target = TargetDatabase(kind)
    user, text = f"plain{target.number}", "ü'\"\\\U0001f600"
    target.run(f"CREATE USER {user} IDENTIFIED BY ''", f"GRANT CREATE, ALTER, DROP, SELECT, INSERT, UPDATE, DELETE ON *.* TO {user}")
    target.uri = target.uri.replace("root@", f"{user}@")
    target.run(f'SET GLOBAL init_connect = "SET {given}"')
    try:
        deliver(target, TABLE, [[(1, Op.INSERT, n, f"{text} {n}") for n in range(600)]], window=(TS_ZERO, END))
        deliver(target, TABLE, later((Op.UPDATE, 1, text), (Op.DELETE, 2, None)), window=LATER)
    finally:
        target.run("SET GLOBAL init_connect = ''")
    assert target.rows("shop", "orders")[:3] == [(0, f"{text} 0"), (1, text), (3, f"{text} 3")]


def test_what_a_role_asks_for_does_not_hold() -> None:
    target = TargetDatabase("postgres")
    role, text = f"odd{target.number}", "ü'\\\U0001f600"
    odd = ("client_encoding TO 'LATIN1'", "standard_conforming_strings TO off", "DateStyle TO 'German'", "statement_timeout TO '1ms'")
    target.run(f"CREATE ROLE {role} SUPERUSER LOGIN", *(f"ALTER ROLE {role} SET {one}" for one in odd))
    target.uri = target.uri.replace("penstock@", f"{role}@")
    deliver(target, TABLE, [[(1, Op.INSERT, n, f"{text} {n}") for n in range(600)]], window=(TS_ZERO, END))
    deliver(target, TABLE, later((Op.UPDATE, 1, text), (Op.DELETE, 2, None)), window=LATER)
    assert target.rows("shop", "orders")[:3] == [(0, f"{text} 0"), (1, text), (3, f"{text} 3")]


def test_rights_that_only_many_rows_need_are_looked_for() -> None:
    target = TargetDatabase("postgres")
    role, home = f"weak{target.number}", f"base{target.number}"
    target.run(f"CREATE ROLE {role} LOGIN", f"CREATE DATABASE {home}", f"GRANT CREATE ON DATABASE {home} TO {role}")
    target.run(f"REVOKE TEMPORARY ON DATABASE {home} FROM PUBLIC")
    uri = target.uri.replace("penstock@", f"{role}@").replace("/postgres", f"/{home}")
    assert [f.name for f in check_target(uri, target.options, "f") if not f.ok] == ["target: writable"]
    target.run(f"GRANT TEMPORARY ON DATABASE {home} TO {role}")
    assert [f.name for f in check_target(uri, target.options, "f") if not f.ok] == []


def test_settings_of_a_server_that_cut_answers_do_not_hold() -> None:
    target = TargetDatabase("mariadb")
    with contextlib.closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL sql_select_limit = 2, GLOBAL sql_safe_updates = 1, GLOBAL max_statement_time = 0.000001")
        try:
            deliver(target, TABLE, [[(1, Op.INSERT, n, "a") for n in range(5)]])
            state = open_state(target.uri, target.options)
            found = sum(rows.num_rows for rows in state.changes(DispatcherWork(DispatcherId(7), TABLE, T0, END)))
            # A first state empties the table, whose rows no key names in that statement.
            deliver(target, TABLE, [[(1, Op.INSERT, 9, "b")]], window=(TS_ZERO, END + 10))
        finally:
            cursor.execute("SET GLOBAL sql_select_limit = DEFAULT, GLOBAL sql_safe_updates = 0, GLOBAL max_statement_time = 0")
    assert found == 5
    assert target.rows("shop", "orders") == [(9, "b")]
