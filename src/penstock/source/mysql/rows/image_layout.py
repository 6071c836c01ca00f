"""How the columns of a table stand in row images: a wire kind and two numbers each, as arrays for the kernels.

A layout is made once for each version of a table and never changes. Runs in the log service.
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.source.mysql.rows.texts import decimal_bytes
from penstock.source.mysql.wire.constants import (
    F_PLAIN,
    W_BITS,
    W_DATE,
    W_DATETIME,
    W_DECIMAL,
    W_ENUM,
    W_INT1,
    W_INT2,
    W_INT3,
    W_INT4,
    W_INT8,
    W_OLD_DATETIME,
    W_OLD_TIME,
    W_OLD_TIMESTAMP,
    W_PADDED,
    W_SET,
    W_TIME,
    W_TIMESTAMP,
    W_YEAR,
)

_SIZES = {W_INT1: 1, W_INT2: 2, W_INT3: 3, W_INT4: 4, W_INT8: 8, W_YEAR: 1, W_DATE: 3, W_OLD_DATETIME: 8, W_OLD_TIMESTAMP: 4, W_OLD_TIME: 3}
_TEMPORAL_BASE = {W_DATETIME: 5, W_TIMESTAMP: 4, W_TIME: 3}
_WIDTHS = {W_INT1: 1, W_INT2: 2, W_INT3: 4, W_INT4: 4, W_INT8: 8, W_YEAR: 2, W_BITS: 8, W_ENUM: 2, W_SET: 8}
_TEXT_MAX = {W_DATE: 10, W_DATETIME: 26, W_TIMESTAMP: 26, W_TIME: 17, W_OLD_DATETIME: 19, W_OLD_TIMESTAMP: 19, W_OLD_TIME: 10}


class WireColumn(msgspec.Struct, frozen=True):
    """How one column stands in row images; ``a`` and ``b`` are what its kind needs."""

    kind: int
    a: int = 0
    b: int = 0
    signed: bool = True
    form: int = F_PLAIN


class ImageLayout:
    """What the kernels must know of a table's row images: flat descriptor arrays, made once."""

    def __init__(self, columns: tuple[WireColumn, ...]) -> None:
        self.columns = len(columns)
        self.forms = tuple(c.form for c in columns)
        """What ``shown_values`` makes of each column."""
        self.kinds = np.array([c.kind for c in columns], dtype=np.int64)
        self.a = np.array([c.a for c in columns], dtype=np.int64)
        self.b = np.array([c.b for c in columns], dtype=np.int64)
        self.signed = np.array([c.signed for c in columns], dtype=np.uint8)
        self.sizes = np.array([_size(c) for c in columns], dtype=np.int64)
        """Bytes in an image where they are the same for every value, else 0."""
        self.text_max = np.array([_text_max(c) for c in columns], dtype=np.int64)
        self.widths = np.array([_WIDTHS.get(c.kind, 0) for c in columns], dtype=np.int64)


def _size(column: WireColumn) -> int:
    if column.kind in _SIZES:
        return _SIZES[column.kind]
    if column.kind in {W_BITS, W_ENUM, W_SET}:
        return column.a
    if column.kind in _TEMPORAL_BASE:
        return _TEMPORAL_BASE[column.kind] + (column.b + 1) // 2
    return decimal_bytes(column.a, column.b) if column.kind == W_DECIMAL else 0


def _text_max(column: WireColumn) -> int:
    if column.kind == W_DECIMAL:
        return column.a + 3
    return column.b if column.kind == W_PADDED else _TEXT_MAX.get(column.kind, 0)
