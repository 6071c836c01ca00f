"""What a PostgreSQL server itself answers, as values of the model, to compare with what was read. Runs in tests."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from penstock.model.table import TableSchema
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.slot import SlotStatus, read_slot
from penstock.source.postgres.snapshot.table_scan import plan_scan
from penstock.source.postgres.upstream import PostgresUpstream
from penstock.source.postgres.wire.address import PostgresAddress
from penstock.source.postgres.wire.connection import Connection, quote_ident, quote_literal
from testing.servers.databases.postgres_lab import PostgresLab

Value = object
Row = dict[str, Value]


def slot_of(lab: PostgresLab, upstream: PostgresUpstream) -> SlotStatus | None:
    """Return the upstream's slot as the server has it."""
    with lab.session() as session:
        return read_slot(session, upstream.address.slot)


def drop_slot(address: PostgresAddress) -> bool:
    """Drop a slot under its reader's feet; return whether there was one."""
    with Connection(address) as connection:
        if read_slot(connection, address.slot) is None:
            return False
        connection.query(f"SELECT pg_drop_replication_slot({quote_literal(address.slot)})")
        return True


def table_of(upstream: PostgresUpstream, name: str = "shop.t") -> TableSchema:
    """Return a table by its full name."""
    return next(t for t in upstream.list_tables() if t.full_name == name)


def expected_value(form: CellForm, text: str | None) -> Value:
    """Return the value that a server's text stands for."""
    if text is None:
        return None
    if form is CellForm.INTEGER:
        return int(text)
    if form is CellForm.BOOLEAN:
        return int(text == "t")
    if form is CellForm.FLOAT:
        return float(text)
    if form is CellForm.BYTES:
        return bytes.fromhex(text.removeprefix("\\x"))
    return text.replace("+00", "") if form is CellForm.UTC else text


def comparable(value: Value, is_float4: bool) -> Value:
    """Return floats by their bits, so that NaN equals itself and -0 is not 0."""
    if not isinstance(value, float):
        return value
    return "nan" if math.isnan(value) else struct.pack("!f" if is_float4 else "!d", value)


def server_rows(lab: PostgresLab, upstream: PostgresUpstream, table: TableSchema, order: str = "1") -> list[Row]:
    """Return what the server answers to a plain SELECT."""
    with Connection(upstream.address) as connection:
        plan = plan_scan(connection, table)
    rows = lab.sql(f"SELECT {', '.join(quote_ident(c.column.name) for c in plan.columns)} FROM {plan.source} ORDER BY {order}")
    return [{c.column.field_name: expected_value(c.form, text) for c, text in zip(plan.columns, row, strict=True)} for row in rows]


def same_rows(table: TableSchema, left: Sequence[Row], right: Sequence[Row]) -> None:
    """Fail unless both are the same rows, in whatever order."""
    float4 = {c.field_name for c in table.columns if c.type.kind == "FLOAT"}

    def shown(rows: Sequence[Row]) -> list[str]:
        return sorted(repr([(k, comparable(v, k in float4)) for k, v in r.items()]) for r in rows)

    assert shown(left) == shown(right)
