from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.source.mysql.rows.json_text import double_text, json_text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_inside_json_read_back_the_same(value: float) -> None:
    text = double_text(value)
    assert float(text) == value
    assert "." in text or "e" in text


def test_malformed_json_is_an_error_of_ours() -> None:
    assert json.loads(json_text(bytes([2, 2, 0, 10, 0, 5, 1, 0, 4, 1, 0]))) == [1, True]
    for wrong in (b"\x00", b"\x0c\xff\xff", b"\x02\x01\x00\x07\x00\x0c\xff\xff"):
        with pytest.raises((IndexError, ValueError, KeyError, struct.error)):
            json_text(wrong)
