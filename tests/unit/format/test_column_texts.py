"""Values as people read them."""

import pyarrow as pa

from penstock.format.column_texts import text_values
from penstock.format.csv.dialect import BinaryEncoding
from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind


def test_names_for_elements_text_for_bytes_and_everything_else_as_it_is() -> None:
    enum = Column(1, "e", ColumnType(TypeKind.ENUM, elems=("new", "paid")))
    many = Column(2, "s", ColumnType(TypeKind.SET, elems=("a", "b", "c")))
    blob = Column(3, "b", ColumnType(TypeKind.BLOB))
    whole = Column(4, "n", ColumnType(TypeKind.BIGINT))
    assert text_values(enum, pa.array([2, None, 1], enum.type.arrow())).to_list() == ["paid", None, "new"]
    assert text_values(many, pa.array([5, 0], many.type.arrow())).to_list() == ["a,c", ""]
    assert text_values(blob, pa.array([b"\xff\x00", None])).to_list() == ["/wA=", None]
    assert text_values(blob, pa.array([b"\xff\x00"]), BinaryEncoding.HEX).to_list() == ["ff00"]
    assert text_values(whole, pa.array([7, None])).to_list() == [7, None]
