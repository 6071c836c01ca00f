"""Texts inside JSON strings: Python's json reads back what the kernel and its twin in Python wrote, and both write the same."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.format.json.escaping import escape_text, escaped_size, put_escaped, put_latin1
from penstock.kernels.jit import U8

TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('"\\<>&\t\r\n\b\0\u2028\u2029€aaaaaaaa')))


def written(content: bytes, *, latin1: bool = False) -> bytes:
    data = np.frombuffer(content or b"\0", np.uint8)
    source, size = np.uint64(data.ctypes.data), np.int64(len(content))
    room = int(escaped_size(source, size))
    # Words of eight bytes may be written before the text ends.
    out: U8 = np.zeros(room + 16, np.uint8)
    to = np.uint64(out.ctypes.data + 8)
    put = put_latin1 if latin1 else put_escaped
    used = int(put(source, size, to) - to)
    assert used <= room
    return out[8 : 8 + used].tobytes()


@given(TEXTS)
def test_json_reads_back_what_was_written(text: str) -> None:
    inside = written(text.encode())
    assert json.loads(b'"' + inside + b'"') == text
    assert escape_text(text) == b'"' + inside + b'"'
    assert not set("<>&\u2028\u2029") & set(inside.decode())


@given(st.binary())
def test_bytes_come_back_as_characters(content: bytes) -> None:
    inside = written(content, latin1=True)
    assert json.loads(b'"' + inside + b'"').encode("latin-1") == content


def test_half_a_pair_becomes_a_question_mark() -> None:
    assert escape_text("a\ud800") == b'"a?"'
