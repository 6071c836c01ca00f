"""The schema files of DDLs."""

import pytest

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.storage.maintainer import ddl_files

ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (DdlEvent(9, DdlType.CREATE_SCHEMA, "CREATE DATABASE shop", "shop"), [("shop", "", 1, "CREATE DATABASE shop", False)]),
        (
            DdlEvent(9, DdlType.DROP_TABLE, "DROP TABLE a, `x`.`b`", "shop", (), (1, 2)),
            [("shop", "a", 4, "DROP TABLE a, `x`.`b`", False), ("x", "b", 4, "DROP TABLE a, `x`.`b`", False)],
        ),
        (
            DdlEvent(
                9,
                DdlType.RENAME_TABLES,
                "RENAME TABLE a TO b, c TO d",
                "shop",
                (TableSchema(1, "shop", "b", 9, (ID,)), TableSchema(2, "shop", "d", 9, (ID,))),
                (),
                ((1, "shop", "a"), (2, "shop", "c")),
            ),
            [
                ("shop", "b", 14, "RENAME TABLE `shop`.`a` TO `shop`.`b`", True),
                ("shop", "d", 14, "RENAME TABLE `shop`.`c` TO `shop`.`d`", True),
            ],
        ),
        (
            DdlEvent(
                9,
                DdlType.CREATE_TABLES,
                "CREATE TABLE a (id INT); CREATE TABLE b (id INT);",
                "shop",
                (TableSchema(1, "shop", "a", 9, (ID,)), TableSchema(2, "shop", "b", 9, (ID,))),
            ),
            [("shop", "a", 3, "CREATE TABLE a (id INT)", True), ("shop", "b", 3, "CREATE TABLE b (id INT)", True)],
        ),
        (
            DdlEvent(
                9,
                DdlType.EXCHANGE_PARTITION,
                "ALTER ...",
                "shop",
                (TableSchema(1, "shop", "a", 9, (ID,)), TableSchema(2, "shop", "b", 9, (ID,))),
            ),
            [("shop", "a", 42, "ALTER ...", True), ("shop", "b", 0, "", True)],
        ),
    ],
)
def test_schema_files_of_ddls(event: DdlEvent, expected: list[tuple[str, str, int, str, bool]]) -> None:
    found = [(f.schema, f.table, int(f.type), f.query, f.columns is not None) for f in ddl_files(event)]
    assert found == expected
    assert all(f.table_version == 9 for f in ddl_files(event))
