"""The state of a span at a ts, from its rows and tombstones.

A key is alive when its latest row is not older than its last tombstone (at one ts the tombstone comes first). The index of live rows
is made in columns from ``_ts`` and ``_key`` alone; the rows themselves are gathered a bounded stretch at a time, in key order, and
projected to the table version that holds at the ts. Runs in the log service and on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import KEY, BatchHeader, BatchKind, ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import TypeKind
from penstock.store.live_rows import Rows, live_rows
from penstock.store.ordering import concat_records

GATHER_ROWS = 524_288
"""How many live rows are gathered at once: bounds memory, and the visits to each batch."""


ROW = "_row"
"""The column of transferred tombstones that names the ended row by its id."""


class StateBatches(msgspec.Struct, frozen=True):
    """What a state is made of: rows and tombstones, each side in ts order, and rows that have ended, counted through ``data``."""

    data: tuple[ChangeBatch, ...]
    tombstones: tuple[ChangeBatch, ...]
    ended: Rows


def row_positions(objects: Sequence[tuple[int, int]], ended: Sequence[npt.NDArray[np.uint64]]) -> Rows:
    """Return where the rows of some ids stand, counted through objects that are given as first row id and rows, in that order."""
    if not ended or not objects:
        return np.empty(0, dtype=np.int64)
    ids = np.concatenate(ended).astype(np.int64)
    first = np.array([f for f, _ in objects], dtype=np.int64)
    starts = np.cumsum([0, *(rows for _, rows in objects)])
    owner = np.searchsorted(first, ids, side="right") - 1
    positions: Rows = ids - first[owner] + starts[owner]
    held = (owner >= 0) & (positions < starts[owner + 1])
    return positions[held]


class SnapshotSteps:
    """Finds the live rows of a state and gives them in key order."""

    def __init__(self, state: StateBatches, to_ts: int, span_id: int) -> None:
        self._data = state.data
        self._to_ts = to_ts
        self._span_id = span_id
        self._live = live_rows(state.data, state.tombstones) if state.data else np.empty(0, dtype=np.int64)
        if len(state.ended):
            self._live = self._live[~np.isin(self._live, state.ended)]
        self._starts = np.cumsum([0, *(b.header.rows for b in state.data)])

    @property
    def empty(self) -> bool:
        """Return whether no key is alive."""
        return len(self._live) == 0

    def batches(self, table: TableSchema, rows_max: int) -> Iterator[ChangeBatch]:
        """Yield the live rows as INSERT rows of the table version, all with the snapshot's ts."""
        for start in range(0, len(self._live), GATHER_ROWS):
            gathered = self._gather(self._live[start : start + GATHER_ROWS], table)
            for at in range(0, gathered.num_rows, rows_max):
                yield self._batch(table, gathered.slice(at, rows_max))

    def _gather(self, live: Rows, table: TableSchema) -> pa.RecordBatch:
        """Take rows by their number, visiting each batch once, and bring them into the order of ``live``."""
        in_place = bool((np.diff(live) > 0).all())
        ascending = live if in_place else np.sort(live)
        edges = np.searchsorted(ascending, self._starts)
        parts = []
        for number, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            if low == high:
                continue
            wanted = ascending[low:high] - self._starts[number]
            parts.append(_rows(project(self._data[number].records, table, self._to_ts), wanted))
        gathered = concat_records(parts)
        if in_place:
            return gathered
        rank = np.empty(len(live), dtype=np.int64)
        rank[np.argsort(live, kind="stable")] = np.arange(len(live))
        return gathered.take(pa.array(rank))

    def _batch(self, table: TableSchema, records: pa.RecordBatch) -> ChangeBatch:
        header = BatchHeader(
            span_id=self._span_id,
            table_id=table.table_id,
            schema_version=table.version,
            kind=BatchKind.DATA,
            min_ts=self._to_ts,
            max_ts=self._to_ts,
            rows=records.num_rows,
            nbytes=max(1, records.nbytes),
        )
        return ChangeBatch(header, records)


def _rows(records: pa.RecordBatch, wanted: Rows) -> pa.RecordBatch:
    """Return some rows; a stretch of neighbours is a slice."""
    first, last = int(wanted[0]), int(wanted[-1])
    if last - first + 1 == len(wanted):
        return records.slice(first, len(wanted))
    return records.take(pa.array(wanted))


def project(records: pa.RecordBatch, table: TableSchema, ts: int) -> pa.RecordBatch:
    """Return the rows under a table version: columns matched by id, missing ones filled with their default."""
    count = records.num_rows
    present = set(records.schema.names)
    arrays = [
        pa.repeat(pa.scalar(ts, pa.uint64()), count),
        pa.repeat(pa.scalar(int(Op.INSERT), pa.uint8()), count),
        records.column(KEY),
    ]
    for column in table.columns:
        wanted = column.type.arrow()
        if column.field_name not in present:
            arrays.append(pa.repeat(default_value(column), count))
            continue
        values = records.column(column.field_name)
        arrays.append(values if values.type == wanted else _cast(values, wanted, column))
    return pa.RecordBatch.from_arrays(arrays, schema=table.batch_schema())


def _cast(values: pa.Array, wanted: pa.DataType, column: Column) -> pa.Array:
    try:
        return pc.cast(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise PenstockError("TYPE_UNSUPPORTED", f"column {column.name}: rows of {values.type} cannot be read as {wanted}") from error


def default_value(column: Column) -> pa.Scalar:
    """Return what a row holds in a column that was added after the row was written; null where that depends on when it was added."""
    wanted = column.type.arrow()
    text = column.default
    if text is None or column.generated:
        return pa.scalar(None, wanted)
    if column.type.kind is TypeKind.ENUM and text in column.type.elems:
        return pa.scalar(column.type.elems.index(text) + 1, wanted)
    if column.type.kind is TypeKind.SET:
        chosen = set(text.split(","))
        return pa.scalar(sum(1 << at for at, elem in enumerate(column.type.elems) if elem in chosen), wanted)
    if text.upper().startswith(("CURRENT_TIMESTAMP", "NOW(", "LOCALTIME")):
        return pa.scalar(None, wanted)
    try:
        return pa.scalar(text.encode() if pa.types.is_binary(wanted) else text).cast(wanted)
    except pa.ArrowInvalid:
        return pa.scalar(None, wanted)
