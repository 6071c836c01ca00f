import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import (
    check_key_column,
    encode_row_keys,
    full_key,
    full_span,
    in_order,
    row_id_keys,
    strip_prefix,
    table_end,
    table_id_of,
    table_prefix,
    with_prefix,
)
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind


def table(*types):
    columns = tuple(Column(at + 1, f"k{at}", kind, nullable=False, primary_key=True) for at, kind in enumerate(types))
    return TableSchema(7, "d", "t", 1, columns)


def encode(schema, *columns):
    arrays = {c.field_name: pa.array(v, c.type.arrow()) for c, v in zip(schema.columns, columns, strict=True)}
    return encode_row_keys(schema, arrays).to_pylist()


def test_signed_keys_keep_their_order_and_their_bytes_are_pinned():
    keys = encode(table(ColumnType(TypeKind.INT)), [-(2**31), -1, 0, 1, 2**31 - 1])
    assert keys == sorted(keys)
    assert keys[2] == bytes.fromhex("8000000000000000")
    assert keys[1] == bytes.fromhex("7fffffffffffffff")


def test_unsigned_keys_are_plain_big_endian():
    keys = encode(table(ColumnType(TypeKind.BIGINT, unsigned=True)), [0, 258, 2**64 - 1])
    assert keys == [bytes(8), bytes.fromhex("0000000000000102"), b"\xff" * 8]


def test_texts_sort_as_their_bytes_also_when_one_is_a_prefix_of_another_and_more_columns_follow():
    schema = table(ColumnType(TypeKind.VARBINARY), ColumnType(TypeKind.BIGINT, unsigned=True))
    rows = [(b"", 2**64 - 1), (b"\x00", 0), (b"\x00\x00", 5), (b"\x00\xff", 1), (b"a", 2**64 - 1), (b"a\x00", 0), (b"ab", 0), (b"\xff", 0)]
    keys = encode(schema, [r[0] for r in rows], [r[1] for r in rows])
    assert keys == sorted(keys)
    assert len(set(keys)) == len(rows)
    assert keys[1] == b"\x00\xff\x00\x01" + bytes(8)


def test_a_null_in_the_key_is_refused():
    with pytest.raises(PenstockError, match="NULL"):
        encode(table(ColumnType(TypeKind.INT)), [1, None])


def test_kinds_without_a_byte_order_cannot_be_keys():
    with pytest.raises(PenstockError, match="TYPE_UNSUPPORTED"):
        check_key_column(Column(1, "f", ColumnType(TypeKind.DOUBLE), primary_key=True))


def test_full_keys_and_spans():
    assert table_prefix(258) == b"t\x00\x00\x00\x00\x00\x00\x01\x02_r"
    assert table_id_of(full_key(258, b"x")) == 258
    assert full_span(Span(258)) == (table_prefix(258), table_end(258))
    assert full_span(Span(258, b"a", b"c")) == (full_key(258, b"a"), full_key(258, b"c"))
    assert table_prefix(258) < full_key(258, b"\xff" * 30) < table_end(258) < table_prefix(259)


@pytest.mark.parametrize("key", [b"", b"t", b"x" * 20, b"t12345678_q"])
def test_keys_without_a_table_prefix_are_refused(key):
    with pytest.raises(PenstockError, match="DECODE_FAILED"):
        table_id_of(key)


def test_prefixes_come_off_and_on_again_also_of_a_sliced_array():
    rows = pa.array([b"", b"a", b"\x00\x01", b"long" * 9], pa.binary())
    full = with_prefix(9, rows)
    assert strip_prefix(full)[0] == 9
    assert strip_prefix(full)[1].equals(rows)
    assert strip_prefix(full.slice(1, 2))[1].equals(rows.slice(1, 2))


@pytest.mark.parametrize("other", [full_key(8, b"a"), b"t"])
def test_a_batch_of_two_tables_does_not_decode(other):
    with pytest.raises(PenstockError, match="DECODE_FAILED"):
        strip_prefix(pa.array([full_key(9, b"a"), other], pa.binary()))


def test_row_ids_are_unique_in_and_across_transactions():
    first = row_id_keys(1000, 0, 3).to_pylist() + row_id_keys(1000, 3, 2).to_pylist()
    second = row_id_keys(1001, 0, 5).to_pylist()
    assert len(set(first + second)) == 10
    assert all(len(k) == 8 for k in first)
    assert row_id_keys(5, 0, 1, b"pre").to_pylist()[0] == b"pre" + row_id_keys(5, 0, 1).to_pylist()[0]
    with pytest.raises(PenstockError, match="at most"):
        row_id_keys(1, 1 << 20, 1)


def test_order_is_by_ts_then_key():
    def ordered(ts, keys):
        import numpy as np

        return in_order(np.array(ts, dtype=np.uint64), pa.array(keys, pa.binary()))

    assert ordered([1, 1, 2], [b"a", b"ab", b""])
    assert ordered([1, 1], [b"a", b"a"])
    assert not ordered([1, 1], [b"ab", b"a"])
    assert not ordered([1, 1], [b"b", b"a"])
    assert not ordered([2, 1], [b"a", b"b"])
