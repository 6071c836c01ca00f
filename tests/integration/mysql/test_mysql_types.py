"""Every type of MariaDB with edge values: what the log gives and what a snapshot gives is what the server itself answers."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.access.mysql_server import parse_uri
from penstock.model.batch import BatchKind
from penstock.model.span import Span
from penstock.source.mysql.upstream import MySqlUpstream
from penstock.source.single_log import LogPosition
from testing.servers.databases.mysql_server import mysql
from testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration
ODD = ("--sql-mode=ALLOW_INVALID_DATES", "--default-time-zone=+05:30")
BINLOG = ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--binlog-row-metadata=FULL", *ODD)

# Type, and SQL literals of values; NULL is added to each.
TYPES: list[tuple[str, list[str]]] = [
    ("TINYINT", ["-128", "127", "0"]),
    ("TINYINT UNSIGNED", ["255", "0"]),
    ("BOOLEAN", ["TRUE", "FALSE"]),
    ("SMALLINT", ["-32768", "32767"]),
    ("SMALLINT UNSIGNED", ["65535"]),
    ("MEDIUMINT", ["-8388608", "8388607", "-1"]),
    ("MEDIUMINT UNSIGNED", ["16777215", "8388608"]),
    ("INT", ["-2147483648", "2147483647"]),
    ("INT UNSIGNED", ["4294967295"]),
    ("INT(6) ZEROFILL", ["42"]),
    ("BIGINT", ["-9223372036854775808", "9223372036854775807"]),
    ("BIGINT UNSIGNED", ["18446744073709551615", "9223372036854775808"]),
    ("FLOAT", ["1.1", "-3.4028235e38", "1e-38", "16777217", "0"]),
    ("DOUBLE", ["0.1", "-1.7976931348623157e308", "5e-324", "1e15"]),
    ("DECIMAL(10,2)", ["12345678.90", "-0.01", "0", "-99999999.99", "1"]),
    ("DECIMAL(65,30)", ["99999999999999999999999999999999999.999999999999999999999999999999", "-0.000000000000000000000000000001"]),
    ("DECIMAL(5,5)", ["0.00001", "-0.99999"]),
    ("DECIMAL(18,0)", ["123456789012345678", "-1", "1000000000"]),
    ("DECIMAL(27,18)", ["123456789.123456789123456789", "100000000.000000001"]),
    ("DECIMAL(9,3) ZEROFILL", ["12.5"]),
    ("DATE", ["'2026-11-15'", "'0000-00-00'", "'9999-12-31'", "'2026-02-00'", "'1000-01-01'"]),
    ("TIME", ["'838:59:59'", "'-838:59:59'", "'00:00:00'", "'-00:00:01'", "'101:02:03'"]),
    ("TIME(1)", ["'-00:00:00.5'", "'12:34:56.7'"]),
    ("TIME(3)", ["'-01:02:03.004'", "'00:00:00.999'"]),
    ("TIME(6)", ["'838:59:58.999999'", "'-838:59:58.000001'", "'-00:00:00.000001'"]),
    ("DATETIME", ["'2026-11-15 23:59:59'", "'0000-00-00'", "'9999-12-31 23:59:59'"]),
    ("DATETIME(2)", ["'2026-11-15 01:02:03.45'"]),
    ("DATETIME(5)", ["'2026-11-15 01:02:03.00001'"]),
    ("DATETIME(6)", ["'1000-01-01 00:00:00.000001'", "'2026-02-31 00:00:00'"]),
    ("TIMESTAMP NULL", ["'2026-11-15 12:00:00'", "'1970-01-01 05:30:01'", "'2038-01-19 08:44:07'", "0"]),
    ("TIMESTAMP(4) NULL", ["'2024-02-29 12:00:00.1234'", "'2000-02-29 23:59:59.9999'"]),
    ("TIMESTAMP(6) NULL", ["'2001-03-01 00:00:00.000001'"]),
    ("YEAR", ["1901", "2155", "0"]),
    ("BIT(1)", ["b'1'", "b'0'"]),
    ("BIT(11)", ["b'10000000001'"]),
    ("BIT(64)", ["18446744073709551615", "1"]),
    ("ENUM('a','b''c','ü')", ["'a'", "'b''c'", "3", "0"]),
    (f"ENUM({','.join(repr(f'e{i}') for i in range(300))})", ["'e0'", "'e299'"]),
    ("SET('x','y','z')", ["''", "'x,z'", "'x,y,z'"]),
    (f"SET({','.join(repr(f's{i}') for i in range(64))})", ["'s63'", "'s0,s63'"]),
    ("CHAR(5)", ["'ab'", "''", "'日本'"]),
    ("CHAR(255)", ["'x'", "REPEAT('ü', 255)"]),
    ("VARCHAR(20)", ["''", "'naïve'", "'😀'"]),
    ("VARCHAR(300)", ["REPEAT('z', 300)", "'tab\\tquote\\'nul\\0'"]),
    ("VARCHAR(20) CHARACTER SET latin1", ["'é€ÿ'", "x'8190'"]),
    ("VARCHAR(20) CHARACTER SET cp1251", ["'Привет'"]),
    ("VARCHAR(20) CHARACTER SET gbk", ["'汉字'"]),
    ("VARCHAR(20) CHARACTER SET sjis", ["'日本語'"]),
    ("VARCHAR(20) CHARACTER SET utf16", ["'日本😀'"]),
    ("VARCHAR(20) CHARACTER SET ucs2", ["'日本'"]),
    ("CHAR(8) CHARACTER SET utf32", ["'ab'"]),
    ("TINYTEXT", ["'t'"]),
    ("TEXT", ["REPEAT('T', 300)"]),
    ("MEDIUMTEXT", ["REPEAT('m', 70000)"]),
    ("LONGTEXT CHARACTER SET latin1", ["'ÄÖÜ'"]),
    ("JSON", ['\'{"a": [1, 2.5, null, "ü"]}\'', "'null'"]),
    ("BINARY(4)", ["'a'", "x'00000000'", "x'61000000'"]),
    ("BINARY(255)", ["x'ff00'"]),
    ("VARBINARY(300)", ["x'00ff00'", "''"]),
    ("TINYBLOB", ["x'00'"]),
    ("BLOB", ["REPEAT(x'ff', 300)"]),
    ("MEDIUMBLOB", ["REPEAT(x'00', 70000)"]),
    ("LONGBLOB", ["x'deadbeef'"]),
    ("GEOMETRY", ["ST_GeomFromText('POINT(1 2)', 4326)", "ST_GeomFromText('LINESTRING(0 0, 1 1)')"]),
    ("POINT", ["POINT(3, 4)"]),
]
MARIADB_TYPES = [
    *TYPES,
    (
        "UUID",
        ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'6ccd780c-baba-1026-9564-5b8c656024db'"],
    ),
    (
        "UUID",
        ["'018f3b9e-5a00-7000-8000-000000000000'", "'f47ac10b-58cc-4372-a567-0e02b2c30000'", "'00112233-4455-0677-0899-aabbccddee00'"],
    ),
    ("INET4", ["'0.0.0.0'", "'255.255.255.255'", "'192.168.10.9'", "'1.0.0.0'"]),
    ("INET6", ["'::'", "'::1'", "'::ffff:192.0.2.1'", "'::192.0.2.1'", "'2001:db8::ff00:42:8329'", "'1:0:0:2:0:0:0:3'", "'1::'"]),
    ("INET6", ["'1:0:0:2:3:0:0:4'", "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'", "'::2:0:0:0:0'", "'0:1::'", "'::ffff:0:0'", "'::1:2'"]),
    ("INET6", ["'1:2:3:4:5:6:7:0'", "'0:2:3:4:5:6:7:8'", "'0:0:0:0:0:fffe:c000:201'", "'a:0b:00c:00d0:e:f:1000:ffff'"]),
    ("VARCHAR(300) COMPRESSED", ["REPEAT('z', 300)", "'short'", "''", "REPEAT('ü😀', 100)"]),
    ("VARCHAR(255) COMPRESSED CHARACTER SET latin1", ["REPEAT('é', 255)", "'€'"]),
    ("VARCHAR(254) COMPRESSED CHARACTER SET latin1", ["REPEAT('é', 254)"]),
    ("VARBINARY(40) COMPRESSED", ["REPEAT(x'00', 40)", "x'00ff'"]),
    ("TEXT COMPRESSED", ["REPEAT('compress me ', 1000)", "'no'", "''"]),
    ("TINYBLOB COMPRESSED", ["REPEAT(x'ff', 200)"]),
    ("LONGBLOB COMPRESSED", ["REPEAT(x'0102', 50000)", "x'00'"]),
]
VECTORS = ["[1,2.5,-0.00003]", "[0.1,1e-7,3.4028235e+38]", "[-0,16777216,1.1754944e-38]"]


MYSQL_JSON = [
    '{"b": 1, "aa": [true, false, null], "c": {"d": -1.5e-20, "e": 1e15, "f": 123456789012345, "g": 0.1}}',
    '"quote \\\\" tab \\\\t ü 😀 \\\\u0001"',
    "[1, -32768, 65535, 65536, -2147483648, 4294967295, 9223372036854775807, 18446744073709551615, 1.0, 1e100]",
    "{}",
    "[]",
]
MYSQL_VALUES = [
    "JSON_ARRAY(CAST(1.50 AS DECIMAL(10,2)), CAST('2026-01-02 03:04:05.6' AS DATETIME(6)))",
    "JSON_ARRAY(CAST('-12:00:01' AS TIME), CAST('2026-01-02' AS DATE), CAST(x'ff00' AS BINARY))",
    "JSON_ARRAY(REPEAT('x', 70000))",
]
MYSQL_TYPES = [*(t for t in TYPES if t[0] != "JSON"), ("JSON", [*(f"'{text}'" for text in MYSQL_JSON), *MYSQL_VALUES])]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mariadb(tmp_path_factory.mktemp("mariadb"), BINLOG) as uri:
        yield uri


@pytest.mark.mysql
def test_every_type_of_mysql_is_what_the_server_answers(tmp_path: Path) -> None:
    with mysql(tmp_path, (*ODD, "--binlog-transaction-compression=ON")) as uri:
        check_types(uri, MYSQL_TYPES)


@pytest.mark.mysql
def test_vectors_of_mysql_keep_every_bit(tmp_path: Path) -> None:
    with mysql(tmp_path) as uri:
        connection, upstream = connect(uri), MySqlUpstream(uri)
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE vectors")
            cursor.execute("CREATE TABLE vectors.t (id INT PRIMARY KEY, v VECTOR(3), w VECTOR)")
            start = upstream.first_position()
            for number, text in enumerate(VECTORS):
                cursor.execute(f"INSERT INTO vectors.t VALUES ({number}, STRING_TO_VECTOR('{text}'), STRING_TO_VECTOR('[1]'))")
            cursor.execute("INSERT INTO vectors.t VALUES (9, NULL, STRING_TO_VECTOR(CONCAT('[', REPEAT('0.5,', 2047), '0.5]')))")
            cursor.execute("SELECT id, HEX(v), HEX(w) FROM vectors.t ORDER BY id")
            answers = cursor.fetchall()
        table = next(t for t in upstream.list_tables() if t.full_name == "vectors.t")
        logged = rows_of_log(upstream, start, table.table_id, BatchKind.DATA)
        assert [r[1] for r in logged] == [*VECTORS, None]
        assert [(r[0], floats(r[1]), floats(r[2])) for r in logged] == list(answers)
        snapshot = [tuple(r.values())[3:] for b in upstream.read_now(Span(table.table_id)) for r in b.records.to_pylist()]
        assert snapshot == logged


def floats(text: str | None) -> str | None:
    """Return a vector's text as the bytes that the server shows in hex."""
    if text is None:
        return None
    return "".join(struct.pack("<f", float(number)).hex().upper() for number in text.strip("[]").split(","))


def connect(uri: str) -> Any:
    address = parse_uri(uri)
    return pymysql.connect(
        host=address.host, port=address.port, user=address.user, autocommit=True, charset="utf8mb4", init_command="SET time_zone='+00:00'"
    )


def answer_expression(number: int, kind: str) -> str:  # noqa: PLR0911 - one per kind
    """Return how the server is asked for a value exactly."""
    name = f"c{number}"
    if kind.startswith(("BIT", "ENUM", "SET")):
        return f"CAST({name} AS UNSIGNED)"
    if kind == "FLOAT":
        return f"CAST({name} AS DOUBLE)"
    if kind.startswith("DECIMAL") and "ZEROFILL" in kind:
        return f"CAST(CAST({name} AS DECIMAL(9,3)) AS CHAR)"
    if kind.startswith(("DECIMAL", "DATE", "TIME")):
        return f"CAST({name} AS CHAR)"
    if kind.startswith("YEAR"):
        return f"{name} + 0"
    if "COMPRESSED" not in kind and ("BLOB" in kind or kind.startswith(("BINARY", "VARBINARY"))):
        return f"CAST({name} AS BINARY)"
    return name


def test_every_type_of_mariadb_is_what_the_server_answers(server: str) -> None:
    check_types(server, MARIADB_TYPES)


def check_types(server: str, types: list[tuple[str, list[str]]]) -> None:
    connection = connect(server)
    upstream = MySqlUpstream(server)
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _) in enumerate(types))
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE kinds")
        cursor.execute(f"CREATE TABLE kinds.t (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4")
        start = upstream.first_position()
        cursor.execute("INSERT INTO kinds.t (id) VALUES (0)")
        row = 0
        for number, (kind, values) in enumerate(types):
            for value in values:
                row += 1
                # Timestamps are written in the server's own zone, which is not UTC.
                zone = "+05:30" if kind.startswith("TIMESTAMP") else "+00:00"
                cursor.execute(f"SET time_zone='{zone}'")
                cursor.execute(f"INSERT INTO kinds.t (id, c{number}) VALUES ({row}, {value})")
        cursor.execute("SET time_zone='+00:00'")
        cursor.execute("UPDATE kinds.t SET id = id + 1000")
        asked = ", ".join(answer_expression(n, kind) for n, (kind, _) in enumerate(types))
        cursor.execute(f"SELECT id, {asked} FROM kinds.t ORDER BY id")
        answers = [tuple(r) for r in cursor.fetchall()]
    table = next(t for t in upstream.list_tables() if t.full_name == "kinds.t")
    assert len(answers) == row + 1
    logged = {kind: rows_of_log(upstream, start, table.table_id, kind) for kind in BatchKind}
    assert [r for r in logged[BatchKind.DATA] if r[0] >= 1000] == answers
    inserted = [(r[0] - 1000, *r[1:]) for r in answers]
    assert [r for r in logged[BatchKind.DATA] if r[0] < 1000] == inserted
    assert logged[BatchKind.TOMBSTONE] == inserted
    snapshot = [tuple(r.values())[3:] for b in upstream.read_now(Span(table.table_id)) for r in b.records.to_pylist()]
    assert snapshot == answers


def rows_of_log(upstream: MySqlUpstream, start: LogPosition, table_id: int, side: BatchKind) -> list[tuple[Any, ...]]:
    """Return the rows of one side of the log by key, as Python values."""
    end, stop = upstream.log_end(), threading.Event()
    rows: list[tuple[Any, ...]] = []
    for step in upstream.read_log(start, (), lambda found: found == table_id, stop):
        for change in step.changes:
            if change.header.kind is side:
                rows += [tuple(r.values())[3:] for r in change.records.to_pylist()]
        if step.position is not None and upstream.reached(step.position.text, end):
            return sorted(rows, key=lambda r: r[0])
    raise AssertionError("the log ended")
