"""Names and values in queries: they read back as what they were written from, and columns are asked for so that texts are exact."""

import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.snapshot.column_query import literal, selected, typed

K = TypeKind


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\x1a\b\n\r\t%_")))
def test_a_text_reads_back(text: str) -> None:
    (found,) = sqlglot.parse_one(f"SELECT {literal(text)}", dialect="mysql").expressions
    assert found.this == text


def test_other_values() -> None:
    assert literal(b"\x00'a") == "x'002761'"
    assert literal(-5) == "-5"
    assert literal("a\0b") == "'a\\0b'"


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (ColumnType(K.INT), "`a``b`"),
        (ColumnType(K.SET, elems=("x",)), "CAST(`a``b` AS UNSIGNED)"),
        (ColumnType(K.FLOAT), "`a``b` + 0e0"),
        (ColumnType(K.DECIMAL, zerofill=True, length=9, scale=2), "CAST(`a``b` AS DECIMAL(9,2))"),
        (ColumnType(K.DECIMAL, length=9, scale=2), "`a``b`"),
    ],
)
def test_how_a_column_is_asked_for(kind: ColumnType, asked: str) -> None:
    assert selected(Column(1, "a`b", kind)) == asked


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        (ColumnType(K.INT), b"-7", -7),
        (ColumnType(K.BIGINT, unsigned=True), b"18446744073709551615", (1 << 64) - 1),
        (ColumnType(K.DOUBLE), b"0.1", 0.1),
        (ColumnType(K.VARCHAR, length=9), "ä€".encode(), "ä€"),
        (ColumnType(K.BLOB), b"\xff\x00", b"\xff\x00"),
        (ColumnType(K.DECIMAL, length=9, scale=2), b"1.50", "1.50"),
    ],
)
def test_what_a_query_answers_becomes_a_column(kind: ColumnType, answer: bytes, expected: object) -> None:
    found = typed(Column(1, "a", kind), pa.array([answer, None], pa.binary()))
    assert found.type == kind.arrow()
    assert found.to_pylist() == [expected, None]
