"""Columns and their values: what a text means, what an older row shows in a newer column, what a value becomes when its column changes.

Values are int, float, Decimal, bytes, str or None. It runs in tests and knows "What a schema file does to rows"
and the tables of types of the document.
"""

import base64
import math
import re
import struct
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

Value = int | float | Decimal | bytes | str | None

INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
FLOATS = {"FLOAT", "DOUBLE"}
TEMPORALS = {"DATE", "DATETIME", "TIMESTAMP", "TIME"}
ZERO_TEMPORALS = {"DATE": "0000-00-00", "DATETIME": "0000-00-00 00:00:00", "TIMESTAMP": "0000-00-00 00:00:00", "TIME": "00:00:00"}
HEX = re.compile(r"x'((?:[0-9a-f]{2})*)'|0x((?:[0-9a-f]{2})+)", re.IGNORECASE)
CALL = re.compile(r"(current_\w+|now|localtime(stamp)?|utc_\w+|cur(date|time)|sysdate|uuid(_short)?|rand)\(.*\)", re.IGNORECASE)
"""A default of a text column that is computed."""
ABSENT = object()
NO_FLOAT, NO_DECIMAL = float("nan"), Decimal("NaN")
"""One object each: to a reader of rows NaN is the same as NaN."""


@dataclass(frozen=True)
class Column:
    """A column of a schema file."""

    name: str
    type: str
    unsigned: bool
    nullable: bool
    primary: bool
    virtual: bool
    length: int | None
    precision: int | None
    scale: int
    elements: tuple[str, ...]
    default: str | None
    initial: Any
    id: str | None

    @property
    def kind(self) -> str:
        """Which Python type holds its values."""
        if self.type in INTEGERS or self.type in ("BIT", "YEAR"):
            return "int"
        if self.type in FLOATS:
            return "float"
        if self.type == "DECIMAL":
            return "decimal"
        if self.type.endswith(("BINARY", "BLOB")) or self.type == "GEOMETRY":
            return "bytes"
        if self.type in ("ENUM", "SET"):
            return "names"
        return "temporal" if self.type in TEMPORALS else "text"


def column_of(field: dict[str, Any]) -> Column:
    """Make a column from its object in `TableColumns`."""
    words = field["ColumnType"].upper().split()

    def number(name: str) -> int | None:
        return int(field[name]) if field.get(name) not in (None, "") else None

    return Column(
        name=field["ColumnName"],
        type=words[0],
        unsigned="UNSIGNED" in words,
        nullable=field.get("ColumnNullable") != "false",
        primary=field.get("ColumnIsPk") == "true",
        virtual=field.get("ColumnGenerated") == "VIRTUAL",
        length=number("ColumnLength"),
        precision=number("ColumnPrecision"),
        scale=number("ColumnScale") or 0,
        elements=tuple(field.get("ColumnElems", ())),
        default=field.get("ColumnDefault"),
        initial=field.get("ColumnInitialDefault", ABSENT),
        id=None if field.get("ColumnId") is None else str(field["ColumnId"]),
    )


def from_csv(text: str, column: Column, binary: str) -> Value:
    """Read the value of a field of a CSV line that is not NULL."""
    if column.kind == "bytes":
        return bytes.fromhex(text) if binary == "hex" else base64.b64decode(text, validate=True)
    return _plain(text, column)


def from_canal(text: str, column: Column) -> Value:
    """Read the value of a string of a Canal-JSON message: binary data as ISO-8859-1, names by their numbers."""
    if column.kind == "bytes":
        return text.encode("latin-1")
    if column.kind == "names" and column.elements:
        number = int(text)
        if column.type == "ENUM":
            return column.elements[number - 1] if number else ""
        return ",".join(name for at, name in enumerate(column.elements) if number >> at & 1)
    return _plain(text, column)


def _plain(text: str, column: Column) -> Value:
    match column.kind:
        case "int":
            return int(text)
        case "float":
            return _real(text, column)
        case "decimal":
            return NO_DECIMAL if text == "NaN" else Decimal(text)
        case "bytes":
            return text.encode()
    return text


def _real(text: str, column: Column) -> float:
    """Read a number of 32 or 64 bits."""
    number = float(text)
    if math.isnan(number):
        return NO_FLOAT
    return float(struct.unpack("f", struct.pack("f", number))[0]) if column.type == "FLOAT" else number


def shown_by_older_rows(column: Column) -> Value:
    """Tell what rows of versions before the one that added this column show in it."""
    text = column.default if column.initial is ABSENT else column.initial
    if column.initial is ABSENT and text is None and not column.nullable:
        return _implicit(column)
    if text is None or (column.initial is ABSENT and text == "NULL"):
        return None
    try:
        return _constant(text, column)
    except (ValueError, InvalidOperation):
        # It is computed.
        return None


def _constant(text: str, column: Column) -> Value:
    """Read a default as a value: with the column's scale, names as the column writes them."""
    if column.type == "BIT" and text.startswith("b'"):
        return int(text[2:-1] or "0", 2)
    if column.kind == "bytes":
        found = HEX.fullmatch(text)
        value = text.encode() if found is None else bytes.fromhex(found[1] or found[2])
        return value.ljust(column.length or 0, b"\0") if column.type == "BINARY" else value
    if column.kind == "names":
        known = {name.casefold(): name for name in column.elements}
        names = text.split(",") if column.type == "SET" and text else [text]
        return ",".join(known.get(name.casefold(), name) for name in names)
    if column.kind == "temporal":
        if not text[:2].strip("-")[:1].isdigit():
            raise ValueError("not a moment")
        return _with_fraction(text, column.scale if column.type != "DATE" else 0)
    if column.kind == "text" and CALL.fullmatch(text):
        raise ValueError("not a text")
    read = _plain(text, column)
    return read.quantize(Decimal(1).scaleb(-column.scale)) if isinstance(read, Decimal) and read.is_finite() else read


def _implicit(column: Column) -> Value:  # noqa: PLR0911 one for each kind
    match column.kind:
        case "int":
            return 0
        case "float":
            return 0.0
        case "decimal":
            return Decimal(0).quantize(Decimal(1).scaleb(-column.scale))
        case "bytes":
            return b"\0" * (column.length or 0) if column.type == "BINARY" else b""
        case "names":
            return column.elements[0] if column.type == "ENUM" else ""
        case "temporal":
            return _with_fraction(ZERO_TEMPORALS[column.type], column.scale)
    return "null" if column.type == "JSON" else ""


def _with_fraction(text: str, digits: int) -> str:
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction[:digits]:0<{digits}}" if digits else whole


def converted(value: Value, old: Column, new: Column) -> Value:
    """Bring a value into a column whose type changed: NULL where the new type cannot hold it."""
    same = (old.type, old.unsigned, old.length, old.precision, old.scale, old.elements)
    if value is None or same == (new.type, new.unsigned, new.length, new.precision, new.scale, new.elements):
        return value
    try:
        return _held(value, old, new)
    except (ValueError, InvalidOperation, OverflowError):
        return None


def _held(value: Value, old: Column, new: Column) -> Value:  # noqa: PLR0911 one for each kind
    match new.kind:
        case "int":
            number = int(Decimal(_text(value)).to_integral_value("ROUND_HALF_UP"))
            bits = INTEGERS.get(new.type, 64)
            low, high = (0, 2**bits) if new.unsigned or new.type not in INTEGERS else (-(2 ** (bits - 1)), 2 ** (bits - 1))
            return number if low <= number < high else None
        case "float":
            return _real(_text(value), new)
        case "decimal":
            number_ = Decimal(_text(value)).quantize(Decimal(1).scaleb(-new.scale), "ROUND_HALF_UP")
            return number_ if new.precision is None or len(number_.as_tuple().digits) <= new.precision else None
        case "bytes":
            return value if isinstance(value, bytes) else _text(value).encode()
        case "names":
            names = _text(value).split(",") if new.type == "SET" and value else [_text(value)]
            return _text(value) if all(name in new.elements for name in names) or value == "" else None
        case "temporal":
            text = _text(value)
            if new.type == "DATE":
                return text[:10]
            if old.type == "DATE" and new.type != "TIME":
                text += " 00:00:00"
            return _with_fraction(text, new.scale)
    text = _text(value)
    return text if new.length is None or new.type not in ("CHAR", "VARCHAR") or len(text) <= new.length else None


def _text(value: Value) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
