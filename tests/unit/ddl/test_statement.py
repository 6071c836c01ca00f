"""What statements say about names: of tables and of columns."""

import pytest

from penstock.ddl.statement import column_origins, dropped_tables, parse_statement, renamed_tables


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("RENAME TABLE a TO b", [(("s", "a"), ("s", "b"))]),
        ("rename table `x`.`a b` to y.c, d TO e;", [(("x", "a b"), ("y", "c")), (("s", "d"), ("s", "e"))]),
        ("ALTER TABLE a RENAME TO b", [(("s", "a"), ("s", "b"))]),
        # A name without a database is of the one that the statement ran in, not of the table's.
        ("ALTER TABLE `x`.`a` RENAME AS `b``c`", [(("x", "a"), ("s", "b`c"))]),
        ("ALTER TABLE a RENAME b", [(("s", "a"), ("s", "b"))]),
        ("/* why; */ RENAME TABLE a -- x TO y\n TO b", [(("s", "a"), ("s", "b"))]),
        ("RENAME TABLE a WAIT 10 TO b", [(("s", "a"), ("s", "b"))]),
        ("ALTER TABLE a COMMENT 'RENAME TO z', RENAME = b", [(("s", "a"), ("s", "b"))]),
        ("ALTER TABLE a RENAME COLUMN b TO c", []),
        ("ALTER TABLE a RENAME INDEX b TO c", []),
        ("CREATE TABLE a (id INT)", []),
        ("CREATE OR REPLACE TABLE a (id INT)", []),
    ],
)
def test_renamed_tables(query: str, expected: list[object]) -> None:
    assert renamed_tables(query, "s") == expected


@pytest.mark.parametrize(
    ("query", "origins", "free"),
    [
        ("ALTER TABLE t RENAME COLUMN `A b` TO c, CHANGE COLUMN d e INT, CHANGE f f BIGINT", {"c": "a b", "e": "d"}, {"a b", "d"}),
        ("alter table t rename column a to b, rename column b to a", {"a": "b", "b": "a"}, {"a", "b"}),
        ("ALTER TABLE t DROP a, ADD a INT", {}, {"a"}),
        ("ALTER TABLE t drop column if exists `X`, drop index y, drop primary key", {}, {"x"}),
        ("ALTER TABLE t ADD x VARCHAR(9) DEFAULT 'RENAME COLUMN a TO b'", {}, set()),
        ("not sql at all (", {}, set()),
    ],
)
def test_column_origins(query: str, origins: dict[str, str], free: set[str]) -> None:
    assert column_origins(query) == (origins, free)


def test_dropped_tables() -> None:
    assert dropped_tables("DROP TABLE IF EXISTS `a`, b.c", "s") == [("s", "a"), ("b", "c")]
    assert dropped_tables("drop table a /* ; drop table x */; TRUNCATE `b;`", "s") == [("s", "a"), ("s", "b;")]
    assert dropped_tables("not sql at all (", "s") == []


def test_a_backslash_ends_a_text_where_it_escapes_nothing() -> None:
    query = "ALTER TABLE a ADD x VARCHAR(9) DEFAULT '\\', DROP y, COMMENT 'z'"
    plain, escaped = (parse_statement(query, "s", backslash_escapes=b) for b in (False, True))
    assert plain is not None
    assert escaped is not None
    assert (plain.dropped, escaped.dropped) == (("y",), ())
