"""Types and values out of which random tables are made, for MariaDB, MySQL and PostgreSQL. Runs in tests."""

from __future__ import annotations

import random
import re

from testing.checks.lives.servers import LiveColumn

_MYSQL_TYPES = (
    "INT",
    "TINYINT UNSIGNED",
    "SMALLINT",
    "MEDIUMINT",
    "BIGINT",
    "BIGINT UNSIGNED",
    "BOOL",
    "DECIMAL(10,2)",
    "DECIMAL(30,10)",
    "FLOAT",
    "DOUBLE",
    "DATE",
    "DATETIME",
    "DATETIME(3)",
    "TIMESTAMP(6) NULL DEFAULT NULL",
    "TIME(2)",
    "YEAR",
    "CHAR(8)",
    "VARCHAR(20)",
    "VARCHAR(20) CHARACTER SET latin1",
    "VARCHAR(20) CHARACTER SET koi8r",
    "TEXT",
    "MEDIUMTEXT",
    "BINARY(4)",
    "VARBINARY(10)",
    "BLOB",
    "BIT(9)",
    "ENUM('a','b','ü')",
    "SET('x','y','z')",
    "JSON",
)
_POSTGRES_TYPES = (
    "int",
    "smallint",
    "bigint",
    "boolean",
    "numeric(10,2)",
    "numeric",
    "real",
    "double precision",
    "date",
    "timestamp",
    "timestamp(3)",
    "timestamptz",
    "time",
    "char(8)",
    "varchar(20)",
    "text",
    "bytea",
    "uuid",
    "json",
    "jsonb",
    "interval",
    "int[]",
    "text[]",
    "inet",
    "bit(5)",
)
KEY_TYPES = {
    "mysql": ("INT", "INT", "BIGINT", "VARCHAR(20)", "DATE", "DECIMAL(10,2)", "BINARY(4)"),
    "postgres": ("int", "int", "bigint", "varchar(20)", "date", "numeric(10,2)", "uuid", "text"),
}
CONSTANTS = {
    "mysql": (
        ("INT", "5"),
        ("DECIMAL(8,2)", "1.5"),
        ("VARCHAR(20)", "'it''s'"),
        ("BIT(4)", "b'101'"),
        ("DATE", "'2020-02-29'"),
        ("DATETIME(3)", "'2020-01-01 00:00:00.5'"),
        ("ENUM('a','b')", "'b'"),
        ("CHAR(4)", "'x'"),
        ("BIGINT UNSIGNED", "18446744073709551615"),
        ("TINYINT", "-1"),
        ("DOUBLE", "0.1"),
        ("VARCHAR(9)", "''"),
        ("VARBINARY(8)", "'by'"),
    ),
    "postgres": (
        ("int", "5"),
        ("numeric(8,2)", "1.5"),
        ("numeric", "1.50"),
        ("text", "'it''s'"),
        ("bytea", "'\\x00ff'"),
        ("bytea", "'\\x4142'"),
        ("boolean", "true"),
        ("date", "'2020-02-29'"),
        ("timestamptz", "'2020-01-01 00:00:00.5+02'"),
        ("int[]", "'{1,2}'"),
        ("jsonb", '\'{"a": "b"}\''),
        ("char(4)", "'x'"),
        ("double precision", "0.1"),
        ("text", "''"),
        ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ),
}
COMPUTED = {
    "mysql": (
        ("DATETIME(6)", "CURRENT_TIMESTAMP(6)"),
        ("TIMESTAMP", "CURRENT_TIMESTAMP"),
        ("INT", "(2 + 3)"),
        ("VARCHAR(40)", "(UUID())"),
        ("DOUBLE", "(RAND())"),
    ),
    "postgres": (
        ("timestamptz", "now()"),
        ("int", "2 + 3"),
        ("text", "upper('x')"),
        ("uuid", "gen_random_uuid()"),
        ("double precision", "random()"),
        ("timestamp", "clock_timestamp()"),
    ),
}
_TEXTS = ("", "a", "ab", "Zo", "it's", "\\N", '"q"', "x,y", "a\r\nb", " lead", "NULL", "123", "-7", "привет", "üö", "\\", "%s", "€")
_LARGE = "L" * 3000


def dialect(kind: str) -> str:
    """Return whose grammar a server speaks."""
    return "postgres" if kind == "postgres" else "mysql"


def some_type(rng: random.Random, kind: str) -> str:
    """Return a type."""
    return rng.choice(_POSTGRES_TYPES if kind == "postgres" else _MYSQL_TYPES)


def literal(kind: str, text: str) -> str:
    """Return a text in quotes."""
    shown = text.replace("'", "''")
    return f"'{shown}'" if kind == "postgres" else "'" + shown.replace("\\", "\\\\") + "'"


def value(rng: random.Random, kind: str, column: LiveColumn, *, narrow: bool = False) -> str:
    """Return a literal for a column; ``narrow`` where values shall meet, as in keys."""
    if column.nullable and rng.random() < 0.15:
        return "NULL"
    number = rng.randrange(1, 30) if narrow else rng.choice((0, 1, -1, 7, 100, 127, rng.randrange(-100, 30000)))
    return _value(rng, kind, column, number)


def _value(rng: random.Random, kind: str, column: LiveColumn, number: int) -> str:  # noqa: C901, PLR0911, PLR0912 - one for each kind
    base, moment = column.base, f"20{abs(number) % 30:02d}-0{abs(number) % 9 + 1}-1{abs(number) % 9}"
    clock = f"0{abs(number) % 10}:{abs(number) % 60:02d}:59"
    if base in {"tinyint", "bool"}:
        return str(number % 2) if kind != "postgres" else ("true", "false")[number % 2]
    if column.family == "number" and base not in {"decimal", "numeric", "bit", "year"}:
        return str(abs(number) if "unsigned" in column.type else number)
    if base == "year":
        return str(2000 + abs(number) % 100)
    if base == "bit":
        return f"B'{abs(number) % 32:05b}'" if kind == "postgres" else str(abs(number) % 16)
    if kind == "postgres" and column.family in {"number", "float", "double"} and rng.random() < 0.15:
        return rng.choice(("'NaN'", "'-0'", f"{number}.100", "'NaN'" if column.family == "number" else "'-Infinity'"))
    if column.family == "number":
        return f"{number}.{abs(number) % 100:02d}"
    if column.family in {"float", "double"}:
        return rng.choice((str(number), f"{number}.25", f"{number}e10", "0.1"))
    if base == "date":
        return f"'{moment}'"
    if base == "time":
        return f"'{clock}.25'"
    if column.family == "time":
        return f"'{moment} {clock}{rng.choice(('', '.5', '.123456'))}'"
    if base == "uuid":
        return f"'00000000-0000-4000-8000-{abs(number):012d}'"
    if base in {"json", "jsonb"}:
        return rng.choice((f'\'{{"a": {number}, "b": "x"}}\'', "'[1, 2, null]'", f"'{number}'"))
    if base == "interval":
        return f"'{number} days 3 hours'"
    if base in {"_int4", "_text"}:
        return f"'{{{number},2}}'"
    if base == "inet":
        return f"'10.0.0.{abs(number) % 250}'"
    if base in {"enum", "set"}:
        elements = re.findall(r"'((?:[^']|'')*)'", column.type)
        return f"'{rng.choice(elements)}'"
    if column.family == "bytes":
        raw = rng.choice((b"", b"\x00", b"ab", b"\xff\x00", number.to_bytes(4, "big", signed=True)))[: _length(column) or 10]
        return f"'\\x{raw.hex()}'" if kind == "postgres" else f"x'{raw.hex()}'"
    return _some_text(rng, kind, column, number)


def _some_text(rng: random.Random, kind: str, column: LiveColumn, number: int) -> str:
    if column.base in {"text", "mediumtext", "longtext"} and rng.random() < 0.1:
        return literal(kind, _LARGE + str(number))
    text = rng.choice((*_TEXTS, f"t{number}"))
    length = _length(column)
    return literal(kind, text[:length] if length else text)


def _length(column: LiveColumn) -> int:
    found = re.search(r"\((\d+)\)", column.type)
    return int(found[1]) if found else 0
