"""Changes as lines for people: when, what, which table, which values; in colours where there is a terminal. Runs in the server.

Invariants: a line has at most so many characters, and none that does something to a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.model.ddl import DdlEvent
from penstock.model.timestamp import to_datetime

_VALUE_CHARS_MAX, _LINE_CHARS_MAX = 60, 400
_MARKS = {"c": ("+", "\x1b[32m"), "u": ("~", "\x1b[33m"), "d": ("-", "\x1b[31m")}
_DDL, _DIM, _PLAIN = "\x1b[36m", "\x1b[2m", "\x1b[0m"


def change_line(event: Mapping[str, Any], *, colours: bool) -> str:
    """Return the line of a change, which stands as Debezium has it; of an update the values that it changed."""
    mark, colour = _MARKS[event["op"]]
    before, after = event["before"] or {}, event["after"] or {}
    row = after or before
    if event["op"] == "u" and before:
        values = [
            f"{name}={_shown(value)}" if before.get(name) == value else f"{name}={_shown(before.get(name))} -> {_shown(value)}"
            for at, (name, value) in enumerate(row.items())
            if at == 0 or before.get(name) != value
        ]
    else:
        values = [f"{name}={_shown(value)}" for name, value in row.items()]
    source = event["source"]
    return _line(source["commit_ts"], f"{mark} {source['db']}.{source['table']} {' '.join(values)}", colour if colours else "")


def ddl_line(event: DdlEvent, *, colours: bool) -> str:
    """Return the line of a DDL."""
    return _line(event.commit_ts, f"! {event.query}", _DDL if colours else "")


def more_line(rows: int, shown: int, *, colours: bool) -> str:
    """Return the line that says how many rows have none."""
    text = f"  … the last {shown:,} of {rows:,} rows"
    return f"{_DIM}{text}{_PLAIN}" if colours else text


def _line(commit_ts: int, text: str, colour: str) -> str:
    when = to_datetime(commit_ts).strftime("%H:%M:%S.%f")[:-3]
    text = "".join(char if char.isprintable() else " " for char in text)
    if len(text) > _LINE_CHARS_MAX:
        text = text[:_LINE_CHARS_MAX] + "…"
    return f"{_DIM}{when}{_PLAIN} {colour}{text}{_PLAIN}" if colour else f"{when} {text}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_CHARS_MAX else text[:_VALUE_CHARS_MAX] + "…"
