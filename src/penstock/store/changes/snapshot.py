"""The state of a span at a ts, from its rows and tombstones.

A key is alive when its latest row is not older than its last tombstone (at one ts the tombstone comes first). The index of live rows
is made in columns from ``_ts`` and ``_key`` alone; the rows themselves are gathered a bounded stretch at a time, in key order, and
projected to the table version that holds at the ts. Runs in the log service and on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.model.batch import KEY, BatchHeader, BatchKind, ChangeBatch, Op
from penstock.model.rows.bag_key import has_bag_keys, is_bag
from penstock.model.rows.projection import project, shown_at
from penstock.model.table import SchemaHistory, TableSchema
from penstock.store.changes.live_rows import Rows, Words, live_rows, live_rows_by_content
from penstock.store.changes.ordering import concat_records

GATHER_ROWS = 524_288
"""How many live rows are gathered at once: bounds memory, and the visits to each batch."""


DENSE = 2
TAKE_THREADS_MAX = 4
ROW = "_row"
"""The column of transferred tombstones that names the ended row by its id."""
_SEEDS = (1, 2)


class StateBatches(msgspec.Struct, frozen=True):
    """What a state is made of: rows and tombstones, each side in ts order, and rows that have ended, counted through ``data``."""

    data: tuple[ChangeBatch, ...]
    tombstones: tuple[ChangeBatch, ...]
    ended: Rows
    tables: tuple[TableSchema, ...] = ()
    """The versions of the table."""


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
        self._live = _live_rows(state, to_ts) if state.data else np.empty(0, dtype=np.int64)
        if len(state.ended):
            self._live = self._live[~np.isin(self._live, state.ended)]
        self._starts = np.cumsum([0, *(b.header.rows for b in state.data)])

    @property
    def empty(self) -> bool:
        """Return whether no key is alive."""
        return len(self._live) == 0

    def batches(self, history: SchemaHistory, rows_max: int) -> Iterator[ChangeBatch]:
        """Yield the live rows as INSERT rows of the table version that holds at the snapshot's ts, all with that ts."""
        table = shown_at(history, self._to_ts)
        for start in range(0, len(self._live), GATHER_ROWS):
            gathered = self._gather(self._live[start : start + GATHER_ROWS], table, history)
            for at in range(0, gathered.num_rows, rows_max):
                yield self._batch(table, _as_inserts(gathered.slice(at, rows_max), table, self._to_ts))

    def _gather(self, live: Rows, table: TableSchema, history: SchemaHistory) -> pa.RecordBatch:
        """Take rows by their number, visiting each batch once, in the order of ``live``.

        Where most rows of the batches are wanted they are put together whole and taken once; otherwise first what is wanted is taken out.
        """
        in_place = bool((np.diff(live) > 0).all())
        ascending = live if in_place else np.sort(live)
        edges = np.searchsorted(ascending, self._starts)
        touched = np.flatnonzero(np.diff(edges))
        sizes = [self._data[at].header.rows for at in touched]
        if not in_place and sum(sizes) <= DENSE * len(live):
            whole = concat_records([self._shown(at, table, history) for at in touched.tolist()])
            # Rows are counted through all batches; here, only through those that are put together.
            shift = self._starts[touched] - np.cumsum([0, *sizes[:-1]])
            return _take(whole, live - shift[np.searchsorted(self._starts[touched], live, side="right") - 1])
        parts = []
        for at in touched.tolist():
            wanted = ascending[edges[at] : edges[at + 1]] - self._starts[at]
            parts.append(_rows(self._shown(at, table, history), wanted))
        gathered = concat_records(parts)
        if in_place:
            return gathered
        rank = np.empty(len(live), dtype=np.int64)
        rank[np.argsort(live, kind="stable")] = np.arange(len(live))
        return _take(gathered, rank)

    def _shown(self, at: int, table: TableSchema, history: SchemaHistory) -> pa.RecordBatch:
        batch = self._data[at]
        return stored_columns(batch.records, table, history.get(batch.header.schema_version))

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


def _live_rows(state: StateBatches, to_ts: int) -> Rows:
    bags = frozenset(t.version for t in state.tables if is_bag(t))
    shapes = {tuple((c.id, c.type, c.primary_key) for c in t.columns) for t in state.tables}
    if not bags or (len(shapes) == 1 and all(has_bag_keys(b.records.column(KEY)) for b in (*state.data, *state.tombstones))):
        return live_rows(state.data, state.tombstones, bags)
    history = SchemaHistory(state.tables[0].table_id, state.tables)
    table = shown_at(history, max(to_ts, history.versions()[0].version))

    def contents(batches: Sequence[ChangeBatch]) -> Words:
        """Hash the values that rows of any version show under one."""
        records = [stored_columns(b.records, table, history.get(b.header.schema_version)).drop_columns([KEY]) for b in batches]
        frame = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(records)))
        high, low = (frame.hash_rows(seed=seed).to_numpy() for seed in _SEEDS)
        return high, low

    return live_rows_by_content(state.data, state.tombstones, bags, contents, state.ended)


def _rows(records: pa.RecordBatch, wanted: Rows) -> pa.RecordBatch:
    """Return some rows; a stretch of neighbours is a slice."""
    first, last = int(wanted[0]), int(wanted[-1])
    if last - first + 1 == len(wanted):
        return records.slice(first, len(wanted))
    return records.take(pa.array(wanted))


def _take(records: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
    """Return rows in another order, the columns side by side: this is most of what a snapshot costs."""
    wanted = pa.array(rows)
    with ThreadPoolExecutor(min(TAKE_THREADS_MAX, pa.cpu_count())) as pool:
        columns = list(pool.map(lambda column: column.take(wanted), records.columns))
    return pa.RecordBatch.from_arrays(columns, schema=records.schema)


def stored_columns(records: pa.RecordBatch, table: TableSchema, source: TableSchema | None = None) -> pa.RecordBatch:
    """Return key and columns of rows under a table version; ``source`` is their own, where it is known."""
    schema = table.batch_schema()
    fields = [schema.field(at) for at in range(2, len(schema))]
    return pa.RecordBatch.from_arrays([records.column(KEY), *project(records, table, source)], schema=pa.schema(fields))


def _as_inserts(stored: pa.RecordBatch, table: TableSchema, ts: int) -> pa.RecordBatch:
    """Return rows as inserts at a ts."""
    count = stored.num_rows
    head = [pa.repeat(pa.scalar(ts, pa.uint64()), count), pa.repeat(pa.scalar(int(Op.INSERT), pa.uint8()), count)]
    return pa.RecordBatch.from_arrays([*head, *stored.columns], schema=table.batch_schema())
