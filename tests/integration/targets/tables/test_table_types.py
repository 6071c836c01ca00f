"""Values of every type arrive in MariaDB and PostgreSQL as they are, by each way in; what cannot be held is refused, or NULL."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.model.types import ColumnType, TypeKind
from testing.targets.database_kit import MYSQL, TargetDatabase
from tests.integration.targets.tables.test_table_rows import END, T0, deliver

pytestmark = pytest.mark.integration
K = TypeKind
LEAP = dt.datetime.fromisoformat("2024-02-29 23:59:59")
TEXT = "ä'\"\\\n\t,NULL \\N \U0001f600"
# kind, value in a change batch, what MariaDB answers, what PostgreSQL answers
VALUES: list[tuple[ColumnType, Any, Any, Any]] = [
    (ColumnType(K.TINYINT), -128, -128, -128),
    (ColumnType(K.TINYINT, unsigned=True), 255, 255, 255),
    (ColumnType(K.SMALLINT, unsigned=True), 65535, 65535, 65535),
    (ColumnType(K.MEDIUMINT), -8388608, -8388608, -8388608),
    (ColumnType(K.INT, unsigned=True), 2**32 - 1, 2**32 - 1, 2**32 - 1),
    (ColumnType(K.BIGINT), -(2**63), -(2**63), -(2**63)),
    (ColumnType(K.BIGINT, unsigned=True), 2**64 - 1, 2**64 - 1, Decimal(2**64 - 1)),
    (ColumnType(K.BIT, length=64), 2**64 - 1, b"\xff" * 8, Decimal(2**64 - 1)),
    (ColumnType(K.YEAR), 1999, 1999, 1999),
    (ColumnType(K.FLOAT), 0.5, 0.5, 0.5),
    (ColumnType(K.FLOAT), -3.4028234663852886e38, -3.40282e38, -3.4028235e38),
    (ColumnType(K.DOUBLE), 0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2),
    (ColumnType(K.DOUBLE), -1.7976931348623157e308, -1.7976931348623157e308, -1.7976931348623157e308),
    (ColumnType(K.DECIMAL, length=65, scale=30), "-" + "9" * 35 + "." + "9" * 30, Decimal("-" + "9" * 35 + "." + "9" * 30), ...),
    (ColumnType(K.DATE), "9999-12-31", dt.date(9999, 12, 31), dt.date(9999, 12, 31)),
    (ColumnType(K.DATETIME, scale=6), "2024-02-29 23:59:59.123456", LEAP.replace(microsecond=123456), ...),
    (
        ColumnType(K.TIMESTAMP, scale=3),
        "2024-02-29 23:59:59.500",
        LEAP.replace(microsecond=500_000),
        LEAP.replace(microsecond=500_000, tzinfo=dt.UTC),
    ),
    (ColumnType(K.TIME, scale=1), "-838:59:58.5", -dt.timedelta(hours=838, minutes=59, seconds=58.5), "-838:59:58.5"),
    (ColumnType(K.CHAR, length=36), TEXT, TEXT, TEXT),
    (ColumnType(K.VARCHAR, length=40), TEXT + " ", TEXT + " ", TEXT + " "),
    (ColumnType(K.VARCHAR, length=40), "", "", ""),
    (ColumnType(K.VARCHAR), "NULL", "NULL", "NULL"),
    (ColumnType(K.LONGTEXT), TEXT * 50, TEXT * 50, TEXT * 50),
    (ColumnType(K.VARBINARY, length=9), b"\x00\xff'\"\\,\n", b"\x00\xff'\"\\,\n", b"\x00\xff'\"\\,\n"),
    (ColumnType(K.BINARY, length=4), b"\x01", b"\x01\0\0\0", b"\x01"),
    (ColumnType(K.CHAR, length=6), "pad  ", "pad", "pad  "),
    (ColumnType(K.LONGBLOB), b"", b"", b""),
    (ColumnType(K.ENUM, elems=("a", "b'c", "")), 2, "b'c", "b'c"),
    (ColumnType(K.SET, elems=("x", "y", "z")), 5, "x,z", "x,z"),
    (ColumnType(K.JSON), '{"k": [1, "\\u00e4", null]}', '{"k": [1, "\\u00e4", null]}', {"k": [1, "ä", None]}),
    (ColumnType(K.VECTOR), "[1,2.5]", "[1,2.5]", "[1,2.5]"),
    (ColumnType(K.GEOMETRY), b"\x01\x02", b"\x01\x02", b"\x01\x02"),
]
COLUMNS = tuple(Column(10 + at, f"c {at}", kind) for at, (kind, *_) in enumerate(VALUES))
TABLE = TableSchema(7, "all types", 't `"x', T0, (Column(1, "id", ColumnType(K.BIGINT), False, True), *COLUMNS))
KEYLESS = TableSchema(8, "all types", "bag", T0, (Column(1, "id", ColumnType(K.BIGINT)), *COLUMNS))


def answers(target: TargetDatabase) -> list[Any]:
    at = 3 if target.kind == "postgres" else 2
    found = [row[2] if row[at] is ... else row[at] for row in VALUES]
    # MySQL keeps the value of a JSON text, MariaDB the text.
    return [v.replace("\\u00e4", "ä") if target.kind == "mysql" and isinstance(v, str) and v.startswith("{") else v for v in found]


def stored(target: TargetDatabase, table: str, where: str) -> list[list[Any]]:
    quote = '"' if target.kind == "postgres" else "`"
    name = f"{quote}{target.prefix}all types{quote}.{quote}{table.replace(quote, quote * 2)}{quote}"
    found = target.run(
        "SET TIME ZONE 'UTC'" if target.kind == "postgres" else "SET time_zone = '+00:00'", f"SELECT * FROM {name} WHERE {where}"
    )
    return [[bytes(v) if isinstance(v, memoryview) else v for v in row[1:]] for row in found]


@pytest.mark.parametrize("kind", ["mariadb", "postgres", MYSQL])
def test_every_type_by_every_way_in(kind: str) -> None:
    target = TargetDatabase(kind)
    given, nothing = [v for _, v, _, _ in VALUES], [None] * len(VALUES)
    many = [(0, Op.INSERT, n, *(given if n % 2 else nothing)) for n in range(600)]
    deliver(target, TABLE, [many], window=(TS_ZERO, T0 + 1))
    assert stored(target, TABLE.table, "id = 1") == [answers(target)]
    assert stored(target, TABLE.table, "id = 2") == [nothing]
    deliver(
        target, TABLE, [[(2, Op.UPDATE, 2, *given), (2, Op.INSERT, 1000, *given), (2, Op.UPDATE, 1, *nothing), (2, Op.DELETE, 3, *given)]]
    )
    assert [stored(target, TABLE.table, f"id = {n}") for n in (2, 1000, 1, 3)] == [[answers(target)], [answers(target)], [nothing], []]
    deliver(target, TABLE, [[(10**6 + n, Op.UPDATE, n, *given) for n in range(1, 600)]], window=(END, END + 10**6))
    assert stored(target, TABLE.table, "id < 600") == [nothing] + [answers(target)] * 599
    # Rows that are compared whole: each value finds itself again.
    deliver(target, KEYLESS, [[(1, Op.INSERT, 1, *given)] * 2 + [(1, Op.INSERT, 2, *nothing)]])
    deliver(target, KEYLESS, [[(10**6 + 1, Op.DELETE, 1, *given), (10**6 + 1, Op.DELETE, 2, *nothing)]], window=(END, END + 2))
    assert len(stored(target, "bag", "id = 1")) == 1
    assert stored(target, "bag", "id = 2") == []


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("mariadb", ColumnType(K.DOUBLE), float("nan")),
        ("mariadb", ColumnType(K.DATE), "0044-03-15 BC"),
        ("mariadb", ColumnType(K.DATETIME, scale=6), "infinity"),
        ("mariadb", ColumnType(K.TIME), "24:00:00+02"),
        ("mariadb", ColumnType(K.VARCHAR, length=2), "abc"),
        ("mariadb", ColumnType(K.ENUM, elems=("a", "b")), 0),
        ("postgres", ColumnType(K.DATETIME), "2026-02-31 00:00:00"),
        ("postgres", ColumnType(K.DATE), "2023-02-29"),
        ("postgres", ColumnType(K.DATE), "0000-00-00"),
        ("postgres", ColumnType(K.DATETIME), "2024-00-10 00:00:00"),
        ("postgres", ColumnType(K.LONGTEXT), "a\0b"),
    ],
)
def test_what_cannot_be_held(kind: str, column: ColumnType, value: Any) -> None:
    target = TargetDatabase(kind)
    table = TableSchema(7, "shop", "orders", T0, (Column(1, "id", ColumnType(K.BIGINT), False, True), Column(2, "note", column)))
    changes = [[(1, Op.INSERT, 1, value)]]
    with pytest.raises(PenstockError, match="SINK_VALUE_REFUSED") as refused:
        deliver(target, table, changes)
    assert "abc" not in str(refused.value)
    if value != "abc":
        deliver(target, table, changes, **{"unfit-values": "null"})
        assert target.rows("shop", "orders") == [(1, None)]


def test_zero_dates_and_numbers_that_are_none_stay() -> None:
    maria, postgres = TargetDatabase("mariadb"), TargetDatabase("postgres")
    cases = (
        (maria, ColumnType(K.DATE), "0000-00-00", "0000-00-00"),
        (maria, ColumnType(K.DATETIME), "2024-02-31 00:00:00", "2024-02-31 00:00:00"),
        (postgres, ColumnType(K.FLOAT), float("inf"), "Infinity"),
        (postgres, ColumnType(K.DOUBLE), float("nan"), "NaN"),
    )
    for at, (target, column, value, wanted) in enumerate(cases):
        table = TableSchema(at, "s", column.kind, T0, (Column(1, "id", ColumnType(K.BIGINT), False, True), Column(2, "note", column)))
        deliver(target, table, [[(1, Op.INSERT, 1, value)]])
        assert target.rows("s", column.kind, f"CAST(note AS {'CHAR' if target is maria else 'TEXT'})") == [(wanted,)]
