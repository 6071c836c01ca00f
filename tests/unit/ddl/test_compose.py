"""Statements that are written: they read back as what they were written from."""

import pytest

from penstock.ddl.compose import TypeText, column_text, create_text, full_type, rename_text, short_type
from penstock.ddl.statement import renamed_tables
from penstock.ddl.tokens import statements, tokens
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.dataserver.engine.schemas import Schemas
from penstock.source.mysql.tables.composed import compose_alter

INT = ColumnType(TypeKind.INT)
TEXT = ColumnType(TypeKind.VARCHAR, length=20)
MOMENT = ColumnType(TypeKind.DATETIME, scale=3)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (Column(1, "a`b", INT, False, default="7"), "`a``b` INT NOT NULL DEFAULT '7'"),
        (Column(1, "a", TEXT, default="it's \\"), "`a` VARCHAR(20) DEFAULT 'it''s \\\\'"),
        (Column(1, "a", TEXT, default="NULLABLE"), "`a` VARCHAR(20) DEFAULT 'NULLABLE'"),
        (Column(1, "a", TEXT, default="NULL"), "`a` VARCHAR(20) DEFAULT NULL"),
        (Column(1, "a", MOMENT, default="CURRENT_TIMESTAMP(3)"), "`a` DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3)"),
        (Column(1, "a", ColumnType(TypeKind.BIT, length=3), default="b'101'"), "`a` BIT(3) DEFAULT b'101'"),
    ],
)
def test_columns(column: Column, text: str) -> None:
    assert column_text(column, short_type) == text


VICTIM = "; DROP TABLE victim; -- "
HOSTILE = [
    Column(1, "a", INT, default=f"7){VICTIM}"),
    Column(1, "a", INT, default="nullable text) /* "),
    Column(1, "a", INT, default="f('x"),
    Column(1, "a", INT, default="1, ADD COLUMN b INT"),
    Column(1, "a", MOMENT, default=f"current_timestamp(3)){VICTIM}"),
    Column(1, "a", TEXT, default=f"\\'{VICTIM}"),
    Column(1, "a", TEXT, default=f"null{VICTIM}"),
    Column(1, "a", ColumnType(TypeKind.BIT, length=3), default=f"b'1'{VICTIM}"),
    Column(1, "a", ColumnType(TypeKind.ENUM, elems=("x\\", f"){VICTIM}"))),
    Column(1, f"a`{VICTIM}", INT),
]


@pytest.mark.parametrize("column", HOSTILE)
@pytest.mark.parametrize("form", [short_type, full_type])
def test_nothing_of_a_column_ends_its_definition(column: Column, form: TypeText) -> None:
    for text in (
        f"ALTER TABLE t ADD COLUMN {column_text(column, form)}, ADD COLUMN z INT",
        compose_alter(TableSchema(1, "s", "t", 1, ()), TableSchema(1, "s", "t", 2, (column,))) + ", ADD COLUMN z INT",
    ):
        assert len(statements(text)) == 1, text
        assert tokens(text)[-5:] == [",", "ADD", "COLUMN", "z", "INT"], text
        assert tokens(text).count("ADD") == 2, text


@pytest.mark.parametrize("text", ["CURRENT_TIMESTAMP(3)", "(uuid())", "concat('a,b', \"it''s\")", "b'101'", "(json_array(1, 2))", "NULL"])
def test_what_is_computed_stays_as_it_is(text: str) -> None:
    assert column_text(Column(1, "a", MOMENT, default=text), short_type) == f"`a` DATETIME(3) DEFAULT {text}"


def test_a_table_is_read_back_as_it_was_written() -> None:
    columns = (
        Column(1, "id", INT, False, True),
        Column(2, "n`m", TEXT, default="it's \\ ; -- x"),
        Column(3, "e", ColumnType(TypeKind.ENUM, elems=("a", "b'c", "d;")), False, default="b'c"),
        Column(4, "d", ColumnType(TypeKind.DECIMAL, length=9, scale=2), default="1.50"),
        Column(5, "b", ColumnType(TypeKind.BIT, length=4), default="b'11'"),
        Column(6, "t", ColumnType(TypeKind.TIMESTAMP, scale=6), default="CURRENT_TIMESTAMP(6)"),
    )
    schemas = Schemas()
    schemas.apply(schemas.plan("CREATE DATABASE s")(1))
    made = schemas.plan(create_text(TableSchema(1, "s", "t;u", 5, columns)))(5).tables[0]
    assert (made.schema, made.table) == ("s", "t;u")
    assert [(c.name, c.type.kind, c.type.elems, c.nullable, c.primary_key, c.default) for c in made.columns] == [
        (c.name, c.type.kind, c.type.elems, c.nullable, c.primary_key, c.default) for c in columns
    ]


def test_renames() -> None:
    old, new = ("a`", "b c"), ("x", "TO")
    assert renamed_tables(rename_text(old, new), "s") == [(old, new)]
