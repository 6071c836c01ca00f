from __future__ import annotations

import sqlite3

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.readback.replay_dialect import DIALECTS

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12) | st.sampled_from(
    ['a"b', "a`b", "a.b", "%", "a;--", "'", "a%2Eb"]
)


@settings(max_examples=60, deadline=None)
@given(NAMES, NAMES, NAMES, NAMES)
def test_two_tables_never_share_a_name(schema: str, table: str, other_schema: str, other_table: str) -> None:
    for dialect in DIALECTS.values():
        same = dialect.table(schema, table) == dialect.table(other_schema, other_table)
        assert same is ((schema, table) == (other_schema, other_table))


@settings(max_examples=40, deadline=None)
@given(NAMES)
def test_a_quoted_name_is_that_name_and_nothing_more(name: str) -> None:
    """Asked of real databases: the name comes back from their catalogs."""
    with sqlite3.connect(":memory:") as database:
        database.execute(f"CREATE TABLE {DIALECTS['sqlite'].table('s', name)} (x INT)")
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [(f"s.{name}",)]
    database.close()


@pytest.mark.parametrize("name", ['a"b', "a.b", "a;DROP TABLE x;--", "%", "ü", "select"])
def test_a_quoted_name_in_a_database_with_schemas(name: str) -> None:
    dialect = DIALECTS["duckdb"]
    with duckdb.connect() as database:
        database.execute(f"CREATE SCHEMA {dialect.identifier(name)}")
        database.execute(f"CREATE TABLE {dialect.table(name, name)} ({dialect.identifier(name)} INT)")
        found = database.execute("SELECT table_schema, table_name, column_name FROM information_schema.columns").fetchall()
    assert found == [(name, name, name)]


@pytest.mark.parametrize(
    ("kind", "schema", "own"),
    [
        *(("mysql", name, True) for name in ("mysql", "MySQL", "sys", "information_schema", "performance_schema")),
        *(("postgresql", name, True) for name in ("pg_catalog", "pg_toast", "PG_temp_1", "information_schema")),
        ("duckdb", "temp", True),
        ("mysql", "shop", False),
        ("mysql", "mysql2", False),
        ("postgresql", "mysql", False),
        ("sqlite", "mysql", False),
    ],
)
def test_schemas_of_the_server_are_known(kind: str, schema: str, own: bool) -> None:
    assert DIALECTS[kind].is_system(schema) is own
