"""Escapes of JSON strings undone by the kernel, against Python's own json."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.format.csv.tokens import CODED, NULL, PLAIN
from penstock.format.json.strings import decode_string, latin1_bytes, take_text


def decoded(inside: str) -> bytes | None:
    data = np.frombuffer(inside.encode(), np.uint8)
    out = np.empty(len(data) + 4, np.uint8)
    end = decode_string(data, 0, len(data), out, 0)
    return None if end < 0 else out[:end].tobytes()


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_any_text_reads_back(text: str, ascii_only: bool) -> None:
    assert decoded(json.dumps(text, ensure_ascii=ascii_only)[1:-1]) == text.encode()


def test_escapes_that_are_none() -> None:
    for bad in ("\\", "\\x", "\\u12", "\\u12g4", "a\\"):
        assert decoded(bad) is None, bad
    assert decoded("\\ud83d!\\ude00") == "\ufffd!\ufffd".encode(), "halves of a pair"


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=9)), min_size=1))
def test_a_column_of_texts(texts: list[str | None]) -> None:
    parts = ["null" if text is None else json.dumps(text)[1:-1] for text in texts]
    ends = np.cumsum([len(p) for p in parts]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    sorts = np.array([NULL if t is None else CODED if "\\" in p else PLAIN for t, p in zip(texts, parts, strict=True)], np.uint8)
    offsets, data, bad = take_text(np.frombuffer("".join(parts).encode() or b" ", np.uint8), starts, ends, sorts)
    assert bad == -1
    found = [data[offsets[at] : offsets[at + 1]].tobytes().decode() for at in range(len(texts))]
    assert found == [text or "" for text in texts]


def test_bytes_that_stand_as_characters() -> None:
    every = bytes(range(256))
    text = np.frombuffer(every.decode("latin-1").encode(), np.uint8)
    offsets, data, bad = latin1_bytes(np.array([0, len(text)], np.int64), text)
    assert (bad, data.tobytes(), offsets.tolist()) == (-1, every, [0, 256])
    beyond = np.frombuffer("aé€".encode(), np.uint8)
    assert latin1_bytes(np.array([0, 1, len(beyond)], np.int64), beyond)[2] == 1
