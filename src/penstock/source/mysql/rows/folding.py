"""Folding: what a transaction did to each key, whatever it did in between.

Rows of both sides arrive in log order. They leave ordered by (commit ts, key), each key once per commit ts and side: the first
before-image and the last after-image. A key that has both is updated, one that only ceased is deleted, one that only came to be is
inserted. A key that was inserted and deleted again still gives its delete, so that nobody keeps what a replay may have written.
Runs in the log service.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from penstock.kernels.jit import I64, U8, U64
from penstock.model.batch import Op
from penstock.source.folding import arrange


class Folded(msgspec.Struct, frozen=True):
    """For each side the rows that stay, in order, and their ops."""

    ceased: I64
    ceased_ops: U8
    became: I64
    became_ops: U8


def fold(sides: U8, ceased_ts: U64, ceased_keys: pa.Array, became_ts: U64, became_keys: pa.Array) -> Folded:
    """Fold the rows of one table; ``sides`` tells for each image in log order whether it came to be (1) or ceased (0)."""
    came = sides == 1
    row = np.where(came, np.cumsum(came), np.cumsum(~came)) - 1
    key = np.where(came, row + len(ceased_ts), row)
    arranged = arrange(np.concatenate([ceased_ts, became_ts])[key], key, pa.concat_arrays([ceased_keys, became_keys]))
    if arranged.order is not None:
        came, row = came[arranged.order], row[arranged.order]
    first, last = arranged.first, arranged.last
    existed, exists = ~came[first], came[last]
    count = len(sides)
    gone = np.minimum.reduceat(np.where(came, count, np.arange(count)), first) if count else first
    ended = (gone < count) & (existed | ~exists)
    return Folded(
        row[gone[ended]],
        np.where(exists[ended], np.uint8(Op.BEFORE), np.uint8(Op.DELETE)),
        row[last[exists]],
        np.where(existed[exists], np.uint8(Op.UPDATE), np.uint8(Op.INSERT)),
    )


def is_identity(rows: I64, count: int) -> bool:
    """Return whether chosen rows are all rows in their order."""
    return len(rows) == count and bool(np.array_equal(rows, np.arange(count)))
