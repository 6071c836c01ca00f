"""What people do to the tables of a database target: the feed goes on right, or says what is wrong; it never loses a row silently."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.model.types import ColumnType, TypeKind
from testing.targets.database_kit import MYSQL, TargetDatabase
from tests.integration.targets.tables.test_table_rows import END, T0, deliver

pytestmark = pytest.mark.integration
K = TypeKind
BOTH = pytest.mark.parametrize("kind", ["mariadb", "postgres", MYSQL])


def table_of(key: ColumnType, note: ColumnType, **settings: Any) -> TableSchema:
    return TableSchema(7, "shop", "orders", T0, (Column(1, "id", key, False, True), Column(2, "note", note)), **settings)


TABLE = table_of(ColumnType(K.BIGINT), ColumnType(K.VARCHAR, length=40))
NAMED = table_of(ColumnType(K.VARCHAR, length=40), ColumnType(K.VARCHAR, length=40))
LATER = (END, END + 10)
"""A window behind the first one."""


def later(*rows: tuple[Op, Any, Any]) -> list[list[tuple[Any, ...]]]:
    return [[(10**6 + at, *row) for at, row in enumerate(rows, start=1)]]


def ready(kind: str, *statements: str) -> TargetDatabase:
    """Return a target whose table somebody made by these statements."""
    target = TargetDatabase(kind)
    word = "SCHEMA" if kind == "postgres" else "DATABASE"
    target.run(f"CREATE {word} {target.prefix}shop", *(s.format(t=target.name("shop", "orders")) for s in statements))
    return target


@BOTH
def test_columns_indexes_and_triggers_of_their_own_stay(kind: str) -> None:
    target = TargetDatabase(kind)
    deliver(target, TABLE, [[(1, Op.INSERT, 1, "a"), (1, Op.INSERT, 2, "b")]])
    name = target.name("shop", "orders")
    index = f"CREATE INDEX by_note ON {name} (note)"
    target.run(f"ALTER TABLE {name} ADD COLUMN mine INT DEFAULT 5", index, f"UPDATE {name} SET mine = 9 WHERE id = 1")
    deliver(target, TABLE, later((Op.UPDATE, 1, "A"), (Op.INSERT, 3, "c"), (Op.DELETE, 2, "b")), window=LATER)
    assert target.rows("shop", "orders", "id, note, mine") == [(1, "A", 9), (3, "c", 5)]


@BOTH
def test_a_unique_key_that_the_source_has_not_stops_the_feed(kind: str) -> None:
    """Replacing would drop the row that holds the value, which the source still has."""
    target = TargetDatabase(kind)
    deliver(target, TABLE, [[(1, Op.INSERT, 1, "same")]])
    target.run(f"CREATE UNIQUE INDEX by_note ON {target.name('shop', 'orders')} (note)")
    with pytest.raises(PenstockError, match=r"unique key over note.*source has not"):
        deliver(target, TABLE, later((Op.INSERT, 2, "same")), window=LATER)
    assert target.rows("shop", "orders") == [(1, "same")]
    # One that the source has as well, or that is wider than its key, is none of this.
    target.run(f"CREATE UNIQUE INDEX wide ON {target.name('shop', 'orders')} (id, note)")
    known = table_of(ColumnType(K.BIGINT), ColumnType(K.VARCHAR, length=40), unique_keys=((1,), (2,)))
    deliver(target, known, later((Op.UPDATE, 1, "free"), (Op.INSERT, 2, "same")), window=LATER)
    assert target.rows("shop", "orders") == [(1, "free"), (2, "same")]


@pytest.mark.parametrize(
    ("kind", "key", "why"),
    [
        ("mariadb", "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "takes texts for equal"),
        ("postgres", "VARCHAR(40) COLLATE {loose}", "takes texts for equal"),
        ("postgres", "CHAR(40)", "columns id would change values"),
    ],
)
def test_keys_that_the_target_takes_for_equal_stop_the_feed(kind: str, key: str, why: str) -> None:
    target = ready(kind)
    loose = f"{target.prefix}shop.loose"
    if kind == "postgres":
        target.run(f"CREATE COLLATION {loose} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    target.run(f"CREATE TABLE {target.name('shop', 'orders')} (id {key.format(loose=loose)} PRIMARY KEY, note VARCHAR(40))")
    with pytest.raises(PenstockError, match=why):
        deliver(target, NAMED, [[(1, Op.INSERT, "key", "1"), (1, Op.INSERT, "KEY", "2")]])
    assert target.rows("shop", "orders") == []


@pytest.mark.parametrize(
    ("kind", "column", "theirs"),
    [
        ("mariadb", ColumnType(K.DECIMAL, length=10, scale=4), "DECIMAL(10,2)"),
        ("mariadb", ColumnType(K.DATETIME, scale=6), "DATETIME"),
        ("mariadb", ColumnType(K.DATETIME), "DATE"),
        ("mariadb", ColumnType(K.DOUBLE), "FLOAT"),
        ("mariadb", ColumnType(K.BIGINT), "DOUBLE"),
        ("postgres", ColumnType(K.DECIMAL, length=10, scale=4), "NUMERIC(10,2)"),
        ("postgres", ColumnType(K.DATETIME, scale=6), "TIMESTAMP(0)"),
        ("postgres", ColumnType(K.DATETIME), "DATE"),
        ("postgres", ColumnType(K.DOUBLE), "REAL"),
        ("postgres", ColumnType(K.BIGINT), "DOUBLE PRECISION"),
    ],
)
def test_columns_that_would_round_are_refused(kind: str, column: ColumnType, theirs: str) -> None:
    target = ready(kind, f"CREATE TABLE {{t}} (id BIGINT PRIMARY KEY, note {theirs})")
    with pytest.raises(PenstockError, match="note would change values"):
        deliver(target, table_of(ColumnType(K.BIGINT), column), [[(1, Op.INSERT, 1, None)]])


@pytest.mark.parametrize(
    ("kind", "column", "theirs", "value"),
    [
        ("mariadb", ColumnType(K.DECIMAL, length=10, scale=2), "DECIMAL(20,6)", "1.25"),
        ("mariadb", ColumnType(K.DATETIME), "DATETIME(6)", "2024-01-02 03:04:05"),
        ("mariadb", ColumnType(K.INT), "BIGINT", 7),
        ("postgres", ColumnType(K.DECIMAL, length=10, scale=2), "NUMERIC", "1.25"),
        ("postgres", ColumnType(K.DATETIME), "TIMESTAMP", "2024-01-02 03:04:05"),
        ("postgres", ColumnType(K.INT), "NUMERIC(20,0)", 7),
        ("postgres", ColumnType(K.FLOAT), "DOUBLE PRECISION", 0.5),
    ],
)
def test_columns_that_hold_more_are_used(kind: str, column: ColumnType, theirs: str, value: Any) -> None:
    target = ready(kind, f"CREATE TABLE {{t}} (id BIGINT PRIMARY KEY, note {theirs})")
    deliver(target, table_of(ColumnType(K.BIGINT), column), [[(1, Op.INSERT, 1, value)]])
    assert len(target.rows("shop", "orders")) == 1


def test_a_column_that_the_source_makes_later_is_not_taken_for_its_own() -> None:
    """Somebody made one of that name, whose values are not the default of the source's."""
    for kind in ("mariadb", "postgres"):
        target = TargetDatabase(kind)
        deliver(target, TABLE, [[(1, Op.INSERT, 1, "a")]])
        target.run(f"ALTER TABLE {target.name('shop', 'orders')} ADD COLUMN n INT")
        version = T0 + 10**9
        after = TableSchema(7, "shop", "orders", version, (*TABLE.columns, Column(3, "n", ColumnType(K.INT))))
        event = DdlEvent(version, DdlType.ADD_COLUMN, "ALTER TABLE shop.orders ADD COLUMN n INT DEFAULT 7", "shop", (after,))
        for _ in range(2):
            with pytest.raises(PenstockError, match="SINK_UNWRITABLE"):
                target.kit().open_maintainer().write_block_event(event)


def test_points_in_time_beyond_2038() -> None:
    target = TargetDatabase("mariadb")
    table = table_of(ColumnType(K.BIGINT), ColumnType(K.TIMESTAMP, scale=6))
    rows = [[(1, Op.INSERT, 1, "2050-01-02 03:04:05.000006")]]
    with pytest.raises(PenstockError, match="SINK_VALUE_REFUSED"):
        deliver(target, table, rows)
    other = TargetDatabase("mariadb")
    deliver(other, table, rows, **{"timestamp-type": "datetime"})
    assert other.rows("shop", "orders", "CAST(note AS CHAR)") == [("2050-01-02 03:04:05.000006",)]


def test_a_server_that_takes_little_at_once() -> None:
    target = TargetDatabase("mariadb")
    before = target.run("SELECT @@global.max_allowed_packet")[0][0]
    table = table_of(ColumnType(K.BIGINT), ColumnType(K.LONGTEXT))
    target.run("SET GLOBAL max_allowed_packet = 65536")
    try:
        rows = [[(1, Op.INSERT, n, "x" * 5_000) for n in range(300)]]
        deliver(target, table, rows, window=(TS_ZERO, END))
        deliver(target, table, later(*((Op.UPDATE, n, "y" * 5_000) for n in range(200))), window=(END, END + 1000))
        with pytest.raises(PenstockError, match="max_allowed_packet is 65,536"):
            deliver(target, table, [[(10**7, Op.INSERT, 999, "z" * 70_000)]], window=(END + 1000, 10**8 + END))
    finally:
        target.run(f"SET GLOBAL max_allowed_packet = {before}")
    found = target.run(f"SELECT LEFT(note, 1), COUNT(*) FROM {target.name('shop', 'orders')} GROUP BY 1 ORDER BY 1")
    assert found == [("x", 100), ("y", 200)]
