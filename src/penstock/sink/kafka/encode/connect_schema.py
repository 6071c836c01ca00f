"""The schemas that stand in messages of Debezium JSON, in the words of Kafka Connect's JSON converter.

They say what messages hold: whole numbers and floats as numbers, bytes as base64, everything else as text. Whole numbers that no ``int64``
holds are text too, because Connect takes the lower bits of what is larger and says nothing. Runs on executors.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.format.old_values import old_name
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TypeKind

_SIGNED = {TypeKind.TINYINT: "int16", TypeKind.SMALLINT: "int16", TypeKind.MEDIUMINT: "int32", TypeKind.INT: "int32"}
_UNSIGNED = {TypeKind.TINYINT: "int16", TypeKind.SMALLINT: "int32", TypeKind.MEDIUMINT: "int32"}
_OTHERS = {TypeKind.FLOAT: "float", TypeKind.DOUBLE: "double", TypeKind.BIT: "int64", TypeKind.YEAR: "int32"}
_INT64_BITS = 63
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


def wide_as_text(table: TableSchema, records: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in which whole numbers that may not fit are text, in old values too."""
    named = {name for column in table.columns if is_wide(column) for name in (column.field_name, old_name(column))}
    for at, name in enumerate(records.schema.names):
        if name in named:
            records = records.set_column(at, name, records.column(at).cast(pa.string()))
    return records


def is_wide(column: Column) -> bool:
    """Return whether a column has whole numbers that an ``int64`` may not hold."""
    kind = column.type.kind
    return (kind is TypeKind.BIGINT and column.type.unsigned) or (kind is TypeKind.BIT and (column.type.length or 1) > _INT64_BITS)


def _lead(schema: object) -> bytes:
    return b'{"schema":' + msgspec.json.encode(schema) + b',"payload":'


def _field(column: Column) -> dict[str, object]:
    kind = column.type.kind
    if is_wide(column):
        shown = "string"
    elif kind in INTEGER_KINDS:
        shown = (_UNSIGNED if column.type.unsigned else _SIGNED).get(kind, "int64")
    else:
        shown = "bytes" if kind in BINARY_KINDS else _OTHERS.get(kind, "string")
    return {"type": shown, "optional": column.nullable, "field": column.name}
