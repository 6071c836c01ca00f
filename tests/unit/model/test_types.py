import msgspec
import pyarrow as pa
import pytest

from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TEXT_KINDS, TIME_KINDS, ColumnType, TypeKind

ARROW = {
    TypeKind.TINYINT: (pa.int8(), pa.uint8()),
    TypeKind.SMALLINT: (pa.int16(), pa.uint16()),
    TypeKind.MEDIUMINT: (pa.int32(), pa.uint32()),
    TypeKind.INT: (pa.int32(), pa.uint32()),
    TypeKind.BIGINT: (pa.int64(), pa.uint64()),
    TypeKind.BIT: (pa.uint64(), pa.uint64()),
    TypeKind.YEAR: (pa.uint16(), pa.uint16()),
    TypeKind.FLOAT: (pa.float32(), pa.float32()),
    TypeKind.DOUBLE: (pa.float64(), pa.float64()),
    TypeKind.DECIMAL: (pa.string(), pa.string()),
    TypeKind.DATE: (pa.string(), pa.string()),
    TypeKind.DATETIME: (pa.string(), pa.string()),
    TypeKind.TIMESTAMP: (pa.string(), pa.string()),
    TypeKind.TIME: (pa.string(), pa.string()),
    TypeKind.CHAR: (pa.string(), pa.string()),
    TypeKind.VARCHAR: (pa.string(), pa.string()),
    TypeKind.TINYTEXT: (pa.string(), pa.string()),
    TypeKind.TEXT: (pa.string(), pa.string()),
    TypeKind.MEDIUMTEXT: (pa.string(), pa.string()),
    TypeKind.LONGTEXT: (pa.string(), pa.string()),
    TypeKind.BINARY: (pa.binary(), pa.binary()),
    TypeKind.VARBINARY: (pa.binary(), pa.binary()),
    TypeKind.TINYBLOB: (pa.binary(), pa.binary()),
    TypeKind.BLOB: (pa.binary(), pa.binary()),
    TypeKind.MEDIUMBLOB: (pa.binary(), pa.binary()),
    TypeKind.LONGBLOB: (pa.binary(), pa.binary()),
    TypeKind.ENUM: (pa.uint16(), pa.uint16()),
    TypeKind.SET: (pa.uint64(), pa.uint64()),
    TypeKind.JSON: (pa.string(), pa.string()),
    TypeKind.VECTOR: (pa.string(), pa.string()),
    TypeKind.GEOMETRY: (pa.binary(), pa.binary()),
}


@pytest.mark.parametrize("kind", TypeKind)
def test_arrow_type_of_every_kind(kind: TypeKind) -> None:
    signed, unsigned = ARROW[kind]
    assert ColumnType(kind).arrow() == signed
    assert ColumnType(kind, unsigned=True).arrow() == unsigned


@pytest.mark.parametrize(
    ("kind", "unsigned", "low", "high"),
    [
        (TypeKind.TINYINT, False, -(2**7), 2**7 - 1),
        (TypeKind.TINYINT, True, 0, 2**8 - 1),
        (TypeKind.SMALLINT, False, -(2**15), 2**15 - 1),
        (TypeKind.SMALLINT, True, 0, 2**16 - 1),
        (TypeKind.MEDIUMINT, False, -(2**23), 2**23 - 1),
        (TypeKind.MEDIUMINT, True, 0, 2**24 - 1),
        (TypeKind.INT, False, -(2**31), 2**31 - 1),
        (TypeKind.INT, True, 0, 2**32 - 1),
        (TypeKind.BIGINT, False, -(2**63), 2**63 - 1),
        (TypeKind.BIGINT, True, 0, 2**64 - 1),
        (TypeKind.BIT, False, 0, 2**64 - 1),
        (TypeKind.SET, False, 0, 2**64 - 1),
        (TypeKind.ENUM, False, 0, 65_535),
        (TypeKind.YEAR, False, 0, 2_155),
    ],
)
def test_every_value_of_mysql_fits(kind: TypeKind, unsigned: bool, low: int, high: int) -> None:
    assert pa.array([low, high], ColumnType(kind, unsigned=unsigned).arrow()).to_pylist() == [low, high]


def test_the_groups_do_not_overlap() -> None:
    groups = [INTEGER_KINDS, TIME_KINDS, TEXT_KINDS, BINARY_KINDS]
    assert sum(len(g) for g in groups) == len(frozenset().union(*groups))


def test_the_name_of_a_kind_is_what_a_schema_file_shows() -> None:
    assert all(kind.value == kind.name for kind in TypeKind)


def test_a_type_survives_json_and_leaves_out_what_it_does_not_need() -> None:
    column = ColumnType(TypeKind.ENUM, elems=("a", "b,c", "d'e"))
    data = msgspec.json.encode(column)
    assert msgspec.json.decode(data, type=ColumnType) == column
    assert msgspec.json.encode(ColumnType(TypeKind.DATE)) == b'{"kind":"DATE"}'
