"""Snapshots: the rows of a table or of a key range, read page by page by key, without a lock.

Every page is a query of its own that continues behind the last key of the one before, so a snapshot of any length holds no old view open on
the server; what changes meanwhile is in the log. A span's borders are handed to the server as far as its index has their order, and then
applied exactly to the keys. Runs on executors, and wherever a table is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ddl.tokens import quoted
from penstock.model.batch import ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.rows.bag_key import is_bag, snapshot_keys
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.types import INTEGER_KINDS, TypeKind
from penstock.source.mysql.rows.row_keys import row_contents, row_keys
from penstock.source.mysql.rows.rows_decoder import snapshot_batches
from penstock.source.mysql.server import Server
from penstock.source.mysql.snapshot.column_query import NUMBERED, literal, selected, typed
from penstock.source.mysql.snapshot.key_ranges import span_conditions
from penstock.source.mysql.snapshot.text_rows import query_columns

PAGE_ROWS = 16_384
QUERY_PAGES = 8
"""How many pages one query gives."""


def read_rows(
    server: Server, span: Span, table: TableSchema, ts: int, page_rows: int = PAGE_ROWS, consistent: bool = False
) -> Iterator[ChangeBatch]:
    """Yield the rows of a span as INSERTs at a ts, each page ordered by key; ``consistent`` sees all of them at one moment."""
    with server.session() as session:
        order = _index_order(server, table)
        if consistent:
            session.rows("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        last: list[object] | None = None
        given = 0
        borders = span_conditions(session, table, span)
        while True:
            query = select_statement(table, borders, order, last, page_rows * QUERY_PAGES if order else 0)
            count = 0
            for page in query_columns(session, query, len(table.columns), page_rows):
                count += len(page[0])
                try:
                    arrays = tuple(typed(column, array) for column, array in zip(table.columns, page, strict=True))
                    last = [_literal_value(table, name, page) for name in order]
                except (pa.ArrowException, ValueError, PenstockError) as error:
                    raise _unlike(server, table, error) from error
                yield from _ordered(span, table, ts, arrays, given)
                given += len(page[0])
            if not order or count < page_rows * QUERY_PAGES:
                return


def _unlike(server: Server, table: TableSchema, error: Exception) -> PenstockError:
    """Return what it means that values are not of a version's types: mostly that another table has its name and columns by now."""
    now = server.table(table.schema, table.table)
    kinds = {c.name.lower(): c.type for c in now.columns} if now is not None else {}
    if any(kinds.get(c.name.lower()) != c.type for c in table.columns):
        return PenstockError("UPSTREAM_CHANGING", f"{table.full_name} has changed since version {table.version}")
    return error if isinstance(error, PenstockError) else PenstockError("DECODE_FAILED", f"{table.full_name}: {type(error).__name__}")


def select_statement(table: TableSchema, borders: Sequence[str], order: Sequence[str], last: Sequence[object] | None, limit: int) -> str:
    """Return the query of one page: the rows within some borders behind a key, in index order."""
    conditions = list(borders)
    if last is not None:
        conditions.append(_behind(order, last))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    by = f" ORDER BY {', '.join(quoted(name) for name in order)} LIMIT {limit}" if order else ""
    columns = ", ".join(selected(c) for c in table.columns)
    return f"SELECT {columns} FROM {quoted(table.schema)}.{quoted(table.table)}{where}{by}"


def _index_order(server: Server, table: TableSchema) -> tuple[str, ...]:
    """Return the key's columns in the order of the index, empty for a table without a key, which is read in one query."""
    if not table.key_columns:
        return ()
    shown = server.table(table.schema, table.table)
    if shown is None:
        raise PenstockError("TABLE_UNKNOWN", f"{table.full_name} does not exist any more")
    names = {c.name.lower() for c in table.key_columns}
    return shown.key_order if {k.lower() for k in shown.key_order} == names else tuple(c.name for c in table.key_columns)


def key_condition(table: TableSchema, arrays: tuple[pa.Array, ...]) -> str:
    """Return the condition for rows with given keys.

    Spelled out: where a column's charset is not the connection's, MariaDB 10.11 loses rows of a list of row values.
    """
    places = [p for p, c in enumerate(table.columns) if c.primary_key]
    texts = [[f"{quoted(table.columns[p].name)} = {literal(v)}" for v in arrays[p].to_pylist()] for p in places]
    return " OR ".join("(" + " AND ".join(row) + ")" for row in zip(*texts, strict=True))


def _behind(order: Sequence[str], last: Sequence[object]) -> str:
    """Return the condition for keys behind a key, spelled out, because servers use no index for row comparisons."""
    parts = []
    for depth in range(len(order)):
        equal = [f"{quoted(order[p])} = {literal(last[p])}" for p in range(depth)]
        parts.append("(" + " AND ".join([*equal, f"{quoted(order[depth])} > {literal(last[depth])}"]) + ")")
    return "(" + " OR ".join(parts) + ")"


def _literal_value(table: TableSchema, name: str, page: tuple[pa.Array, ...]) -> object:
    """Return the last value of a key column as a literal can hold it."""
    place = next(p for p, c in enumerate(table.columns) if c.name.lower() == name.lower())
    value = page[place][-1].as_py()
    column = table.columns[place]
    if column.type.kind in INTEGER_KINDS or column.type.kind in NUMBERED or column.type.kind is TypeKind.YEAR:
        return int(value)
    return value if pa.types.is_binary(column.type.arrow()) else value.decode("utf-8")


def _ordered(span: Span, table: TableSchema, ts: int, arrays: tuple[pa.Array, ...], given: int) -> Iterator[ChangeBatch]:
    """Yield a page by key; ``given`` rows came before it."""
    keys = snapshot_keys(row_contents(table, arrays), given) if is_bag(table) else row_keys(table, arrays)
    chosen = np.ones(len(keys), dtype=np.bool_)
    if span.start_key:
        chosen &= pc.greater_equal(keys, pa.scalar(span.start_key, pa.binary())).to_numpy(zero_copy_only=False)
    if span.end_key:
        chosen &= pc.less(keys, pa.scalar(span.end_key, pa.binary())).to_numpy(zero_copy_only=False)
    order = pc.sort_indices(keys)
    if not bool(chosen.all()):
        order = order.filter(pa.array(chosen).take(order))
    if len(order) == 0:
        return
    if bool(np.array_equal(order.to_numpy(), np.arange(len(keys)))):
        yield from snapshot_batches(span.span_id, table, ts, arrays, keys)
        return
    yield from snapshot_batches(span.span_id, table, ts, tuple(a.take(order) for a in arrays), keys.take(order))
