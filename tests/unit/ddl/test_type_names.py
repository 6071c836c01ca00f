"""Names of types: a declaration reads back as the type that it was written from."""

import pytest
import sqlglot
from sqlglot import exp

from penstock.ddl.column_definition import build_column
from penstock.ddl.type_names import mysql_type, statement_type
from penstock.model.types import ColumnType, TypeKind

K = TypeKind


@pytest.mark.parametrize(
    ("kind", "bare", "full"),
    [
        (ColumnType(K.INT), "int", "int(11)"),
        (ColumnType(K.INT, unsigned=True), "int unsigned", "int(10) unsigned"),
        (ColumnType(K.BIGINT, zerofill=True, length=9), "bigint unsigned zerofill", "bigint(9) unsigned zerofill"),
        (ColumnType(K.DECIMAL), "decimal", "decimal(10,0)"),
        (ColumnType(K.DECIMAL, length=9, scale=2), "decimal", "decimal(9,2)"),
        (ColumnType(K.DOUBLE), "double", "double"),
        (ColumnType(K.DATETIME, scale=3), "datetime", "datetime(3)"),
        (ColumnType(K.YEAR), "year", "year(4)"),
        (ColumnType(K.VARCHAR, length=20), "varchar", "varchar(20)"),
        (ColumnType(K.TEXT), "text", "text"),
        (ColumnType(K.ENUM, elems=("a", "it's")), "enum", "enum('a','it''s')"),
    ],
)
def test_names(kind: ColumnType, bare: str, full: str) -> None:
    assert (mysql_type(kind, full=False), mysql_type(kind, full=True)) == (bare, full)


@pytest.mark.parametrize(
    "kind",
    [
        ColumnType(K.INT, length=11),
        ColumnType(K.BIGINT, unsigned=True, length=20),
        ColumnType(K.DECIMAL, length=9, scale=2),
        ColumnType(K.TIMESTAMP, scale=6),
        ColumnType(K.VARBINARY, length=7),
        ColumnType(K.BIT, length=4),
        ColumnType(K.SET, elems=("a", "b'c", "d\\")),
        ColumnType(K.LONGTEXT),
    ],
)
def test_a_declaration_reads_back(kind: ColumnType) -> None:
    statement = sqlglot.parse_one(f"CREATE TABLE t (c {statement_type(kind)})", dialect="mysql")
    definition = statement.find(exp.ColumnDef)
    assert definition is not None
    assert build_column(definition, 1).type == kind
