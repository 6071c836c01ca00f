"""Values of three origins in one form in which equal values are equal: a server's own text, a file's text, a replayed database's value.

Owns what of a text does not count: zeros after a point, a time of midnight, how a float is spelled. Shares nothing with the code under
test. Runs in tests.
"""

from __future__ import annotations

import decimal
import struct
from typing import Any

Value = str | bytes | None
Row = tuple[Value, ...]


def comparable(family: str, value: Any) -> Value:
    """Return a value as a family of types shows it: ``number``, ``float``, ``double``, ``time``, ``bytes`` or ``text``."""
    if value is None:
        return None
    if family == "bytes":
        return value if isinstance(value, bytes) else str(value).encode()
    text = bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)
    try:
        return _text(family, text)
    except (ValueError, OverflowError, decimal.InvalidOperation):
        return f"unreadable {family}: {text}"


def _text(family: str, text: str) -> str:
    if family == "number":
        number = decimal.Decimal(text)
        return "NaN" if number.is_nan() else format(number.normalize() + 0, "f")
    if family == "float":
        return repr(struct.unpack("f", struct.pack("f", float(text)))[0] + 0.0)
    if family == "double":
        return repr(float(text) + 0.0)
    if family == "time":
        if "." in text:
            text = text.rstrip("0").rstrip(".")
        return text.removesuffix(" 00:00:00")
    return text
