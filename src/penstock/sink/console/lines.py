"""Changes as lines for people: when, what, which table, which values; in colours where there is a terminal. Runs in the server.

Invariants: a line has at most so many characters, on a terminal no more than fit in its width (some take two places), and none that does
something to a terminal: controls, and what turns the direction of text, are spaces.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from penstock.model.ddl import DdlEvent
from penstock.model.timestamp import to_datetime

_VALUE_CHARS_MAX, _LINE_CHARS_MAX = 60, 400
_MARKS = {"c": ("+", "\x1b[32m"), "u": ("~", "\x1b[33m"), "d": ("-", "\x1b[31m")}
_DDL, _DIM, _PLAIN = "\x1b[36m", "\x1b[2m", "\x1b[0m"


class Look(NamedTuple):
    """How lines look: whether they have colours, and how many places they may take; 0 where that does not matter."""

    colours: bool = False
    width: int = 0


def change_line(event: Mapping[str, Any], look: Look, key: Collection[str] = ()) -> str:
    """Return the line of a change, which stands as Debezium has it; of an update the row's key and the values that it changed."""
    mark, colour = _MARKS[event["op"]]
    before, after = event["before"] or {}, event["after"] or {}
    row = after or before
    if event["op"] == "u" and before:
        values = [
            f"{name}={_shown(value)}" if before.get(name) == value else f"{name}={_shown(before.get(name))} -> {_shown(value)}"
            for name, value in row.items()
            if _tells(name, row, before, key)
        ]
    else:
        values = [f"{name}={_shown(value)}" for name, value in row.items()]
    source = event["source"]
    return _line(source["commit_ts"], f"{mark} {source['db']}.{source['table']} {' '.join(values)}", colour, look)


def shortened(text: str, key: Collection[str]) -> str:
    """Return a change in JSON without what its line does not show: the rest of long values, and columns behind the line's end."""
    event = json.loads(text)
    before, after = event["before"] or {}, event["after"] or {}
    row, size, kept = after or before, 0, {}
    for name, value in row.items():
        if not (before and after) or _tells(name, row, before, key):
            # What was changed behind the cut stays changed.
            kept[name] = "" if before.get(name, value) == value else "~"
            size += len(name) + min(len(str(value)), _VALUE_CHARS_MAX)
        if size > _LINE_CHARS_MAX:
            break
    for side, mark in (("before", ""), ("after", "~")):
        if event[side]:
            event[side] = {name: _cut(event[side].get(name), mark and changed) for name, changed in kept.items()}
    return json.dumps(event, ensure_ascii=False)


def ddl_line(event: DdlEvent, look: Look) -> str:
    """Return the line of a DDL."""
    return _line(event.commit_ts, f"! {event.query}", _DDL, look)


def more_line(rows: int, shown: int, look: Look) -> str:
    """Return the line that says how many rows have none."""
    text = _fitting(f"  … the last {shown:,} of {rows:,} rows", look.width)
    return f"{_DIM}{text}{_PLAIN}" if look.colours else text


def _line(commit_ts: int, text: str, colour: str, look: Look) -> str:
    when = to_datetime(commit_ts).strftime("%H:%M:%S.%f")[:-3]
    text = "".join(char if char.isprintable() else " " for char in text)
    if len(text) > _LINE_CHARS_MAX:
        text = text[:_LINE_CHARS_MAX] + "…"
    text = _fitting(f"{when} {text}", look.width)
    if not look.colours:
        return text
    at = len(when) + 1
    return f"{_DIM}{text[:at]}{_PLAIN}{colour}{text[at:]}{_PLAIN}"


def _fitting(text: str, width: int) -> str:
    """Return a text cut to a number of places, with a sign that it was cut; one place stays free, so that no terminal begins a new line."""
    places, kept = 0, 0
    for at, char in enumerate(text if width else ""):
        places += 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if places >= width:
            return f"{text[:kept]}…" if width > 1 else ""
        if places < width - 1:
            kept = at + 1
    return text


def _tells(name: str, row: Mapping[str, Any], before: Mapping[str, Any], key: Collection[str]) -> bool:
    """Return whether a column of an update is shown: it was changed, or says which row it is."""
    return before.get(name) != row[name] or (name in key if key else name == next(iter(row)))


def _cut(value: Any, mark: str) -> Any:
    is_long = isinstance(value, str) and len(value) > _VALUE_CHARS_MAX
    return value[:_VALUE_CHARS_MAX] + mark if is_long else value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_CHARS_MAX else text[:_VALUE_CHARS_MAX] + "…"
