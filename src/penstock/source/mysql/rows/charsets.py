"""Charsets: texts of any server charset as UTF-8, column by column.

UTF-8 and ASCII stay as they are. Charsets of one byte per character go through a table and a kernel, the rest through Python's codec, once
per distinct value of a column. Bytes that are no text of their charset are ``DECODE_FAILED``. Runs in the log service.
"""

from __future__ import annotations

import codecs
from functools import lru_cache

import numpy as np
import pyarrow as pa

from penstock.kernels.jit import I64, INT32_MAX, U8, binary_view, kernel
from penstock.model.errors import PenstockError

_UTF8 = frozenset({"", "ascii", "utf8", "utf8mb3", "utf8mb4"})
_SINGLE = {
    # MySQL's latin1 is cp1252, with the five bytes that cp1252 leaves out as control characters.
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "macce": "mac-latin2",
    "macroman": "mac-roman",
    "tis620": "tis-620",
}
_MULTIPLE = {
    "big5": "big5hkscs",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "cp932",
    "ucs2": "utf-16-be",
    "ujis": "euc_jp",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}
_CHARACTER_BYTES_MAX = 3


def codec_of(charset: str) -> str:
    """Return Python's name for a charset. Raises ``LookupError`` for one that is not supported."""
    return "utf-8" if charset in _UTF8 else {**_SINGLE, **_MULTIPLE, "binary": "latin-1"}[charset]


def to_utf8(array: pa.Array, charset: str, column: str) -> pa.Array:
    """Return a binary column of a charset as a string column."""
    if charset in _UTF8:
        return _checked(array, column)
    if charset in _SINGLE:
        return _recode(array, _SINGLE[charset])
    codec = _MULTIPLE.get(charset)
    if codec is None:
        raise PenstockError("TYPE_UNSUPPORTED", f"column {column}: charset {charset} is not supported")
    encoded = array.dictionary_encode()
    try:
        texts = [codecs.decode(value, codec) for value in encoded.dictionary.to_pylist()]
    except UnicodeDecodeError as error:
        raise PenstockError("DECODE_FAILED", f"column {column} holds bytes that are not {charset}") from error
    return pa.array(texts, pa.string()).take(encoded.indices)


def _checked(array: pa.Array, column: str) -> pa.Array:
    text = array.view(pa.string())
    data, offsets = binary_view(array)
    # Bytes below 128 are ASCII, which needs no check.
    if len(data) and int(data[offsets[0] : offsets[-1]].max(initial=0)) > 127:
        try:
            text.validate(full=True)
        except pa.ArrowInvalid as error:
            raise PenstockError("DECODE_FAILED", f"column {column} is not UTF-8") from error
    return text


@lru_cache(maxsize=64)
def _table(codec: str) -> tuple[U8, I64]:
    """Return for each byte its character in UTF-8, and how many bytes that has."""
    texts = np.zeros((256, _CHARACTER_BYTES_MAX), dtype=np.uint8)
    sizes = np.zeros(256, dtype=np.int64)
    for byte in range(256):
        try:
            character = bytes([byte]).decode(codec)
        except UnicodeDecodeError:
            character = chr(byte)
        encoded = character.encode("utf-8")
        texts[byte, : len(encoded)] = np.frombuffer(encoded, dtype=np.uint8)
        sizes[byte] = len(encoded)
    return texts, sizes


def _recode(array: pa.Array, codec: str) -> pa.Array:
    texts, sizes = _table(codec)
    data, offsets = binary_view(array)
    used = data[offsets[0] : offsets[-1]]
    if len(used) == 0 or int(used.max()) < 128:
        return array.view(pa.string())
    out_offsets = np.zeros(len(array) + 1, dtype=np.int64)
    _measure(data, offsets, sizes, out_offsets)
    if int(out_offsets[-1]) > INT32_MAX:
        raise PenstockError("DECODE_FAILED", "a column exceeds 2 GiB in one step of the log")
    out = np.empty(int(out_offsets[-1]), dtype=np.uint8)
    _write(data, offsets, texts, sizes, out)
    mask = array.buffers()[0] if array.null_count and array.offset == 0 else None
    made = pa.Array.from_buffers(pa.string(), len(array), [mask, pa.py_buffer(out_offsets.astype(np.int32)), pa.py_buffer(out)])
    if array.null_count and mask is None:
        return pa.compute.if_else(array.is_valid(), made, pa.scalar(None, pa.string()))
    return made


@kernel
def _measure(data: U8, offsets: I64, sizes: I64, out_offsets: I64) -> None:
    for row in range(len(offsets) - 1):
        size = 0
        for p in range(offsets[row], offsets[row + 1]):
            size += sizes[data[p]]
        out_offsets[row + 1] = out_offsets[row] + size


@kernel
def _write(data: U8, offsets: I64, texts: U8, sizes: I64, out: U8) -> None:
    to = 0
    for p in range(offsets[0], offsets[-1]):
        byte = data[p]
        for q in range(sizes[byte]):
            out[to] = texts[byte, q]
            to += 1
