"""Strategies for tables of any shape and rows of any value, for property tests of everything that writes or reads rows.

Owns what "any" means: every type with its options, names that formats stumble over, NULLs, quotes, line breaks, NUL bytes, emoji, bytes
that are no UTF-8, extreme numbers, zero dates. Needs hypothesis. Runs in tests.
"""

from __future__ import annotations

import datetime as dt
import math
import struct

import pyarrow as pa
from hypothesis import strategies as st

from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TIME_KINDS, ColumnType, TypeKind

_ODD_TEXTS = [
    *("", '"', '""', "'", "\\", "\\\\", "\\N", "\\n", "\r\n", "\n", "\t", "\x00", "\x1f", "\x7f", ",", "|", "||", "|||", "a|", "@", "@@"),
    *("<>&", "\u2028", "\u2029", "\u2027é", "😀", "é", "null", "NULL", "true", "1", "a" * 30 + '"', "é" * 20),
]
_NAMES = [
    "id",
    "Name",
    "a<b",
    'q"',
    "_op",
    "__op",
    "_old_x",
    "_commit_ts",
    "täble",
    "x y",
    "data",
    "old",
    "type",
    "\\",
    "_row",
    "a,b",
    "%41",
]
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=24) | st.sampled_from(_ODD_TEXTS)
names = st.sampled_from(_NAMES)
_elements = st.lists(st.text("abc😀 \"'|<", min_size=1, max_size=3), min_size=1, max_size=5, unique=True)


@st.composite
def column_types(draw: st.DrawFn) -> ColumnType:
    """Draw a type with its options."""
    kind = draw(st.sampled_from(TypeKind))
    if kind in {TypeKind.ENUM, TypeKind.SET}:
        return ColumnType(kind, elems=tuple(draw(_elements)))
    if kind is TypeKind.DECIMAL:
        digits = draw(st.integers(1, 65))
        return ColumnType(kind, unsigned=draw(st.booleans()), length=digits, scale=draw(st.integers(0, min(30, digits))))
    if kind in TIME_KINDS:
        return ColumnType(kind, scale=draw(st.integers(0, 6)))
    if kind in INTEGER_KINDS:
        unsigned = draw(st.booleans())
        return ColumnType(kind, unsigned=unsigned, zerofill=unsigned and draw(st.booleans()))
    return ColumnType(kind)


def values(ctype: ColumnType) -> st.SearchStrategy[object]:  # noqa: PLR0911 - one answer per kind of type
    """Return what a column of a type may hold, NULL apart."""
    dtype, scale = ctype.arrow(), ctype.scale or 0
    if ctype.kind is TypeKind.ENUM:
        return st.integers(0, len(ctype.elems))
    if ctype.kind is TypeKind.SET:
        return st.integers(0, (1 << len(ctype.elems)) - 1)
    if ctype.kind in BINARY_KINDS:
        return st.binary(max_size=24)
    if pa.types.is_integer(dtype):
        low = 0 if pa.types.is_unsigned_integer(dtype) else -(1 << (dtype.bit_width - 1))
        return st.integers(low, (1 << dtype.bit_width) - 1 + low)
    if pa.types.is_floating(dtype):
        return st.floats(width=dtype.bit_width, allow_nan=False, allow_infinity=False)
    if ctype.kind is TypeKind.DECIMAL:
        limit = 10 ** (ctype.length or 10)
        return st.integers(0 if ctype.unsigned else 1 - limit, limit - 1).map(lambda n: decimal_text(n, scale))
    if ctype.kind is TypeKind.DATE:
        return st.dates(dt.date(1000, 1, 1)).map(str) | st.sampled_from(["0000-00-00", "2000-00-10"])
    if ctype.kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP}:
        moments = st.datetimes(dt.datetime(1000, 1, 1)).map(lambda m: m.strftime("%Y-%m-%d %H:%M:%S.%f"))  # noqa: DTZ001 - as MySQL's text
        zero = "0000-00-00 00:00:00.000000"
        return (moments | st.just(zero)).map(lambda t: t[: 20 + scale] if scale else t[:19])
    return texts


def decimal_text(number: int, scale: int) -> str:
    """Return a number of the smallest units as the text of a DECIMAL."""
    if scale == 0:
        return str(number)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return ("-" if number < 0 else "") + digits[:-scale] + "." + digits[-scale:]


@st.composite
def tables(draw: st.DrawFn) -> TableSchema:
    """Draw a table: its first column is the primary key, a unique key, or nothing; others may be generated."""
    types = draw(st.lists(column_types(), min_size=1, max_size=4))
    labels = draw(st.lists(names, min_size=len(types), max_size=len(types), unique_by=str.lower))
    key = draw(st.sampled_from(["primary", "unique", "none"]))
    kinds = ["", *(draw(st.sampled_from(["", "", "STORED", "VIRTUAL"])) for _ in types[1:])]
    columns = tuple(
        Column(at + 1, name, ctype, nullable=at > 0 or key == "none", primary_key=at == 0 and key == "primary", generated=generated)
        for at, (name, ctype, generated) in enumerate(zip(labels, types, kinds, strict=True))
    )
    return TableSchema(1, draw(texts), draw(texts), 5, columns, unique_keys=((1,),) if key == "unique" else ())


@st.composite
def changes(draw: st.DrawFn) -> tuple[TableSchema, pa.RecordBatch]:
    """Draw a table and its changes in order; an update has its before-image before it, at the same ts and key."""
    table = draw(tables())
    rows: list[list[object]] = []
    ts = draw(st.integers(0, 2**63))
    for _ in range(draw(st.integers(0, 4))):
        ts += draw(st.integers(0, 1 << 40))
        for key in range(draw(st.integers(1, 2))):
            op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
            images = [Op.BEFORE, Op.UPDATE] if op is Op.UPDATE else [op]
            rows += [[ts, int(image), bytes([key]), *(draw(st.none() | values(c.type)) for c in table.columns)] for image in images]
        ts += 1
    rows.sort(key=lambda r: (r[0], r[1] not in (Op.DELETE, Op.BEFORE), r[2]))
    schema = table.batch_schema()
    arrays = [pa.array([r[at] for r in rows], field.type) for at, field in enumerate(schema)]
    return table, pa.RecordBatch.from_arrays(arrays, schema=schema)


def comparable(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return rows with floats as their bits, so that -0.0 is told apart and NaN equals itself: no format has more than one NaN."""
    return [{k: struct.pack("<d", math.nan if v != v else v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]  # noqa: PLR0124


def damaged(draw: st.DataObject, content: bytes) -> bytes:
    """Return a file with up to three bytes changed or stretches removed."""
    bad = bytearray(content)
    for _ in range(draw.draw(st.integers(1, 3))):
        if bad:
            at = draw.draw(st.integers(0, len(bad) - 1))
            if draw.draw(st.booleans()):
                bad[at] = draw.draw(st.integers(0, 255))
            else:
                del bad[at : at + draw.draw(st.integers(1, 5))]
    return bytes(bad)
