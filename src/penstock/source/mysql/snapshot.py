"""Snapshots: the rows of a table or of a key range, read page by page by key, without a lock.

Every page is a query of its own that continues behind the last key of the one before, so a snapshot of any length holds no old view open on
the server; what changes meanwhile is in the log. Ranges are cut where the first key column is an integer, whose order in the index is the
order of key bytes; other tables are one range. Runs on executors, and wherever a table is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import INTEGER_KINDS, TypeKind
from penstock.source.contract import RangeEpoch, RangeInfo
from penstock.source.dataserver.keys import full_key, full_span
from penstock.source.mysql.charsets import to_utf8
from penstock.source.mysql.connection import Session
from penstock.source.mysql.row_keys import row_keys
from penstock.source.mysql.rows_decoder import snapshot_batches
from penstock.source.mysql.server import Server
from penstock.source.mysql.shown_values import vector_texts
from penstock.source.mysql.text_rows import query_columns

PAGE_ROWS = 16_384
QUERY_PAGES = 8
"""How many pages one query gives."""
RANGE_ROWS = 250_000
RANGES_MAX = 256
_NUMBERED = frozenset({TypeKind.BIT, TypeKind.ENUM, TypeKind.SET})
_EPOCH = RangeEpoch(1, 1)


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
        while True:
            query = select_statement(table, span, order, last, page_rows * QUERY_PAGES if order else 0)
            count = 0
            for page in query_columns(session, query, len(table.columns), page_rows):
                count += len(page[0])
                arrays = tuple(typed(column, array) for column, array in zip(table.columns, page, strict=True))
                last = [_literal_value(table, name, page) for name in order]
                yield from _ordered(span, table, ts, arrays)
            if not order or count < page_rows * QUERY_PAGES:
                return


def select_statement(table: TableSchema, span: Span, order: Sequence[str], last: Sequence[object] | None, limit: int) -> str:
    """Return the query of one page: the rows of a span behind a key, in index order."""
    conditions = _bounds(table, span)
    if last is not None:
        conditions.append(_behind(order, last))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    by = f" ORDER BY {', '.join(quoted(name) for name in order)} LIMIT {limit}" if order else ""
    columns = ", ".join(selected(c) for c in table.columns)
    return f"SELECT {columns} FROM {quoted(table.schema)}.{quoted(table.table)}{where}{by}"


def quoted(name: str) -> str:
    """Return an identifier in quotes."""
    return "`" + name.replace("`", "``") + "`"


def read_ranges(server: Server, table: TableSchema, span: Span, range_rows: int = RANGE_ROWS) -> list[RangeInfo]:
    """Return ranges of about equal width that cover a span, as many as its rows are worth."""
    first, last = full_span(span)
    address = f"{server.address.host}:{server.address.port}"
    cuts: list[bytes] = []
    if _ranged(table):
        with server.session() as session:
            cuts = [full_key(table.table_id, c) for c in _cuts(session, table, span, range_rows)]
    starts = [first, *(c for c in cuts if first < c < last)]
    ends = [*starts[1:], last]
    return [
        RangeInfo(number, table.table_id, start, end, _EPOCH, 1, address)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
    ]


def _ranged(table: TableSchema) -> bool:
    return bool(table.key_columns) and table.key_columns[0].type.kind in INTEGER_KINDS


def _cuts(session: Session, table: TableSchema, span: Span, range_rows: int) -> list[bytes]:
    key, unsigned = table.key_columns[0].name, table.key_columns[0].type.unsigned
    name = f"{quoted(table.schema)}.{quoted(table.table)}"
    estimate = session.rows(
        "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", (table.schema, table.table)
    )
    low, high = session.rows(f"SELECT MIN({quoted(key)}), MAX({quoted(key)}) FROM {name}")[0]
    rows = int(estimate[0][0] or 0) if estimate else 0
    count = min(RANGES_MAX, -(-rows // range_rows))
    if low is None or count < 2:
        return []
    bounds = [_integer(b, unsigned) if b else None for b in (span.start_key[:8], span.end_key[:8])]
    low = max(int(low), bounds[0]) if bounds[0] is not None else int(low)
    high = min(int(high), bounds[1]) if bounds[1] is not None else int(high)
    steps = [low + (high - low) * n // count for n in range(1, count)]
    return [_key_bytes(value, unsigned) for value in sorted({s for s in steps if s > low})]


def _key_bytes(value: int, unsigned: bool) -> bytes:
    return (value if unsigned else value + (1 << 63)).to_bytes(8, "big")


def _integer(key: bytes, unsigned: bool) -> int:
    """Return the smallest value of an integer column whose key is at or above some bytes."""
    number = int.from_bytes(key.ljust(8, b"\x00")[:8], "big")
    return number if unsigned else number - (1 << 63)


def _bounds(table: TableSchema, span: Span) -> list[str]:
    if not span.start_key and not span.end_key:
        return []
    if not _ranged(table) or len(span.start_key) not in {0, 8} or len(span.end_key) not in {0, 8}:
        # Rows outside are left out by their keys, after they were read.
        return []
    column = table.key_columns[0]
    bounds = []
    if span.start_key:
        bounds.append(f"{quoted(column.name)} >= {_integer(span.start_key, column.type.unsigned)}")
    if span.end_key:
        bounds.append(f"{quoted(column.name)} < {_integer(span.end_key, column.type.unsigned)}")
    return bounds


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
    texts = [[f"{quoted(table.columns[p].name)} = {_literal(v)}" for v in arrays[p].to_pylist()] for p in places]
    return " OR ".join("(" + " AND ".join(row) + ")" for row in zip(*texts, strict=True))


def _behind(order: Sequence[str], last: Sequence[object]) -> str:
    """Return the condition for keys behind a key, spelled out, because servers use no index for row comparisons."""
    parts = []
    for depth in range(len(order)):
        equal = [f"{quoted(order[p])} = {_literal(last[p])}" for p in range(depth)]
        parts.append("(" + " AND ".join([*equal, f"{quoted(order[depth])} > {_literal(last[depth])}"]) + ")")
    return "(" + " OR ".join(parts) + ")"


def _literal(value: object) -> str:
    if isinstance(value, bytes):
        return "x'" + value.hex() + "'"
    if isinstance(value, int | float):
        return repr(value)
    # Sessions have no SQL mode, so a backslash escapes.
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


def _literal_value(table: TableSchema, name: str, page: tuple[pa.Array, ...]) -> object:
    """Return the last value of a key column as a literal can hold it."""
    place = next(p for p, c in enumerate(table.columns) if c.name.lower() == name.lower())
    value = page[place][-1].as_py()
    column = table.columns[place]
    if column.type.kind in INTEGER_KINDS or column.type.kind in _NUMBERED or column.type.kind is TypeKind.YEAR:
        return int(value)
    return value if pa.types.is_binary(column.type.arrow()) else value.decode("utf-8")


def selected(column: Column) -> str:
    """Return how a column is asked for, so that its text is exact."""
    name = quoted(column.name)
    if column.type.kind in _NUMBERED:
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


def _ordered(span: Span, table: TableSchema, ts: int, arrays: tuple[pa.Array, ...]) -> Iterator[ChangeBatch]:
    keys = row_keys(table, arrays)
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
