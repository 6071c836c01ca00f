"""How columns and values stand in queries: names in quotes, literals, and texts that are exact.

What a query answers for a column is text; ``typed`` makes the model's column of it. Runs wherever a table is read.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.ddl.tokens import literal as text_literal
from penstock.ddl.tokens import quoted
from penstock.model.table import Column
from penstock.model.types import TypeKind
from penstock.source.mysql.rows.charsets import to_utf8
from penstock.source.mysql.rows.shown_values import vector_texts

NUMBERED = frozenset({TypeKind.BIT, TypeKind.ENUM, TypeKind.SET})


def literal(value: object) -> str:
    """Return a value as SQL writes it."""
    if isinstance(value, bytes):
        return "x'" + value.hex() + "'"
    if isinstance(value, int | float):
        return repr(value)
    # Sessions have no SQL mode, so a backslash escapes.
    return text_literal(str(value)).replace("\0", "\\0")


def selected(column: Column) -> str:
    """Return how a column is asked for, so that its text is exact."""
    name = quoted(column.name)
    if column.type.kind in NUMBERED:
        # Not as ``+ 0``, which makes a DOUBLE of a SET.
        return f"CAST({name} AS UNSIGNED)"
    if column.type.kind is TypeKind.FLOAT:
        # As text a FLOAT has six digits; as a DOUBLE it has all of them.
        return f"{name} + 0e0"
    if column.type.kind is TypeKind.DECIMAL and column.type.zerofill:
        return f"CAST({name} AS DECIMAL({column.type.length},{column.type.scale}))"
    return name


def typed(column: Column, array: pa.Array) -> pa.Array:
    """Return a column of a query with its type of the model."""
    wanted = column.type.arrow()
    if pa.types.is_binary(wanted):
        return array
    if column.type.kind is TypeKind.VECTOR:
        return vector_texts(array, column.name)
    text = to_utf8(array, "utf8mb4", column.name)
    if pa.types.is_string(wanted):
        return text
    if pa.types.is_floating(wanted):
        return text.cast(pa.float64()).cast(wanted, safe=False)
    return text.cast(wanted)
