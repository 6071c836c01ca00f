"""A transaction that is too large to be decoded at once: its changes in pieces on disk, folded when it commits.

Each piece is folded in itself. When the transaction commits, keys that stand in several pieces are found by their hashes, which are all
that is kept in memory; only the rows of those keys are folded again, the others pass as they are. Not thread safe. Runs in the log service.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.model.batch import BATCH_ROWS_MAX, KEY, OP, BatchHeader, BatchKind, ChangeBatch, Op, read_ipc, write_ipc
from penstock.model.ddl import DdlEvent

Hashes = npt.NDArray[np.uint64]
_PIECE, _DATA, _ROW = "_piece", "_data", "_row"


class _Kept(msgspec.Struct, frozen=True):
    """A batch on disk."""

    piece: int
    header: BatchHeader
    offset: int
    size: int
    hashes: Hashes


class TransactionSpool:
    """The changes of one transaction, in log order. ``close`` removes them."""

    def __init__(self, ts: int) -> None:
        self.ts = ts
        self.rows = 0
        self.ddls: list[DdlEvent] = []
        self._file = tempfile.TemporaryFile(prefix="penstock-transaction-")  # noqa: SIM115 - it lives as long as the transaction
        self._kept: list[_Kept] = []
        self._pieces = 0
        self._end = 0

    def add(self, changes: Sequence[ChangeBatch], ddls: Sequence[DdlEvent], rows: int) -> None:
        """Take the changes of the next piece, and how many rows of the log they came from."""
        self.ddls.extend(ddls)
        self.rows += rows
        for change in changes:
            payload = write_ipc(change.records)
            self._file.seek(self._end)
            self._file.write(payload)
            hashes = pl.Series(KEY, pl.from_arrow(change.records.column(KEY))).hash().to_numpy()
            self._kept.append(_Kept(self._pieces, change.header, self._end, payload.size, hashes))
            self._end += payload.size
        self._pieces += 1

    def batches(self) -> Iterator[ChangeBatch]:
        """Yield the changes of the transaction, each key once on each side."""
        shared = self._shared_hashes()
        again: dict[tuple[int, int], list[tuple[_Kept, pa.RecordBatch]]] = {}
        for kept in self._kept:
            records = self._read(kept)
            mine = np.isin(kept.hashes, shared) if len(shared) else np.zeros(len(kept.hashes), dtype=np.bool_)
            if mine.any():
                again.setdefault((kept.header.table_id, kept.header.schema_version), []).append((kept, records.filter(pa.array(mine))))
                records = records.filter(pa.array(~mine))
            if records.num_rows:
                yield _batch(kept.header, records)
        for parts in again.values():
            yield from fold_pieces([(kept.piece, kept.header, records) for kept, records in parts])

    def close(self) -> None:
        """Remove everything."""
        self._file.close()

    def _read(self, kept: _Kept) -> pa.RecordBatch:
        self._file.seek(kept.offset)
        return read_ipc(self._file.read(kept.size))

    def _shared_hashes(self) -> Hashes:
        """Return the hashes of keys that stand in more than one piece."""
        by_piece: dict[tuple[int, int], list[Hashes]] = {}
        for kept in self._kept:
            by_piece.setdefault((kept.header.table_id, kept.piece), []).append(kept.hashes)
        found = []
        for table_id in {table_id for table_id, _ in by_piece}:
            own = [np.unique(np.concatenate(parts)) for (owner, _), parts in by_piece.items() if owner == table_id]
            ordered = np.sort(np.concatenate(own))
            found.append(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))
        return np.concatenate(found) if found else np.empty(0, dtype=np.uint64)


def fold_pieces(parts: Sequence[tuple[int, BatchHeader, pa.RecordBatch]]) -> Iterator[ChangeBatch]:
    """Fold rows of one table version, given by piece in order: first before-image, last after-image, deletes always."""
    header = parts[0][1]
    frames = [_frame(piece, part_header.kind, records) for piece, part_header, records in parts]
    rows = pl.concat(frames).with_row_index(_ROW)
    ends = rows.group_by(KEY).agg(first=pl.col(_PIECE).min(), last=pl.col(_PIECE).max())
    rows = rows.join(ends, on=KEY)
    data, gone = pl.col(_DATA), ~pl.col(_DATA)
    at_first, at_last = pl.col(_PIECE) == pl.col("first"), pl.col(_PIECE) == pl.col("last")
    state = rows.group_by(KEY).agg(
        existed=(at_first & (gone | (pl.col(OP) == Op.UPDATE))).any(),
        alive=(at_last & data).any(),
        imaged=(at_first & gone).any(),
    )
    rows = rows.join(state, on=KEY)
    alive = rows.filter(pl.col("alive") & at_last & data)
    alive = alive.with_columns(pl.when("existed").then(int(Op.UPDATE)).otherwise(int(Op.INSERT)).cast(pl.UInt8).alias(OP))
    before = rows.filter(pl.col("alive") & at_first & gone & (pl.col(OP) == Op.BEFORE))
    # The first image of a row that is gone, or else the one that its delete gave.
    ended = rows.filter(~pl.col("alive") & gone & pl.when("imaged").then(at_first).otherwise(at_last))
    ended = ended.with_columns(pl.lit(int(Op.DELETE), pl.UInt8).alias(OP))
    schema = parts[0][2].schema
    for kind, frame in ((BatchKind.TOMBSTONE, pl.concat([before, ended])), (BatchKind.DATA, alive)):
        ordered = frame.sort(KEY)
        for start in range(0, ordered.height, BATCH_ROWS_MAX):
            records = ordered[start : start + BATCH_ROWS_MAX].select(schema.names).to_arrow().cast(schema).combine_chunks()
            yield _batch(msgspec.structs.replace(header, kind=kind), records.to_batches()[0])


def _frame(piece: int, kind: BatchKind, records: pa.RecordBatch) -> pl.DataFrame:
    frame = pl.DataFrame(pl.from_arrow(records))
    return frame.with_columns(pl.lit(piece).alias(_PIECE), pl.lit(kind is BatchKind.DATA).alias(_DATA))


def _batch(header: BatchHeader, records: pa.RecordBatch) -> ChangeBatch:
    return ChangeBatch(msgspec.structs.replace(header, rows=records.num_rows, nbytes=records.nbytes), records)
