import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.dataserver.rowcodec import HEADER_BYTES, decode_values, encode_values, schema_versions

ALL_TYPES = [ColumnType(kind, unsigned=unsigned) for kind in TypeKind for unsigned in (False, True)]


def values_of(data_type):
    if pa.types.is_integer(data_type):
        low = 0 if pa.types.is_unsigned_integer(data_type) else -(2 ** (data_type.bit_width - 1))
        high = 2**data_type.bit_width - 1 + low
        return st.one_of(st.sampled_from([low, high, 0]), st.integers(low, high))
    if pa.types.is_floating(data_type):
        return st.floats(width=data_type.bit_width, allow_nan=False)
    return st.text(max_size=20) if pa.types.is_string(data_type) else st.binary(max_size=20)


@st.composite
def tables(draw):
    types = draw(st.lists(st.sampled_from(ALL_TYPES), min_size=1, max_size=18))
    rows = draw(st.integers(0, 12))
    schema = TableSchema(3, "d", "t", draw(st.integers(1, 2**64 - 1)), tuple(Column(i + 1, f"c{i}", t) for i, t in enumerate(types)))
    columns = {}
    for column in schema.columns:
        cells = draw(st.lists(st.one_of(st.none(), values_of(column.type.arrow())), min_size=rows, max_size=rows))
        columns[column.field_name] = pa.array(cells, column.type.arrow())
    return schema, columns


@settings(max_examples=150, deadline=None)
@given(tables())
def test_decode_returns_what_was_encoded(case):
    schema, columns = case
    values = encode_values(schema, columns)
    assert [int(v) for v in schema_versions(values)] == [schema.version] * len(values)
    decoded = decode_values(schema, values)
    assert len(decoded) == len(schema.columns)
    for column, array in zip(schema.columns, decoded, strict=True):
        array.validate(full=True)
        assert array.equals(columns[column.field_name])
    # A slice has an offset into the buffers, on both sides.
    cut = {name: array.slice(1) for name, array in columns.items()}
    assert encode_values(schema, cut).equals(values.slice(1))
    assert [a.to_pylist() for a in decode_values(schema, values.slice(1))] == [a.slice(1).to_pylist() for a in decoded]


@settings(max_examples=200, deadline=None)
@given(tables(), st.data())
def test_mutated_bytes_fail_cleanly_or_decode_to_whole_columns(case, data):
    schema, columns = case
    values = encode_values(schema, columns).to_pylist()
    if not values:
        return
    at = data.draw(st.integers(0, len(values) - 1))
    mutated = bytearray(values[at])
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "replace"]))
    if kind == "flip":
        mutated[data.draw(st.integers(0, len(mutated) - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del mutated[data.draw(st.integers(0, len(mutated) - 1)) :]
    elif kind == "grow":
        mutated += data.draw(st.binary(min_size=1, max_size=9))
    else:
        mutated = bytearray(data.draw(st.binary(max_size=40)))
    values[at] = bytes(mutated)
    try:
        decoded = decode_values(schema, pa.array(values, pa.binary()))
    except PenstockError as error:
        if error.code != "DECODE_FAILED":
            raise
        return
    assert kind in ("flip", "replace"), "a value of another length decoded"
    for array, field in zip(decoded, schema.row_schema(), strict=True):
        assert (array.type, len(array)) == (field.type, len(values))
        array.validate(full=True)
    # Rows beside the mutated one are untouched.
    for column, array in zip(schema.columns, decoded, strict=True):
        before = columns[column.field_name].to_pylist()
        after = array.to_pylist()
        assert after[:at] + after[at + 1 :] == before[:at] + before[at + 1 :]


def test_nan_and_negative_zero_keep_their_bits():
    schema = TableSchema(3, "d", "t", 5, (Column(1, "x", ColumnType(TypeKind.DOUBLE)),))
    values = encode_values(schema, {"c1": pa.array([math.nan, -0.0, math.inf], pa.float64(), from_pandas=False)})
    back = decode_values(schema, values)[0].to_pylist()
    assert math.isnan(back[0])
    assert math.copysign(1, back[1]) == -1
    assert back[2] == math.inf


def test_the_bytes_of_a_value_are_pinned():
    types = [ColumnType(TypeKind.INT), ColumnType(TypeKind.VARCHAR), ColumnType(TypeKind.TINYINT, unsigned=True), ColumnType(TypeKind.BLOB)]
    schema = TableSchema(3, "d", "t", 0x0102, tuple(Column(i + 1, f"c{i}", t) for i, t in enumerate(types)))
    row = {
        "c1": pa.array([-2], pa.int32()),
        "c2": pa.array(["hé"]),
        "c3": pa.array([None], pa.uint8()),
        "c4": pa.array([b"\x00"], pa.binary()),
    }
    value = encode_values(schema, row)[0].as_py()
    assert value == bytes.fromhex("01 0201000000000000 04 feffffff 03000000 68c3a9 01000000 00")
    assert len(value) > HEADER_BYTES


@pytest.mark.parametrize("bad", ["version", "format", "utf8", "spare bits", "length"])
def test_each_damage_is_named(bad):
    schema = TableSchema(3, "d", "t", 9, (Column(1, "s", ColumnType(TypeKind.VARCHAR)),))
    value = bytearray(encode_values(schema, {"c1": pa.array(["abc"])})[0].as_py())
    if bad == "version":
        value[1] ^= 1
    elif bad == "format":
        value[0] = 2
    elif bad == "utf8":
        value[-1] = 0xFF
    elif bad == "spare bits":
        value[9] |= 0x80
    else:
        value[10:14] = b"\xff\xff\xff\xff"
    with pytest.raises(PenstockError, match="DECODE_FAILED"):
        decode_values(schema, pa.array([bytes(value)], pa.binary()))


def test_not_null_and_wrong_types_are_refused_by_name():
    schema = TableSchema(3, "d", "t", 9, (Column(1, "s", ColumnType(TypeKind.VARCHAR), nullable=False),))
    with pytest.raises(PenstockError, match=r"column s .* NOT NULL"):
        encode_values(schema, {"c1": pa.array([None], pa.string())})
    with pytest.raises(PenstockError, match="column s "):
        encode_values(schema, {"c1": pa.array([1])})
