"""Source transactions applied whole, over all tables of a window, in the order of their commits.

All rows of the window are at hand. Each transaction of the target has all rows, of all tables, of some transactions of the source that
follow each other, so a reader sees each of them whole or not at all. One progress row for the feed tells the commit ts up to which they are
applied. Invariant: a commit ts is applied in one transaction, for all tables. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.model.batch import COMMIT_TS, OP, Op, commit_ts_array
from penstock.model.failpoints import reach
from penstock.model.table import TableSchema
from penstock.sink.tables.books import TRANSACTIONS, Progress
from penstock.sink.tables.database import Session
from penstock.sink.tables.folding import apply, frame_of
from penstock.sink.tables.worker import DispatcherWriter, Gathering

_TS = "\0ts"


@dataclass(frozen=True, slots=True)
class HeldRows:
    """All rows of one dispatcher in a window, in order, with their table versions."""

    state: Gathering
    events: Sequence[tuple[TableSchema, pa.RecordBatch]]


def apply_whole(writer: DispatcherWriter, held: Sequence[HeldRows]) -> None:
    """Apply the rows of all dispatchers of a window."""
    engine = writer.engine
    to_ts = max(one.state.work.to_ts for one in held)
    lower = 0
    for upper in _cuts([ts for one in held for ts in _all_ts(one)], engine.settings.transaction_rows):
        parts = [(one, table, rows) for one in held for table, rows in _between(one.events, lower, upper)]
        lower = upper
        if _applied_ts(writer, to_ts) >= upper:
            continue
        for one, table, _ in parts:
            writer.prepare(one.state, table)

        def change(session: Session, parts: list[tuple[HeldRows, TableSchema, pa.Table]] = parts, upper: int = upper) -> None:
            progress = engine.books.lock(session, engine.run.feed, TRANSACTIONS).within(to_ts, engine.run.epoch)
            if progress.rows >= upper:
                return
            for table, frame in _by_table(parts):
                renamed = engine.settings.renamed(table)
                apply(session, engine.database, engine.settings, renamed, writer.traits_of(session, renamed), frame)
            engine.books.write(session, engine.run.feed, TRANSACTIONS, Progress(to_ts, upper, 0, engine.run.epoch))

        reach("data-put:before")
        writer.transactions.run(change)
        reach("data-put:after")


def _by_table(parts: Sequence[tuple[HeldRows, TableSchema, pa.Table]]) -> list[tuple[TableSchema, pl.DataFrame]]:
    """Return the changes of each table of the target, in order: a row that moves leaves a partition before it is in another."""
    found: dict[tuple[str, str, int], list[tuple[TableSchema, pa.Table]]] = {}
    for _, table, rows in parts:
        found.setdefault((table.schema, table.table, table.partition_id and table.version), []).append((table, rows))
    merged: list[tuple[TableSchema, pl.DataFrame]] = []
    for group in found.values():
        if len(group) == 1 or not group[0][0].partition_id:
            merged += [(table, frame_of(rows, table)) for table, rows in group]
            continue
        table = group[0][0]
        frames = [frame_of(rows, table).with_columns(pl.Series(_TS, rows.column(COMMIT_TS).to_numpy())) for _, rows in group]
        merged.append((table, pl.concat(frames).sort(_TS, pl.col(OP) != int(Op.DELETE), maintain_order=True).drop(_TS)))
    return merged


def _applied_ts(writer: DispatcherWriter, to_ts: int) -> int:
    """Return the commit ts up to which the window is applied: a table that a later DDL dropped is not made again."""
    engine = writer.engine

    def look(session: Session) -> int:
        found = engine.books.read(session, engine.run.feed, TRANSACTIONS) or Progress()
        return found.within(to_ts, engine.run.epoch).rows

    return writer.transactions.run(look, begin=False)


def _all_ts(one: HeldRows) -> list[np.ndarray[tuple[int], np.dtype[np.uint64]]]:
    return [commit_ts_array(records) for _, records in one.events if records.num_rows]


def _cuts(found: Sequence[np.ndarray[tuple[int], np.dtype[np.uint64]]], rows_max: int) -> list[int]:
    """Return the commit ts at which transactions of the target end: each has so many rows, or one transaction of the source."""
    if not found:
        return []
    ts, counts = np.unique(np.concatenate(found), return_counts=True)
    # A transaction ends with the commit by which it has enough.
    group = (np.cumsum(counts) - 1) // rows_max
    ends = np.flatnonzero(np.diff(group, append=group[-1] + 1))
    return [int(ts[at]) for at in ends]


def _between(events: Sequence[tuple[TableSchema, pa.RecordBatch]], lower: int, upper: int) -> list[tuple[TableSchema, pa.Table]]:
    """Return the rows above one commit ts and up to another, those of one table version together."""
    parts: list[tuple[TableSchema, list[pa.RecordBatch]]] = []
    for table, records in events:
        start, end = np.searchsorted(commit_ts_array(records), np.array([lower, upper], dtype=np.uint64), side="right")
        if end > start:
            if not parts or parts[-1][0] != table:
                parts.append((table, []))
            parts[-1][1].append(records.slice(int(start), int(end - start)))
    return [(table, pa.Table.from_batches(batches)) for table, batches in parts]
