"""An ALTER TABLE that amounts to several statements is cut into them, each with a text that does only that."""

from __future__ import annotations

import pytest

from penstock.ddl.statement import parse_statement
from penstock.model.ddl import DdlType
from penstock.source.mysql.tables.alter_actions import parts_of


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("ALTER TABLE a RENAME TO b", [(DdlType.RENAME_TABLE, "ALTER TABLE a RENAME TO b")]),
        ("ALTER TABLE a ADD x INT", [(DdlType.ADD_COLUMN, "ALTER TABLE a ADD x INT")]),
        (
            "alter ignore table a add x INT DEFAULT ',', rename as `b`, drop y",
            [
                (DdlType.RENAME_TABLE, "RENAME TABLE `s`.`a` TO `s`.`b`"),
                (DdlType.MULTI_SCHEMA_CHANGE, "ALTER IGNORE TABLE `s`.`b` add x INT DEFAULT ',', drop y"),
            ],
        ),
        (
            "ALTER TABLE q.a RENAME c.b, RENAME COLUMN x TO y, RENAME INDEX i TO j",
            [
                (DdlType.RENAME_TABLE, "RENAME TABLE `q`.`a` TO `c`.`b`"),
                (DdlType.MULTI_SCHEMA_CHANGE, "ALTER TABLE `c`.`b` RENAME COLUMN x TO y, RENAME INDEX i TO j"),
            ],
        ),
        (
            "ALTER TABLE q.a CONVERT PARTITION p TO TABLE b",
            [
                (DdlType.CREATE_TABLE, "CREATE TABLE `s`.`b` LIKE `q`.`a`"),
                (DdlType.TABLE_CHARSET, "ALTER TABLE q.a CONVERT PARTITION p TO TABLE b"),
            ],
        ),
        (
            "ALTER TABLE a CONVERT TABLE q.b TO PARTITION p VALUES LESS THAN (4)",
            [
                (DdlType.TABLE_CHARSET, "ALTER TABLE a CONVERT TABLE q.b TO PARTITION p VALUES LESS THAN (4)"),
                (DdlType.DROP_TABLE, "DROP TABLE IF EXISTS `q`.`b`"),
            ],
        ),
    ],
)
def test_parts(query: str, parts: list[tuple[DdlType, str]]) -> None:
    statement = parse_statement(query, "s")
    assert statement is not None
    assert [(part.type, text) for part, text in parts_of(statement, query, "s")] == parts
