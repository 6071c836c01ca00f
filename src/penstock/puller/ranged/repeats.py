"""What a region delivered above its resolved ts, and how to recognise it when it comes again.

A region that is registered again (after a split, a leader move, a lost stream) sends everything above its checkpoint once more, also rows
that already went to the event store. Each feed keeps the keys of what it delivered above its resolved ts; the next feed of those
keys drops exactly them. In steady state that costs one reference per batch; the comparison runs only on rows that can be repeats.
A prior also stands for everything at or below its own resolved ts, which matters when ranges with different resolved ts merge.

Rows come again in two ways, and each has one place that knows them. *A region is registered again*, many times a day, inside a subscription
that goes on: here, by region, because only the feed of a region knows what that region gave; a subscription promises each row once, and a
repeat costs neither decoding nor a place in the write-ahead log. *A span is pulled again*, after it failed or after a restart, from the
store's resolved ts: there the event store, by commit ts and key, because only it knows what became durable
(``store/changes/ordering.py`` above the resolved ts, ``SpanStore.unseen`` below). Nothing between the two remembers rows.
Runs in the log service, in the shard of the region.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa


class Delivered(msgspec.Struct, frozen=True):
    """Commit ts and key of one delivered batch."""

    max_ts: int
    nbytes: int
    commit_ts: pa.Array
    key: pa.Array


class Prior(msgspec.Struct, frozen=True):
    """What an earlier feed delivered of ``[start_key, end_key)``: all up to ``resolved_ts``, and some batches above."""

    start_key: bytes
    end_key: bytes
    resolved_ts: int
    batches: tuple[Delivered, ...]

    @property
    def nbytes(self) -> int:
        """Return the memory of the batches."""
        return sum(b.nbytes for b in self.batches)

    @property
    def max_ts(self) -> int:
        """Return the largest ts at which a repeat is possible."""
        return max((b.max_ts for b in self.batches), default=self.resolved_ts)


class DeliveredLog:
    """The batches that one feed delivered above its resolved ts. Not thread safe: its shard owns it."""

    __slots__ = ("_batches", "nbytes")

    def __init__(self) -> None:
        self._batches: list[Delivered] = []
        self.nbytes = 0
        """The memory of what is remembered, to be shown: it grows while the resolved ts stands still."""

    def add(self, entries: pa.RecordBatch, max_ts: int) -> None:
        """Remember a batch of ``RAW_SCHEMA``."""
        commit_ts, key = entries.column(0), entries.column(3)
        delivered = Delivered(max_ts, int(commit_ts.nbytes + key.nbytes), commit_ts, key)
        self._batches.append(delivered)
        self.nbytes += delivered.nbytes

    def prune(self, resolved_ts: int) -> None:
        """Forget batches that the resolved ts covers, oldest first."""
        covered = 0
        while covered < len(self._batches) and self._batches[covered].max_ts <= resolved_ts:
            covered += 1
        if covered:
            self.nbytes -= sum(b.nbytes for b in self._batches[:covered])
            del self._batches[:covered]

    def batches(self, above_ts: int) -> tuple[Delivered, ...]:
        """Return what is remembered above a ts."""
        return tuple(b for b in self._batches if b.max_ts > above_ts)

    def __len__(self) -> int:
        return len(self._batches)


def relevant(priors: tuple[Prior, ...], resolved_ts: int) -> tuple[Prior, ...]:
    """Return the priors that can still explain a row above a resolved ts."""
    return tuple(p for p in priors if p.max_ts > resolved_ts)


def drop_replayed(entries: pa.RecordBatch, priors: tuple[Prior, ...]) -> pa.RecordBatch:
    """Return the rows that no earlier feed delivered, in their order."""
    ts = entries.column(0).to_numpy()
    lowest = int(ts.min())
    candidates = [p for p in priors if p.max_ts >= lowest]
    if not candidates:
        return entries
    rows = pl.DataFrame(
        {"row": np.arange(entries.num_rows), "ts": pl.from_arrow(entries.column(0)), "key": pl.from_arrow(entries.column(3))}
    )
    repeats = [_repeats(rows.filter(pl.col("ts") <= p.max_ts), p) for p in candidates]
    seen = pl.concat(repeats).unique()
    if seen.is_empty():
        return entries
    keep = np.ones(entries.num_rows, dtype=np.bool_)
    keep[seen.to_numpy()] = False
    return entries.filter(pa.array(keep))


def _repeats(rows: pl.DataFrame, prior: Prior) -> pl.Series:
    inside = pl.col("key") >= pl.lit(prior.start_key)
    if prior.end_key:
        inside &= pl.col("key") < pl.lit(prior.end_key)
    rows = rows.filter(inside)
    covered = rows.filter(pl.col("ts") <= prior.resolved_ts)["row"]
    if not prior.batches:
        return covered
    known = pl.concat([pl.DataFrame({"ts": pl.from_arrow(b.commit_ts), "key": pl.from_arrow(b.key)}) for b in prior.batches])
    return pl.concat([covered, rows.join(known, on=["ts", "key"], how="semi")["row"]])
