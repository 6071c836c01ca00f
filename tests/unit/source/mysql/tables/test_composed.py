"""Statements that the log does not hold: they read back as what they were composed from."""

import pytest

from penstock.ddl.statement import parse_statement
from penstock.model.ddl import DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.tables.composed import (
    compose_alter,
    compose_create,
    compose_drop,
    compose_rename,
    compose_replace,
    in_lower_case,
)
from penstock.source.mysql.tables.ddl_columns import altered_columns, created_columns

INT = ColumnType(TypeKind.INT, length=11)
ID = Column(1, "id", INT, False, True)
NAME = Column(2, "n`m", ColumnType(TypeKind.VARCHAR, length=20), default="it's")
MOMENT = Column(3, "at", ColumnType(TypeKind.DATETIME, scale=3), default="CURRENT_TIMESTAMP(3)")
BITS = Column(4, "b", ColumnType(TypeKind.BIT, length=3), default="b'101'")


def table(*columns: Column, version: int = 1, unique: tuple[tuple[int, ...], ...] = ()) -> TableSchema:
    return TableSchema(7, "shop", "items", version, columns, unique_keys=unique)


def test_a_table_reads_back_as_it_was() -> None:
    columns = (ID, NAME, MOMENT, BITS)
    text = compose_create(table(*columns, unique=((2,),)))
    assert created_columns(text) == columns
    assert "UNIQUE" not in text, "how many characters of a column a key has is not told"
    assert compose_replace(table(*columns)) == text.replace("CREATE", "CREATE OR REPLACE", 1)


@pytest.mark.parametrize("column", [MOMENT, BITS], ids=["computed", "bits"])
def test_a_default_that_is_no_text_is_written_without_quotes(column: Column) -> None:
    assert compose_alter(table(ID), table(ID, column, version=2)).endswith(f"DEFAULT {column.default} AFTER `id`")


def test_one_version_becomes_the_next() -> None:
    before = (ID, NAME, MOMENT)
    after = (ID, Column(2, "name", NAME.type, default="it's"), Column(9, "n", INT, False))
    text = compose_alter(table(*before), table(*after, version=2))
    parsed = altered_columns(before, text)
    assert parsed is not None
    assert [(c.id, c.name) for c in parsed] == [(1, "id"), (2, "name"), (0, "n")]
    rekeyed = compose_alter(table(ID), table(Column(1, "id", INT, False), version=2))
    assert rekeyed == "ALTER TABLE `shop`.`items` DROP PRIMARY KEY"


def test_names_of_tables() -> None:
    pairs = [(("A", "b`c"), ("A", "d")), (("A", "d"), ("x", "y"))]
    renamed = parse_statement(compose_rename(pairs), "other")
    assert renamed is not None
    assert list(renamed.renamed) == pairs
    dropped = parse_statement(compose_drop([("A", "b`c"), ("x", "y")]), "other")
    assert dropped is not None
    assert (dropped.type, dropped.tables) == (DdlType.DROP_TABLE, (("A", "b`c"), ("x", "y")))
    folded, text = in_lower_case(dropped, "as it was written")
    assert folded.tables == (("a", "b`c"), ("x", "y"))
    assert text == compose_drop(folded.tables)
