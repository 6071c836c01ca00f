"""A transaction that is too large to be decoded at once: its changes in pieces on disk, folded when it commits.

Each piece is folded in itself. When the transaction commits, keys that stand in several pieces are found by their hashes, which are all
that is kept in memory; only the rows of those keys are folded again, the others pass as they are. Of a bag, rows of one content are
counted over all pieces. Not thread safe. Runs in the log service.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import COMMIT_TS, KEY, OP, BatchHeader, BatchKind, ChangeBatch, Op, commit_ts_array, read_ipc, write_ipc
from penstock.model.ddl import DdlEvent
from penstock.model.rows.bag_key import CONTENT_BYTES
from penstock.source.bags import fold_bag

Hashes = npt.NDArray[np.uint64]
_ROW = "_row"
_NO_TS = np.empty(0, dtype=np.uint64)


class _Kept(msgspec.Struct, frozen=True):
    """A batch on disk."""

    piece: int
    header: BatchHeader
    offset: int
    size: int
    hashes: Hashes
    is_bag: bool


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

    def add(self, changes: Sequence[ChangeBatch], ddls: Sequence[DdlEvent], rows: int, bags: Collection[int] = ()) -> None:
        """Take the changes of the next piece, how many rows of the log they came from, and which tables are bags."""
        self.ddls.extend(ddls)
        self.rows += rows
        for change in changes:
            payload = write_ipc(change.records)
            self._file.seek(self._end)
            self._file.write(payload)
            is_bag = change.header.table_id in bags
            keys = change.records.column(KEY)
            hashes = pl.Series(KEY, pl.from_arrow(pc.binary_slice(keys, 0, CONTENT_BYTES) if is_bag else keys)).hash().to_numpy()
            self._kept.append(_Kept(self._pieces, change.header, self._end, payload.size, hashes, is_bag))
            self._end += payload.size
        self._pieces += 1

    def batches(self) -> Iterator[ChangeBatch]:
        """Yield the changes of the transaction, each key once on each side."""
        shared = self._shared_hashes()
        again: dict[int, list[tuple[int, ChangeBatch]]] = {}
        bags = {k.header.table_id for k in self._kept if k.is_bag}
        for kept in self._kept:
            records = self._read(kept)
            mine = np.isin(kept.hashes, shared) if len(shared) else np.zeros(len(kept.hashes), dtype=np.bool_)
            if mine.any():
                again.setdefault(kept.header.table_id, []).append((kept.piece, _batch(kept.header, records.filter(pa.array(mine)))))
                records = records.filter(pa.array(~mine))
            if records.num_rows:
                yield _batch(kept.header, records)
        for table_id, parts in again.items():
            yield from count_pieces(parts) if table_id in bags else fold_pieces(parts)

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


def fold_pieces(parts: Sequence[tuple[int, ChangeBatch]]) -> Iterator[ChangeBatch]:
    """Fold changes of one table, given with the number of their piece, in order: each (commit ts, key) once on each side.

    The first piece of a key shows what was there before, the last one what is there now; versions may differ between pieces.
    """
    frames = []
    for at, (piece, change) in enumerate(parts):
        places = pl.DataFrame(pl.from_arrow(change.records.select([COMMIT_TS, KEY, OP]))).with_row_index(_ROW)
        frames.append(places.with_columns(_part=pl.lit(at), _piece=pl.lit(piece), _data=pl.lit(change.header.kind is BatchKind.DATA)))
    rows = pl.concat(frames)
    each = [COMMIT_TS, KEY]
    rows = rows.with_columns(first=pl.col("_piece").min().over(each), last=pl.col("_piece").max().over(each))
    data, gone = pl.col("_data"), ~pl.col("_data")
    at_first, at_last = pl.col("_piece") == pl.col("first"), pl.col("_piece") == pl.col("last")
    rows = rows.with_columns(
        existed=(at_first & (gone | (pl.col(OP) == Op.UPDATE))).any().over(each),
        alive=(at_last & data).any().over(each),
        imaged=(at_first & gone).any().over(each),
    )
    after = pl.col("alive") & at_last & data
    before = pl.col("alive") & at_first & (pl.col(OP) == Op.BEFORE)
    # The first image of a row that is gone, or else the one that its delete gave.
    ended = ~pl.col("alive") & gone & pl.when("imaged").then(at_first).otherwise(at_last)
    op = (
        pl.when(ended)
        .then(Op.DELETE.value)
        .when(before)
        .then(Op.BEFORE.value)
        .when("existed")
        .then(Op.UPDATE.value)
        .otherwise(Op.INSERT.value)
    )
    chosen = rows.with_columns(op.cast(pl.UInt8).alias(OP)).filter(after | before | ended)
    for at, (_, change) in enumerate(parts):
        mine = chosen.filter(pl.col("_part") == at).sort(_ROW)
        if mine.height:
            records = change.records.take(mine[_ROW].to_arrow())
            ops = pa.array(mine[OP].to_numpy(), pa.uint8())
            yield _batch(change.header, records.set_column(records.schema.get_field_index(OP), records.schema.field(OP), ops))


def count_pieces(parts: Sequence[tuple[int, ChangeBatch]]) -> Iterator[ChangeBatch]:
    """Count the changes of one bag: what came in one piece and ceased in another leaves nothing."""
    sides = {kind: [c for _, c in parts if c.header.kind is kind] for kind in BatchKind}
    stamps = {k: np.concatenate([commit_ts_array(c.records) for c in v]) if v else _NO_TS for k, v in sides.items()}
    contents = {
        k: pa.concat_arrays([pc.binary_slice(c.records.column(KEY), 0, CONTENT_BYTES) for c in v]) if v else pa.array([], pa.binary())
        for k, v in sides.items()
    }
    gone, came = BatchKind.TOMBSTONE, BatchKind.DATA
    left = dict(zip((gone, came), fold_bag(stamps[gone], contents[gone], stamps[came], contents[came]), strict=True))
    for kind, changes in sides.items():
        start = 0
        for change in changes:
            mine = (left[kind].rows >= start) & (left[kind].rows < start + change.header.rows)
            if mine.any():
                records = change.records.take(pa.array(left[kind].rows[mine] - start))
                keys = left[kind].keys.filter(pa.array(mine))
                yield _batch(change.header, records.set_column(records.schema.get_field_index(KEY), records.schema.field(KEY), keys))
            start += change.header.rows


def _batch(header: BatchHeader, records: pa.RecordBatch) -> ChangeBatch:
    ts = commit_ts_array(records)
    return ChangeBatch(
        msgspec.structs.replace(header, rows=records.num_rows, nbytes=records.nbytes, min_ts=int(ts.min()), max_ts=int(ts.max())), records
    )
