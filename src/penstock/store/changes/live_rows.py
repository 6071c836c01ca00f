"""Which rows of a span are alive: the newest event of each key is a row and not a tombstone.

Works on the ``_ts`` and ``_key`` columns of both sides, each in ts order. Keys of one width that differ in at most eight bytes, as
integer keys do, are compared as numbers; others as bytes. Sorting notices input that is in order already. Rows that nothing names are
counted instead: of each content as many are alive as came and did not cease since, and a tombstone that finds none ends none. Keys tell
contents apart only while a table keeps its shape; where it changed, or rows were named otherwise, ``Contents`` tells them by their values,
and each stretch of versions goes by its own rule. Runs in the log service and on executors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.model.batch import KEY, ChangeBatch, commit_ts_array
from penstock.model.rows.bag_key import BAG_KEY_BYTES, content_words, key_grid

Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
WORD = 8
Words = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
Contents = Callable[[Sequence[ChangeBatch]], Words]
"""Gives hashes of what the rows of some batches hold, one batch behind the other, as two numbers each."""


def live_rows(data: Sequence[ChangeBatch], tombstones: Sequence[ChangeBatch], bags: Collection[int] = ()) -> Rows:
    """Return the numbers of the live rows, counted through the data batches, in key order; ``bags`` are table versions without a key."""
    counted = [_is_counted(b, bags) for b in data]
    if not any(counted):
        return _newest(data, [b for b in tombstones if not _is_counted(b, bags)])
    starts = np.cumsum([0, *(b.header.rows for b in data)])
    parts = []
    for wanted, alive in ((False, _newest), (True, _copies)):
        mine = [at for at, is_counted in enumerate(counted) if is_counted is wanted]
        if mine:
            chosen = [data[at] for at in mine]
            numbers = np.concatenate([np.arange(starts[at], starts[at + 1]) for at in mine])
            parts.append(numbers[alive(chosen, [b for b in tombstones if _is_counted(b, bags) is wanted])])
    return parts[0] if len(parts) == 1 else _in_key_order(data, np.concatenate(parts))


def _is_counted(batch: ChangeBatch, bags: Collection[int]) -> bool:
    """Return whether a batch holds rows of a bag; rows of its table that were stored under other keys are none."""
    if batch.header.schema_version not in bags:
        return False
    keys = batch.records.column(KEY)
    return len(keys) > 0 and len(keys[0].as_py()) == BAG_KEY_BYTES


def _newest(data: Sequence[ChangeBatch], tombstones: Sequence[ChangeBatch]) -> Rows:
    ended = sum(b.header.rows for b in tombstones)
    batches = [*tombstones, *data]
    # Tombstones stand first, so that a stable sort by ts leaves them first at one ts.
    in_time = np.argsort(np.concatenate([commit_ts_array(b.records) for b in batches]), kind="stable") if ended else None
    numbers = key_numbers([b.records.column(KEY) for b in batches])
    newest = _newest_by_number(numbers, in_time) if numbers is not None else _newest_by_bytes(batches, in_time)
    return newest[newest >= ended] - ended


def _copies(data: Sequence[ChangeBatch], tombstones: Sequence[ChangeBatch]) -> Rows:
    """Return of each content the newest rows, as many as are alive."""
    ended = sum(b.header.rows for b in tombstones)
    batches = [*tombstones, *data]
    ts = np.concatenate([commit_ts_array(b.records) for b in batches])
    grids = [g for g in (key_grid(b.records.column(KEY)) for b in batches) if g is not None]
    return _newest_copies(ts, content_words(np.concatenate(grids)), ended)


def _newest_copies(ts: npt.NDArray[np.uint64], words: Words, ended: int) -> Rows:
    """Return the rows that are alive among events of which the first ``ended`` are tombstones, counted behind these."""
    high, low = words
    order = np.lexsort((ts, low, high))
    is_row = order >= ended
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (high[order[1:]] != high[order[:-1]]) | (low[order[1:]] != low[order[:-1]])
    starts = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    total = np.cumsum(np.where(is_row, 1, -1))
    before = np.append(0, total)[starts]
    count = total - before[group]
    # A count that falls below nothing begins again there: what ceased before it came is told elsewhere.
    lowest = np.minimum(np.minimum.reduceat(count, starts), 0)
    last = np.append(starts[1:], len(order)) - 1
    alive = count[last] - lowest
    came = np.cumsum(is_row)
    behind = came[last][group] - came
    kept: Rows = order[is_row & (behind < alive[group])]
    return kept - ended


def live_rows_by_content(
    data: Sequence[ChangeBatch], tombstones: Sequence[ChangeBatch], bags: Collection[int], contents: Contents, ended: Rows
) -> Rows:
    """Return the live rows, in key order, of a table of which keys do not tell what rows are alike.

    Its rows were named by a key for a while, or it changed its shape while they were counted. ``ended`` are rows that count no more.
    """
    starts = np.cumsum([0, *(b.header.rows for b in data)])
    versions = sorted({b.header.schema_version for b in (*data, *tombstones)})
    alive: Rows = np.empty(0, dtype=np.int64)
    for is_counted, members in itertools.groupby(versions, key=lambda v: v in bags):
        era = frozenset(members)
        came = [np.arange(starts[at], starts[at + 1]) for at, b in enumerate(data) if b.header.schema_version in era]
        gone = [b for b in tombstones if b.header.schema_version in era]
        rows = np.setdiff1d(np.concatenate([alive, *came]), ended)
        # Rows of a batch that ended in an earlier stretch are no rows of this one.
        kept = np.unique(np.searchsorted(starts, rows, side="right") - 1)
        chosen = [data[at] for at in kept]
        numbers = np.concatenate([np.arange(starts[at], starts[at + 1]) for at in kept]) if len(kept) else rows
        alive = numbers[_alive(chosen, np.isin(numbers, rows), gone, contents if is_counted else None)]
    return _in_key_order(data, alive) if len(alive) else alive


def _alive(
    data: Sequence[ChangeBatch], present: npt.NDArray[np.bool_], tombstones: Sequence[ChangeBatch], contents: Contents | None
) -> Rows:
    """Return which rows are alive among those that are present, by their contents or else by their keys."""
    batches = [*tombstones, *data]
    if not data:
        return np.empty(0, dtype=np.int64)
    ended = sum(b.header.rows for b in tombstones)
    events = np.flatnonzero(np.append(np.ones(ended, dtype=np.bool_), present))
    ts = np.concatenate([commit_ts_array(b.records) for b in batches])[events]
    if contents is not None:
        high, low = contents(batches)
        found = _newest_copies(ts, (high[events], low[events]), ended) + ended
    else:
        keys = pl.DataFrame({KEY: pl.Series(pa.chunked_array([b.records.column(KEY) for b in batches])).gather(events), "ts": ts})
        last = keys.with_row_index("at").sort("ts", "at").group_by(KEY, maintain_order=True).last()["at"].to_numpy().astype(np.int64)
        found = last[last >= ended]
    return np.sort(events[found]) - ended


def _in_key_order(data: Sequence[ChangeBatch], rows: Rows) -> Rows:
    keys = pl.Series(pa.chunked_array([b.records.column(KEY) for b in data])).gather(rows)
    order: Rows = keys.arg_sort().to_numpy().astype(np.int64)
    return np.take(rows, order)


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
    grids = [key_grid(keys) for keys in arrays if len(keys)]
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


def _words(grid: Bytes) -> npt.NDArray[np.uint64]:
    padded = np.zeros((len(grid), WORD), dtype=np.uint8)
    padded[:, WORD - grid.shape[1] :] = grid
    return padded.view(">u8").ravel().astype(np.uint64)
