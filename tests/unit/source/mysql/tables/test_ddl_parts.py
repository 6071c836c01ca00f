"""A statement of the log as the DDLs that it amounts to."""

import pytest

from penstock.model.ddl import DdlType
from penstock.source.mysql.tables.ddl_parts import ddl_parts, makes_table
from penstock.source.mysql.wire.log_events import QueryEvent


def types(text: str, *, failed: bool = False, of_session: bool = False) -> list[tuple[DdlType, tuple[tuple[str, str], ...]]] | None:
    parts = ddl_parts(QueryEvent("s", text, failed), of_session)
    return None if parts is None else [(statement.type, statement.tables) for statement, _ in parts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INSERT INTO t VALUES (1)", None),
        ("CREATE TABLE t (a INT)", [(DdlType.CREATE_TABLE, (("s", "t"),))]),
        ("DROP TABLE t, o.u", [(DdlType.DROP_TABLE, (("s", "t"), ("o", "u")))]),
        ("ALTER TABLE t RENAME TO u, ADD COLUMN b INT", [(DdlType.RENAME_TABLE, (("s", "u"),)), (DdlType.ADD_COLUMN, (("s", "u"),))]),
    ],
)
def test_statements(text: str, expected: object) -> None:
    assert types(text) == expected


def test_a_temporary_table_is_its_sessions_own() -> None:
    assert types("ALTER TABLE t ADD COLUMN b INT", of_session=True) == []
    assert types("TRUNCATE TABLE t", of_session=True) == []


def test_a_table_that_is_made_inside_a_transaction_is_everybodys_unless_it_says_otherwise() -> None:
    """MariaDB marks CREATE OR REPLACE, and what read a temporary table, as it marks what is about one."""
    for text in ("CREATE OR REPLACE TABLE t (a INT)", "CREATE TABLE t (a INT)"):
        assert makes_table(ddl_parts(QueryEvent("s", text), is_of_session=True) or [])
    for text in ("CREATE TEMPORARY TABLE t (a INT)", "CREATE OR REPLACE TEMPORARY TABLE t (a INT)", "CREATE INDEX i ON t (a)"):
        assert not makes_table(ddl_parts(QueryEvent("s", text), is_of_session=True) or [])


def test_one_that_failed_has_done_a_part_of_its_work() -> None:
    assert types("CREATE TABLE t (a INT)", failed=True) == []
    assert types("CREATE OR REPLACE TABLE t (a INT)", failed=True) == [(DdlType.DROP_TABLE, (("s", "t"),))]
    assert types("DROP TABLE t, u", failed=True) == [(DdlType.DROP_TABLE, (("s", "t"), ("s", "u")))]
    assert ddl_parts(QueryEvent("s", "DROP TABLE t"), is_undone=True) == []
