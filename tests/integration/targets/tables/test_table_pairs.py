"""Every pair of a real source and a real target database: what the drivers read on both sides is the same, first states and changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.server.verify.tables_verification import TablesVerifier
from penstock.sink.catalog import open_tables
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.live_database import Database, live_database
from testing.targets.database_kit import MYSQL, TargetDatabase

pytestmark = pytest.mark.integration
COLUMNS = {
    "mariadb": {
        "i": ("BIGINT UNSIGNED", "18446744073709551615"),
        "b": ("BIT(9)", "b'101010101'"),
        "d": ("DECIMAL(65,30)", "-12345678901234567890123456789012345.123456789012345678901234567890"),
        "f": ("FLOAT", "16777216"),
        "fx": ("FLOAT", "-3.4028234663852886e38"),
        "z": ("DECIMAL(9,3) ZEROFILL", "12.5"),
        "g": ("DOUBLE", "0.1e0 + 0.2e0"),
        "dt": ("DATETIME(6)", "'2024-02-29 23:59:59.100000'"),
        "ts": ("TIMESTAMP(3) NULL", "'2024-02-29 23:59:59.120'"),
        "t": ("TIME(2)", "'-838:59:58.50'"),
        "y": ("YEAR", "1999"),
        "y0": ("YEAR", "0"),
        "dl": ("DATETIME", "'1000-01-01 00:00:00'"),
        "fm": ("DOUBLE", "-1.7976931348623157e308"),
        "ev": ("VARCHAR(5)", "''"),
        "s0": ("SET('x','y','z')", "''"),
        "c": ("CHAR(20)", "'ä \\\\ '' \\n x'"),
        "v": ("VARCHAR(50)", "'trailing  '"),
        "x": ("LONGTEXT", "REPEAT('\\U0001f600,', 300)".replace("\\U0001f600", "\U0001f600")),
        "vb": ("VARBINARY(20)", "x'00ff5c27'"),
        "e": ("ENUM('a','b''c')", "'b''c'"),
        "s": ("SET('x','y','z')", "'x,z'"),
        "j": ("JSON", "'{\"k\": [1, null]}'"),
    },
    "postgres": {
        "b": ("BOOLEAN", "true"),
        "i": ("BIGINT", "-9223372036854775808"),
        "n": ("NUMERIC(40,10)", "123456789012345678901234567890.0000000001"),
        "u": ("NUMERIC", "1.500"),
        "r": ("REAL", "0.1"),
        "g": ("DOUBLE PRECISION", "0.1::float8 + 0.2"),
        "dt": ("TIMESTAMP", "'2024-02-29 23:59:59.1'"),
        "tz": ("TIMESTAMPTZ", "'2024-02-29 23:59:59.12+02'"),
        "da": ("DATE", "'2024-02-29'"),
        "t": ("TIME", "'23:59:58.5'"),
        "c": ("CHAR(20)", "'ä \\ '' '"),
        "v": ("VARCHAR(50)", "'trailing  '"),
        "x": ("TEXT", "repeat('\U0001f600,', 300)"),
        "by": ("BYTEA", "'\\x00ff5c27'"),
        "nn": ("NUMERIC", "'NaN'"),
        "t24": ("TIME", "'24:00:00'"),
        "iv": ("INTERVAL", "'1 mon -3 days 04:05:06.789'"),
        "ip": ("INET", "'10.0.0.0/8'"),
        "ra": ("INT4RANGE", "'[1,5)'"),
        "bi": ("BIT(5)", "B'10101'"),
        "et": ("TEXT", "''"),
        "eb": ("BYTEA", "''"),
        "uu": ("UUID", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
        "j": ("JSONB", "'{\"k\": [1, null]}'"),
        "ar": ("INTEGER[]", "'{1,2,NULL}'"),
    },
}


@pytest.fixture(scope="module", params=["mariadb", "postgres", MYSQL])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with live_database(request.param, tmp_path_factory.mktemp("source")) as database:
        yield database


def texts(connection: Any, name: str, columns: list[str], kind: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table as the server prints them."""
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'" if kind == "postgres" else "SET time_zone = '+00:00'")
        cast = "{}::text" if kind == "postgres" else "HEX(CAST({} AS CHAR))"
        cursor.execute(f"SELECT id, {', '.join(cast.format(c) for c in columns)} FROM {name} ORDER BY id")
        return list(cursor.fetchall())


@pytest.mark.parametrize("kind", ["mariadb", "postgres", MYSQL])
def test_a_pair(source: Database, kind: str, tmp_path: Path) -> None:
    schema, columns, target = source.make_schema(), COLUMNS["postgres" if source.kind == "postgres" else "mariadb"], TargetDatabase(kind)
    defined, values = ", ".join(f"{n} {t}" for n, (t, _) in columns.items()), ", ".join(v for _, v in columns.values())
    names, charset = ", ".join(columns), " CHARACTER SET utf8mb4" if source.kind != "postgres" else ""
    source.run(
        f"CREATE TABLE {schema}.a (id INT PRIMARY KEY, {defined}){charset}",
        f"CREATE TABLE {schema}.bag (id INT, {defined}){charset}",
        f"INSERT INTO {schema}.a (id, {names}) VALUES (1, {values}), (2, {values})",
        f"INSERT INTO {schema}.a (id) VALUES (3)",
        f"INSERT INTO {schema}.bag (id, {names}) VALUES (1, {values}), (1, {values}), (2, {values})",
        *([f"ALTER TABLE {schema}.bag REPLICA IDENTITY FULL"] if source.kind == "postgres" else []),
    )
    with contextlib.closing(OneLogPath(tmp_path, source.uri, [f"{schema}.*"], target_uri=target.uri, sink_options=target.options)) as path:
        path.begin()
        path.drain()
        source.run(
            f"INSERT INTO {schema}.a (id, {names}) VALUES (4, {values})",
            f"UPDATE {schema}.a SET id = 5 WHERE id = 1",
            f"DELETE FROM {schema}.a WHERE id = 2",
            f"UPDATE {schema}.a SET {', '.join(f'{n} = {v}' for n, (_, v) in columns.items())} WHERE id = 3",
            f"DELETE FROM {schema}.bag WHERE id = 2",
            f"INSERT INTO {schema}.bag (id, {names}) VALUES (7, {values})",
            f"ALTER TABLE {schema}.a ADD COLUMN added INT DEFAULT 4",
            f"INSERT INTO {schema}.a (id, added) VALUES (8, 9)",
        )
        path.drain()
        with contextlib.closing(open_tables(path.target_uri, path.sink_options)) as tables:
            ids = sorted({d.id.table_id for d in path.live()})
            verdict = TablesVerifier(tables, path.upstream).verify(ids, looks_max=3)
        verdict.check()
        assert verdict.summary() == "verified: 2 tables, 7 rows identical", [str(t) for t in verdict.tables]
    assert sorted(row[0] for row in target.rows(schema, "a", "id")) == [3, 4, 5, 8]
    assert sorted(row[0] for row in target.rows(schema, "bag", "id")) == [1, 1, 7]
    if kind == source.kind != "postgres":
        for table in ("a", "bag"):
            found = texts(target.connect(), target.name(schema, table), list(columns), kind)
            assert found == texts(source.connect(), f"{schema}.{table}", list(columns), kind)


def test_rows_that_go_with_a_partition(source: Database, tmp_path: Path) -> None:
    """They stand in no log: the table is read again, and what differs is told."""
    schema, target = source.make_schema(), TargetDatabase("postgres" if source.kind == "mariadb" else "mariadb")
    if source.kind == "postgres":
        source.run(
            f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, note TEXT) PARTITION BY RANGE (id)",
            *(f"CREATE TABLE {schema}.p{n} PARTITION OF {schema}.t FOR VALUES FROM ({n}00) TO ({n + 1}00)" for n in range(3)),
        )
        gone = [f"ALTER TABLE {schema}.t DETACH PARTITION {schema}.p0", f"DROP TABLE {schema}.p1"]
        more = f"CREATE TABLE {schema}.p3 PARTITION OF {schema}.t FOR VALUES FROM (300) TO (400)"
    else:
        parts = ", ".join(f"PARTITION p{n} VALUES LESS THAN ({n + 1}00)" for n in range(3))
        source.run(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, note VARCHAR(20)) PARTITION BY RANGE (id) ({parts})")
        gone = [f"ALTER TABLE {schema}.t TRUNCATE PARTITION p0", f"ALTER TABLE {schema}.t DROP PARTITION p1"]
        more = f"ALTER TABLE {schema}.t ADD PARTITION (PARTITION p3 VALUES LESS THAN (400))"
    source.run(f"INSERT INTO {schema}.t VALUES (1, 'a'), (2, 'b'), (101, 'c'), (201, 'd')")
    with contextlib.closing(OneLogPath(tmp_path, source.uri, [f"{schema}.t"], target_uri=target.uri, sink_options=target.options)) as path:
        path.begin()
        path.drain()
        source.run(more, f"INSERT INTO {schema}.t VALUES (301, 'e')", *gone, f"INSERT INTO {schema}.t VALUES (202, 'f')")
        path.drain()
        for table_id in sorted({d.id.table_id for d in path.live()}):
            path.reread().run(table_id)
        path.drain()
    assert target.rows(schema, "t") == [(201, "d"), (202, "f"), (301, "e")]
