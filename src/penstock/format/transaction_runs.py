"""Which transactions the rows of a data file belong to: runs of one commit ts, in the order of the rows.

A file's rows are in commit order, so a transaction is one run of them. The runs are collected while a file is filled and travel packed in
the commit message, from the task to whoever writes the transaction index. Invariant: the runs of a file do not depend on how its rows
were divided. Nothing here looks at a row from Python. Runs on executors and in the driver.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.kernels.jit import I64, U64

_CODEC = "zstd"
_ENTRY_BYTES = 12


class TransactionRuns:
    """Collects the runs of one file. Not thread safe."""

    def __init__(self) -> None:
        self._ts: list[U64] = []
        self._rows: list[I64] = []

    def add(self, ts: U64) -> None:
        """Take the commit ts of rows in, which are in order and follow those before."""
        if len(ts):
            starts = run_starts(ts)
            self._ts.append(ts[starts])
            self._rows.append(np.diff(starts, append=len(ts)))

    def take(self) -> bytes:
        """Return the runs of the file, packed; the next rows are of another file."""
        if not self._ts:
            return b""
        ts, rows = np.concatenate(self._ts), np.concatenate(self._rows)
        self._ts, self._rows = [], []
        starts = run_starts(ts)
        return pack_runs(ts[starts], np.add.reduceat(rows, starts))


def run_starts(ts: U64) -> I64:
    """Return where each run of one ts begins."""
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(ts[1:] != ts[:-1]) + 1])


def pack_runs(ts: U64, rows: I64) -> bytes:
    """Return the runs in few bytes: growing ts as differences, each with its number of rows."""
    plain = np.diff(ts, prepend=np.uint64(0)).astype("<u8").tobytes() + rows.astype("<u4").tobytes()
    return len(ts).to_bytes(8, "little") + bytes(pa.compress(plain, codec=_CODEC, asbytes=True))


def unpack_runs(packed: bytes) -> tuple[U64, I64]:
    """Return the commit ts of each run and its number of rows."""
    count = int.from_bytes(packed[:8], "little")
    plain = pa.decompress(packed[8:], decompressed_size=count * _ENTRY_BYTES, codec=_CODEC, asbytes=True)
    ts = np.cumsum(np.frombuffer(plain, "<u8", count), dtype=np.uint64)
    return ts, np.frombuffer(plain, "<u4", count, 8 * count).astype(np.int64)
