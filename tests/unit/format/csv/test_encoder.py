import csv
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.format.csv.encoder import RowSheet
from penstock.format.go_floats import go_floats


def render(arrays, rows, quote=b'"', delimiter=b",", null=b"\\N"):
    sheet = RowSheet(rows, quote, delimiter, null)
    sheet.constant(b"x")
    for array in arrays:
        if pa.types.is_floating(array.type):
            sheet.floats(array)
        elif pa.types.is_integer(array.type):
            sheet.integers(array)
        else:
            sheet.text(array)
    sheet.constant(b"\r\n")
    return sheet.render()


@given(st.lists(st.one_of(st.none(), st.text(alphabet='"a,\r\né\x00😀', max_size=40)), min_size=1, max_size=30), st.integers(0, 3))
def test_texts_read_back_by_python(texts, offset):
    array = pa.array(texts, pa.string()).slice(min(offset, len(texts) - 1))
    expected = array.to_pylist()
    out = render([array], len(array), null=b"")
    got = [row[1] for row in csv.reader(io.StringIO(out.decode(), newline=""), strict=True)]
    assert got == [t or "" for t in expected]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_every_width_at_its_limits(kind):
    info = np.iinfo(kind)
    numbers = [info.min, info.max, 0, 1, 9, 10, 99, 100, None, info.max - 1]
    array = pa.array(numbers, getattr(pa, kind)())
    assert render([array], len(numbers)) == b"".join(b"x," + (b"\\N" if n is None else b"%d" % n) + b"\r\n" for n in numbers)


@given(st.lists(st.one_of(st.none(), st.floats(width=64)), min_size=1, max_size=20))
def test_floats_as_go_writes_them(numbers):
    array = pa.array(numbers, pa.float64())
    texts = array.fill_null(0).cast(pa.large_string())
    ends, data = go_floats(np.frombuffer(texts.buffers()[1], np.int64)[: len(texts) + 1], np.frombuffer(texts.buffers()[2], np.uint8))
    expected = [b"\\N" if n is None else data[ends[i] : ends[i + 1]].tobytes() for i, n in enumerate(numbers)]
    assert render([array], len(numbers)) == b"".join(b"x," + e + b"\r\n" for e in expected)


def test_plain_floats_have_no_trailing_zero():
    array = pa.array([100.0, 0.5, -0.0, 999999.0, 0.0001, 1e6], pa.float64())
    assert render([array.slice(0, 5)], 5) == b"x,100\r\nx,0.5\r\nx,-0\r\nx,999999\r\nx,0.0001\r\n"
    assert render([array.slice(5)], 1) == b"x,1e+06\r\n"


def test_rows_far_larger_than_estimated_go_on_in_a_new_buffer():
    texts = ['"' * n for n in (0, 1, 5000, 20_000, 3)] * 40
    out = render([pa.array(texts, pa.string())], len(texts))
    assert out == b"".join(b'x,"' + t.encode().replace(b'"', b'""') + b'"\r\n' for t in texts)


def test_delimiters_of_three_bytes_and_a_quote_of_one():
    array = pa.array(["a'b", None], pa.string())
    assert render([array, array], 2, quote=b"'", delimiter=b"|#|", null=b"NULL") == b"x|#|'a''b'|#|'a''b'\r\nx|#|NULL|#|NULL\r\n"
