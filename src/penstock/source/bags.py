"""What a transaction did to a table without a key: how many copies of each row came, or ceased.

Rows of both sides arrive in any order inside a transaction. A row that came and ceased in one transaction leaves nothing, because no one
copy can be told from another; what is left over of one side leaves under keys of its own (``model/rows``), ordered by (commit ts,
key). So a transaction never has both sides of one content. All work is on columns. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.jit import I64, U64
from penstock.model.batch import BatchKind, ChangeBatch, Op, bounded_batches, change_records
from penstock.model.rows.bag_key import CONTENT_BYTES, bag_keys, content_words, key_grid
from penstock.model.table import TableSchema


class BagRows(NamedTuple):
    """The rows of one side as the log has them: when each came or ceased, a hash of its content, and the columns of chosen ones."""

    ts: U64
    contents: pa.Array
    columns: Callable[[I64], Sequence[pa.Array]]


class BagSide(msgspec.Struct, frozen=True):
    """The rows of one side that are left, by their number, and their keys."""

    rows: I64
    keys: pa.Array


def fold_bag(ceased_ts: U64, ceased_content: pa.Array, became_ts: U64, became_content: pa.Array) -> tuple[BagSide, BagSide]:
    """Return what is left of both sides, ceased first; contents are hashes of ``CONTENT_BYTES``."""
    gone = len(ceased_ts)
    ts = np.concatenate([ceased_ts, became_ts])
    if len(ts) == 0:
        nothing = BagSide(np.empty(0, dtype=np.int64), pa.array([], pa.binary()))
        return nothing, nothing
    grids = [g for g in (key_grid(ceased_content), key_grid(became_content)) if g is not None]
    grid = grids[0] if len(grids) == 1 else np.concatenate(grids)
    high, low = content_words(grid)
    order = _ordered(ts, high, low)
    starts = _group_starts(ts[order], high[order], low[order])
    sizes = np.diff(np.append(starts, len(ts)))
    came = np.add.reduceat((order >= gone).astype(np.int64), starts)
    net = 2 * came - sizes
    group = np.repeat(np.arange(len(starts)), sizes)
    sides = []
    for is_became in (False, True):
        mine = (order >= gone) == is_became
        left = np.maximum(net, 0) if is_became else np.maximum(-net, 0)
        number = _number_in_group(mine, starts, group)
        chosen = mine & (number < left[group])
        rows = order[chosen]
        keys = bag_keys(np.ascontiguousarray(grid[rows]).reshape(-1, CONTENT_BYTES), ts[rows], number[chosen])
        sides.append(BagSide(rows - gone if is_became else rows, keys))
    return sides[0], sides[1]


def bag_changes(table: TableSchema, ceased: BagRows, became: BagRows) -> list[ChangeBatch]:
    """Return what a bag lost and got: its updates are a delete of what was there and an insert of what is there now."""
    gone, came = fold_bag(ceased.ts, ceased.contents, became.ts, became.contents)
    found: list[ChangeBatch] = []
    for kind, op, left, side in ((BatchKind.TOMBSTONE, Op.DELETE, gone, ceased), (BatchKind.DATA, Op.INSERT, came, became)):
        ops = np.full(len(left.rows), int(op), dtype=np.uint8)
        if len(ops):
            records = change_records(table, side.ts[left.rows], ops, left.keys, side.columns(left.rows))
            found += bounded_batches(0, table, kind, records)
    return found


def _ordered(ts: U64, high: U64, low: U64) -> I64:
    """Return rows by (ts, content).

    One number per row, its transaction and the first 48 bits of its content, sorts several times faster than three. Where two contents
    share that number, which is rare, or where there are too many transactions, all three decide.
    """
    moments = np.unique(ts[np.flatnonzero(np.append(True, ts[1:] != ts[:-1]))])
    if len(moments) <= 1 << 16:
        number = (np.searchsorted(moments, ts).astype(np.uint64) << np.uint64(48)) | (high >> np.uint64(16))
        order = np.argsort(number, kind="stable")
        tied = np.flatnonzero(number[order[1:]] == number[order[:-1]])
        one, other = order[tied], order[tied + 1]
        if bool((high[one] == high[other]).all()) and bool((low[one] == low[other]).all()):
            return order
    return np.lexsort((low, high, ts))


def _group_starts(ts: U64, high: U64, low: U64) -> I64:
    begins = np.ones(len(ts), dtype=np.bool_)
    begins[1:] = (ts[1:] != ts[:-1]) | (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return np.flatnonzero(begins)


def _number_in_group(mine: npt.NDArray[np.bool_], starts: I64, group: I64) -> I64:
    """Return for each entry how many of its side stand before it in its group."""
    before: I64 = np.cumsum(mine) - mine
    return before - before[starts][group]
