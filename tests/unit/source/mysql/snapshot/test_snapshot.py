from __future__ import annotations

from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.snapshot.snapshot import select_statement


def table_of(*columns: Column) -> TableSchema:
    return TableSchema(9, "s", "t`x", 1, columns)


def test_pages_of_a_snapshot_continue_behind_a_key_inside_a_range() -> None:
    key = Column(1, "id", ColumnType(TypeKind.INT), primary_key=True)
    table = table_of(key, Column(2, "f", ColumnType(TypeKind.FLOAT)), Column(3, "s", ColumnType(TypeKind.SET, elems=("a",))))
    text = select_statement(table, ["`id` >= 5"], ("id",), [7], 100)
    assert text == (
        "SELECT `id`, `f` + 0e0, CAST(`s` AS UNSIGNED) FROM `s`.`t``x` WHERE `id` >= 5 AND ((`id` > 7)) ORDER BY `id` LIMIT 100"
    )
    two = select_statement(table, [], ("s", "id"), ["o'\\", 7], 9)
    assert two.endswith("WHERE ((`s` > 'o''\\\\') OR (`s` = 'o''\\\\' AND `id` > 7)) ORDER BY `s`, `id` LIMIT 9")
