"""Paths of the storage layout: where data, index, schema and checkpoint objects lie below a target's prefix.

Owns the way from (table version, partition, commit date, dispatcher, number) to an object path and back. Invariants: every path that
``Layout`` builds parses back to what it was built from; no name, however odd, leads outside the prefix or onto an object of another
kind; the date is the UTC date of the commit ts, so a replay finds the same directory. Runs anywhere.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

import numpy as np

from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import LOGICAL_BITS, physical_ms

METADATA_PATH = "metadata"
OWNER_DIR = ".penstock"
OWNER_PATH = ".penstock/feed.json"
INDEX_WIDTH_MIN = 6
INDEX_WIDTH_MAX = 20
DAY_MS = 86_400_000

_RESERVED_SCHEMAS = frozenset({METADATA_PATH, OWNER_DIR})
_SCHEMA_FILE = re.compile(r"schema_(\d+)_(\d{10})\.json\Z", re.ASCII)
_DATA_FILE = re.compile(r"CDC(?:_(\d+)_)?(\d{6,20})(\.[a-z0-9.]+)\Z", re.ASCII)
_INDEX_FILE = re.compile(r"CDC(?:_(\d+))?\.index\Z", re.ASCII)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\]|%(?=[0-9A-Fa-f]{2})")
_DIGITS = re.compile(r"\d+\Z", re.ASCII)
_SPAN_DIGITS = 4


class DateSeparator(StrEnum):
    """How finely data directories are divided by commit date."""

    NONE = "none"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"


_DATE_TEXT = {
    DateSeparator.NONE: re.compile(r"(?!)"),
    DateSeparator.YEAR: re.compile(r"\d{4}\Z"),
    DateSeparator.MONTH: re.compile(r"\d{4}-\d{2}\Z"),
    DateSeparator.DAY: re.compile(r"\d{4}-\d{2}-\d{2}\Z"),
}
_DATE_LENGTH = {DateSeparator.NONE: 0, DateSeparator.YEAR: 4, DateSeparator.MONTH: 7, DateSeparator.DAY: 10}


@dataclass(frozen=True, slots=True, order=True)
class DataDir:
    """One directory of data files. ``partition`` is 0 and ``date`` is empty where the path has no such level."""

    schema: str
    table: str
    version: int
    partition: int = 0
    date: str = ""


@dataclass(frozen=True, slots=True)
class DataPath:
    """A data file: its directory, the dispatcher in its name (empty where only one writes there), its number."""

    dir: DataDir
    dispatcher: str
    number: int


@dataclass(frozen=True, slots=True)
class IndexPath:
    """An index file: the directory and dispatcher whose last number it holds."""

    dir: DataDir
    dispatcher: str


@dataclass(frozen=True, slots=True)
class SchemaPath:
    """A schema file; ``table`` is empty for a database."""

    schema: str
    table: str
    version: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The options that shape paths, and the paths."""

    date_separator: DateSeparator = DateSeparator.DAY
    file_index_width: int = INDEX_WIDTH_MAX
    enable_partition_separator: bool = True
    extension: str = ".csv"

    def data_dir(self, table: TableSchema, version: int, commit_ts: int) -> DataDir:
        """Return the directory of a row of this table that was committed at this ts."""
        partition = table.partition_id if self.enable_partition_separator else 0
        return DataDir(table.schema, table.table, version, partition, self.date_text(commit_ts))

    def dispatcher_text(self, table_id: int, span: int, spans: int, partition_id: int = 0) -> str:
        """Return the dispatcher id that stands in file names: empty unless several dispatchers write into one directory."""
        beside = spans > 1 or (partition_id and not self.enable_partition_separator)
        return f"{table_id}{span:0{_SPAN_DIGITS}d}" if beside else ""

    def partition_of(self, directory: DataDir, dispatcher: str) -> int:
        """Return of which physical partition files are, 0 where the table may not have any."""
        return directory.partition if self.enable_partition_separator else int(dispatcher[:-_SPAN_DIGITS] or 0)

    def date_text(self, commit_ts: int) -> str:
        """Return the date level of a commit ts, in UTC; empty where dates are not separated."""
        if self.date_separator is DateSeparator.NONE:
            return ""
        day = dt.date(1970, 1, 1) + dt.timedelta(days=physical_ms(commit_ts) // DAY_MS)
        return day.isoformat()[: _DATE_LENGTH[self.date_separator]]

    def date_cuts(self, commit_ts: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> list[int]:
        """Return the row positions, beyond the first, at which ordered rows enter another date directory."""
        if self.date_separator is DateSeparator.NONE or len(commit_ts) < 2:
            return []
        days = (commit_ts >> np.uint64(LOGICAL_BITS)) // np.uint64(DAY_MS)
        if days[0] == days[-1]:
            return []
        changes = (np.flatnonzero(days[1:] != days[:-1]) + 1).tolist()
        return [at for at in changes if self.date_text(int(commit_ts[at])) != self.date_text(int(commit_ts[at - 1]))]

    def dir_path(self, directory: DataDir) -> str:
        """Return the path of a data directory."""
        levels = [*_table_levels(directory.schema, directory.table), str(directory.version)]
        if directory.partition:
            levels.append(str(directory.partition))
        if directory.date:
            levels.append(directory.date)
        return "/".join(levels)

    def data_name(self, number: int, dispatcher: str = "") -> str:
        """Return the base name of a data file."""
        infix = f"_{dispatcher}_" if dispatcher else ""
        return f"CDC{infix}{number:0{self.file_index_width}d}{self.extension}"

    def data_path(self, path: DataPath) -> str:
        """Return the path of a data file."""
        return f"{self.dir_path(path.dir)}/{self.data_name(path.number, path.dispatcher)}"

    def index_path(self, directory: DataDir, dispatcher: str = "") -> str:
        """Return the path of the index file of a directory and dispatcher."""
        suffix = f"_{dispatcher}" if dispatcher else ""
        return f"{self.dir_path(directory)}/meta/CDC{suffix}.index"

    def parse_data_name(self, name: str) -> tuple[str, int]:
        """Return dispatcher and number of a data file's base name."""
        match = _DATA_FILE.match(name)
        if match is None or match.group(3) != self.extension:
            raise PenstockError("FILE_MALFORMED", f"{name!r} is not the name of a data file")
        return match.group(1) or "", int(match.group(2))

    def parse_data(self, path: str) -> DataPath | None:
        """Return what a data file's path says, or None where the path is something else."""
        *levels, name = path.split("/")
        directory = self._parse_dir(levels)
        match = _DATA_FILE.match(name)
        if directory is None or match is None or match.group(3) != self.extension:
            return None
        return DataPath(directory, match.group(1) or "", int(match.group(2)))

    def is_other(self, path: str) -> bool:
        """Return whether a path is that of a data or index file under other settings than these."""
        name = path.rpartition("/")[2]
        if path.startswith(f"{OWNER_DIR}/") or not (_DATA_FILE.match(name) or _INDEX_FILE.match(name)):
            return False
        return self.parse_data(path) is None and self.parse_index(path) is None

    def parse_index(self, path: str) -> IndexPath | None:
        """Return what an index file's path says, or None where the path is something else."""
        *levels, meta, name = ["", *path.split("/")]
        match = _INDEX_FILE.match(name)
        directory = self._parse_dir(levels[1:])
        if meta != "meta" or match is None or directory is None:
            return None
        return IndexPath(directory, match.group(1) or "")

    def _parse_dir(self, levels: list[str]) -> DataDir | None:
        if not 3 <= len(levels) <= 5 or not _DIGITS.match(levels[2]):
            return None
        rest = levels[3:]
        date = rest.pop() if rest and _DATE_TEXT[self.date_separator].match(rest[-1]) else ""
        if len(rest) > 1 or (rest and not _DIGITS.match(rest[0])):
            return None
        try:
            schema, table = unescape_name(levels[0]), unescape_name(levels[1])
        except UnicodeDecodeError:
            return None
        return DataDir(schema, table, int(levels[2]), int(rest[0]) if rest else 0, date)


def schema_dir(schema: str, table: str = "") -> str:
    """Return the directory of a table's schema files, or of a database's where ``table`` is empty."""
    levels = _table_levels(schema, table) if table else [_escape_schema(schema)]
    return "/".join([*levels, "meta"])


def schema_path(path: SchemaPath) -> str:
    """Return the path of a schema file."""
    return f"{schema_dir(path.schema, path.table)}/schema_{path.version}_{path.checksum:010d}.json"


def parse_schema_path(path: str) -> SchemaPath | None:
    """Return what a schema file's path says, or None where the path is something else."""
    levels = path.split("/")
    match = _SCHEMA_FILE.match(levels[-1])
    if match is None or not 3 <= len(levels) <= 4 or levels[-2] != "meta":
        return None
    try:
        schema, table = unescape_name(levels[0]), unescape_name(levels[1]) if len(levels) == 4 else ""
    except UnicodeDecodeError:
        return None
    return SchemaPath(schema, table, int(match.group(1)), int(match.group(2)))


def escape_name(name: str) -> str:
    """Return a schema or table name as one path level. Ordinary names stay as they are; the rest is percent-escaped, reversibly."""
    if name == "":
        return "%"
    if name in {"%", ".", ".."}:
        return "".join(f"%{ord(c):02X}" for c in name)
    return _UNSAFE.sub(lambda m: f"%{ord(m.group()):02X}", name)


def unescape_name(level: str) -> str:
    """Return the name that ``escape_name`` made this path level of; UnicodeDecodeError where it made none like this."""
    return "" if level == "%" else unquote(level, errors="strict") if "%" in level else level


def _escape_schema(schema: str) -> str:
    # A database may carry the name of an object that lies beside it; its first letter is escaped then.
    if schema in _RESERVED_SCHEMAS:
        return f"%{ord(schema[0]):02X}{schema[1:]}"
    return escape_name(schema)


def _table_levels(schema: str, table: str) -> list[str]:
    return [_escape_schema(schema), escape_name(table)]
