"""Column selectors."""

import pytest

from penstock.format.column_selection import read_selectors, select_columns
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

K = TypeKind
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)
NAME = Column(2, "name", ColumnType(K.VARCHAR, length=20))
TABLE = TableSchema(7, "hr", "employee", 5, (ID, NAME))


def test_columns_are_selected_by_the_first_rule_and_keys_stay() -> None:
    rules = read_selectors(
        [{"matcher": ["hr.emp*"], "columns": ["*", "!na?e", "nace"]}, {"matcher": "*.*", "columns": ["nothing"]}],
    )
    assert [c.name for c in select_columns(TABLE, rules).columns] == ["Id"]
    other = TableSchema(8, "HR", "Employees", 5, (ID, NAME, Column(3, "note", ColumnType(K.TEXT))))
    assert [c.name for c in select_columns(other, rules).columns] == ["Id", "note"]
    assert select_columns(other, ()) is other


@pytest.mark.parametrize("raw", ["x", [1], [{"matcher": ["a"]}], [{"matcher": [], "columns": ["a"]}], [{"matcher": ["a"], "columns": [1]}]])
def test_selectors_that_cannot_be_meant(raw: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_selectors(raw)
