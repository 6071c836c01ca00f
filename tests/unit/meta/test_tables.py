from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateTable

from penstock.meta.tables import metadata, progress, subscribe

MYSQL_KEY_BYTES_MAX = 3_072


@pytest.mark.parametrize("dialect", [sqlite.dialect(), mysql.dialect(), postgresql.dialect()], ids=lambda d: d.name)
def test_tables_are_plain_sql_everywhere(dialect: sa.Dialect) -> None:
    for table in metadata.sorted_tables:
        assert f"CREATE TABLE {table.name}" in str(CreateTable(table).compile(dialect=dialect))


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda t: t.name)
def test_keys_fit_in_mysql(table: sa.Table) -> None:
    nbytes = sum(4 * c.type.length if isinstance(c.type, sa.String) and c.type.length else 8 for c in table.primary_key)
    assert nbytes <= MYSQL_KEY_BYTES_MAX


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda t: t.name)
def test_a_ts_has_64_bits(table: sa.Table) -> None:
    for column in table.columns:
        if column.name.endswith(("_ts", "_ms", "_version", "_index", "epoch", "_total")):
            assert isinstance(column.type, sa.BigInteger)


def test_subscribe_and_progress_have_the_columns_of_their_design_that_somebody_reads() -> None:
    assert [c.name for c in subscribe.primary_key] == ["db_name", "table_name", "subscribe_name"]
    assert {c.name for c in subscribe.columns} >= {"table_id", "master_addrs", "sink", "cancel", "owner"}
    assert [c.name for c in progress.primary_key] == ["db_name", "table_name", "subscribe_name", "range_id"]
    assert {c.name for c in progress.columns} >= {"progress_init_snapshot_version", "checkpoint_ts", "epoch"}
