"""The schemas that stand in messages of Debezium JSON, in the words of Kafka Connect's JSON converter.

They say what ``format/json/debezium.py`` writes: whole numbers and floats as numbers, bytes as base64, everything else as text. Runs on
executors.
"""

from __future__ import annotations

import msgspec

from penstock.format.csv.dialect import row_columns
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TypeKind

_SIGNED = {TypeKind.TINYINT: "int16", TypeKind.SMALLINT: "int16", TypeKind.MEDIUMINT: "int32", TypeKind.INT: "int32"}
_UNSIGNED = {TypeKind.TINYINT: "int16", TypeKind.SMALLINT: "int32", TypeKind.MEDIUMINT: "int32"}
_OTHERS = {TypeKind.FLOAT: "float", TypeKind.DOUBLE: "double", TypeKind.BIT: "int64", TypeKind.YEAR: "int32"}
_SOURCE = (("connector", "string"), ("db", "string"), ("table", "string"), ("commit_ts", "int64"), ("ts_ms", "int64"))


def value_lead(table: TableSchema) -> bytes:
    """Return how the message of a row begins, up to its payload."""
    row = [_field(column) for column in row_columns(table)]
    name = f"{table.schema}.{table.table}"
    fields: list[object] = [
        {"type": "struct", "fields": row, "optional": True, "name": f"{name}.Value", "field": side} for side in ("before", "after")
    ]
    source = [{"type": kind, "optional": False, "field": field} for field, kind in _SOURCE]
    fields.append({"type": "struct", "fields": source, "optional": False, "name": "penstock.Source", "field": "source"})
    fields += [{"type": "string", "optional": False, "field": "op"}, {"type": "int64", "optional": True, "field": "ts_ms"}]
    return _lead({"type": "struct", "fields": fields, "optional": False, "name": f"{name}.Envelope"})


def key_lead(table: TableSchema, columns: tuple[Column, ...]) -> bytes:
    """Return how the key of a row begins, up to its payload."""
    fields = [_field(column) for column in columns]
    return _lead({"type": "struct", "fields": fields, "optional": False, "name": f"{table.schema}.{table.table}.Key"})


def _lead(schema: object) -> bytes:
    return b'{"schema":' + msgspec.json.encode(schema) + b',"payload":'


def _field(column: Column) -> dict[str, object]:
    kind = column.type.kind
    if kind in INTEGER_KINDS:
        shown = (_UNSIGNED if column.type.unsigned else _SIGNED).get(kind, "int64")
    else:
        shown = "bytes" if kind in BINARY_KINDS else _OTHERS.get(kind, "string")
    return {"type": shown, "optional": column.nullable, "field": column.name}
