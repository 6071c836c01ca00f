"""Which rows of a span are alive: the newest event of each key is a row and not a tombstone.

Works on the ``_ts`` and ``_key`` columns of both sides, each in ts order. Keys of one width that differ in at most eight bytes, as
integer keys do, are compared as numbers; others as bytes. Sorting notices input that is in order already. Runs in the log service and
on executors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.model.batch import KEY, ChangeBatch, commit_ts_array

Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
WORD = 8


def live_rows(data: Sequence[ChangeBatch], tombstones: Sequence[ChangeBatch]) -> Rows:
    """Return the numbers of the live rows, counted through the data batches, in key order."""
    ended = sum(b.header.rows for b in tombstones)
    batches = [*tombstones, *data]
    # Tombstones stand first, so that a stable sort by ts leaves them first at one ts.
    in_time = np.argsort(np.concatenate([commit_ts_array(b.records) for b in batches]), kind="stable") if ended else None
    numbers = key_numbers([b.records.column(KEY) for b in batches])
    newest = _newest_by_number(numbers, in_time) if numbers is not None else _newest_by_bytes(batches, in_time)
    return newest[newest >= ended] - ended


def _newest_by_number(numbers: npt.NDArray[np.uint64], in_time: Rows | None) -> Rows:
    if in_time is not None:
        numbers = numbers[in_time]
    rising = numbers[1:] > numbers[:-1]
    order: Rows = np.arange(len(numbers)) if bool(rising.all()) else np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    newest: Rows = order[np.append(ordered[1:] != ordered[:-1], True)]
    return newest if in_time is None else np.take(in_time, newest)


def _newest_by_bytes(batches: Sequence[ChangeBatch], in_time: Rows | None) -> Rows:
    keys = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([b.records.select([KEY]) for b in batches])))
    if in_time is not None:
        keys = keys[in_time]
    order = keys.with_row_index("at").select(pl.arg_sort_by(KEY, "at")).to_series()
    last = keys[KEY].gather(order).ne_missing(keys[KEY].gather(order).shift(-1)).to_numpy()
    last[-1] = True
    newest: Rows = order.to_numpy()[last].astype(np.int64)
    return newest if in_time is None else in_time[newest]


def key_numbers(arrays: Sequence[pa.Array]) -> npt.NDArray[np.uint64] | None:
    """Return keys as numbers of the same order, or None where they do not fit."""
    grids = [_key_grid(keys) for keys in arrays if len(keys)]
    if not grids or any(g is None or g.shape[1] != grids[0].shape[1] for g in grids if grids[0] is not None):
        return None
    known = [g for g in grids if g is not None]
    if len(known) != len(grids):
        return None
    first = known[0][0]
    varying = np.flatnonzero(np.any([(g != first).any(axis=0) for g in known], axis=0))
    if len(varying) > WORD:
        return None
    return np.concatenate([_words(g[:, varying]) for g in known])


def _key_grid(keys: pa.Array) -> Bytes | None:
    """Return keys of one width as a grid of bytes without a copy, or None for keys of several widths."""
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    width = int(offsets[1] - offsets[0])
    if width == 0 or not bool((np.diff(offsets) == width).all()):
        return None
    start = int(offsets[0])
    return np.frombuffer(keys.buffers()[2], dtype=np.uint8, count=width * len(keys), offset=start).reshape(len(keys), width)


def _words(grid: Bytes) -> npt.NDArray[np.uint64]:
    padded = np.zeros((len(grid), WORD), dtype=np.uint8)
    padded[:, WORD - grid.shape[1] :] = grid
    return padded.view(">u8").ravel().astype(np.uint64)
