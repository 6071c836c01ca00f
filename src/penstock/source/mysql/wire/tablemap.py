"""Table maps: what the log says about the columns of a rows event's table.

Types, meta and nullability always; signedness and collations, names, elements of ENUM and SET and the primary key as far as
``binlog_row_metadata`` lets the server write them. A map that holds a type which nobody knows still names its table.
Every table map is parsed once: later ones of the same table id are compared by their bytes. Runs in the log service.
"""

from __future__ import annotations

import contextlib

import msgspec

from penstock.model.errors import PenstockError
from penstock.source.mysql.rows.image_layout import WireColumn
from penstock.source.mysql.wire import constants as wire

_META_BYTES = {
    wire.TYPE_FLOAT: 1,
    wire.TYPE_DOUBLE: 1,
    wire.TYPE_VARCHAR: 2,
    wire.TYPE_BIT: 2,
    wire.TYPE_NEWDECIMAL: 2,
    wire.TYPE_BLOB: 1,
    wire.TYPE_TINY_BLOB: 1,
    wire.TYPE_MEDIUM_BLOB: 1,
    wire.TYPE_LONG_BLOB: 1,
    wire.TYPE_JSON: 1,
    wire.TYPE_GEOMETRY: 1,
    wire.TYPE_VECTOR: 1,
    wire.TYPE_STRING: 2,
    wire.TYPE_VAR_STRING: 2,
    wire.TYPE_ENUM: 2,
    wire.TYPE_SET: 2,
    wire.TYPE_TIMESTAMP2: 1,
    wire.TYPE_DATETIME2: 1,
    wire.TYPE_TIME2: 1,
    wire.TYPE_BLOB_COMPRESSED: 1,
    wire.TYPE_VARCHAR_COMPRESSED: 2,
}
_NUMERIC = frozenset(
    {wire.TYPE_TINY, wire.TYPE_SHORT, wire.TYPE_INT24, wire.TYPE_LONG, wire.TYPE_LONGLONG, wire.TYPE_FLOAT, wire.TYPE_DOUBLE}
    | {wire.TYPE_NEWDECIMAL, wire.TYPE_YEAR}
)
_SIGNEDNESS, _DEFAULT_COLLATION, _COLLATIONS, _COLUMN_NAME, _SET_ELEMENTS, _ENUM_ELEMENTS = 1, 2, 3, 4, 5, 6
_SIMPLE_KEY, _PREFIXED_KEY, _DEFAULT_ELEMENT_COLLATION, _ELEMENT_COLLATIONS = 8, 9, 10, 11
_TEXTS = frozenset(
    {wire.TYPE_VARCHAR, wire.TYPE_VAR_STRING, wire.TYPE_STRING, wire.TYPE_VARCHAR_COMPRESSED, wire.TYPE_BLOB_COMPRESSED}
    | {wire.TYPE_TINY_BLOB, wire.TYPE_BLOB, wire.TYPE_MEDIUM_BLOB, wire.TYPE_LONG_BLOB}
)
"""Types that have a collation, be it the binary one; MariaDB counts GEOMETRY among them."""
_ELEMENTED = (wire.TYPE_ENUM, wire.TYPE_SET)
_INTEGERS = {
    wire.TYPE_TINY: wire.W_INT1,
    wire.TYPE_SHORT: wire.W_INT2,
    wire.TYPE_INT24: wire.W_INT3,
    wire.TYPE_LONG: wire.W_INT4,
    wire.TYPE_LONGLONG: wire.W_INT8,
    wire.TYPE_FLOAT: wire.W_INT4,
    wire.TYPE_DOUBLE: wire.W_INT8,
    wire.TYPE_YEAR: wire.W_YEAR,
    wire.TYPE_DATE: wire.W_DATE,
    wire.TYPE_NEWDATE: wire.W_DATE,
    wire.TYPE_TIMESTAMP: wire.W_OLD_TIMESTAMP,
    wire.TYPE_DATETIME: wire.W_OLD_DATETIME,
    wire.TYPE_TIME: wire.W_OLD_TIME,
}
_FRACTIONS = {wire.TYPE_TIMESTAMP2: wire.W_TIMESTAMP, wire.TYPE_DATETIME2: wire.W_DATETIME, wire.TYPE_TIME2: wire.W_TIME}
_BLOBS = frozenset(
    {wire.TYPE_BLOB, wire.TYPE_TINY_BLOB, wire.TYPE_MEDIUM_BLOB, wire.TYPE_LONG_BLOB, wire.TYPE_JSON, wire.TYPE_GEOMETRY, wire.TYPE_VECTOR}
    | {wire.TYPE_BLOB_COMPRESSED}
)
_FORMS = {
    wire.TYPE_JSON: wire.F_JSON,
    wire.TYPE_VECTOR: wire.F_VECTOR,
    wire.TYPE_BLOB_COMPRESSED: wire.F_COMPRESSED,
    wire.TYPE_VARCHAR_COMPRESSED: wire.F_COMPRESSED,
}


class MapColumn(msgspec.Struct, frozen=True):
    """One column as the log describes it; ``name`` and ``unsigned`` are None where it does not say."""

    type: int
    meta: int
    """As it stands in the log, the first byte lowest."""
    nullable: bool
    unsigned: bool | None = None
    name: str | None = None
    collation: int | None = None
    """The number of the collation; None where the log does not say, or there is none."""
    elements: tuple[bytes, ...] | None = None
    """Of ENUM and SET, in the charset of the collation; None where the log does not say."""

    @property
    def real_type(self) -> int:
        """Return the type with STRING resolved to ENUM or SET."""
        return _string(self.meta)[0] if self.type == wire.TYPE_STRING else self.type

    @property
    def string_bytes(self) -> int:
        """Return how many bytes a STRING has at most, 0 for other types."""
        return _string(self.meta)[1] if self.type == wire.TYPE_STRING else 0

    def wire_column(self, unsigned: bool, padded: bool, form: int = wire.F_PLAIN) -> WireColumn:  # noqa: PLR0911 - one per kind
        """Return how the column's fields stand in row images; ``padded`` where trailing zeros belong to the value."""
        kind = self.type
        if kind in _INTEGERS:
            return WireColumn(_INTEGERS[kind], signed=not unsigned)
        if kind in _FRACTIONS:
            return WireColumn(_FRACTIONS[kind], b=self.meta)
        if kind in _BLOBS:
            return WireColumn(wire.W_BYTES, a=self.meta, form=_FORMS.get(kind, form))
        if kind == wire.TYPE_NEWDECIMAL:
            return WireColumn(wire.W_DECIMAL, a=self.meta & 255, b=self.meta >> 8)
        if kind == wire.TYPE_BIT:
            bits = (self.meta >> 8) * 8 + (self.meta & 255)
            return WireColumn(wire.W_BITS, a=(bits + 7) // 8)
        if kind in {wire.TYPE_VARCHAR, wire.TYPE_VAR_STRING, wire.TYPE_VARCHAR_COMPRESSED}:
            return WireColumn(wire.W_BYTES, a=2 if self.meta > 255 else 1, form=_FORMS.get(kind, form))
        if kind in {wire.TYPE_STRING, wire.TYPE_ENUM, wire.TYPE_SET}:
            real, length = _string(self.meta) if kind == wire.TYPE_STRING else (kind, self.meta >> 8)
            if real == wire.TYPE_ENUM:
                return WireColumn(wire.W_ENUM, a=length)
            if real == wire.TYPE_SET:
                return WireColumn(wire.W_SET, a=length)
            padded = padded or form != wire.F_PLAIN
            return WireColumn(wire.W_PADDED if padded else wire.W_BYTES, a=2 if length > 255 else 1, b=length if padded else 0, form=form)
        raise PenstockError("TYPE_UNSUPPORTED", f"the log holds a column of type {kind}, which is not supported")


class TableMap(msgspec.Struct, frozen=True):
    """A table as the log describes it."""

    schema: str
    table: str
    columns: tuple[MapColumn, ...]
    key: tuple[int, ...] | None = None
    """Places of the primary key's columns; None where the log does not say."""
    problem: str = ""
    """Why the columns cannot be told."""

    @property
    def full(self) -> bool:
        """Return whether the map tells the table's columns by itself."""
        return bool(self.columns) and all(c.name is not None for c in self.columns)


def parse_table_map(body: bytes, mariadb: bool = True) -> TableMap:
    """Parse a table map event from behind its table id on. Malformed bytes are ``DECODE_FAILED``."""
    try:
        return _parse(body, mariadb)
    except (IndexError, ValueError) as error:
        raise PenstockError("DECODE_FAILED", "a table map is malformed") from error


def _parse(body: bytes, mariadb: bool) -> TableMap:
    at = 2
    names = []
    for _ in range(2):
        length = body[at]
        names.append(_take(body, at + 1, length).decode("utf-8", errors="strict"))
        at += length + 2
    count, at = _length(body, at)
    types = _take(body, at, count)
    at += count
    meta_bytes, at = _length(body, at)
    metas = []
    meta_at = at
    for kind in types:
        size = _META_BYTES.get(kind, 0)
        metas.append(int.from_bytes(_take(body, meta_at, size), "little"))
        meta_at += size
    if meta_at != at + meta_bytes:
        return TableMap(names[0], names[1], (), problem="the log holds a column type that is not supported")
    at = meta_at
    nulls = _take(body, at, (count + 7) // 8)
    options = _options(body, at + len(nulls))
    signs = _signs(types, options.get(_SIGNEDNESS))
    given = _names(options.get(_COLUMN_NAME), count)
    columns = tuple(
        MapColumn(kind, metas[c], bool(nulls[c // 8] >> (c % 8) & 1), signs.get(c) if signs is not None else None, given[c])
        for c, kind in enumerate(types)
    )
    # What only describes is worth no stop: without it the table is known as one of a server that tells less.
    with contextlib.suppress(IndexError, ValueError):
        columns = _described(columns, options, mariadb)
    return TableMap(names[0], names[1], columns, _key(options))


def _described(columns: tuple[MapColumn, ...], options: dict[int, bytes], mariadb: bool) -> tuple[MapColumn, ...]:
    """Add the collations and elements of columns."""
    texts = _TEXTS | {wire.TYPE_GEOMETRY} if mariadb else _TEXTS
    plain = [c for c, column in enumerate(columns) if column.real_type in texts]
    elemented = [c for c, column in enumerate(columns) if column.real_type in _ELEMENTED]
    collations = _collations(options, plain, _DEFAULT_COLLATION, _COLLATIONS)
    collations |= _collations(options, elemented, _DEFAULT_ELEMENT_COLLATION, _ELEMENT_COLLATIONS)
    elements: dict[int, tuple[bytes, ...]] = {}
    for kind, option in zip(_ELEMENTED, (_ENUM_ELEMENTS, _SET_ELEMENTS), strict=True):
        elements |= _elements(options.get(option), [c for c in elemented if columns[c].real_type == kind])
    return tuple(
        msgspec.structs.replace(column, collation=collations.get(c), elements=elements.get(c))
        if c in collations or c in elements
        else column
        for c, column in enumerate(columns)
    )


def _collations(options: dict[int, bytes], places: list[int], default: int, each: int) -> dict[int, int]:
    """Return the collations of some columns: one for each, or one for all and those that differ by their number."""
    packed, at, numbers = options.get(each, options.get(default)), 0, []
    if packed is None:
        return {}
    while at < len(packed):
        number, at = _length(packed, at)
        numbers.append(number)
    if each in options:
        return dict(zip(places, numbers, strict=True))
    found = dict.fromkeys(places, numbers[0])
    for place, number in zip(numbers[1::2], numbers[2::2], strict=True):
        found[places[place]] = number
    return found


def _elements(packed: bytes | None, places: list[int]) -> dict[int, tuple[bytes, ...]]:
    if packed is None:
        return {}
    found, at = {}, 0
    for place in places:
        count, at = _length(packed, at)
        texts = []
        for _ in range(count):
            length, at = _length(packed, at)
            texts.append(_take(packed, at, length))
            at += length
        found[place] = tuple(texts)
    return found


def _take(body: bytes, at: int, count: int) -> bytes:
    piece = body[at : at + count]
    if len(piece) != count or count < 0:
        raise IndexError(at)
    return piece


def _length(body: bytes, at: int) -> tuple[int, int]:
    """Return a packed number and what follows it."""
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if not size:
        raise ValueError(first)
    return int.from_bytes(_take(body, at + 1, size), "little"), at + 1 + size


def _options(body: bytes, at: int) -> dict[int, bytes]:
    found = {}
    while at < len(body):
        kind = body[at]
        length, at = _length(body, at + 1)
        found[kind] = _take(body, at, length)
        at += length
    return found


def _signs(types: bytes, bits: bytes | None) -> dict[int, bool] | None:
    if bits is None:
        return None
    numeric = [c for c, kind in enumerate(types) if kind in _NUMERIC]
    return {c: bool(bits[n // 8] >> (7 - n % 8) & 1) for n, c in enumerate(numeric)}


def _names(packed: bytes | None, count: int) -> list[str | None]:
    if packed is None:
        return [None] * count
    names: list[str | None] = []
    at = 0
    while at < len(packed):
        length, at = _length(packed, at)
        names.append(_take(packed, at, length).decode("utf-8"))
        at += length
    if len(names) != count:
        raise ValueError(count)
    return names


def _key(options: dict[int, bytes]) -> tuple[int, ...] | None:
    packed = options.get(_SIMPLE_KEY, options.get(_PREFIXED_KEY))
    if packed is None:
        # Names are written only with full metadata, and then a table without a key has neither option.
        return () if _COLUMN_NAME in options else None
    places, at = [], 0
    while at < len(packed):
        place, at = _length(packed, at)
        places.append(place)
        if _SIMPLE_KEY not in options:
            _, at = _length(packed, at)
    return tuple(places)


def _string(meta: int) -> tuple[int, int]:
    """Return the real type and the length of a STRING: two bits of a long length hide in the type."""
    first, second = meta & 255, meta >> 8
    if first & 0x30 != 0x30:
        return first | 0x30, second | (((first & 0x30) ^ 0x30) << 4)
    return first, second
