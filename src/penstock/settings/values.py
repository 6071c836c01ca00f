"""One value of a configuration: text or a TOML value in, a typed value out.

Sizes are bytes (``64MiB``, ``1GB``, ``4096``), durations have units (``5s``, ``250ms``, ``1h30m``); without one it is that of the field.
Every function raises ``ValueError`` with a text that says what would be right; the loader adds the path. Runs anywhere.
"""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NUMBER = r"(\d{1,19}(?:\.\d{1,19})?)"
"""No longer than what 64 bits hold: what is longer is a mistake, or meant to be."""
_WHOLE_MAX = 2**63 - 1
_SIZE = re.compile(rf"{_NUMBER}\s*([a-zA-Z]*)")
_SIZE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{prefix}ib": 1 << (10 * power) for power, prefix in enumerate("kmgtp", 1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", 1)},
}
_DURATION_PART = rf"{_NUMBER}\s*(ms|s|m|h|d)"
_DURATION_CHARS_MAX = 100
_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_BRACKETED = re.compile(r"\[\s*(?:[\"'].*)?\]", re.DOTALL)
"""A list as files have it; a pattern such as ``[ab]*.t`` is none."""
_ESCAPES = {"\\r\\n": "\r\n", "\\n": "\n", "\\r": "\r", "\\t": "\t"}


def parse_size(value: Any) -> int:
    """Return a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(value, 0)
    match = re.fullmatch(_SIZE, str(value).strip())
    unit = _SIZE_UNITS.get(match.group(2).lower()) if match else None
    if not isinstance(value, str) or match is None or unit is None:
        raise ValueError(f"must be a size like 64MiB, not {shown(value)}")
    number = match.group(1)
    return _whole(round(float(number) * unit) if "." in number else int(number) * unit, 0)


def parse_duration(value: Any, unit: str) -> float:
    """Return a duration in the given unit, ``s`` or ``ms``; a plain number is in that unit already."""
    if isinstance(value, str):
        if len(value) <= _DURATION_CHARS_MAX and re.fullmatch(f"(?:{_DURATION_PART})+", value.strip()):
            parts = re.findall(_DURATION_PART, value)
            return sum(float(number) * _DURATION_MS[of] for number, of in parts) / _DURATION_MS[unit]
        try:
            value = float(value)
        except ValueError:
            value = None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _WHOLE_MAX:
        raise ValueError("must be a duration like 5s or 250ms")
    return float(value)


def parse_bool(value: Any) -> bool:
    """Return a truth value."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE
    raise ValueError(f"must be true or false, not {shown(value)}")


def parse_int(value: Any) -> int:
    """Return a whole number of at most 64 bits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(value, -_WHOLE_MAX)
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,30}", value.strip()):
        return _whole(int(value), -_WHOLE_MAX)
    raise ValueError(f"must be a whole number, not {shown(value)}")


def parse_float(value: Any) -> float:
    """Return a finite number."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = float("nan")
        if abs(number) < float("inf"):
            return number
    raise ValueError(f"must be a number, not {shown(value)}")


def parse_str(value: Any) -> str:
    """Return a text; numbers are not taken for texts, so that a forgotten quote is noticed."""
    if isinstance(value, str):
        return value
    raise ValueError(f"must be a text, not {shown(value)}")


def parse_escaped(value: Any) -> str:
    """Return a text; escapes of CR, LF and tab are understood, because configuration files and URIs cannot always hold the characters."""
    text = parse_str(value)
    return _ESCAPES.get(text, text)


def parse_path(value: Any) -> Path:
    """Return a path of this machine."""
    if isinstance(value, Path):
        return value
    text = parse_str(value)
    if not text:
        raise ValueError("must name a path")
    return Path(text).expanduser()


def parse_enum(kind: type[enum.Enum], value: Any) -> enum.Enum:
    """Return the member with this value, or with this name without regard to case."""
    if isinstance(value, kind):
        return value
    for member in kind:
        if value == member.value or (isinstance(value, str) and value.lower() in {member.name.lower(), str(member.value).lower()}):
            return member
    raise ValueError(f"must be one of {', '.join(str(m.value) for m in kind)}, not {shown(value)}")


def parse_list(text: str) -> list[str]:
    """Return a list that is written on a line: parts between commas, or as it stands in a file, with brackets and quotes."""
    if _BRACKETED.fullmatch(text.strip()):
        try:
            written = tomllib.loads(f"list = {text.strip()}")["list"]
        except tomllib.TOMLDecodeError:
            raise ValueError('must be a list such as a,b or ["a", "b"]') from None
        return [parse_str(part) for part in written]
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_table(value: Any) -> dict[str, Any]:
    """Return a table whose keys the component that takes it knows itself."""
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"must be a table, not {shown(value)}")


def _whole(value: int, lowest: int) -> int:
    if value < lowest:
        raise ValueError(f"must not be negative, not {shown(value)}" if lowest == 0 else "must fit in 64 bits")
    if value > _WHOLE_MAX:
        raise ValueError("must fit in 64 bits")
    return value


def shown(value: Any) -> str:
    """Return a value as an error may show it: short, and its kind where that is what is wrong."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    # Python itself refuses to write numbers of thousands of digits.
    text = "a number of so many digits" if isinstance(value, int) and value.bit_length() > 4096 else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
