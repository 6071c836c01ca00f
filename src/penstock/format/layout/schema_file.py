"""Schema files: the JSON that describes one version of a table or of a database, and the checksum in its name.

Owns the exact bytes (key order, four spaces, the escapes of Go's encoder, what is left out) and the way back to a ``TableSchema``.
Invariants: the checksum depends on names and columns only, never on the DDL text, so the same structure always has the same name;
``ColumnLength`` stands beside ``ColumnPrecision`` for string kinds, ``ColumnGenerated`` marks a virtual column (whose values rows do not
carry), ``ColumnInitialDefault`` says what rows from before the column show where the source knows it, ``UniqueKeys`` names the columns of
unique keys, and none of these is part of the checksum: other readers skip them. Runs anywhere.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.format.layout.paths import SchemaPath, schema_path
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, INTEGER_WIDTHS, TEXT_KINDS, TIME_KINDS, ColumnType, TypeKind

PROTOCOL_VERSION = 1
COLUMNS_MAX = 1 << 13
"""Twice what the widest tables of any source have."""
FIRST_COLUMN_ID = 100
"""Columns of a file without column ids are numbered from here, as the best-known consumer does."""

_UNHASHED = ("ColumnLength", "ColumnGenerated", "ColumnInitialDefault")
_STRING_KINDS = TEXT_KINDS | BINARY_KINDS - {TypeKind.GEOMETRY}
_DEFAULT_LENGTH = {
    TypeKind.BIT: 1,
    TypeKind.YEAR: 4,
    TypeKind.DOUBLE: 22,
    TypeKind.FLOAT: 12,
    TypeKind.DECIMAL: 10,
    TypeKind.CHAR: 1,
    TypeKind.BINARY: 1,
    TypeKind.VARCHAR: 5,
    TypeKind.VARBINARY: 5,
    TypeKind.TINYTEXT: 255,
    TypeKind.TEXT: 65_535,
    TypeKind.MEDIUMTEXT: 16_777_215,
    TypeKind.LONGTEXT: 4_294_967_295,
    TypeKind.TINYBLOB: 255,
    TypeKind.BLOB: 65_535,
    TypeKind.MEDIUMBLOB: 16_777_215,
    TypeKind.LONGBLOB: 4_294_967_295,
}
_ALIASES = {"VAR_STRING": TypeKind.VARCHAR, "NUMERIC": TypeKind.DECIMAL, "BOOL": TypeKind.TINYINT, "BOOLEAN": TypeKind.TINYINT}
_GO_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_GO_ESCAPED = re.compile("[<>&\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One schema file. ``columns`` is None for a database and for a DDL that leaves no structure behind."""

    schema: str
    table: str
    table_version: int
    query: str = ""
    type: int = DdlType.NONE
    columns: tuple[Column, ...] | None = None
    output_column_id: bool = False
    unique_keys: tuple[tuple[str, ...], ...] = ()
    """The unique keys besides the primary one, by column names."""
    written_checksum: int | None = None
    """The checksum of the columns as a file that was read has them, which may say the same in other words than ours."""

    @classmethod
    def of_table(cls, table: TableSchema, query: str = "", ddl_type: int = DdlType.NONE, *, output_column_id: bool = False) -> SchemaFile:
        """Describe a table version, with the DDL that made it or without."""
        names = {c.id: c.name for c in table.columns}
        keys = tuple(tuple(names[i] for i in key) for key in table.unique_keys if all(i in names for i in key))
        return cls(table.schema, table.table, table.version, query, ddl_type, table.columns, output_column_id, keys)

    @property
    def checksum(self) -> int:
        """Return the CRC-32 that stands in the file's name."""
        columns = [_column_fields(c, with_id=self.output_column_id) for c in self.columns or ()]
        return _checksum(self.schema, self.table, columns)

    @property
    def path(self) -> str:
        """Return where the file lies below the prefix."""
        return schema_path(SchemaPath(self.schema, self.table, self.table_version, self.checksum))

    def render(self) -> bytes:
        """Return the file's content."""
        columns = [_column_fields(c, with_id=self.output_column_id) for c in self.columns or ()]
        document: dict[str, Any] = {
            "Table": self.table,
            "Schema": self.schema,
            "Version": PROTOCOL_VERSION,
            "TableVersion": self.table_version,
            "Query": self.query,
            "Type": int(self.type),
            "TableColumns": columns or None,
            "TableColumnsTotal": len(columns),
        }
        if self.unique_keys:
            document["UniqueKeys"] = [list(key) for key in self.unique_keys]
        return _go_json(document)

    def to_table(self, columns: tuple[Column, ...] | None = None) -> TableSchema:
        """Return the structure as a table version, with its own columns or with the same ones under other ids; files name no table id."""
        columns = self.columns or () if columns is None else columns
        ids = {c.name: c.id for c in columns}
        keys = tuple(tuple(ids[name] for name in key) for key in self.unique_keys if all(name in ids for name in key))
        return TableSchema(0, self.schema, self.table, self.table_version, columns, unique_keys=keys)


def parse_schema_file(content: bytes, path: str) -> SchemaFile:
    """Read a schema file, by whichever writer; numbers may stand in quotes."""
    try:
        document = json.loads(content)
        # Half a surrogate pair, which JSON can name, is no part of any name or value.
        json.dumps(document, ensure_ascii=False).encode()
        raw_columns = document["TableColumns"]
        if raw_columns is not None and len(raw_columns) > COLUMNS_MAX:
            raise ValueError(f"{len(raw_columns)} columns, more than any table has")
        columns = None if raw_columns is None else tuple(_parse_column(raw, at) for at, raw in enumerate(raw_columns))
        parsed = SchemaFile(
            schema=str(document["Schema"]),
            table=str(document["Table"]),
            table_version=int(document["TableVersion"]),
            query=str(document.get("Query", "")),
            type=int(document.get("Type", 0)),
            columns=columns,
            output_column_id=any("ColumnId" in raw for raw in raw_columns or ()),
            unique_keys=tuple(tuple(str(name) for name in key) for key in document.get("UniqueKeys") or ()),
            written_checksum=_checksum(str(document["Schema"]), str(document["Table"]), raw_columns or ()),
        )
        total = int(document.get("TableColumnsTotal", len(columns or ())))
    except json.JSONDecodeError as error:
        raise PenstockError("FILE_MALFORMED", f"{path}: line {error.lineno}: {error.msg}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise PenstockError("FILE_MALFORMED", f"{path}: not a schema file: {type(error).__name__} {error}") from error
    names = {column.name for column in columns or ()}
    if len(names) < len(columns or ()):
        raise PenstockError("FILE_MALFORMED", f"{path}: two columns have one name")
    if total != len(columns or ()):
        raise PenstockError("FILE_MALFORMED", f"{path}: TableColumnsTotal is {total}, but {len(columns or ())} columns are listed")
    return parsed


def stand_ins(columns: tuple[Column, ...], *, as_names: bool) -> tuple[Column, ...]:
    """Return columns that can be read without knowing elements of ENUM and SET, which older writers leave out of schema files.

    Such a column becomes what files hold of it: a text where they hold names, else a number.
    """
    kind = ColumnType(TypeKind.LONGTEXT) if as_names else ColumnType(TypeKind.BIGINT, unsigned=True)
    unknown = [c.type.kind in {TypeKind.ENUM, TypeKind.SET} and not c.type.elems for c in columns]
    return tuple(msgspec.structs.replace(c, type=kind) if u else c for c, u in zip(columns, unknown, strict=True))


def check_schema_name(parsed: SchemaFile, name: SchemaPath, path: str) -> None:
    """Raise unless version and checksum in the name are those of the content."""
    if parsed.table_version != name.version:
        raise PenstockError("FILE_MALFORMED", f"{path}: TableVersion {parsed.table_version} is not the version in the name")
    if name.checksum not in {parsed.checksum, parsed.written_checksum}:
        raise PenstockError("FILE_MALFORMED", f"{path}: the content has checksum {parsed.checksum:010d}, not the one in the name")


def column_type_text(ctype: ColumnType) -> str:
    """Return the ``ColumnType`` of a schema file, such as ``INT UNSIGNED``."""
    # BIT and YEAR carry the unsigned flag wherever a server made the column, and ZEROFILL implies it.
    unsigned = ctype.unsigned or ctype.zerofill or ctype.kind in {TypeKind.BIT, TypeKind.YEAR}
    return f"{ctype.kind.value} UNSIGNED" if unsigned else ctype.kind.value


def _checksum(schema: str, table: str, columns: Sequence[Mapping[str, Any]]) -> int:
    hashed = [{name: value for name, value in fields.items() if name not in _UNHASHED} for fields in columns]
    hashed.sort(key=lambda fields: str(fields["ColumnName"]).encode())
    document = {"Table": table, "Schema": schema, "Version": 0, "TableColumns": hashed, "TableColumnsTotal": len(hashed)}
    return zlib.crc32(_go_json(document))


def _column_fields(column: Column, *, with_id: bool) -> dict[str, Any]:
    ctype = column.type
    fields: dict[str, Any] = {"ColumnId": str(column.id)} if with_id else {}
    fields["ColumnName"] = column.name
    fields["ColumnType"] = column_type_text(ctype)
    if column.default is not None:
        fields["ColumnDefault"] = column.default
    length = _length(ctype)
    if length is not None:
        if ctype.kind in _STRING_KINDS:
            fields["ColumnLength"] = str(length)
        fields["ColumnPrecision"] = str(length)
    scale = _scale(ctype)
    if scale is not None:
        fields["ColumnScale"] = str(scale)
    if not column.nullable:
        fields["ColumnNullable"] = "false"
    if column.primary_key:
        fields["ColumnIsPk"] = "true"
    if ctype.elems:
        fields["ColumnElems"] = list(ctype.elems)
    if column.generated == "VIRTUAL":
        fields["ColumnGenerated"] = column.generated
    if column.initial_default is not msgspec.UNSET:
        fields["ColumnInitialDefault"] = column.initial_default
    return fields


def _length(ctype: ColumnType) -> int | None:
    if ctype.kind in INTEGER_KINDS:
        return ctype.length if ctype.length is not None else INTEGER_WIDTHS[ctype.kind][ctype.unsigned or ctype.zerofill]
    if ctype.kind in _DEFAULT_LENGTH:
        return ctype.length if ctype.length is not None else _DEFAULT_LENGTH[ctype.kind]
    return None


def _scale(ctype: ColumnType) -> int | None:
    if ctype.kind is TypeKind.DECIMAL:
        return ctype.scale or 0
    if ctype.kind in TIME_KINDS or ctype.kind in {TypeKind.FLOAT, TypeKind.DOUBLE}:
        return ctype.scale or None
    return None


def _parse_column(raw: Mapping[str, Any], at: int) -> Column:
    text = str(raw["ColumnType"]).upper()
    base, _, flags = text.partition(" ")
    kind = _ALIASES.get(base) or TypeKind(base)
    length = raw.get("ColumnPrecision", raw.get("ColumnLength"))
    scale = raw.get("ColumnScale")
    default = raw.get("ColumnDefault")
    ctype = ColumnType(
        kind=kind,
        unsigned="UNSIGNED" in flags and kind not in {TypeKind.BIT, TypeKind.YEAR},
        length=None if length is None else int(length),
        scale=None if scale is None else int(scale),
        elems=tuple(str(e) for e in raw.get("ColumnElems", ())),
    )
    return Column(
        id=int(raw["ColumnId"]) if "ColumnId" in raw else FIRST_COLUMN_ID + at,
        name=str(raw["ColumnName"]),
        type=ctype,
        nullable=str(raw.get("ColumnNullable", "true")).lower() != "false",
        primary_key=str(raw.get("ColumnIsPk", "false")).lower() == "true",
        default=None if default is None else default if isinstance(default, str) else json.dumps(default),
        generated=str(raw.get("ColumnGenerated", "")),
        initial_default=raw.get("ColumnInitialDefault", msgspec.UNSET),
    )


def _go_json(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, indent=4, ensure_ascii=False)
    text = _GO_ESCAPED.sub(lambda match: _GO_ESCAPES[match.group()], text)
    return _SURROGATES.sub("\\\\ufffd", text).encode()
