"""How the columns of a table stand in row images: a wire kind and two numbers each, as arrays for the kernels.

A layout is made once for each version of a table and never changes. Runs in the log service.
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.source.mysql.rows.texts import decimal_bytes
from penstock.source.mysql.wire import constants as wire


class WireColumn(msgspec.Struct, frozen=True):
    """How one column stands in row images; ``a`` and ``b`` are what its kind needs."""

    kind: int
    a: int = 0
    b: int = 0
    signed: bool = True
    form: int = wire.F_PLAIN


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
        self.widths = np.array([wire.WIDTHS.get(c.kind, 0) for c in columns], dtype=np.int64)


def _size(column: WireColumn) -> int:
    if column.kind in wire.SIZES:
        return wire.SIZES[column.kind]
    if column.kind in {wire.W_BITS, wire.W_ENUM, wire.W_SET}:
        return column.a
    if column.kind in wire.TEMPORAL_BASE:
        return wire.TEMPORAL_BASE[column.kind] + (column.b + 1) // 2
    return decimal_bytes(column.a, column.b) if column.kind == wire.W_DECIMAL else 0


def _text_max(column: WireColumn) -> int:
    if column.kind == wire.W_DECIMAL:
        return column.a + 3
    return column.b if column.kind == wire.W_PADDED else wire.TEXT_MAX.get(column.kind, 0)
