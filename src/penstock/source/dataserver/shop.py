"""The shop: the tables that the workload writes, and columns of plausible values for any column type.

Values are made a column at a time from a seeded generator. They hold what breaks careless encoders: NULLs, quotes, commas, line ends,
backslashes, several scripts, extremes. Runs with the workload.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TypeKind

I64 = npt.NDArray[np.int64]
NULL_SHARE = 0.1
LINES_PER_ORDER = 4

TABLES = {
    "orders": """CREATE TABLE IF NOT EXISTS {db}.orders (
        id BIGINT UNSIGNED NOT NULL, customer_id INT NOT NULL, status ENUM('new','paid','packed','shipped','returned') NOT NULL,
        quantity SMALLINT UNSIGNED NOT NULL, discount TINYINT, amount DECIMAL(12,2) NOT NULL, tax DECIMAL(10,4), weight DOUBLE,
        created_at DATETIME(6) NOT NULL, updated_at TIMESTAMP NOT NULL, coupon VARCHAR(32), note VARCHAR(255), PRIMARY KEY (id))""",
    "order_items": """CREATE TABLE IF NOT EXISTS {db}.order_items (
        order_id BIGINT UNSIGNED NOT NULL, line_no SMALLINT NOT NULL, sku VARCHAR(32), quantity MEDIUMINT UNSIGNED NOT NULL,
        price DECIMAL(10,2) NOT NULL, gift BOOLEAN, PRIMARY KEY (order_id, line_no))""",
    "products": """CREATE TABLE IF NOT EXISTS {db}.products (
        sku VARCHAR(32) NOT NULL, name VARCHAR(128) NOT NULL, attributes JSON, description TEXT, price DECIMAL(10,2) NOT NULL,
        stock BIGINT, PRIMARY KEY (sku))""",
    "assets": """CREATE TABLE IF NOT EXISTS {db}.assets (
        id INT NOT NULL, content BLOB, checksum BINARY(16), flags BIT(16), taken DATE, duration TIME(3), model_year YEAR,
        tags SET('raw','hdr','cropped','public'), ratio FLOAT, PRIMARY KEY (id))""",
}

DDLS = (
    "ALTER TABLE {db}.orders ADD COLUMN priority INT NOT NULL DEFAULT 3",
    "ALTER TABLE {db}.products ADD COLUMN rating DECIMAL(3,1) NULL AFTER name",
    "ALTER TABLE {db}.orders MODIFY COLUMN customer_id BIGINT NOT NULL",
    "ALTER TABLE {db}.assets DROP COLUMN ratio",
    "ALTER TABLE {db}.order_items RENAME COLUMN gift TO is_gift",
)

_PHRASES = pa.array(
    [
        "handle with care",
        'says "fragile", twice',
        "comma, comma, comma",
        "two\nlines",
        "back\\slash and 'quote'",
        "Größe: übergroß",
        "上海 北京",
        "подарок",
        "😀 thanks",
        "",
        "NULL",
        "\\N",
        "a\tb\r\nc",
        "leave at the door; ring 3 times",
        "repeat customer since 2009, prefers morning deliveries between 8 and 10",
    ]
)
_JSON_KEYS = pa.array(["color", "size", "weight_g", "made_in", "eco"])
_JSON_VALUES = pa.array(['"red"', '"XL"', "250", '"中国"', "true", "null", '["a", "b"]', '{"x": 1.5}'])
# Made once: Arrow looks for an optional module each time it turns a Python str into a scalar.
_EMPTY, _SPACE, _DASH, _POINT, _SKU = (pa.scalar(text) for text in ("", " ", "-", ".", "SKU"))
_OPEN, _COLON, _CLOSE = (pa.scalar(text) for text in ('{"', '": ', "}"))
_EPOCH_US = 1_600_000_000_000_000
_SPAN_US = 200_000_000_000_000


def key_columns(table: TableSchema, numbers: I64) -> dict[str, pa.Array]:
    """Return the key columns of rows that are known by a number."""
    columns = {}
    parts = table.key_columns
    for at, column in enumerate(parts):
        part = numbers
        if len(parts) > 1:
            part = numbers // LINES_PER_ORDER if at == 0 else numbers % LINES_PER_ORDER + 1
        if column.type.kind in INTEGER_KINDS:
            columns[column.field_name] = pa.array(part).cast(column.type.arrow())
        else:
            digits = pc.utf8_lpad(pa.array(part).cast(pa.string()), 8, "0")
            columns[column.field_name] = pc.binary_join_element_wise(_SKU, digits, _DASH)
    return columns


def row_columns(table: TableSchema, numbers: I64, rng: np.random.Generator) -> dict[str, pa.Array]:
    """Return all columns of rows that are known by a number: the key from it, the rest at random."""
    columns = key_columns(table, numbers)
    for column in table.columns:
        if column.field_name not in columns:
            values = random_column(column, len(numbers), rng)
            if column.nullable:
                values = pc.if_else(pa.array(rng.random(len(numbers)) < NULL_SHARE), pa.scalar(None, values.type), values)
            columns[column.field_name] = values
    return columns


def random_column(column: Column, rows: int, rng: np.random.Generator) -> pa.Array:  # noqa: PLR0911 - one return per family of types
    """Return values of a column's type."""
    kind, data_type = column.type.kind, column.type.arrow()
    if kind == TypeKind.ENUM:
        return pa.array(rng.integers(1, len(column.type.elems) + 1, rows)).cast(data_type)
    if kind == TypeKind.SET:
        return pa.array(rng.integers(0, 1 << len(column.type.elems), rows)).cast(data_type)
    if kind == TypeKind.BIT:
        return pa.array(rng.integers(0, 1 << min(62, column.type.length or 1), rows)).cast(data_type)
    if kind == TypeKind.YEAR:
        return pa.array(rng.integers(1901, 2156, rows)).cast(data_type)
    if pa.types.is_integer(data_type):
        return _integers(column, rows, rng)
    if pa.types.is_floating(data_type):
        return pa.array(np.round(rng.normal(0, 100, rows), 3)).cast(data_type)
    if kind in BINARY_KINDS:
        return _bytes(column, rows, rng)
    return _text(column, rows, rng)


def _integers(column: Column, rows: int, rng: np.random.Generator) -> pa.Array:
    bits = column.type.arrow().bit_width
    if column.type.kind == TypeKind.MEDIUMINT:
        bits = 24
    top = (1 << min(40, bits if column.type.unsigned else bits - 1)) - 1
    low = 0 if column.type.unsigned else -min(top, 1000)
    values = rng.integers(low, min(top, 100_000), rows, endpoint=True)
    values[rng.random(rows) < 0.01] = top
    return pa.array(values).cast(column.type.arrow())


def _bytes(column: Column, rows: int, rng: np.random.Generator) -> pa.Array:
    fixed = column.type.length if column.type.kind == TypeKind.BINARY else None
    lengths = np.full(rows, fixed) if fixed else rng.integers(0, 64, rows)
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = rng.bytes(int(offsets[-1]))
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0)


def _text(column: Column, rows: int, rng: np.random.Generator) -> pa.Array:
    kind, scale = column.type.kind, column.type.scale or 0
    if kind == TypeKind.DECIMAL:
        return _decimals(column, rows, rng)
    if kind == TypeKind.DATE:
        return pa.array(rng.integers(10_000, 20_000, rows).astype(np.int32)).cast(pa.date32()).cast(pa.string())
    if kind == TypeKind.TIME:
        whole = pa.array(rng.integers(0, 86_400_000_000, rows)).cast(pa.time64("us")).cast(pa.string())
        return _cut_fraction(whole, 8, scale)
    if kind in (TypeKind.DATETIME, TypeKind.TIMESTAMP):
        micros = _EPOCH_US + rng.integers(0, _SPAN_US, rows)
        return _cut_fraction(pa.array(micros).cast(pa.timestamp("us")).cast(pa.string()), 19, scale)
    if kind == TypeKind.JSON:
        key = _JSON_KEYS.take(pa.array(rng.integers(0, len(_JSON_KEYS), rows)))
        value = _JSON_VALUES.take(pa.array(rng.integers(0, len(_JSON_VALUES), rows)))
        return pc.binary_join_element_wise(_OPEN, key, _COLON, value, _CLOSE, _EMPTY)
    phrases = _PHRASES.take(pa.array(rng.integers(0, len(_PHRASES), rows)))
    numbered = pc.binary_join_element_wise(phrases, pa.array(rng.integers(0, 1_000_000, rows)).cast(pa.string()), _SPACE)
    return pc.utf8_slice_codeunits(numbered, 0, column.type.length or 255)


def _decimals(column: Column, rows: int, rng: np.random.Generator) -> pa.Array:
    digits, scale = column.type.length or 10, column.type.scale or 0
    top = 10 ** min(digits, 12) - 1
    numbers = rng.integers(0, top, rows, endpoint=True)
    # MySQL has no negative zero.
    negative = (rng.random(rows) < 0.1) & (numbers > 0) & (not column.type.unsigned)
    sign = pa.array(np.where(negative, "-", ""))
    whole = pa.array(numbers // 10**scale).cast(pa.string())
    if not scale:
        return pc.binary_join_element_wise(sign, whole, _EMPTY)
    fraction = pc.utf8_lpad(pa.array(numbers % 10**scale).cast(pa.string()), scale, "0")
    return pc.binary_join_element_wise(sign, pc.binary_join_element_wise(whole, fraction, _POINT), _EMPTY)


def _cut_fraction(text: pa.Array, whole: int, digits: int) -> pa.Array:
    return pc.utf8_slice_codeunits(text, 0, whole + 1 + digits if digits else whole)
