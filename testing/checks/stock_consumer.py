"""A model of the storage consumer that TiCDC ships, for it cannot run here: the rules by which it reads a target, and nothing of ours.

It finds files by its own patterns, checks what the original checks and fails where the original ends itself. Each rule has a number that
docs/storage-layout.md explains; ``RULES`` lists them. It shares no code with the encoders, decoders and paths of Penstock, so that a
mistake there is not repeated here. Knows CSV in its default dialect and Canal-JSON. Runs in tests.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from penstock.target.storage import ObjectTarget

RULES = {
    "R1": "a data file's name has at least six digits before its extension, and numbers have one width",
    "R2": "metadata holds checkpoint-ts as compact JSON; versions beyond it are left for later",
    "R3": "a schema file's name has the version and ten digits of the checksum that its content gives when it is written out again",
    "R4": "TableVersion in a schema file is the version in its name; TableColumnsTotal is a number and counts the columns",
    "R5": "an index holds one base name and a line feed, with the dispatcher of its own name",
    "R6": "every number from 1 to the indexed one has a file",
    "R7": "a schema file is there for the version of every data directory that has an index",
    "R8": "steps are ordered by version, schema files before data, then partition, date and names; a DDL with a text runs once",
    "R9": "rows of one table never go back in commit ts from file to file, unless the file's name has a dispatcher",
    "R10": "a CSV row has as many fields as the schema file has columns, after operation, table, schema and commit ts",
    "R11": "a Canal-JSON file is messages, each ended by the terminator, none of whose bytes stands inside a message; commitTs is there",
    "R12": "ColumnType is a known name; UNSIGNED and binary kinds are told by parts of it",
}
_SCHEMA_NAME = re.compile(r"^schema_([0-9]+)_([0-9]{10})\.json$")
_TYPES = frozenset(
    {
        *("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "BIT", "YEAR", "DATE"),
        *("DATETIME", "TIMESTAMP", "TIME", "CHAR", "VARCHAR", "VAR_STRING", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "TINYBLOB"),
        *("BLOB", "MEDIUMBLOB", "LONGBLOB", "BINARY", "VARBINARY", "ENUM", "SET", "JSON", "VECTOR", "GEOMETRY", "NULL"),
    }
)
_COLUMN_KEYS = (
    *("ColumnId", "ColumnName", "ColumnType", "ColumnDefault", "ColumnPrecision"),
    *("ColumnScale", "ColumnNullable", "ColumnIsPk", "ColumnElems"),
)


class Refused(Exception):  # noqa: N818 - what happened, not a class of errors
    """The original would end itself here; the text begins with the rule."""


@dataclass(frozen=True, slots=True)
class Applied:
    """One thing that the consumer did: a DDL's text, or a row with its operation, commit ts and values as they stand in the file."""

    table: str
    what: str
    commit_ts: int
    values: tuple[Any, ...] = ()


@dataclass
class StockConsumer:
    """Reads one target in rounds. ``separated`` says whether data directories have a date level."""

    target: ObjectTarget
    extension: str = ".csv"
    file_index_width: int = 20
    separated: bool = True
    terminator: str = "\r\n"
    applied: list[Applied] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._done: dict[str, int] = {}
        self._schemas: dict[tuple[str, str, int], dict[str, Any]] = {}
        self._ddl_watermark: dict[str, int] = defaultdict(int)
        self._row_watermark: dict[str, int] = defaultdict(int)

    def run_round(self) -> int:
        """Apply all that is new up to the checkpoint; return how many steps there were."""
        checkpoint = self._checkpoint()
        steps: list[tuple[tuple[int, int, str, str, str, str], str]] = []
        for path in self.target.paths():
            found = self._order_of(path)
            if found is not None and found[0] <= checkpoint:
                steps.append((found, path))
        for (version, *_), path in sorted(steps):
            if path.endswith(".json"):
                self._apply_schema(path, version)
            else:
                self._apply_index(path, version)
        return len(steps)

    def _checkpoint(self) -> int:
        text = self.target.get("metadata").decode()
        if re.fullmatch(r'\{"checkpoint-ts":[0-9]+\}', text) is None:
            raise Refused(f"R2: {text!r}")
        return int(json.loads(text)["checkpoint-ts"])

    def _order_of(self, path: str) -> tuple[int, int, str, str, str, str] | None:
        """Return where a file stands in the order of steps; None for what the consumer does not look at."""
        *levels, name = path.split("/")
        schema_name = _SCHEMA_NAME.match(name)
        if schema_name is not None and levels[-1:] == ["meta"] and len(levels) in {2, 3}:
            return int(schema_name[1]), -1, "", levels[0], levels[1] if len(levels) == 3 else "", name
        if not name.endswith(".index") or levels[-1:] != ["meta"]:
            return None
        rest = levels[3:-1]
        date = rest.pop() if self.separated else ""
        partition = int(rest.pop()) if rest else 0
        if rest:
            raise Refused(f"R8: {path} has levels that no option explains")
        return int(levels[2]), partition, date, levels[0], levels[1], name

    def _apply_schema(self, path: str, version: int) -> None:
        content = self.target.get(path)
        document = json.loads(content)
        match = _SCHEMA_NAME.match(path.rpartition("/")[2])
        assert match is not None
        if document["TableVersion"] != version:
            raise Refused(f"R4: {path}: TableVersion {document['TableVersion']}")
        columns = document["TableColumns"] or []
        if document["TableColumnsTotal"] != len(columns):
            raise Refused(f"R4: {path}: TableColumnsTotal {document['TableColumnsTotal']!r}")
        if f"{_checksum(document):010d}" != match[2]:
            raise Refused(f"R3: {path}: the checksum is {_checksum(document):010d}")
        for column in columns:
            if column["ColumnType"].removesuffix(" UNSIGNED") not in _TYPES:
                raise Refused(f"R12: {path}: {column['ColumnType']}")
        name = f"{document['Schema']}.{document['Table']}"
        key = (document["Schema"], document["Table"], version)
        if key in self._schemas:
            return
        self._schemas[key] = document
        if document["Query"] and version > self._ddl_watermark[name]:
            self._ddl_watermark[name] = version
            self.applied.append(Applied(name, document["Query"], version))

    def _apply_index(self, path: str, version: int) -> None:
        directory, _, name = path.rpartition("/meta/")
        schema, table = directory.split("/")[:2]
        if (schema, table, version) not in self._schemas:
            raise Refused(f"R7: {path}: no schema file of this version")
        content = self.target.get(path).decode()
        if content.count("\n") != 1 or not content.endswith("\n"):
            raise Refused(f"R5: {path}: {content!r}")
        dispatcher, last = self._parsed_name(content[:-1])
        if name != (f"CDC_{dispatcher}.index" if dispatcher else "CDC.index"):
            raise Refused(f"R5: {path} names a file of dispatcher {dispatcher!r}")
        for number in range(self._done.get(path, 0) + 1, last + 1):
            infix = f"_{dispatcher}_" if dispatcher else ""
            data = f"{directory}/CDC{infix}{number:0{self.file_index_width}d}{self.extension}"
            if not self.target.exists(data):
                raise Refused(f"R6: {data} is not there")
            if version >= self._ddl_watermark[f"{schema}.{table}"]:
                self._apply_rows(data, self._schemas[schema, table, version], bool(dispatcher), directory)
        self._done[path] = max(last, self._done.get(path, 0))

    def _parsed_name(self, name: str) -> tuple[str, int]:
        middle = name.removeprefix("CDC").removesuffix(self.extension)
        if len(name) < 3 + 6 + len(self.extension) or len(middle) + 3 + len(self.extension) != len(name):
            raise Refused(f"R1: {name}")
        dispatcher = ""
        if middle.startswith("_"):
            dispatcher, _, middle = middle[1:].rpartition("_")
        if not middle.isdigit() or len(middle) != self.file_index_width:
            raise Refused(f"R1: {name}")
        return dispatcher, int(middle)

    def _apply_rows(self, path: str, schema: dict[str, Any], dispatched: bool, directory: str) -> None:
        name = f"{schema['Schema']}.{schema['Table']}"
        watermark = f"{name}.{directory.split('/')[3] if len(directory.split('/')) > 3 + self.separated else ''}"
        content = self.target.get(path)
        rows = self._csv_rows(path, schema, content) if self.extension == ".csv" else self._canal_rows(path, content)
        for commit_ts, what, values in rows:
            if commit_ts < self._row_watermark[watermark] and not dispatched:
                raise Refused(f"R9: {path}: a row of {commit_ts} after one of {self._row_watermark[watermark]} is dropped")
            self._row_watermark[watermark] = max(commit_ts, self._row_watermark[watermark])
            self.applied.append(Applied(name, what, commit_ts, values))

    def _csv_rows(self, path: str, schema: dict[str, Any], content: bytes) -> list[tuple[int, str, tuple[Any, ...]]]:
        rows = []
        for row in csv.reader(io.StringIO(content.decode(), newline=""), strict=True):
            if len(row) != 4 + schema["TableColumnsTotal"] or row[:3] != [row[0], schema["Table"], schema["Schema"]] or row[0] not in "IUD":
                raise Refused(f"R10: {path}: {len(row)} fields for {schema['TableColumnsTotal']} columns")
            rows.append((int(row[3]), row[0], tuple(row[4:])))
        return rows

    def _canal_rows(self, path: str, content: bytes) -> list[tuple[int, str, tuple[Any, ...]]]:
        rows, end, at = [], self.terminator.encode(), 0
        while at < len(content):
            stop = min((p for p in (content.find(bytes([b]), at) for b in end) if p >= 0), default=-1)
            if stop < 0 or content[stop : stop + len(end)] != end:
                raise Refused(f"R11: {path}: a message without its terminator at byte {at}")
            message = json.loads(content[at:stop])
            if "commitTs" not in message.get("_tidb", {}) or message["isDdl"]:
                raise Refused(f"R11: {path}: no commitTs, or a DDL, at byte {at}")
            rows.append((int(message["_tidb"]["commitTs"]), message["type"][0], tuple(message["data"][0].values())))
            at = stop + len(end)
        return rows


def _checksum(document: dict[str, Any]) -> int:
    """Return the checksum as the original does: of the parsed content, written out again with what its structures know."""
    columns = [{k: c[k] for k in _COLUMN_KEYS if k in c} for c in document["TableColumns"] or []]
    columns.sort(key=lambda c: str(c["ColumnName"]).encode())
    again = {
        "Table": document["Table"],
        "Schema": document["Schema"],
        "Version": 0,
        "TableColumns": columns,
        "TableColumnsTotal": len(columns),
    }
    text = json.dumps(again, indent=4, ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return zlib.crc32(text.encode())
