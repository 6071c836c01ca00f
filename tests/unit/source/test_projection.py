import pyarrow as pa
import pytest

from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.dataserver.projection import default_scalar, project

INT = ColumnType(TypeKind.INT)


def version(number, *columns):
    return TableSchema(1, "d", "t", number, columns)


def test_columns_are_matched_by_id_and_missing_ones_take_the_default_of_their_birth():
    first = version(1, Column(1, "id", INT), Column(2, "a", INT))
    second = version(2, Column(3, "n", INT, default="7"), Column(1, "id", INT), Column(2, "renamed", INT))
    third = version(3, Column(3, "n", ColumnType(TypeKind.BIGINT), default="9"), Column(1, "id", INT), Column(4, "x", INT))
    history = SchemaHistory(1, [first, second, third])
    rows = [pa.array([1, 2], pa.int32()), pa.array([None, 5], pa.int32())]
    assert [a.to_pylist() for a in project(rows, first, second, history)] == [[7, 7], [1, 2], [None, 5]]
    projected = project(rows, first, third, history)
    assert [a.to_pylist() for a in projected] == [[7, 7], [1, 2], [None, None]]
    assert [a.type for a in projected] == [f.type for f in third.row_schema()]
    assert project(rows, first, first, history) == rows


def test_no_rows_project_to_no_rows():
    first, second = version(1, Column(1, "id", INT)), version(2, Column(1, "id", INT), Column(2, "b", INT, default="1"))
    projected = project([pa.array([], pa.int32())], first, second, SchemaHistory(1, [first, second]))
    assert [len(a) for a in projected] == [0, 0]


@pytest.mark.parametrize(
    ("column_type", "text", "value"),
    [
        (INT, None, None),
        (INT, "-5", -5),
        (ColumnType(TypeKind.DECIMAL, length=6, scale=2), "1", "1.00"),
        (ColumnType(TypeKind.ENUM, elems=("a", "B")), "b", 2),
        (ColumnType(TypeKind.SET, elems=("x", "y", "z")), "x,z", 5),
        (ColumnType(TypeKind.BIT, length=8), "b'101'", 5),
        (ColumnType(TypeKind.DOUBLE), "1.5", 1.5),
        (ColumnType(TypeKind.DATETIME, scale=3), "2024-01-01 00:00:00", "2024-01-01 00:00:00.000"),
        (ColumnType(TypeKind.TIME), "10:00:00.5", "10:00:00"),
        (ColumnType(TypeKind.VARBINARY), "ab", b"ab"),
        (ColumnType(TypeKind.VARCHAR), "ab", "ab"),
    ],
)
def test_defaults_become_values_of_the_columns_type(column_type, text, value):
    scalar = default_scalar(Column(1, "c", column_type, default=text))
    assert scalar.as_py() == value
    assert scalar.type == column_type.arrow()
