"""Key ranges of a table: where it is cut, and a span's borders as conditions that the server answers from its index.

A range is one of key bytes. Integers, binary strings, dates, and texts of a binary collation in UTF-8 have that order in the index as well,
so tables that begin with such a key column are cut, and the borders of a span are handed to the server: never so tight that a row of the
span is left out, because the keys of what was read decide. Texts of other collations have another order than their bytes; such tables are
one range. Runs in the server, and (conditions) on executors.
"""

from __future__ import annotations

import datetime as dt
import itertools

import pyarrow as pa

from penstock.ddl.tokens import quoted
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.types import INTEGER_KINDS, TEXT_KINDS, TypeKind
from penstock.source.mysql.connection import Session
from penstock.source.mysql.rows.row_keys import row_keys
from penstock.source.mysql.server import Server
from penstock.source.mysql.snapshot.column_query import literal, selected, typed
from penstock.source.mysql.snapshot.text_rows import query_columns

RANGE_ROWS = 250_000
RANGES_MAX = 256
SAMPLE_ROWS = 50
"""How many rows of a range, on average, are looked at to find where it ends."""
_BINARY = frozenset({TypeKind.BINARY, TypeKind.VARBINARY})
_MOMENTS = frozenset({TypeKind.DATE, TypeKind.DATETIME})
_SIZED_TEXTS = frozenset({TypeKind.CHAR, TypeKind.VARCHAR})
_UTF8_CHARSETS = frozenset({"ascii", "utf8", "utf8mb3", "utf8mb4"})
_END = b"\x00\x01"
"""Behind the bytes of a text in a key."""
_ORDINARY_MIN = "!"
"""Characters below are compared with the blanks that a text is filled up with."""


def cut_keys(server: Server, table: TableSchema, span: Span, range_rows: int = RANGE_ROWS) -> list[bytes]:
    """Return row keys that cut a span in ranges of about equal width, as many as its rows are worth; some may lie outside it."""
    with server.session() as session:
        try:
            return _cuts(session, table, span, range_rows)
        except PenstockError as error:
            if error.code != "UPSTREAM_CHANGING":
                raise
            # A table that a DDL has just changed or ended: whoever reads it finds out how.
            return []


def span_conditions(session: Session, table: TableSchema, span: Span) -> list[str]:
    """Return conditions that every row of a span fulfils, and as few others as the server's order allows."""
    if not table.key_columns or (not span.start_key and not span.end_key):
        return []
    column = table.key_columns[0]
    name = quoted(column.name)
    if column.type.kind in INTEGER_KINDS:
        return _integer_conditions(table, span)
    is_text = column.type.kind in TEXT_KINDS
    if not _has_byte_order(session, table):
        return []
    conditions = []
    lower, upper = (_first_value(border) if border else None for border in (span.start_key, span.end_key))
    if column.type.kind in _BINARY:
        conditions += [f"{name} >= {literal(lower)}"] if lower is not None else []
        return conditions + ([f"{name} < {literal(upper)}"] if upper is not None else [])
    for sign, value in ((">=", lower), ("<=", upper)):
        text = value.decode("utf-8", errors="replace") if value is not None else ""
        if value is None or not (_is_plain(text) if is_text else _is_moment(text)):
            continue
        condition = f"{name} {sign} {literal(text)}"
        if is_text and sign == ">=":
            # Where texts are filled up with blanks, one that goes on behind the border with a lower character stands before the border.
            lowest = text + "\0" * max(0, (column.type.length or 0) - len(text))
            condition = f"({condition} OR {name} >= {literal(lowest)})"
        conditions.append(condition)
    return conditions


def _integer(key: bytes, unsigned: bool) -> int:
    """Return the smallest value of an integer column whose key is at or above some bytes."""
    number = int.from_bytes(key.ljust(8, b"\x00")[:8], "big")
    return number if unsigned else number - (1 << 63)


def _integer_conditions(table: TableSchema, span: Span) -> list[str]:
    if len(span.start_key) not in {0, 8} or len(span.end_key) not in {0, 8}:
        # Rows outside are left out by their keys, after they were read.
        return []
    column = table.key_columns[0]
    bounds = []
    if span.start_key:
        bounds.append(f"{quoted(column.name)} >= {_integer(span.start_key, column.type.unsigned)}")
    if span.end_key:
        bounds.append(f"{quoted(column.name)} < {_integer(span.end_key, column.type.unsigned)}")
    return bounds


def _cuts(session: Session, table: TableSchema, span: Span, range_rows: int) -> list[bytes]:
    """Return the keys at which a table is cut, in order, none where its index does not help to read a part of it."""
    if not table.key_columns or not _leads_index(session, table) or not _has_byte_order(session, table):
        return []
    estimate = session.rows(
        "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", (table.schema, table.table)
    )
    rows = int(estimate[0][0] or 0) if estimate else 0
    count = min(RANGES_MAX, -(-rows // range_rows))
    if count < 2:
        return []
    if table.key_columns[0].type.kind in INTEGER_KINDS:
        return _even_cuts(session, table, span, count)
    return _sampled_cuts(session, table, count, min(1.0, SAMPLE_ROWS * count / rows))


def _even_cuts(session: Session, table: TableSchema, span: Span, count: int) -> list[bytes]:
    key, unsigned = quoted(table.key_columns[0].name), table.key_columns[0].type.unsigned
    low, high = session.rows(f"SELECT MIN({key}), MAX({key}) FROM {quoted(table.schema)}.{quoted(table.table)}")[0]
    if low is None:
        return []
    bounds = [_integer(b, unsigned) if b else None for b in (span.start_key[:8], span.end_key[:8])]
    low = max(int(low), bounds[0]) if bounds[0] is not None else int(low)
    high = min(int(high), bounds[1]) if bounds[1] is not None else int(high)
    steps = [low + (high - low) * n // count for n in range(1, count)]
    return [_key_bytes(value, unsigned) for value in sorted({s for s in steps if s > low})]


def _sampled_cuts(session: Session, table: TableSchema, count: int, share: float) -> list[bytes]:
    """Return cuts of about equal numbers of rows, from some rows of everywhere; the server goes over its index once for them."""
    column = table.key_columns[0]
    query = f"SELECT {selected(column)} FROM {quoted(table.schema)}.{quoted(table.table)} WHERE RAND() < {share:.9f}"
    pages = [typed(column, page[0]) for page in query_columns(session, query, 1, SAMPLE_ROWS * RANGES_MAX)]
    if not pages:
        return []
    bare = TableSchema(table.table_id, table.schema, table.table, table.version, (column,))
    keys = sorted(row_keys(bare, (pa.concat_arrays(pages),)).to_pylist())
    cuts = {_usable(table, keys[len(keys) * n // count]) for n in range(1, count)}
    return sorted(cuts - {b""})


def _usable(table: TableSchema, cut: bytes) -> bytes:
    """Return a cut, or one before it, that can be handed to the server as a border; nothing where there is none."""
    kind = table.key_columns[0].type.kind
    text = (_first_value(cut) or b"").decode("utf-8", errors="replace")
    if kind in TEXT_KINDS:
        plain = "".join(itertools.takewhile(_is_plain, text))
        return plain.encode() + _END if plain else b""
    return cut if kind in _BINARY or _is_moment(text) else b""


def _has_byte_order(session: Session, table: TableSchema) -> bool:
    """Return whether the order of the first key column at the server is that of its bytes in keys."""
    column = table.key_columns[0]
    if column.type.kind in INTEGER_KINDS or column.type.kind in _BINARY or column.type.kind in _MOMENTS:
        return True
    if column.type.kind not in _SIZED_TEXTS:
        return False
    found = session.rows(
        "SELECT CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLUMN_NAME = %s",
        (table.schema, table.table, column.name),
    )
    return bool(found) and str(found[0][0]).lower() in _UTF8_CHARSETS and str(found[0][1]).lower().endswith("_bin")


def _leads_index(session: Session, table: TableSchema) -> bool:
    """Return whether some unique index begins with the first key column, so that a part of it is found without going over all."""
    return bool(
        session.rows(
            "SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLUMN_NAME = %s"
            " AND SEQ_IN_INDEX = 1 AND NON_UNIQUE = 0",
            (table.schema, table.table, table.key_columns[0].name),
        )
    )


def _first_value(border: bytes) -> bytes | None:
    """Return the first column of a border that is a first column and nothing else, None for other borders."""
    body = border[:-2]
    if border[-2:] != _END or body.count(b"\x00") != body.count(b"\x00\xff"):
        return None
    return body.replace(b"\x00\xff", b"\x00")


def _is_plain(text: str) -> bool:
    """Return whether a text has characters, and only such as stand behind the blank."""
    return bool(text) and all(_ORDINARY_MIN <= c != "\ufffd" for c in text)


def _is_moment(text: str) -> bool:
    """Return whether a text is a date that exists; servers compare others in ways of their own."""
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _key_bytes(value: int, unsigned: bool) -> bytes:
    return (value if unsigned else value + (1 << 63)).to_bytes(8, "big")
