"""Regroups a dispatcher's rows in chunks whose ends depend on nothing but the rows.

Events arrive divided as the store and Spark happened to divide them; a file must not depend on that. Invariants: the same rows give the
same chunks however they are divided in events; a chunk has at most ``rows_max`` rows (or up to twice as many where transactions stay
whole) and ends early once its rows weigh ``bytes_max``; a chunk that may not end a file says so. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.batch import commit_ts_array

CHUNK_ROWS_MAX = 8_192


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are encoded together. ``may_cut`` is False inside a transaction that stays whole."""

    records: pa.RecordBatch
    may_cut: bool


class Rechunker:
    """Turns events into chunks. Not thread safe."""

    def __init__(self, bytes_max: int, *, whole_transactions: bool = False, rows_max: int = CHUNK_ROWS_MAX) -> None:
        self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._whole = whole_transactions
        self._pending: pa.RecordBatch | None = None
        self._weights: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, records: pa.RecordBatch) -> Iterator[Chunk]:
        """Take rows in, and yield every chunk whose end is certain now."""
        if self._pending is None:
            self._pending, self._weights = records, row_weights(records)
        else:
            self._pending = pa.concat_batches([self._pending, records])
            self._weights = np.concatenate([self._weights, row_weights(records)])
        yield from self._take(final=False)

    def flush(self) -> Iterator[Chunk]:
        """Yield what is left; the next row begins anew."""
        yield from self._take(final=True)

    def _take(self, *, final: bool) -> Iterator[Chunk]:
        # The batch is sliced, not copied, chunk by chunk; what is left is small or about to be joined with the next event.
        while self._pending is not None and self._pending.num_rows:
            found = self._next_end(self._pending, final=final)
            if found is None:
                return
            end, may_cut = found
            chunk = self._pending.slice(0, end)
            self._pending = self._pending.slice(end)
            self._weights = self._weights[end:]
            yield Chunk(chunk, may_cut)
        self._pending = None

    def _next_end(self, pending: pa.RecordBatch, *, final: bool) -> tuple[int, bool] | None:
        rows = pending.num_rows
        window = np.cumsum(self._weights[: self._rows_max])
        end = min(int(np.searchsorted(window, self._bytes_max)) + 1, self._rows_max)
        if end > rows:
            return (rows, True) if final else None
        if not self._whole:
            return end, True
        ts = commit_ts_array(pending)[: end + self._rows_max + 1]
        changes = np.flatnonzero(ts[end:] != ts[end - 1 : -1])
        if len(changes):
            return end + int(changes[0]), True
        if len(ts) > end + self._rows_max:
            return end, False
        return (rows, True) if final else None


def row_weights(records: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return roughly how many bytes each row has: its texts and binaries, and eight for each other value."""
    weights = np.zeros(records.num_rows, np.int64)
    fixed = 0
    for column in records.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
            weights += np.diff(offsets)
        fixed += 8
    return weights + fixed
