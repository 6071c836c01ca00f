"""The table of what every type makes of a default, and of what versions show of each other's rows."""

import msgspec
import pyarrow as pa
import pytest

from penstock.model.rows.projection import constant, default_of, project, shown, shown_at
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.model.types import ColumnType, TypeKind

INT = ColumnType(TypeKind.INT)
MONEY = ColumnType(TypeKind.DECIMAL, length=6, scale=2)
COLOUR = ColumnType(TypeKind.ENUM, elems=("red", "Green"))
FLAGS = ColumnType(TypeKind.SET, elems=("x", "Y", "z"))
MOMENT = ColumnType(TypeKind.DATETIME, scale=3)


def kind(name, **facts):
    return ColumnType(TypeKind[name], **facts)


def version(number, *columns):
    return TableSchema(1, "d", "t", number, columns)


def rows(**columns):
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("column_type", "text", "value"),
    [
        (INT, None, None),
        (INT, "NULL", None),
        (INT, "-5", -5),
        (INT, "TRUE", 1),
        (INT, "1.5", 2),
        (INT, "2+3", None),
        (INT, "nextval('s'::regclass)", None),
        (kind("TINYINT"), "200", None),
        (kind("TINYINT", unsigned=True), "200", 200),
        (kind("BIGINT", unsigned=True), "18446744073709551615", 2**64 - 1),
        (kind("YEAR"), "2024", 2024),
        (kind("BIT", length=8), "b'101'", 5),
        (kind("BIT", length=8), "0b11", 3),
        (kind("BIT", length=1), "1", 1),
        (kind("FLOAT"), "1.5", 1.5),
        (kind("DOUBLE"), "-1e3", -1000.0),
        (MONEY, "1", "1.00"),
        (MONEY, "1.005", "1.01"),
        (MONEY, "-0.5", "-0.50"),
        (kind("DECIMAL", length=65, scale=30), "1" * 35 + ".5", "1" * 35 + ".5" + "0" * 29),
        (kind("DECIMAL", length=5, scale=0), "7", "7"),
        (kind("DATE"), "2024-01-31", "2024-01-31"),
        (kind("DATE"), "curdate()", None),
        (MOMENT, "2024-01-01 00:00:00", "2024-01-01 00:00:00.000"),
        (MOMENT, "2024-01-01", "2024-01-01 00:00:00.000"),
        (MOMENT, "CURRENT_TIMESTAMP(3)", None),
        (kind("TIMESTAMP"), "current_timestamp()", None),
        (kind("TIMESTAMP"), "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        (kind("TIME"), "10:00:00.5", "10:00:00"),
        (kind("TIME", scale=2), "-838:59:59", "-838:59:59.00"),
        (COLOUR, "green", 2),
        (COLOUR, "blue", None),
        (FLAGS, "", 0),
        (FLAGS, "x,Z", 5),
        (FLAGS, "x,w", None),
        (kind("VARBINARY", length=9), "ab", b"ab"),
        (kind("VARBINARY", length=9), "0x6162", b"ab"),
        (kind("LONGBLOB"), "\\x00ff", b"\x00\xff"),
        (kind("BINARY", length=4), "x'61'", b"a\0\0\0"),
        (kind("VARCHAR", length=9), "ab", "ab"),
        (kind("VARCHAR", length=9), "CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP"),
        (kind("VARCHAR", length=36), "uuid()", None),
        (kind("VARCHAR", length=9), "it's", "it's"),
        (kind("JSON"), '{"a": 1}', '{"a": 1}'),
    ],
)
def test_a_default_is_a_value_of_its_type_and_null_where_it_is_computed(column_type, text, value):
    scalar = default_of(Column(1, "c", column_type, default=text))
    assert (scalar.as_py(), scalar.type) == (value, column_type.arrow())
    assert default_of(Column(1, "c", column_type, default="1", initial_default=text)).as_py() == (value if text != "NULL" else None)


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        (INT, 0),
        (kind("BIT", length=3), 0),
        (kind("DOUBLE"), 0.0),
        (kind("YEAR"), 0),
        (MONEY, "0.00"),
        (kind("VARCHAR", length=9), ""),
        (kind("BLOB"), b""),
        (kind("BINARY", length=2), b"\0\0"),
        (COLOUR, 1),
        (FLAGS, 0),
        (kind("DATE"), "0000-00-00"),
        (MOMENT, "0000-00-00 00:00:00.000"),
        (kind("TIME", scale=1), "00:00:00.0"),
        (kind("JSON"), "null"),
        (kind("VECTOR"), None),
    ],
)
def test_a_column_that_cannot_be_null_and_has_no_default_shows_the_implicit_value(column_type, value):
    assert default_of(Column(1, "c", column_type, nullable=False)).as_py() == value
    assert default_of(Column(1, "c", column_type, nullable=False, initial_default=None)).as_py() is None


def test_no_default_is_known_of_keys_and_of_generated_columns():
    assert default_of(Column(1, "c", INT, nullable=False, primary_key=True)).as_py() is None
    assert default_of(Column(1, "c", INT, nullable=False, generated="STORED")).as_py() is None


def test_what_is_no_constant_is_told_apart():
    with pytest.raises(ValueError, match="computed"):
        constant(Column(1, "c", MOMENT), "CURRENT_TIMESTAMP(3)")
    with pytest.raises(ValueError, match="no value of INT"):
        constant(Column(1, "c", INT), "one")


def test_columns_are_matched_by_id_and_missing_ones_take_the_default_of_their_birth():
    first = version(1, Column(1, "id", INT), Column(2, "a", INT))
    second = version(2, Column(3, "n", INT, default="7"), Column(1, "id", INT), Column(2, "renamed", INT))
    third = version(3, Column(3, "n", kind("BIGINT"), default="9"), Column(1, "id", INT), Column(4, "x", INT))
    history = SchemaHistory(1, [first, second, third])
    stored = rows(c1=pa.array([1, 2], pa.int32()), c2=pa.array([None, 5], pa.int32()))
    assert [a.to_pylist() for a in project(stored, shown_at(history, 2), first)] == [[7, 7], [1, 2], [None, 5]]
    projected = project(stored, shown_at(history, 9), first)
    assert [a.to_pylist() for a in projected] == [[7, 7], [1, 2], [None, None]]
    assert [a.type for a in projected] == [f.type for f in third.row_schema()]
    assert project(stored, first, first) == stored.columns


def test_a_column_that_was_dropped_and_added_again_does_not_show_what_was_dropped():
    first = version(1, Column(1, "id", INT), Column(2, "a", INT))
    again = version(3, Column(1, "id", INT), Column(3, "a", INT, default="4"))
    stored = rows(c1=pa.array([1], pa.int32()), c2=pa.array([9], pa.int32()))
    assert [a.to_pylist() for a in project(stored, shown([first, version(2, Column(1, "id", INT)), again]), first)] == [[1], [4]]


@pytest.mark.parametrize("later", [None, "7"])
@pytest.mark.parametrize(("nullable", "default", "expected"), [(True, "5", 5), (True, None, None), (False, None, 0)])
def test_what_is_fixed_when_a_column_is_added_stays_whatever_its_default_becomes(later, nullable, default, expected):
    first, added = version(1, Column(1, "id", INT)), Column(2, "n", INT, nullable, default=default)
    second = version(2, Column(1, "id", INT), added)
    third = version(3, Column(1, "id", INT), msgspec.structs.replace(added, default=later))
    assert [default_of(shown(v).columns[1]).as_py() for v in ([first, second], [first, second, third])] == [expected, expected]
    told = version(3, Column(1, "id", INT), msgspec.structs.replace(added, default=later, initial_default="8"))
    assert default_of(shown([first, second, told]).columns[1]).as_py() == 8


@pytest.mark.parametrize(
    ("old", "new", "values", "expected"),
    [
        (INT, kind("BIGINT"), [1, None], [1, None]),
        (INT, kind("VARCHAR", length=5), [1, None], ["1", None]),
        (kind("VARCHAR", length=5), INT, ["12", "x"], [12, None]),
        (INT, MONEY, [1, -2], ["1.00", "-2.00"]),
        (kind("DECIMAL", length=6, scale=1), MONEY, ["1.5", None], ["1.50", None]),
        (MONEY, kind("DECIMAL", length=6, scale=1), ["1.55"], ["1.55"]),
        (kind("DATETIME"), MOMENT, ["2024-01-01 00:00:00"], ["2024-01-01 00:00:00.000"]),
        (kind("TIME", scale=1), kind("TIME", scale=3), ["10:00:00.5"], ["10:00:00.500"]),
        (COLOUR, kind("ENUM", elems=("red", "Green", "blue")), [1, 0, None], [1, 0, None]),
        (COLOUR, kind("ENUM", elems=("Green", "red")), [1, 2, None], [2, 1, None]),
        (COLOUR, kind("ENUM", elems=("Green",)), [1, 2], [None, 1]),
        (COLOUR, kind("VARCHAR", length=9), [1, 2, 0, None], ["red", "Green", "", None]),
        (COLOUR, INT, [1, 2], [1, 2]),
        (kind("VARCHAR", length=9), COLOUR, ["Green", "?"], [2, None]),
        (FLAGS, kind("SET", elems=("z", "x", "Y")), [0, 1, 6], [0, 2, 5]),
        (FLAGS, kind("TEXT"), [0, 5], ["", "x,z"]),
        (kind("VARCHAR", length=5), kind("VARBINARY", length=5), ["é"], ["é".encode()]),
        (kind("VARBINARY", length=5), kind("VARCHAR", length=5), [b"a", b"\xff"], ["a", None]),
        (kind("FLOAT"), kind("DOUBLE"), [1.5], [1.5]),
        (kind("BLOB"), INT, [b"\xff"], [None]),
    ],
)
def test_values_follow_the_type_that_their_column_got(old, new, values, expected):
    before, after = version(1, Column(1, "c", old)), version(2, Column(1, "c", new))
    shown_values = project(rows(c1=pa.array(values, old.arrow())), after, before)[0]
    assert (shown_values.to_pylist(), shown_values.type) == (expected, new.arrow())


def test_no_rows_project_to_no_rows():
    table = version(2, Column(1, "id", kind("BIGINT")), Column(2, "b", INT, default="1"), Column(3, "m", MONEY))
    stored = rows(c1=pa.array([], pa.int32()), c3=pa.array([], pa.int32()))
    old = version(1, Column(1, "id", INT), Column(3, "m", INT))
    assert [len(a) for a in project(stored, table, old)] == [0, 0, 0]
