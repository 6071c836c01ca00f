"""Reads columns of a Parquet file in bounded memory, whatever the file says of itself.

How much its columns take is told by what stands before each page: pages are decompressed by the sizes there, which no reader compares with
those in the footer. A value that stands once in a dictionary may come any number of times. Footer and headers are structs of Thrift's
compact protocol and are read here, because Arrow's own view of a damaged footer ends the process. Invariants: nothing is decompressed
before its size is known; what makes no sense is ``ValueError``. Runs wherever a target is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_VALUE_BYTES = 4
"""What a value takes at least, whatever it is encoded in: runs of equal values take next to nothing in a file."""
_GROUPS = 4
_COLUMNS = 1
_ABOUT = 3
_TYPE, _PATH, _VALUES, _DATA_AT, _DICTIONARY_AT = 1, 3, 5, 9, 11
_TEXT = 6
"""Fields of the footer, its row groups, their columns, what is told of one; the type of texts and bytes."""
_PLAIN_BYTES, _PACKED_BYTES, _DICTIONARY, _DATA, _COUNT = 2, 3, 7, (5, 8), 1
"""Fields of a page's header: how long it will be and is; of a dictionary; of data, and there how many values it has."""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
_DEPTH_MAX = 8
_VARINT_BITS_MAX = 70


def read_columns(content: bytes, names: Collection[str], bytes_max: int) -> pa.Table:
    """Return those of some columns that a file has; raise ``ValueError`` where they take more bytes than they may."""
    try:
        coded = _dictionaries(content, names, bytes_max)
    except (LookupError, AttributeError, TypeError):
        raise ValueError("its footer, or what stands before its pages, makes no sense") from None
    wanted = [name for name in pq.read_schema(pa.BufferReader(content)).names if name in names]
    rows = pq.read_table(pa.BufferReader(content), columns=wanted, read_dictionary=coded)
    coded = [name for name in coded if name in wanted and pa.types.is_dictionary(rows.schema.field(name).type)]
    if sum(_plain_bytes(rows.column(name)) for name in coded) > bytes_max:
        raise _too_much(bytes_max)
    for name in coded:
        values = rows.column(name)
        rows = rows.set_column(rows.schema.get_field_index(name), name, values.cast(values.type.value_type))
    return rows


def _dictionaries(content: bytes, names: Collection[str], bytes_max: int) -> list[str]:
    """Return the columns of texts whose dictionaries may have values that are long and come so often that they take too much memory.

    Raises where all of them do whatever their dictionaries have.
    """
    found, total = set(), 0
    for column in _columns(content):
        name = column[_PATH][0].decode()
        if name in names:
            nbytes, has_dictionary = _page_bytes(content, column)
            total += max(nbytes, _VALUE_BYTES * column[_VALUES])
            if has_dictionary and column[_TYPE] == _TEXT and column[_VALUES] * nbytes > bytes_max:
                found.add(name)
    if total > bytes_max:
        raise _too_much(bytes_max)
    return sorted(found)


def _columns(content: bytes) -> Iterator[dict[int, Any]]:
    """Yield what the footer tells of each column of each row group."""
    end = len(content) - 8
    if end < 4 or content[end + 4 :] != _MAGIC:
        raise ValueError("no footer")
    footer, _ = _read_struct(content, end - int.from_bytes(content[end : end + 4], "little"), 0)
    for group in footer.get(_GROUPS, ()):
        for column in group[_COLUMNS]:
            yield column[_ABOUT]


def _page_bytes(content: bytes, column: dict[int, Any]) -> tuple[int, bool]:
    """Return how many bytes the pages of a column have when they are decompressed, and whether one of them is a dictionary."""
    at = column[_DATA_AT]
    if 0 < column.get(_DICTIONARY_AT, 0) < at:
        at = column[_DICTIONARY_AT]
    total, values, has_dictionary = 0, 0, False
    while values < column[_VALUES]:
        header, at = _read_struct(content, at, 0)
        plain, packed = header[_PLAIN_BYTES], header[_PACKED_BYTES]
        if not 0 <= packed <= len(content) - at or plain < 0:
            raise ValueError("a page has no such length")
        at += packed
        total += plain
        has_dictionary |= _DICTIONARY in header
        values += sum(max(0, header[field][_COUNT]) for field in _DATA if field in header)
    return total, has_dictionary


def _plain_bytes(values: pa.ChunkedArray) -> int:
    """Return how many bytes the texts of a column in dictionaries take where each is written out."""
    lengths = ((chunk, pc.cast(pc.binary_length(chunk.dictionary), pa.int64())) for chunk in values.chunks)
    return sum(pc.sum(pc.take(length, chunk.indices)).as_py() or 0 for chunk, length in lengths)


def _too_much(bytes_max: int) -> ValueError:
    return ValueError(f"its rows take more than {bytes_max} bytes")


def _read_struct(content: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the values of a struct by their fields, and where it ends."""
    found: dict[int, Any] = {}
    field = 0
    if depth > _DEPTH_MAX or at < 0:
        raise ValueError("a struct without a bottom")
    while head := content[at]:
        at += 1
        kind, step = head & 15, head >> 4
        if step:
            field += step
        else:
            field, at = _read_integer(content, at)
        if kind not in (_TRUE, _FALSE):
            found[field], at = _read_value(content, at, kind, depth)
    return found, at + 1


def _read_value(content: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return _read_integer(content, at)
    if kind == _STRUCT:
        return _read_struct(content, at, depth + 1)
    if kind == _BINARY:
        length, at = _read_varint(content, at)
        return content[at : at + length], at + length
    if kind in (_LIST, _SET):
        return _read_list(content, at, depth)
    if kind in (_TRUE, _BYTE, _DOUBLE):
        return None, at + (8 if kind == _DOUBLE else 1)
    raise ValueError("a value of a kind that there is not")


def _read_list(content: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    kind, count, at = content[at] & 15, content[at] >> 4, at + 1
    if count == 15:
        count, at = _read_varint(content, at)
    if count > len(content):
        raise ValueError("a list longer than its file")
    found = []
    for _ in range(count):
        value, at = _read_value(content, at, kind, depth + 1)
        found.append(value)
    return found, at


def _read_integer(content: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(content, at)
    return (value >> 1) ^ -(value & 1), at


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _VARINT_BITS_MAX:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number of so many bytes")
