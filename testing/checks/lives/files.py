"""An independent reader of a storage target: what ``docs/storage-layout.md`` says, and nothing of the product's code.

Reads CSV, schema files, indexes and ``metadata`` from a folder and lives through them in the order of commit ts: a table is an object that
names point to, so a rename moves it, a swap moves two at once, and rows go to the table that their directory belongs to. Anything that the
document does not allow is ``UnreadableError``. Runs in tests.
"""

from __future__ import annotations

import base64
import bisect
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testing.checks.lives.comparable import Row, Value, comparable

_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$~]+)"
_FULL = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_PAIR = re.compile(rf"({_FULL})\s+TO\s+({_FULL})", re.IGNORECASE)
_ALTER_RENAME = re.compile(rf"ALTER\s+(?:IGNORE\s+)?TABLE\s+({_FULL})\s+(?:.*,\s*)?RENAME\s+(?:TO\s+|AS\s+)?({_FULL})\s*$", re.IGNORECASE)
_COLUMN_RENAMES = (
    re.compile(rf"RENAME\s+COLUMN\s+({_NAME})\s+TO\s+({_NAME})", re.IGNORECASE),
    re.compile(rf"CHANGE\s+(?:COLUMN\s+)?({_NAME})\s+({_NAME})", re.IGNORECASE),
)
_DROPPED = re.compile(rf"DROP\s+(?:COLUMN\s+)({_NAME})", re.IGNORECASE)
_ADDED = re.compile(rf"ADD\s+(?:COLUMN\s+)({_NAME})", re.IGNORECASE)
_CREATE, _DROP, _TRUNCATE, _RENAMES = 3, 4, 11, {14, 47}
_NUMBERS = ("INT", "DECIMAL", "BIT", "YEAR")
_BINARY = ("BINARY", "BLOB")
_NULL = object()
_ELSEWHERE = "\0"
"""Before the name of a table that went to another database, where no row of it is followed."""
_BELOW = 7
"""How far below the ts of a transaction its own schema changes may stand."""


class UnreadableError(AssertionError):
    """The files break a rule of the document."""


@dataclasses.dataclass
class FileColumn:
    """A column of one version. ``key`` is what it goes on by."""

    name: str
    key: str
    type: str
    primary: bool
    nullable: bool
    virtual: bool
    default: Value

    @property
    def family(self) -> str:
        """Return the family of its type."""
        if any(b in self.type for b in _BINARY):
            return "bytes"
        if self.type.startswith("FLOAT"):
            return "float"
        if self.type.startswith("DOUBLE"):
            return "double"
        if any(n in self.type for n in _NUMBERS):
            return "number"
        return "time" if self.type.startswith(("DATE", "TIME")) else "text"


@dataclasses.dataclass
class FileTable:
    """A table through all its names: rows are values by column key."""

    columns: list[FileColumn]
    version: int
    unique: list[list[str]]
    rekeyed: bool = False
    """Whether it got another key: until it is corrected, rows from before it may be alike in the new one."""
    rows: list[dict[str, Value]] = dataclasses.field(default_factory=list)
    by_key: dict[Row, dict[str, Value]] = dataclasses.field(default_factory=dict)

    def handle(self) -> list[str]:
        """Return the columns that name a row; empty where copies count."""
        primary = [c.key for c in self.columns if c.primary]
        if primary:
            return primary
        never_null = {c.name: c.key for c in self.columns if not c.nullable and not c.virtual}
        return next(([never_null[n] for n in key] for key in self.unique if all(n in never_null for n in key)), [])

    def all_rows(self) -> list[dict[str, Value]]:
        """Return the rows."""
        return list(self.by_key.values()) if self.handle() else self.rows

    def shown(self) -> Counter[Row]:
        """Return how often each row is there, columns in their order, virtual ones left out."""
        keys = [c.key for c in self.columns if not c.virtual]
        return Counter(tuple(row.get(k) for k in keys) for row in self.all_rows())


@dataclasses.dataclass
class _Version:
    name: str
    number: int
    type: int
    query: str
    columns: list[FileColumn]
    unique: list[list[str]]


def read_target(folder: Path, schema: str, *, strict: bool = True) -> dict[str, FileTable]:
    """Return the tables of a database at the target's checkpoint.

    ``strict`` where no table was ever in doubt: an insert then makes a row, an update or delete finds one.
    """
    limit = _checkpoint_ts(folder)
    versions = [_version(p) for p in sorted((folder / schema).glob("*/meta/schema_*.json"))]
    versions += _left(folder, schema)
    versions = sorted((v for v in versions if v.number <= limit), key=lambda v: (v.number, v.type not in _RENAMES))
    by_place = {(v.name, v.number): v for v in versions}
    changes: dict[str, list[int]] = {}
    for version in versions:
        for concerned in {version.name, *([_origin(version)] if version.type in _RENAMES else [])}:
            changes.setdefault(concerned, []).append(version.number)
    events: list[tuple[tuple[int, int, int, int], Any]] = [((v.number, v.number, 0, at), v) for at, v in enumerate(versions)]
    for at, (name, number, line, ts) in enumerate(published_lines(folder, schema)):
        if (name, number) not in by_place:
            raise UnreadableError(f"{name}/{number} has rows and no schema file")
        # A transaction that wrote, altered and wrote again: its rows of the older version come before the next one, whatever their ts.
        numbers = changes[name]
        later = bisect.bisect_right(numbers, max(number, ts - _BELOW - 1))
        place = numbers[later] if later < len(numbers) and numbers[later] < ts else ts
        events.append(((place, number, -1 if place < ts else 1, at), (by_place[name, number], ts, line)))
    tables = _live(sorted(events, key=lambda e: e[0]), strict=strict)
    return {name: table for name, table in tables.items() if not name.startswith(_ELSEWHERE)}


def _left(folder: Path, schema: str) -> list[_Version]:
    """Return the renames by which tables of a database went to another one."""
    found = []
    for path in sorted(folder.glob("*/*/meta/schema_*.json")):
        if path.relative_to(folder).parts[0] != schema:
            version = _version(path)
            version.name = _ELSEWHERE + version.name
            if version.type in _RENAMES and re.search(rf"TABLE\s+[`\"]?{schema}[`\"]?\s*\.", version.query, re.IGNORECASE):
                found.append(version)
    return found


def _live(events: list[tuple[tuple[int, int, int, int], Any]], *, strict: bool) -> dict[str, FileTable]:
    names: dict[str, FileTable] = {}
    at = 0
    while at < len(events):
        event = events[at][1]
        if isinstance(event, _Version):
            beside = [event]
            while at + 1 < len(events) and isinstance(events[at + 1][1], _Version) and events[at + 1][1].number == event.number:
                at += 1
                beside.append(events[at][1])
            _restructure(names, beside)
        else:
            version, ts, line = event
            table = names.get(version.name)
            if table is None or table.version != version.number:
                raise UnreadableError(f"a row at {ts} of {version.name}/{version.number}, where the name means {table and table.version}")
            _apply(version, table, line, strict=strict and not table.rekeyed)
        at += 1
    return names


def _restructure(names: dict[str, FileTable], versions: list[_Version]) -> None:
    renames = [v for v in versions if v.type in _RENAMES]
    moved = []
    for version in renames:
        origin = _origin(version)
        if origin not in names:
            raise UnreadableError(f"{version.name}/{version.number} comes from {origin}, which is not there: {version.query}")
        moved.append((version, origin, names[origin]))
    for _, origin, _ in moved:
        names.pop(origin, None)
    for version, _, table in moved:
        names[version.name] = table
        _reshape(table, version)
    for version in versions:
        if version.type in _RENAMES:
            continue
        known = names.get(version.name)
        if version.type == _DROP or not version.columns:
            names.pop(version.name, None)
        elif known is None or version.type == _CREATE:
            names[version.name] = FileTable(version.columns, version.number, version.unique)
        else:
            if version.type == _TRUNCATE:
                known.rows, known.by_key = [], {}
            _reshape(known, version)


def _reshape(table: FileTable, version: _Version) -> None:
    rows, handle = table.all_rows(), table.handle()
    _carry_on(table.columns, version)
    # No line has a value of a virtual column, so no row has one: equal rows are told by all that a row has.
    stored = [c for c in version.columns if not c.virtual]
    fresh = [c for c in stored if c.key not in {k.key for k in table.columns if not k.virtual}]
    kept = {c.key for c in stored}
    rows = [{k: v for k, v in row.items() if k in kept} | {c.key: c.default for c in fresh} for row in rows]
    types = {c.key: c.family for c in version.columns}
    rows = [{k: comparable(types[k], v) for k, v in row.items()} for row in rows]
    table.columns, table.version, table.unique = version.columns, version.number, version.unique
    table.rows, table.by_key = [], {}
    table.rekeyed |= table.handle() != handle
    for row in rows:
        _put(table, row)


def _carry_on(before: list[FileColumn], version: _Version) -> None:
    """Give the columns of a version without ids the keys of those that they go on from."""
    if any(c.key.startswith("#") for c in version.columns):
        return
    query = version.query.lower()
    renamed = {_bare(new): _bare(old) for p in _COLUMN_RENAMES for old, new in p.findall(query)}
    # A name that another column had before: it was dropped, or is called otherwise now.
    left = {_bare(n) for n in _DROPPED.findall(query)} | set(renamed.values())
    again = left & {_bare(n) for n in _ADDED.findall(query)}
    keys = {c.name.lower(): c.key for c in before}
    for column in version.columns:
        name = column.name.lower()
        origin = renamed.get(name, name)
        column.key = f"{name}@{version.number}" if name in again and name not in renamed else keys.get(origin, f"{name}@{version.number}")


def _apply(version: _Version, table: FileTable, line: list[Value], *, strict: bool) -> None:
    columns = [c for c in version.columns if not c.virtual]
    if len(line) != len(columns) + 4:
        raise UnreadableError(f"{len(line) - 4} values for {len(columns)} columns of {version.name}/{version.number}: {line}")
    row = {c.key: _value(c, v) for c, v in zip(columns, line[4:], strict=True)}
    handle = table.handle()
    key = tuple(row[k] for k in handle)
    if line[0] == "D":
        if handle:
            # A key that one transaction inserted and deleted again gives its delete.
            table.by_key.pop(key, None)
            return
        if row in table.rows:
            table.rows.remove(row)
        elif strict:
            raise UnreadableError(f"a delete of a copy that is not there: {version.name}/{version.number} {line}")
        return
    if line[0] == "U" and not handle:
        raise UnreadableError(f"an update of a table without a key: {version.name}/{version.number} {line}")
    if (line[0] == "U") != (key in table.by_key) and handle and strict:
        raise UnreadableError(f"not the change of this row: {version.name}/{version.number} {line}")
    _put(table, row)


def _put(table: FileTable, row: dict[str, Value]) -> None:
    handle = table.handle()
    if handle:
        table.by_key[tuple(row.get(k) for k in handle)] = row
    else:
        table.rows.append(row)


def _value(column: FileColumn, text: Value) -> Value:
    if text is None:
        return None
    return base64.b64decode(text) if column.family == "bytes" else comparable(column.family, text)


def _version(path: Path) -> _Version:
    document = json.loads(path.read_bytes())
    columns = [_column(c) for c in document["TableColumns"] or ()]
    return _Version(
        document["Table"],
        int(document["TableVersion"]),
        int(document["Type"]),
        document["Query"],
        columns,
        document.get("UniqueKeys") or [],
    )


def _column(raw: dict[str, Any]) -> FileColumn:
    key = f"#{raw['ColumnId']}" if "ColumnId" in raw else raw["ColumnName"].lower()
    nullable = raw.get("ColumnNullable") != "false"
    column = FileColumn(
        raw["ColumnName"], key, raw["ColumnType"], raw.get("ColumnIsPk") == "true", nullable, raw.get("ColumnGenerated") == "VIRTUAL", None
    )
    column.default = _initial(column, raw)
    return column


def _initial(column: FileColumn, raw: dict[str, Any]) -> Value:
    """Return what rows from before a column show in it."""
    text = raw.get("ColumnInitialDefault", raw.get("ColumnDefault", _NULL))
    if text is None:
        return None
    if text is _NULL:
        if column.nullable:
            return None
        text = {"number": "0", "float": "0", "double": "0", "bytes": ""}.get(column.family, "")
        text = raw.get("ColumnElems", [""])[0] if column.type == "ENUM" else text
    if column.type.startswith("BIT") and str(text).startswith("b'"):
        text = str(int(text[2:-1] or "0", 2))
    shown = comparable(column.family, text)
    return None if isinstance(shown, str) and shown.startswith("unreadable") else shown


def _origin(version: _Version) -> str:
    """Return the name that a table had before a rename; one statement may go through several names."""
    found = _ALTER_RENAME.search(version.query)
    pairs = [found.groups()] if found else _PAIR.findall(version.query)
    origins: dict[str, str] = {}
    for old, new in pairs:
        origins[_bare(new)] = origins.pop(_bare(old), _bare(old))
    name = version.name.removeprefix(_ELSEWHERE)
    if name not in origins:
        raise UnreadableError(f"{name}/{version.number} does not say from where: {version.query}")
    return origins[name]


def _bare(name: str) -> str:
    last: str = re.findall(_NAME, name)[-1]
    return last[1:-1].replace(last[0] * 2, last[0]) if last[0] in '`"' else last


def _checkpoint_ts(folder: Path) -> int:
    return int(json.loads((folder / "metadata").read_bytes())["checkpoint-ts"])


def published_lines(target: Path, schema: str) -> Iterator[tuple[str, int, list[Value], int]]:
    """Yield table, version, fields and ts of every published line up to the checkpoint, file after file."""
    limit, folder = _checkpoint_ts(target), target / schema
    for index in sorted(folder.glob("*/*/**/meta/CDC*.index")):
        last = index.read_text().strip()
        stem = re.fullmatch(r"(CDC.*?)(\d+)(\.csv)", last)
        if stem is None:
            raise UnreadableError(f"{index} names {last}")
        place = index.parent.parent
        name, number = place.relative_to(folder).parts[:2]
        for at in range(1, int(stem[2]) + 1):
            path = place / f"{stem[1]}{at:0{len(stem[2])}d}{stem[3]}"
            for line in split_csv(path.read_bytes().decode("utf-8", "surrogateescape")):
                ts = int(str(line[3]))
                if ts <= limit:
                    yield name, int(number), line, ts


def split_csv(text: str) -> Iterator[list[Value]]:
    r"""Yield the fields of each line; NULL is ``\N`` without quotes."""
    line: list[Value] = []
    at, size = 0, len(text)
    while at < size:
        if text[at] == '"':
            end = at + 1
            while text[end] != '"' or text[end + 1 : end + 2] == '"':
                end += 2 if text[end] == '"' else 1
            line.append(text[at + 1 : end].replace('""', '"'))
            at = end + 1
        else:
            end = min(e for e in (text.find(",", at), text.find("\r\n", at), size) if e >= 0)
            line.append(None if text[at:end] == "\\N" else text[at:end])
            at = end
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 2] == "\r\n":
            yield line
            at, line = at + 2, []
        else:
            raise UnreadableError(f"neither a delimiter nor a line's end: {text[at : at + 20]!r}")
