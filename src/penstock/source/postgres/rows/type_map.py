"""PostgreSQL's types as columns of the model, and how the text of their values is stored.

Integers, booleans, floats and bytea get machine types; everything else keeps the text that PostgreSQL prints, under the kind that a target
understands best: DECIMAL where precision and scale are declared and fit, DATE, TIME, DATETIME, TIMESTAMP (UTC), JSON, CHAR and VARCHAR with
their length; else LONGTEXT (numeric without precision, interval, uuid as CHAR(36), network types, enums, arrays, ranges, geometry, …).
A domain counts as what it is made of. Runs anywhere.
"""

from __future__ import annotations

import re

import msgspec

from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.rows.cells import CellForm

BOOL, BYTEA, INT8, INT2, INT4, OID = 16, 17, 20, 21, 23, 26
FLOAT4, FLOAT8, NUMERIC = 700, 701, 1700
BPCHAR, VARCHAR, UUID = 1042, 1043, 2950
DATE, TIME, TIMESTAMP, TIMESTAMPTZ = 1082, 1083, 1114, 1184
JSON, JSONB = 114, 3802
DECIMAL_DIGITS_MAX, DECIMAL_SCALE_MAX = 65, 30
CHAR_LENGTH_MAX, VARCHAR_LENGTH_MAX = 255, 16_383
"""What MySQL can declare; a longer one is a LONGTEXT."""
_MICROSECONDS = 6
_DOMAIN_DEPTH_MAX = 32
_TEXT = ColumnType(TypeKind.LONGTEXT)
_PLAIN: dict[int, tuple[ColumnType, CellForm]] = {
    BOOL: (ColumnType(TypeKind.TINYINT, length=1), CellForm.BOOLEAN),
    INT2: (ColumnType(TypeKind.SMALLINT), CellForm.INTEGER),
    INT4: (ColumnType(TypeKind.INT), CellForm.INTEGER),
    INT8: (ColumnType(TypeKind.BIGINT), CellForm.INTEGER),
    OID: (ColumnType(TypeKind.INT, unsigned=True), CellForm.INTEGER),
    FLOAT4: (ColumnType(TypeKind.FLOAT), CellForm.FLOAT),
    FLOAT8: (ColumnType(TypeKind.DOUBLE), CellForm.FLOAT),
    BYTEA: (ColumnType(TypeKind.LONGBLOB), CellForm.BYTES),
    DATE: (ColumnType(TypeKind.DATE), CellForm.TEXT),
    UUID: (ColumnType(TypeKind.CHAR, length=36), CellForm.TEXT),
    JSON: (ColumnType(TypeKind.JSON), CellForm.TEXT),
    JSONB: (ColumnType(TypeKind.JSON), CellForm.TEXT),
}
_TEMPORAL = {
    TIME: (TypeKind.TIME, CellForm.TEXT),
    TIMESTAMP: (TypeKind.DATETIME, CellForm.TEXT),
    TIMESTAMPTZ: (TypeKind.TIMESTAMP, CellForm.UTC),
}
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_CAST = re.compile(r"::[\w\s\".]+(\(\d+(,\s*\d+)?\))?(\[\])*$")


class Domain(msgspec.Struct, frozen=True):
    """What a domain is made of."""

    base_oid: int
    base_typmod: int


def column_type(type_oid: int, typmod: int, domains: dict[int, Domain]) -> tuple[ColumnType, CellForm]:
    """Return the type of a column and how its values are stored."""
    for _ in range(_DOMAIN_DEPTH_MAX):
        domain = domains.get(type_oid)
        if domain is None:
            break
        type_oid, typmod = domain.base_oid, domain.base_typmod if domain.base_typmod >= 0 else typmod
    if type_oid in _PLAIN:
        return _PLAIN[type_oid]
    if type_oid in _TEMPORAL:
        kind, form = _TEMPORAL[type_oid]
        return ColumnType(kind, scale=typmod if typmod >= 0 else _MICROSECONDS), form
    return _sized(type_oid, typmod - 4 if typmod >= 4 else None), CellForm.TEXT


def default_text(expression: str | None, kind: ColumnType) -> str | None:
    """Return a default as text where it is a constant; None for what is computed when a row is written."""
    if expression is None:
        return None
    bare = expression.strip()
    while True:
        shorter = _CAST.sub("", bare).strip()
        if shorter.startswith("(") and shorter.endswith(")"):
            shorter = shorter[1:-1].strip()
        if shorter == bare:
            break
        bare = shorter
    if bare in {"true", "false"}:
        return "1" if bare == "true" else "0"
    if _NUMBER.fullmatch(bare):
        return bare
    if len(bare) >= 2 and bare[0] == bare[-1] == "'" and "'" not in bare[1:-1].replace("''", ""):
        text = bare[1:-1].replace("''", "'")
        if kind == _PLAIN[BYTEA][0]:
            shown = shown_text(text, CellForm.BYTES) if text.startswith("\\x") else msgspec.UNSET
            return None if shown is msgspec.UNSET else shown
        return {"t": "1", "f": "0", "true": "1", "false": "0"}.get(text, text) if kind == _PLAIN[BOOL][0] else text
    return None


def shown_text(text: str | None, form: CellForm) -> str | msgspec.UnsetType | None:
    """Return a value that the server prints as the text that defaults are written in; unset for bytes that are no text."""
    if text is None:
        return None
    if form is CellForm.BOOLEAN:
        return "1" if text == "t" else "0"
    if form is CellForm.UTC:
        return text.replace("+00", "")
    if form is CellForm.BYTES:
        try:
            return bytes.fromhex(text.removeprefix("\\x")).decode()
        except ValueError:
            return msgspec.UNSET
    return text


def _sized(type_oid: int, size: int | None) -> ColumnType:
    if type_oid == BPCHAR and size is not None and size <= CHAR_LENGTH_MAX:
        return ColumnType(TypeKind.CHAR, length=size)
    if type_oid == VARCHAR and size is not None and size <= VARCHAR_LENGTH_MAX:
        return ColumnType(TypeKind.VARCHAR, length=size)
    if type_oid == NUMERIC and size is not None:
        # The scale is an 11-bit number with a sign, since PostgreSQL 15.
        precision, scale = size >> 16, ((size & 0x7FF) ^ 0x400) - 0x400
        if precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= min(precision, DECIMAL_SCALE_MAX):
            return ColumnType(TypeKind.DECIMAL, length=precision, scale=scale)
    return _TEXT
