"""Reads a table's rows in key order with COPY, in columns: snapshots, verification, and values that the log left out.

Rows come as one ordered stream and leave as pages of bounded size; a page is decoded by the same kernels as the log. Where the server's own
order of the key is not the order of the key's bytes, it sorts by the text in byte order. A span's borders are handed to the server
as a coarse condition on the first key column, and then applied exactly to the keys. Runs on executors, in the log service, in the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.rows.bag_key import snapshot_keys
from penstock.model.rows.row_key import encode_row_keys
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.source.postgres.rows.cells import CellForm, CellGrid, copy_grid
from penstock.source.postgres.rows.row_changes import batches
from penstock.source.postgres.rows.row_keys import FROM_TABLE, key_arrays, key_type, place_keys, row_contents
from penstock.source.postgres.rows.type_map import BPCHAR, UUID
from penstock.source.postgres.tables.catalog import OID_MASK, CatalogColumn, CatalogTable, read_tables
from penstock.source.postgres.wire.connection import Connection, quote_ident, quote_literal
from penstock.source.postgres.wire.pgoutput import FRAME_BYTES, MESSAGE_BYTES_MAX

PAGE_BYTES = 2 << 20
_NATIVE_FORMS = frozenset({CellForm.INTEGER, CellForm.BOOLEAN, CellForm.BYTES})
_SIGN = 1 << 63
_READY = b"Z\0\0\0\5"
FETCH_KEYS = 4096
"""How many rows one statement reads by key."""


class ScanPlan(msgspec.Struct, frozen=True):
    """What is read of a table: the catalog's columns in the order of the version, and whether rows name their place."""

    table: TableSchema
    columns: tuple[CatalogColumn, ...]
    schema_name: str
    table_name: str
    identity: str
    row_filter: str = ""
    only: str = ""
    """Leaves out the rows of tables that inherit from it, which the log gives as theirs; empty where these are its partitions."""

    @property
    def source(self) -> str:
        """Return the table's name now, as SQL writes it after FROM."""
        return f"{self.only}{quote_ident(self.schema_name)}.{quote_ident(self.table_name)}"

    @property
    def keys(self) -> list[CatalogColumn]:
        """Return the columns of the version's key; the table may have another one by now, or none."""
        keyed = {c.id for c in self.table.key_columns}
        return [c for c in self.columns if c.column.id in keyed]

    @property
    def by_place(self) -> bool:
        """Return whether rows are keyed by where they stand."""
        return not self.table.key_columns and self.identity != "f"


def plan_scan(connection: Connection, table: TableSchema) -> ScanPlan:
    """Find a table version's columns in the catalog as it is now.

    Raises ``TABLE_UNKNOWN`` where it is gone, ``UPSTREAM_CHANGING`` where it has changed: whoever asks again asks for what the log told.
    """
    plan = plan_remains(connection, table)
    if plan is None:
        raise PenstockError("TABLE_UNKNOWN", f"{table.full_name} is gone")
    if len(plan.columns) != len(table.columns):
        raise PenstockError("UPSTREAM_CHANGING", f"{table.full_name} has changed since version {table.version}")
    return plan


def plan_remains(connection: Connection, table: TableSchema) -> ScanPlan | None:
    """Find those columns of a table version that the catalog has still; None where the table is gone."""
    found = read_tables(connection, [table.table_id & OID_MASK])
    if not found:
        return None
    now: CatalogTable = found[0]
    by_id = {c.column.id: c for c in now.columns}
    columns = [by_id[c.id] for c in table.columns if c.id in by_id and by_id[c.id].column.type == c.type]
    return ScanPlan(table, tuple(columns), now.schema, now.table, now.identity, now.row_filter, "" if now.partitioned else "ONLY ")


def scan_table(connection: Connection, plan: ScanPlan, span: Span, ts: int, page_rows: int) -> Iterator[ChangeBatch]:
    """Yield the rows of a span in key order as INSERT at a ts. A transaction is open on the connection."""
    copy = f"COPY ({_select(plan, span)}) TO STDOUT"
    extra = 2 if plan.by_place else 0
    if not plan.table.key_columns and not plan.by_place:
        # Content has no order that the server knows.
        grids = list(read_copy(connection, copy, len(plan.columns), page_rows))
        yield from _by_content(plan, span, grids, ts)
        return
    for grid in read_copy(connection, copy, len(plan.columns) + extra, page_rows):
        keys = _place_keys_of(grid) if extra else encode_row_keys(plan.table, _key_columns(plan, grid))
        columns = [grid.column(at, c.form, c.column.type.arrow()) for at, c in enumerate(plan.columns)]
        yield from _within(plan, span, ts, keys, columns)


def read_copy(connection: Connection, copy: str, columns: int, page_rows: int) -> Iterator[CellGrid]:
    """Run a COPY and yield its rows as grids, each of at least one row."""
    connection.start_copy_out(copy)
    waiting = bytearray()
    while True:
        waiting += connection.receive_raw() or b""
        # What looks like the end is walked at once; if it only looks so, a page is smaller than it could be.
        if len(waiting) < PAGE_BYTES and waiting[-6:-1] != _READY:
            continue
        buffer = np.frombuffer(waiting, dtype=np.uint8)
        at = 0
        while True:
            grid, at, ended = copy_grid(buffer, at, len(buffer), columns, page_rows)
            if grid.rows:
                yield grid
            if ended or grid.rows < page_rows:
                break
        # The walk undoes escapes in the rows that it passes, never behind the place where it stops.
        waiting = bytearray(buffer[at:].tobytes())
        if int.from_bytes(waiting[1:FRAME_BYTES], "big") > MESSAGE_BYTES_MAX:
            raise PenstockError("DECODE_FAILED", f"{connection.address.shown}: a row of more than {MESSAGE_BYTES_MAX} bytes")
        if ended:
            connection.finish_copy(waiting)
            return


def fetch_rows(
    connection: Connection, plan: ScanPlan, key_columns: Sequence[pa.Array], wanted: Sequence[Column]
) -> tuple[pa.Array, list[pa.Array]]:
    """Read columns of rows by key; return the keys found and the columns, in any order. A column that is gone by now gives NULLs."""
    own = {c.id for c in plan.table.key_columns}
    keys = [c for c in plan.columns if c.column.id in own]
    if len(keys) != len(own):
        raise PenstockError("SCHEMA_UNKNOWN", f"{plan.table.full_name} has lost its key since version {plan.table.version}")
    chosen = [*keys, *(c for w in wanted for c in plan.columns if c.column.id == w.id)]
    match = " AND ".join(f"t.{quote_ident(c.column.name)} = v.k{at}::{_type_name(c)}" for at, c in enumerate(keys))
    listed = ", ".join(f"t.{quote_ident(c.column.name)}" for c in chosen)
    names = ", ".join(f"k{at}" for at in range(len(keys)))
    grids: list[CellGrid] = []
    for start in range(0, len(key_columns[0]), FETCH_KEYS):
        rows = _values([array.slice(start, FETCH_KEYS) for array in key_columns])
        copy = f"COPY (SELECT {listed} FROM {plan.source} t JOIN (VALUES {rows}) AS v({names}) ON {match}) TO STDOUT"
        grids += read_copy(connection, copy, len(chosen), FETCH_KEYS)
    columns = [
        pa.concat_arrays([g.column(at, c.form, c.column.type.arrow()) for g in grids] or [pa.array([], c.column.type.arrow())])
        for at, c in enumerate(chosen)
    ]
    count = len(columns[0])
    read = {c.column.id: array for c, array in zip(chosen[len(keys) :], columns[len(keys) :], strict=True)}
    values = [read[w.id] if w.id in read else pa.nulls(count, w.type.arrow()) for w in wanted]
    if not grids:
        return pa.array([], pa.binary()), values
    found = {
        c.column.field_name: pa.concat_arrays([g.column(at, c.form, key_type(c.form, c.column.type.arrow())) for g in grids])
        for at, c in enumerate(keys)
    }
    return encode_row_keys(plan.table, found), values


def _values(key_columns: Sequence[pa.Array]) -> str:
    """Return keys as rows of a VALUES list, made in columns: strings of the session conform to the standard, so only quotes are doubled."""
    texts = []
    for array in key_columns:
        if pa.types.is_binary(array.type):
            text = pc.binary_join_element_wise(pa.scalar("\\x"), pl.Series(array).bin.encode("hex").to_arrow().cast(pa.string()), "")
        else:
            text = pc.replace_substring(pc.cast(array, pa.string()), "'", "''")
        texts.append(pc.binary_join_element_wise(pa.scalar("'"), text, pa.scalar("'"), ""))
    rows = pc.binary_join_element_wise(*texts, ", ")
    whole = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return f"({pc.binary_join(whole, '), (')[0].as_py()})"


def first_value(plan: ScanPlan, key: bytes) -> str | None:
    """Return the first column of a key as an SQL literal of the order's kind, or None where the key is too short to tell."""
    column = plan.keys[0]
    if column.form in {CellForm.INTEGER, CellForm.BOOLEAN}:
        if len(key) < 8:
            return None
        number = int.from_bytes(key[:8], "big") - (0 if column.column.type.unsigned else _SIGN)
        return str(number) if column.form is CellForm.INTEGER else ("true" if number else "false")
    at = 0
    raw = bytearray()
    while at + 1 < len(key):
        if key[at] == 0:
            if key[at + 1] == 1:
                break
            raw.append(0)
            at += 2
            continue
        raw.append(key[at])
        at += 1
    else:
        return None
    if column.form is CellForm.BYTES:
        return f"'\\x{raw.hex()}'::bytea"
    return quote_literal(raw.decode("utf-8", "replace")) + ("::uuid" if column.type_oid == UUID else "")


def order_expression(column: CatalogColumn, name: str = "") -> str:
    """Return an expression whose order at the server is the order of the column's bytes in keys."""
    name = name or quote_ident(column.column.name)
    if column.form in _NATIVE_FORMS or column.type_oid == UUID:
        return name
    if column.type_oid == BPCHAR:
        # A cast to text would drop the blanks that the log shows.
        return f"format('%s', {name}) COLLATE \"C\""
    if column.form is CellForm.UTC:
        return f"replace({name}::text, '+00', '') COLLATE \"C\""
    if column.byte_order:
        return name
    return f'{name}::text COLLATE "C"'


def _select(plan: ScanPlan, span: Span) -> str:
    listed = ", ".join(quote_ident(c.column.name) for c in plan.columns)
    # What the publication leaves out of the log is no row of a snapshot either.
    conditions = [f"({plan.row_filter})"] if plan.row_filter else []
    if plan.by_place:
        return f"SELECT {listed}, tableoid, ctid FROM {plan.source}{_where(conditions + _places(span))} ORDER BY tableoid, ctid"
    if not plan.table.key_columns:
        return f"SELECT {listed} FROM {plan.source}{_where(conditions)}"
    first = order_expression(plan.keys[0])
    for border, sign in ((span.start_key, ">="), (span.end_key, "<=")):
        value = first_value(plan, border) if border else None
        if value is not None:
            conditions.append(f"{first} {sign} {value}")
    return f"SELECT {listed} FROM {plan.source}{_where(conditions)} ORDER BY {', '.join(map(order_expression, plan.keys))}"


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _places(span: Span) -> list[str]:
    """Return the conditions of a span of places; rows of a table come in that order by themselves, partitions by their oid."""
    conditions = []
    for border, sign in ((span.start_key, ">="), (span.end_key, "<=")):
        if len(border) >= 9 and border[0] == FROM_TABLE:
            conditions.append(f"ctid {sign} '({int.from_bytes(border[5:9], 'big')},{65535 if sign == '<=' else 0})'")
    return conditions


def _key_columns(plan: ScanPlan, grid: CellGrid) -> dict[str, pa.Array]:
    return key_arrays(plan.table, [c.form for c in plan.columns], grid)


def _place_keys_of(grid: CellGrid) -> pa.Array:
    oids = grid.column(grid.columns - 2, CellForm.INTEGER, pa.int64()).to_numpy()
    places = grid.column(grid.columns - 1, CellForm.TEXT, pa.string())
    parts = pc.split_pattern(pc.utf8_trim(places, "()"), ",").flatten().cast(pa.int64()).to_numpy().reshape(-1, 2)
    return place_keys(oids, parts[:, 0], parts[:, 1])


def _within(plan: ScanPlan, span: Span, ts: int, keys: pa.Array, columns: list[pa.Array]) -> Iterator[ChangeBatch]:
    """Yield the rows that lie in the span."""
    inside = None
    if span.start_key:
        inside = pc.greater_equal(keys, pa.scalar(span.start_key, pa.binary()))
    if span.end_key:
        below = pc.less(keys, pa.scalar(span.end_key, pa.binary()))
        inside = below if inside is None else pc.and_(inside, below)
    if inside is not None:
        keys, columns = keys.filter(inside), [c.filter(inside) for c in columns]
    if len(keys) == 0:
        return
    stamps = np.full(len(keys), ts, dtype=np.uint64)
    yield from batches(plan.table, BatchKind.DATA, stamps, np.full(len(keys), int(Op.INSERT), np.uint8), keys, columns)


def _by_content(plan: ScanPlan, span: Span, grids: Sequence[CellGrid], ts: int) -> Iterator[ChangeBatch]:
    """Order rows by content in memory."""
    if not grids:
        return
    keys = snapshot_keys(pa.concat_arrays([row_contents(g) for g in grids]), 0)
    rows = pc.sort_indices(keys)
    columns = [
        pa.concat_arrays([g.column(at, c.form, c.column.type.arrow()) for g in grids]).take(rows) for at, c in enumerate(plan.columns)
    ]
    yield from _within(plan, span, ts, keys.take(rows), columns)


def _type_name(column: CatalogColumn) -> str:
    return f"{quote_ident(column.type_schema)}.{quote_ident(column.type_name)}"
