"""Columns as the server describes them in ``information_schema``, and which bytes of the log they are.

Owns the way from a server's column type to a column of the model, the charset of texts, and the check that a table map fits a table
version. Runs in the log service, the server and on executors.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TEXT_KINDS, ColumnType, TypeKind
from penstock.source.mysql.connection import Session
from penstock.source.mysql.rows.image_layout import ImageLayout
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.tablemap import MapColumn, TableMap

SYSTEM_SCHEMAS = ("information_schema", "mysql", "performance_schema", "sys")
_COLUMN_TYPE = re.compile(r"^\s*([a-z0-9_]+)\s*(?:\((.*?)\))?\s*(.*)$", re.IGNORECASE | re.DOTALL)
_ESCAPED = re.compile(r"\\.|''", re.DOTALL)
_MEANT = {"\\0": "\0", "\\n": "\n", "\\r": "\r"}
"""What MariaDB writes for characters in a default."""
_CONSTANT = re.compile(r"^(?:'.*'|[bx]'[0-9a-f]*'|0x[0-9a-f]+|-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)$", re.IGNORECASE | re.DOTALL)
_ELEMENT = re.compile(r"'((?:[^']|'')*)'")
_RENAMED = {"integer": "int", "numeric": "decimal", "real": "double", "bool": "tinyint", "boolean": "tinyint"}
_GEOMETRIES = frozenset(
    {"point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection"}
)
_FRACTIONS = frozenset({TypeKind.TIME, TypeKind.DATETIME, TypeKind.TIMESTAMP})
_LENGTHS = frozenset({TypeKind.CHAR, TypeKind.VARCHAR, TypeKind.BINARY, TypeKind.VARBINARY, TypeKind.VECTOR})
FIXED_TYPES = {
    "uuid": ColumnType(TypeKind.CHAR, length=36),
    "inet4": ColumnType(TypeKind.CHAR, length=15),
    "inet6": ColumnType(TypeKind.CHAR, length=39),
}
"""Types of MariaDB that are texts of a fixed size to everybody else."""
# A CHAR never has fewer bytes in a table map than it has characters, so these lengths tell the types apart.
_FIXED_FORMS = {(36, 16): wire.F_UUID, (15, 4): wire.F_INET4, (39, 16): wire.F_INET6}
_LOG_TYPES: dict[int, frozenset[TypeKind]] = {
    wire.TYPE_TINY: frozenset({TypeKind.TINYINT}),
    wire.TYPE_SHORT: frozenset({TypeKind.SMALLINT}),
    wire.TYPE_INT24: frozenset({TypeKind.MEDIUMINT}),
    wire.TYPE_LONG: frozenset({TypeKind.INT}),
    wire.TYPE_LONGLONG: frozenset({TypeKind.BIGINT}),
    wire.TYPE_FLOAT: frozenset({TypeKind.FLOAT}),
    wire.TYPE_DOUBLE: frozenset({TypeKind.DOUBLE}),
    wire.TYPE_YEAR: frozenset({TypeKind.YEAR}),
    wire.TYPE_BIT: frozenset({TypeKind.BIT}),
    wire.TYPE_NEWDECIMAL: frozenset({TypeKind.DECIMAL}),
    wire.TYPE_DATE: frozenset({TypeKind.DATE}),
    wire.TYPE_NEWDATE: frozenset({TypeKind.DATE}),
    wire.TYPE_TIME: frozenset({TypeKind.TIME}),
    wire.TYPE_TIME2: frozenset({TypeKind.TIME}),
    wire.TYPE_DATETIME: frozenset({TypeKind.DATETIME}),
    wire.TYPE_DATETIME2: frozenset({TypeKind.DATETIME}),
    wire.TYPE_TIMESTAMP: frozenset({TypeKind.TIMESTAMP}),
    wire.TYPE_TIMESTAMP2: frozenset({TypeKind.TIMESTAMP}),
    # MariaDB's vectors are VARBINARY to its log, MySQL's have a type of their own.
    wire.TYPE_VARCHAR: frozenset({TypeKind.VARCHAR, TypeKind.VARBINARY, TypeKind.VECTOR}),
    wire.TYPE_VARCHAR_COMPRESSED: frozenset({TypeKind.VARCHAR, TypeKind.VARBINARY}),
    wire.TYPE_VAR_STRING: frozenset({TypeKind.VARCHAR, TypeKind.VARBINARY}),
    wire.TYPE_STRING: frozenset({TypeKind.CHAR, TypeKind.BINARY}),
    wire.TYPE_ENUM: frozenset({TypeKind.ENUM}),
    wire.TYPE_SET: frozenset({TypeKind.SET}),
    wire.TYPE_JSON: frozenset({TypeKind.JSON}),
    wire.TYPE_GEOMETRY: frozenset({TypeKind.GEOMETRY}),
    wire.TYPE_VECTOR: frozenset({TypeKind.VECTOR}),
}
_BLOB_LENGTHS = {
    TypeKind.TINYTEXT: 1,
    TypeKind.TINYBLOB: 1,
    TypeKind.TEXT: 2,
    TypeKind.BLOB: 2,
    TypeKind.MEDIUMTEXT: 3,
    TypeKind.MEDIUMBLOB: 3,
    TypeKind.LONGTEXT: 4,
    TypeKind.LONGBLOB: 4,
}


BYTES_OR_TEXT = TEXT_KINDS | (BINARY_KINDS - {TypeKind.GEOMETRY})
BINARY_COLLATION = 63


class ServerTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table as a server describes it now: columns with their places as ids, the charset of each, and what we cannot capture."""

    schema: str
    table: str
    columns: tuple[Column, ...]
    charsets: tuple[str, ...]
    key_order: tuple[str, ...] = ()
    """Names of the key's columns in the order of the index."""
    problem: str = ""
    unique_keys: tuple[tuple[str, ...], ...] = ()
    """Names of the columns of the other unique keys."""
    computed: frozenset[str] = frozenset()
    """Names, in lower case, of columns whose default the server computes."""
    row_end: str = ""
    """The column that ends rows, where it is shown: see ``row_history``."""

    def unique_ids(self, columns: Sequence[Column]) -> tuple[tuple[int, ...], ...]:
        """Return the other unique keys by the ids that a table version gives to the columns."""
        ids = {c.name.lower(): c.id for c in columns}
        return tuple(tuple(ids[name.lower()] for name in key) for key in self.unique_keys if all(name.lower() in ids for name in key))


def column_type(text: str) -> ColumnType:  # noqa: PLR0911 - one per kind
    """Return the type that a server writes as, for example, ``decimal(10,2) unsigned``."""
    match = _COLUMN_TYPE.match(text)
    name = match.group(1).lower() if match else ""
    name = _RENAMED.get(name, name)
    if name in FIXED_TYPES:
        return FIXED_TYPES[name]
    kind_text = "GEOMETRY" if name in _GEOMETRIES else name.upper()
    try:
        kind = TypeKind(kind_text)
    except ValueError:
        raise PenstockError("TYPE_UNSUPPORTED", f"type {name!r} is not supported") from None
    assert match is not None
    if kind in {TypeKind.ENUM, TypeKind.SET}:
        inner = text[text.index("(") + 1 : text.rindex(")")]
        return ColumnType(kind, elems=tuple(e.replace("''", "'") for e in _ELEMENT.findall(inner)))
    numbers = [int(n) for n in (match.group(2) or "").split(",") if n.strip().isdigit()]
    rest = match.group(3).lower()
    length = numbers[0] if numbers else None
    scale = numbers[1] if len(numbers) > 1 else None
    if kind in _FRACTIONS:
        return ColumnType(kind, scale=length or None)
    if kind is TypeKind.DECIMAL:
        return ColumnType(kind, "unsigned" in rest, "zerofill" in rest, length or 10, scale or 0)
    if kind is TypeKind.BIT or (kind in _LENGTHS and kind in {TypeKind.CHAR, TypeKind.BINARY}):
        return ColumnType(kind, length=length if length is not None else 1)
    if kind in INTEGER_KINDS or kind in {TypeKind.FLOAT, TypeKind.DOUBLE}:
        return ColumnType(kind, "unsigned" in rest or "zerofill" in rest, "zerofill" in rest, length, scale)
    return ColumnType(kind, length=length if kind in _LENGTHS else None)


def read_tables(session: Session, schema: str | None = None, table: str | None = None) -> list[ServerTable]:
    """Return the base tables that the session may see, of all user schemas or of one."""
    where = f"c.TABLE_SCHEMA NOT IN ({', '.join('%s' for _ in SYSTEM_SCHEMAS)})"
    arguments: list[object] = list(SYSTEM_SCHEMAS)
    for name, value in (("TABLE_SCHEMA", schema), ("TABLE_NAME", table)):
        if value is not None:
            where += f" AND c.{name} = %s"
            arguments.append(value)
    rows = session.rows(
        "SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, c.IS_NULLABLE, c.COLUMN_DEFAULT, c.CHARACTER_SET_NAME, c.EXTRA,"
        " VERSION(), c.GENERATION_EXPRESSION"
        " FROM information_schema.COLUMNS c JOIN information_schema.TABLES t USING (TABLE_SCHEMA, TABLE_NAME)"
        f" WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND {where}"
        " ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION",
        arguments,
    )
    virtual = {(str(row[0]), str(row[1]), str(row[2])) for row in rows if "VIRTUAL" in str(row[7] or "").upper()}
    keys, others = _keys(session, where.replace("c.", "s."), arguments, virtual)
    grouped: dict[tuple[str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        grouped[str(row[0]), str(row[1])].append(row[2:])
    tables = [_server_table(name, columns, keys.get(name, ())) for name, columns in grouped.items()]
    return [msgspec.structs.replace(t, unique_keys=others.get((t.schema, t.table), ())) for t in tables]


def _keys(
    session: Session, where: str, arguments: Sequence[object], virtual: set[tuple[str, str, str]]
) -> tuple[dict[tuple[str, str], tuple[str, ...]], dict[tuple[str, str], tuple[tuple[str, ...], ...]]]:
    """Return for each table the primary key, or the first unique key whose columns are whole, stored and cannot be NULL, and its others."""
    rows = session.rows(
        "SELECT s.TABLE_SCHEMA, s.TABLE_NAME, s.INDEX_NAME, s.COLUMN_NAME, s.NULLABLE, s.SUB_PART FROM information_schema.STATISTICS s"
        f" WHERE s.NON_UNIQUE = 0 AND {where}"
        " ORDER BY s.TABLE_SCHEMA, s.TABLE_NAME, s.INDEX_NAME != 'PRIMARY', s.INDEX_NAME, s.SEQ_IN_INDEX",
        arguments,
    )
    indexes: dict[tuple[str, str], dict[str, list[tuple[Any, ...]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        indexes[str(row[0]), str(row[1])][str(row[2])].append(row[3:])
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    others: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {}
    for name, of_table in indexes.items():
        # A part that is an expression has no column; what it is made of is not told, so such a key cannot be watched.
        named = [tuple(str(p[0]) for p in parts) for parts in of_table.values() if all(p[0] is not None for p in parts)]
        for index, parts in of_table.items():
            whole = all(nullable != "YES" and sub_part is None and column is not None for column, nullable, sub_part in parts)
            # Nor does the server itself take a key of virtual columns for what names a row.
            if index == "PRIMARY" or (whole and not any((*name, str(p[0])) in virtual for p in parts)):
                found[name] = tuple(str(p[0]) for p in parts)
                break
        others[name] = tuple(key for key in named if key != found.get(name))
    return found, others


def _server_table(name: tuple[str, str], rows: Iterable[tuple[Any, ...]], key: tuple[str, ...]) -> ServerTable:
    columns: list[Column] = []
    charsets: list[str] = []
    problem = ""
    computed: set[str] = set()
    rows = list(rows)
    row_end = next((str(row[0]) for row in rows if str(row[-1] or "").upper() == "ROW END"), "")
    # The server adds the end of rows to every key of a system-versioned table.
    key = tuple(k for k in key if k.lower() != row_end.lower()) or key
    lowered = {k.lower() for k in key}
    for number, (column, type_text, nullable, default, charset, extra, version, _) in enumerate(rows, 1):
        try:
            kind = column_type(str(type_text))
        except PenstockError as error:
            problem = f"column {column}: {error.detail}"
            kind = ColumnType(TypeKind.LONGBLOB)
        marks = str(extra or "").upper()
        generated = "STORED" if "STORED" in marks or "PERSISTENT" in marks else "VIRTUAL" if "VIRTUAL" in marks else ""
        is_key = str(column).lower() in lowered
        mariadb = "mariadb" in str(version).lower()
        text = default_text(default, mariadb)
        if text is not None and _is_computed(str(default), marks, mariadb):
            computed.add(str(column).lower())
        columns.append(Column(number, str(column), kind, nullable == "YES" and not is_key, is_key, text, generated))
        charsets.append(str(charset or ""))
    return ServerTable(name[0], name[1], tuple(columns), tuple(charsets), key, problem, computed=frozenset(computed), row_end=row_end)


def _is_computed(default: str, extra: str, mariadb: bool) -> bool:
    """Return whether a default is more than a constant; MariaDB shows constants in quotes, as numbers or as literals of bits."""
    if mariadb:
        return _CONSTANT.match(default) is None
    return "DEFAULT_GENERATED" in extra or default.upper().startswith("CURRENT_TIMESTAMP")


def default_text(default: object, mariadb: bool = True) -> str | None:
    """Return a default as MySQL shows it; MariaDB shows texts in quotes and NULL by name."""
    if default is None:
        return None
    text = default.decode("utf-8", errors="replace") if isinstance(default, bytes) else str(default)
    if not mariadb:
        return text
    if text == "NULL":
        return None
    if len(text) > 1 and text[0] == text[-1] == "'":
        return _ESCAPED.sub(lambda found: _MEANT.get(found[0], found[0][1:]), text[1:-1])
    return text


def fits(column: Column, mapped: MapColumn) -> bool:  # noqa: PLR0911 - one per kind
    """Return whether a column of a table version can be the one that a table map describes."""
    kind, real = column.type.kind, mapped.real_type
    if mapped.name is not None and mapped.name.lower() != column.name.lower():
        return False
    if mapped.collation is not None and kind in BYTES_OR_TEXT and (mapped.collation == BINARY_COLLATION) == (kind in TEXT_KINDS):
        # MariaDB's UUID and the like are bytes to the log.
        return _FIXED_FORMS.get((column.type.length or 0, mapped.string_bytes)) is not None and kind is TypeKind.CHAR
    if real in {wire.TYPE_BLOB, wire.TYPE_TINY_BLOB, wire.TYPE_MEDIUM_BLOB, wire.TYPE_LONG_BLOB, wire.TYPE_BLOB_COMPRESSED}:
        return _BLOB_LENGTHS.get(kind) == mapped.meta or (kind is TypeKind.JSON and mapped.meta == 4)
    if kind not in _LOG_TYPES.get(real, frozenset()):
        return False
    if kind is TypeKind.DECIMAL:
        return (column.type.length, column.type.scale) == (mapped.meta & 255, mapped.meta >> 8)
    if real in {wire.TYPE_TIME2, wire.TYPE_DATETIME2, wire.TYPE_TIMESTAMP2}:
        return (column.type.scale or 0) == mapped.meta
    return mapped.unsigned is None or kind not in INTEGER_KINDS or mapped.unsigned == column.type.unsigned


@lru_cache(maxsize=4096)
def layout_of(table: TableSchema, mapped: TableMap) -> ImageLayout | None:
    """Return how rows of a table version stand in the log, None where the table map is of another version."""
    if len(table.columns) != len(mapped.columns):
        return None
    pairs = list(zip(table.columns, mapped.columns, strict=True))
    if not all(fits(column, m) for column, m in pairs):
        return None
    return ImageLayout(tuple(m.wire_column(c.type.unsigned, c.type.kind is TypeKind.BINARY, _form(c, m)) for c, m in pairs))


def _form(column: Column, mapped: MapColumn) -> int:
    if column.type.kind is TypeKind.VECTOR:
        return wire.F_VECTOR
    if column.type.kind is TypeKind.CHAR:
        return _FIXED_FORMS.get((column.type.length or 0, mapped.string_bytes), wire.F_PLAIN)
    return wire.F_PLAIN


def is_text(column: Column) -> bool:
    """Return whether a column's bytes in the log are of a charset."""
    return column.type.kind in TEXT_KINDS
