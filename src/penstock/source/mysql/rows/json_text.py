"""MySQL's binary JSON as the text that the server prints.

The log holds JSON columns in the server's own binary form: objects and arrays with tables of offsets, numbers by type, and values of SQL
types that JSON does not know, such as DECIMAL and DATETIME. Numbers stay exact: integers to 64 bits, DECIMALs digit by digit, doubles in
the fewest digits that read back the same. Distinct values of a column are turned into text once each. Runs in the log service.
"""

from __future__ import annotations

import base64
import struct

import numpy as np
import pyarrow as pa

from penstock.model.errors import PenstockError
from penstock.source.mysql.rows.texts import DIGIT_BYTES, decimal_bytes, put_decimal
from penstock.source.mysql.wire import constants as wire

_DEPTH_MAX = 100
"""The server's own limit."""
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64 = range(11)
_DOUBLE, _STRING, _OPAQUE = 0x0B, 0x0C, 0x0F
_NUMBERS = {_INT16: "<h", _UINT16: "<H", _INT32: "<i", _UINT32: "<I", _INT64: "<q", _UINT64: "<Q"}
_LITERALS = {0: "null", 1: "true", 2: "false"}
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PLAIN_DIGITS_MAX = 15


def json_texts(array: pa.Array, column: str) -> pa.Array:
    """Return a column of binary JSON as strings."""
    encoded = array.dictionary_encode()
    try:
        texts = [json_text(value) for value in encoded.dictionary.to_pylist()]
    except (IndexError, ValueError, KeyError, struct.error, RecursionError) as error:
        raise PenstockError("DECODE_FAILED", f"column {column} holds malformed JSON") from error
    return pa.array(texts, pa.string()).take(encoded.indices)


def json_text(data: bytes) -> str:
    """Return one binary JSON value as text. An empty one is what the server stores for NULL in a column that became NOT NULL."""
    return _value(data[0], data, 1, 0) if data else "null"


def _value(kind: int, data: bytes, at: int, depth: int) -> str:
    if depth > _DEPTH_MAX:
        raise ValueError(depth)
    if kind <= _LARGE_ARRAY:
        return _container(kind, data[at:], depth)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return str(struct.unpack_from(_NUMBERS[kind], data, at)[0])
    if kind == _DOUBLE:
        return double_text(struct.unpack_from("<d", data, at)[0])
    if kind == _STRING:
        length, at = _length(data, at)
        return _quoted(_take(data, at, length).decode("utf-8"))
    if kind == _OPAQUE:
        length, start = _length(data, at + 1)
        return _opaque(data[at], _take(data, start, length))
    raise ValueError(kind)


def _container(kind: int, data: bytes, depth: int) -> str:
    large = kind in {_LARGE_OBJECT, _LARGE_ARRAY}
    width = 4 if large else 2
    count = int.from_bytes(_take(data, 0, width), "little")
    size = int.from_bytes(_take(data, width, width), "little")
    body = _take(data, 0, size)
    at = 2 * width
    keys: list[str] = []
    if kind in {_SMALL_OBJECT, _LARGE_OBJECT}:
        for _ in range(count):
            offset = int.from_bytes(_take(body, at, width), "little")
            length = int.from_bytes(_take(body, at + width, 2), "little")
            keys.append(_quoted(_take(body, offset, length).decode("utf-8")))
            at += width + 2
    values = []
    for _ in range(count):
        inner = body[at]
        inline = inner in {_LITERAL, _INT16, _UINT16} or (large and inner in {_INT32, _UINT32})
        place = at + 1 if inline else int.from_bytes(_take(body, at + 1, width), "little")
        values.append(_value(inner, body, place, depth + 1))
        at += 1 + width
    if kind in {_SMALL_OBJECT, _LARGE_OBJECT}:
        return "{" + ", ".join(f"{k}: {v}" for k, v in zip(keys, values, strict=True)) + "}"
    return "[" + ", ".join(values) + "]"


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length whose bytes have seven bits each, and what follows it."""
    value = 0
    for place in range(5):
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ValueError(value)


def _take(data: bytes, at: int, count: int) -> bytes:
    piece = data[at : at + count]
    if len(piece) != count:
        raise IndexError(at)
    return piece


def _quoted(text: str) -> str:
    plain = text.isprintable() and '"' not in text and "\\" not in text
    if plain:
        return f'"{text}"'
    return '"' + "".join(_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if ord(c) < 32 else c) for c in text) + '"'


def double_text(value: float) -> str:
    """Return a double as the server prints it inside JSON: shortest digits, an exponent only where it is large, never without a point."""
    sign, digits, exponent = _shortest(value)
    point = len(digits) + exponent
    if not -_PLAIN_DIGITS_MAX < point <= _PLAIN_DIGITS_MAX:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if exponent >= 0:
        return f"{sign}{digits}{'0' * exponent}.0"
    return f"{sign}{digits[:point]}.{digits[point:]}"


def _shortest(value: float) -> tuple[str, str, int]:
    text = repr(abs(value))
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) - len(fraction)
    stripped = digits.rstrip("0")
    sign = "-" if struct.pack(">d", value)[0] & 0x80 else ""
    return sign, stripped or "0", power + len(digits) - len(stripped) if stripped else 0


def _opaque(kind: int, data: bytes) -> str:
    if kind == wire.TYPE_NEWDECIMAL:
        precision, scale = data[0], data[1]
        if len(data) != 2 + decimal_bytes(precision, scale):
            raise ValueError(kind)
        out = np.zeros(precision + 4, dtype=np.uint8)
        end = put_decimal(np.frombuffer(data, dtype=np.uint8), 2, precision, scale, DIGIT_BYTES, out, 0)
        if end < 0:
            raise ValueError(kind)
        return out[:end].tobytes().decode()
    if kind in {wire.TYPE_DATE, wire.TYPE_NEWDATE, wire.TYPE_DATETIME, wire.TYPE_TIMESTAMP, wire.TYPE_TIME}:
        return f'"{_temporal(kind, struct.unpack("<q", data)[0])}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode()}"'


def _temporal(kind: int, packed: int) -> str:
    sign = "-" if packed < 0 else ""
    packed = abs(packed)
    micros, seconds = packed & 0xFFFFFF, packed >> 24
    clock = f"{(seconds >> 12) & (1023 if kind == wire.TYPE_TIME else 31):02d}:{(seconds >> 6) & 63:02d}:{seconds & 63:02d}.{micros:06d}"
    if kind == wire.TYPE_TIME:
        return sign + clock
    day = seconds >> 17
    date = f"{(day >> 5) // 13:04d}-{(day >> 5) % 13:02d}-{day & 31:02d}"
    return date if kind in {wire.TYPE_DATE, wire.TYPE_NEWDATE} else f"{date} {clock}"
