"""Names of ENUM and SET elements: there and back, and what stands for none."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.model.rows.elements import element_names, element_values
from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind

ELEMENTS = st.lists(st.text("abé' ", min_size=1, max_size=3), min_size=1, max_size=64, unique=True)


def column(kind: TypeKind, elems: list[str]) -> Column:
    return Column(1, "c", ColumnType(kind, elems=tuple(elems)))


@given(ELEMENTS, st.data())
def test_names_give_their_numbers_back(elems: list[str], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.none() | st.integers(0, len(elems))))
    masks = data.draw(st.lists(st.none() | st.integers(0, (1 << len(elems)) - 1)))
    for kind, values, dtype in ((TypeKind.ENUM, numbers, pl.UInt16), (TypeKind.SET, masks, pl.UInt64)):
        series = pl.Series(values, dtype=dtype)
        names = element_names(column(kind, elems), series)
        if kind is TypeKind.ENUM:
            assert names.to_list() == [None if n is None else ["", *elems][n] for n in values]
        else:
            assert names.to_list() == [None if m is None else ",".join(e for at, e in enumerate(elems) if m >> at & 1) for m in values]
        back = element_values(column(kind, elems), names)
        assert (back.to_list(), back.dtype) == (values, dtype)


def test_what_is_no_element() -> None:
    for kind in (TypeKind.ENUM, TypeKind.SET):
        assert element_values(column(kind, ["a"]), pl.Series(["a", "b", None, ""])).to_list() == [1, None, None, 0]
        with pytest.raises(PenstockError, match="beyond its 1 elements"):
            element_names(column(kind, ["a"]), pl.Series([2], dtype=pl.UInt64))
    # An element that is itself empty is no error value.
    assert element_values(column(TypeKind.ENUM, ["a", ""]), pl.Series([""])).to_list() == [2]
