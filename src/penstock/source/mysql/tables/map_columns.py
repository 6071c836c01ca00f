"""Columns as a table map with full metadata tells them: names, types, signs, charsets, elements and the key, at their place in the log.

What a map cannot tell (defaults, display widths, whether 16 bytes are a UUID) comes from hints: a column of the same name that the map does
not contradict, of the version before or of the server as it is now. Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping

import msgspec

from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.rows.charsets import codec_of
from penstock.source.mysql.tables.columns import fits
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.tablemap import MapColumn, TableMap

BINARY = "binary"
"""The charset of bytes that are no text."""
_CHARACTER_BYTES = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, "ujis": 3, "eucjpms": 3}
_TWO_BYTES = frozenset({"ucs2", "big5", "gbk", "gb2312", "sjis", "cp932", "euckr"})
_INTEGERS = {
    wire.TYPE_TINY: TypeKind.TINYINT,
    wire.TYPE_SHORT: TypeKind.SMALLINT,
    wire.TYPE_INT24: TypeKind.MEDIUMINT,
    wire.TYPE_LONG: TypeKind.INT,
    wire.TYPE_LONGLONG: TypeKind.BIGINT,
    wire.TYPE_FLOAT: TypeKind.FLOAT,
    wire.TYPE_DOUBLE: TypeKind.DOUBLE,
}
_PLAIN = {
    wire.TYPE_YEAR: TypeKind.YEAR,
    wire.TYPE_DATE: TypeKind.DATE,
    wire.TYPE_NEWDATE: TypeKind.DATE,
    wire.TYPE_TIME: TypeKind.TIME,
    wire.TYPE_DATETIME: TypeKind.DATETIME,
    wire.TYPE_TIMESTAMP: TypeKind.TIMESTAMP,
    wire.TYPE_JSON: TypeKind.JSON,
    wire.TYPE_GEOMETRY: TypeKind.GEOMETRY,
}
_FRACTIONS = {wire.TYPE_TIME2: TypeKind.TIME, wire.TYPE_DATETIME2: TypeKind.DATETIME, wire.TYPE_TIMESTAMP2: TypeKind.TIMESTAMP}
_BLOBS = {1: TypeKind.TINYBLOB, 2: TypeKind.BLOB, 3: TypeKind.MEDIUMBLOB, 4: TypeKind.LONGBLOB}
_TEXTS = {1: TypeKind.TINYTEXT, 2: TypeKind.TEXT, 3: TypeKind.MEDIUMTEXT, 4: TypeKind.LONGTEXT}
_BLOB_TYPES = frozenset({wire.TYPE_BLOB, wire.TYPE_TINY_BLOB, wire.TYPE_MEDIUM_BLOB, wire.TYPE_LONG_BLOB, wire.TYPE_BLOB_COMPRESSED})
_VARIABLE = frozenset({wire.TYPE_VARCHAR, wire.TYPE_VAR_STRING, wire.TYPE_VARCHAR_COMPRESSED})


def map_charsets(mapped: TableMap, collations: Mapping[int, str]) -> tuple[str | None, ...]:
    """Return the charset of each column, None where the map does not tell it."""
    return tuple(collations.get(c.collation) if c.collation is not None else None for c in mapped.columns)


def element_texts(column: MapColumn, charset: str | None) -> tuple[str, ...] | None:
    """Return the elements of an ENUM or SET, None where the map does not tell them."""
    if column.elements is None or charset is None:
        return None
    try:
        return tuple(codecs.decode(e, codec_of(charset)) for e in column.elements)
    except (UnicodeDecodeError, LookupError):
        return None


def agrees(columns: Iterable[Column], mapped: TableMap, charsets: Iterable[str | None]) -> bool:
    """Return whether a map tells what a version holds already; both have as many columns."""
    pairs = list(zip(columns, mapped.columns, charsets, strict=True))
    if not all(_is_same(column, m, charset) for column, m, charset in pairs):
        return False
    # A map with full metadata names the primary key, or the unique one that the server takes for it, or says that there is neither.
    return mapped.key is None or [c.primary_key for c, _, _ in pairs] == [p in mapped.key for p in range(len(pairs))]


def told_columns(mapped: TableMap, charsets: Iterable[str | None], hints: Iterable[Mapping[str, Column]]) -> tuple[Column, ...] | None:
    """Return the columns of a map with full metadata, with id 0, None where one of them is of no known type."""
    found = []
    for place, (m, charset) in enumerate(zip(mapped.columns, charsets, strict=True)):
        name = m.name or ""
        hint = next((h[name.lower()] for h in hints if name.lower() in h and _is_same(h[name.lower()], m, charset)), None)
        kind = hint.type if hint is not None else _type_of(m, charset)
        if kind is None:
            return None
        is_key = place in mapped.key if mapped.key is not None else hint is not None and hint.primary_key
        default, generated = (hint.default, hint.generated) if hint is not None else (None, "")
        found.append(Column(0, name, kind, m.nullable and not is_key, is_key, default, generated))
    return tuple(found)


def _is_same(column: Column, mapped: MapColumn, charset: str | None) -> bool:
    if not fits(column, mapped):
        return False
    if column.type.elems and (elements := element_texts(mapped, charset)) is not None:
        return column.type.elems == elements
    return True


def _type_of(mapped: MapColumn, charset: str | None) -> ColumnType | None:  # noqa: PLR0911 - one per kind
    real, unsigned = mapped.real_type, bool(mapped.unsigned)
    if real in _INTEGERS:
        return ColumnType(_INTEGERS[real], unsigned)
    if real in _PLAIN:
        return ColumnType(_PLAIN[real])
    if real in _FRACTIONS:
        return ColumnType(_FRACTIONS[real], scale=mapped.meta or None)
    if real == wire.TYPE_NEWDECIMAL:
        return ColumnType(TypeKind.DECIMAL, unsigned, length=mapped.meta & 255, scale=mapped.meta >> 8)
    if real == wire.TYPE_BIT:
        return ColumnType(TypeKind.BIT, length=(mapped.meta >> 8) * 8 + (mapped.meta & 255))
    if real == wire.TYPE_VECTOR:
        return ColumnType(TypeKind.VECTOR)
    if real in {wire.TYPE_ENUM, wire.TYPE_SET}:
        elements = element_texts(mapped, charset)
        return None if elements is None else ColumnType(TypeKind.ENUM if real == wire.TYPE_ENUM else TypeKind.SET, elems=elements)
    if charset is None:
        return None
    if real in _BLOB_TYPES:
        return ColumnType((_BLOBS if charset == BINARY else _TEXTS)[mapped.meta]) if mapped.meta in _BLOBS else None
    wide = 1 if charset == BINARY else _CHARACTER_BYTES.get(charset, 2 if charset in _TWO_BYTES else 1)
    if real in _VARIABLE:
        # One byte more where the value can be compressed.
        size = mapped.meta - (real == wire.TYPE_VARCHAR_COMPRESSED)
        return ColumnType(TypeKind.VARBINARY if charset == BINARY else TypeKind.VARCHAR, length=size // wide)
    if real == wire.TYPE_STRING:
        return ColumnType(TypeKind.BINARY if charset == BINARY else TypeKind.CHAR, length=mapped.string_bytes // wide)
    return None


def by_name(columns: Iterable[Column]) -> dict[str, Column]:
    """Return columns by their names in lower case."""
    return {c.name.lower(): c for c in columns}


def renumbered(columns: Iterable[Column], known: Mapping[str, int], highest: int) -> tuple[Column, ...]:
    """Give columns the ids that are known for their names, in lower case, and new ones above ``highest`` to others."""
    numbered = []
    for column in columns:
        found = known.get(column.name.lower())
        if found is None:
            highest += 1
            found = highest
        numbered.append(msgspec.structs.replace(column, id=found))
    return tuple(numbered)
