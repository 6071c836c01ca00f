"""What lies where in a target: names in paths, the checkpoint, schema files, index files and the data files that they name.

It knows the sections "Paths", "metadata", "Index file" and "Schema file" of the document, and runs in tests.
Invariant: it never looks at a data file that no index names.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_FILE = re.compile(r"schema_(\d+)_(\d{10})\.json")
INDEX_FILE = re.compile(r"CDC(?:_(\d+))?\.index")
DATA_FILE = re.compile(r"(CDC(?:_\d+_)?)(\d{6,20})(\..+)")
ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")

DATES = {"none": None, "year": re.compile(r"\d{4}"), "month": re.compile(r"\d{4}-\d{2}"), "day": re.compile(r"\d{4}-\d{2}-\d{2}")}


@dataclass(frozen=True)
class SchemaFile:
    """One schema file: a step at the ts that is its version."""

    schema: str
    table: str
    version: int
    kind: int
    query: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Index:
    """The data files of one directory, or of one dispatcher in it."""

    schema: str
    table: str
    version: int
    partition: int | None
    date: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class PartitionRecord:
    """Which physical partitions a table has from a version on."""

    schema: str
    table: str
    version: int
    live: frozenset[int]
    made: frozenset[int]
    dropped: frozenset[int]
    inherits: bool


def name_of(part: str) -> str:
    """Return the name of a database or table from its part of a path."""
    if part == "%":
        return ""
    return ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), part.encode()).decode()


def checkpoint(root: Path) -> tuple[int, dict[str, str]]:
    """Return the checkpoint and the tables for which it does not hold; 0 where there is none yet."""
    path = root / "metadata"
    if not path.exists():
        return 0, {}
    content = json.loads(path.read_bytes())
    return int(content["checkpoint-ts"]), dict(content.get("not-covered", {}))


def _files(root: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """All files of the target with the parts of their paths, without those of `.penstock`."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if parts[0] != ".penstock" and path.is_file():
            yield path, parts


def schema_files(root: Path) -> list[SchemaFile]:
    """List the schema files of all tables and databases."""
    found = []
    for path, parts in _files(root):
        match = SCHEMA_FILE.fullmatch(parts[-1])
        if match is None or len(parts) not in (3, 4) or parts[-2] != "meta":
            continue
        content = json.loads(path.read_bytes())
        schema, table = name_of(parts[0]), name_of(parts[1]) if len(parts) == 4 else ""
        if (content["Schema"], content["Table"], content["TableVersion"]) != (schema, table, int(match[1])):
            raise ValueError(f"{path} does not describe what its name says")
        found.append(SchemaFile(schema, table, int(match[1]), content["Type"], content["Query"], content))
    return found


def _place(between: tuple[str, ...], separator: str, dispatcher: str | None) -> tuple[int | None, str]:
    """Tell partition and date from the levels between the version and `meta`; from the dispatcher where the partition has no level."""
    date, levels = "", list(between)
    pattern = DATES[separator]
    if pattern is not None:
        date = levels.pop()
        if not pattern.fullmatch(date):
            raise ValueError(f"{date} is no date of the separator {separator}")
    if levels:
        (partition,) = levels
        return int(partition), date
    return (int(dispatcher[:-4]) if dispatcher else None), date


def indexes(root: Path, separator: str) -> list[Index]:
    """List the index files with the data files from 1 to the number that each names."""
    found = []
    for path, parts in _files(root):
        match = INDEX_FILE.fullmatch(parts[-1])
        if match is None or len(parts) < 5 or parts[-2] != "meta":
            continue
        partition, date = _place(parts[3:-2], separator, match[1])
        last = DATA_FILE.fullmatch(path.read_text().strip())
        if last is None:
            raise ValueError(f"{path} names no data file")
        prefix, number, extension = last.groups()
        files = tuple(path.parent.parent / f"{prefix}{n:0{len(number)}d}{extension}" for n in range(1, int(number) + 1))
        found.append(Index(name_of(parts[0]), name_of(parts[1]), int(parts[2]), partition, date, files))
    return found


def partition_records(root: Path) -> list[PartitionRecord]:
    """Read what `.penstock/partitions` tells."""
    found = []
    for path in sorted((root / ".penstock" / "partitions").glob("*.json")):
        record = json.loads(path.read_bytes())
        live, made, dropped = (frozenset(record[name]) for name in ("live", "made", "dropped"))
        found.append(PartitionRecord(record["schema"], record["table"], record["version"], live, made, dropped, record["inherits"]))
    return found
