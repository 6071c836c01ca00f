"""Builds trees of frozen settings dataclasses from nested tables, and writes them back.

Invariants: every problem of a tree is found in one pass and reported with its path (``sink.csv.delimiter: ...``) in one
``CONFIG_INVALID``; an unknown key is a problem, with the nearest known key named. Keys are the field names in kebab case, without the
unit at the end (``flush_interval_s`` is ``flush-interval``); the unit decides how texts are read: ``_s`` and ``_ms`` are durations,
``bytes`` or ``size`` in the name make a size. A field may say otherwise in its metadata: ``key``, ``alias`` (a second key), ``unit``
(``bytes``, ``s``, ``ms``, ``escaped``, ``none``), ``range`` of a number, ``parse`` (a function that reads the whole value), ``flatten`` (a
dataclass whose keys stand beside its parent's), or ``part`` (one whose problems its parent tells). Settings that have a ``problems``
method, which gives pairs of key and text, are asked for what else is wrong. Runs anywhere.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from penstock.model.errors import PenstockError
from penstock.settings import values
from penstock.settings.masking import mask_text

T = TypeVar("T")
_BAD = object()
_UNIT_SUFFIXES = {"s": "s", "ms": "ms", "bytes": "bytes"}


class Problems:
    """The problems of one configuration, collected so that all are reported at once; ``names`` are paths as the user wrote them."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._found: dict[str, None] = {}
        self._names = names or {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, path: str, text: str) -> None:
        """Note one problem. Secrets in the text are masked here, once for all callers."""
        path = self._names.get(path, path)
        self._found[mask_text(f"{path}: {text}" if path else text)] = None

    def add_error(self, path: str, error: PenstockError) -> None:
        """Note the problems that a component found itself, each of its lines under this path."""
        for line in error.detail.splitlines():
            self.add("", f"{path}.{line}" if path else line)

    def text(self) -> str:
        """Return everything found, one problem per line."""
        return "\n".join(self._found)

    def raise_if_any(self) -> None:
        """Raise ``CONFIG_INVALID`` that lists everything found."""
        if self._found:
            raise PenstockError("CONFIG_INVALID", self.text())


def load(kind: type[T], data: Mapping[str, Any], path: str = "") -> T:
    """Build a settings dataclass from a tree; raise ``CONFIG_INVALID`` with every problem."""
    problems = Problems()
    built = read(kind, data, path, problems)
    problems.raise_if_any()
    return typing.cast("T", built)


def read(kind: type[T], data: Any, path: str, problems: Problems) -> T | None:
    """Build a settings dataclass and note problems; return None where there were any in it."""
    before = len(problems)
    built = _read_dataclass(kind, data, path, problems)
    return None if len(problems) > before else typing.cast("T", built)


def dump(settings: Any) -> dict[str, Any]:
    """Return the tree that ``load`` builds the same settings from; what has its default is left out."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value == _default(field):
            continue
        if field.metadata.get("flatten"):
            tree |= dump(value)
        elif dataclasses.is_dataclass(value):
            tree[key_of(field)] = dump(value)
        else:
            tree[key_of(field)] = _plain(value)
    return tree


def effective(settings: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key of settings with the value that holds, defaults included, as one would write it."""
    for field in dataclasses.fields(settings):
        value, key = getattr(settings, field.name), _join(path, key_of(field))
        if field.metadata.get("flatten"):
            yield from effective(value, path)
        elif dataclasses.is_dataclass(value):
            yield from effective(value, key)
        else:
            unit = _unit(field) if isinstance(value, int | float) and not isinstance(value, bool) else ""
            yield key, f"{value:g}{unit}" if unit in {"s", "ms"} else _plain(value)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees as one; where both have a value, ``over`` wins."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def key_of(field: dataclasses.Field[Any]) -> str:
    """Return the key under which a field stands in a configuration."""
    explicit = field.metadata.get("key")
    if explicit:
        return str(explicit)
    parts = field.name.split("_")
    if len(parts) > 1 and parts[-1] in {"s", "ms"}:
        parts = parts[:-1]
    return "-".join(parts)


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return the tree in which a value stands at a dotted path."""
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def _read_dataclass(kind: Any, data: Any, path: str, problems: Problems, *, asked: bool = True) -> Any:
    if isinstance(data, kind):
        return data
    if not isinstance(data, Mapping):
        problems.add(path, f"must be a table, not {values.shown(data)}")
        return _BAD
    known = known_keys(kind)
    for key in (key for key in data if key not in known):
        problems.add(_join(path, str(key)), f"unknown key{did_you_mean(str(key), known)}")
    fields, hints = [field for field in dataclasses.fields(kind) if field.init], _hints(kind)
    arguments = {field.name: _read_field(field, hints[field.name], data, path, problems) for field in fields}
    bad = [field for field in fields if arguments[field.name] is _BAD]
    if any(_default(field) is dataclasses.MISSING for field in bad):
        return _BAD
    # What is wrong besides is told as well, as if what could not be read had its default.
    return _construct(kind, {name: value for name, value in arguments.items() if value is not _BAD}, path, problems, asked)


def _construct(kind: Any, arguments: dict[str, Any], path: str, problems: Problems, asked: bool) -> Any:
    try:
        built = kind(**{name: value for name, value in arguments.items() if value is not dataclasses.MISSING})
    except PenstockError as error:
        problems.add_error(path, error)
        return _BAD
    except ValueError as error:
        problems.add(path, str(error))
        return _BAD
    found: list[tuple[str, str]] = list(built.problems()) if asked and hasattr(built, "problems") else []
    for key, text in found:
        problems.add(_join(path, key), text)
    return built


def _read_field(field: dataclasses.Field[Any], hint: Any, data: Mapping[str, Any], path: str, problems: Problems) -> Any:
    if field.metadata.get("flatten"):
        own = known_keys(hint)
        return _read_dataclass(hint, {key: value for key, value in data.items() if key in own}, path, problems)
    key = next((key for key in (key_of(field), field.metadata.get("alias")) if key in data), None)
    if key is None:
        if _default(field) is dataclasses.MISSING:
            problems.add(_join(path, key_of(field)), "is required")
            return _BAD
        return dataclasses.MISSING
    try:
        return _read_given(field, hint, data[key], _join(path, key), problems)
    except ValueError as error:
        problems.add(_join(path, key), str(error))
        return _BAD


def _read_given(field: dataclasses.Field[Any], hint: Any, raw: Any, path: str, problems: Problems) -> Any:
    if "parse" in field.metadata:
        return field.metadata["parse"](raw)
    if field.metadata.get("part"):
        return _read_dataclass(hint, raw, path, problems, asked=False)
    value = _read_value(hint, raw, path, _unit(field), problems)
    low, high = field.metadata.get("range", (None, None))
    if value is not _BAD and low is not None and not low <= value <= high:
        raise ValueError(f"must be between {low} and {high}, not {value}")
    return value


def _read_value(hint: Any, value: Any, path: str, unit: str, problems: Problems) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        choices = [a for a in arguments if a is not types.NoneType]
        if value is None or (len(choices) < len(arguments) and value == "" and str not in choices):
            return None
        return _read_value(choices[0], value, path, unit, problems)
    if origin in {tuple, list, frozenset}:
        return _read_list(hint, value, path, unit, problems)
    if dataclasses.is_dataclass(arguments[1] if origin is dict else hint):
        return _read_tables(hint, value, path, problems)
    try:
        return _scalar(hint, value, unit)
    except ValueError as error:
        problems.add(path, str(error))
        return _BAD


def _read_tables(hint: Any, value: Any, path: str, problems: Problems) -> Any:
    """Read a settings dataclass, or a table with any keys whose values are such."""
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, value, path, problems)
    kind = typing.get_args(hint)[1]
    return {key: _read_dataclass(kind, table, _join(path, key), problems) for key, table in values.parse_table(value).items()}


def _read_list(hint: Any, value: Any, path: str, unit: str, problems: Problems) -> Any:
    if isinstance(value, str):
        value = values.parse_list(value)
    if not isinstance(value, list | tuple):
        problems.add(path, f"must be a list, not {values.shown(value)}")
        return _BAD
    item_hint = (typing.get_args(hint) or (str,))[0]
    items = [_read_value(item_hint, item, f"{path}[{at}]", unit, problems) for at, item in enumerate(value)]
    return _BAD if any(item is _BAD for item in items) else (typing.get_origin(hint) or tuple)(items)


def _scalar(hint: Any, value: Any, unit: str) -> Any:
    if typing.get_origin(hint) is typing.Literal:
        if value in typing.get_args(hint):
            return value
        raise ValueError(f"must be one of {', '.join(map(str, typing.get_args(hint)))}, not {values.shown(value)}")
    if typing.get_origin(hint) is dict:
        return values.parse_table(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return values.parse_enum(hint, value)
    if unit == "bytes" and hint is int:
        return values.parse_size(value)
    if unit in {"s", "ms"} and hint in {int, float}:
        return hint(values.parse_duration(value, unit))
    parsers: dict[Any, Any] = {
        bool: values.parse_bool,
        int: values.parse_int,
        float: values.parse_float,
        str: values.parse_escaped if unit == "escaped" else values.parse_str,
        Path: values.parse_path,
    }
    if hint not in parsers:
        raise TypeError(f"the configuration cannot hold a {hint}")
    return parsers[hint](value)


def _unit(field: dataclasses.Field[Any]) -> str:
    explicit = field.metadata.get("unit")
    if explicit:
        return str(explicit)
    parts = field.name.split("_")
    if "bytes" in parts or parts[-1] == "size":
        return "bytes"
    return _UNIT_SUFFIXES.get(parts[-1], "none") if len(parts) > 1 else "none"


def known_keys(kind: Any) -> list[str]:
    """Return the keys that a settings dataclass takes."""
    hints = _hints(kind)
    keys: list[str] = []
    for field in dataclasses.fields(kind):
        if field.init:
            keys += known_keys(hints[field.name]) if field.metadata.get("flatten") else [key_of(field)]
            keys += [field.metadata["alias"]] if "alias" in field.metadata else []
    return keys


def dotted_keys(kind: Any, prefix: str = "") -> list[str]:
    """Return every key of a tree of settings, aliases included, with its path."""
    hints = _hints(kind)
    sections = {key_of(f): hints[f.name] for f in dataclasses.fields(kind) if dataclasses.is_dataclass(hints[f.name])}
    return [
        path
        for key in known_keys(kind)
        for path in (dotted_keys(sections[key], f"{prefix}{key}.") if key in sections else [f"{prefix}{key}"])
    ]


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the end of a message that names the nearest known words, with what stands before them, or nothing."""
    near = difflib.get_close_matches(word.lower().replace("_", "-"), list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(prefix + word for word in near)}?" if near else ""


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return dump(value) if dataclasses.is_dataclass(value) else value
