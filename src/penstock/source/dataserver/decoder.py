"""Decoding: raw batches of the data server's change stream into change batches and DDL events.

A PUT without an old value is an INSERT; with one it is an UPDATE and, in tombstones, its BEFORE; a DELETE is a tombstone that holds the
old row. Old values may be of an older schema version: they are projected to the version of the row that is written now (a delete: the
version at its commit ts), so both sides of an update have one table version. Versions that are not known are fetched once. All work is on
columns. Runs in the log service and on executors; one decoder may be used by many threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import I64, U8, U64, Flags
from penstock.model.batch import BatchKind, ChangeBatch, Op, bounded_batches, change_records
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.rows.projection import project, shown_at
from penstock.model.rows.row_key import in_order, strip_prefix
from penstock.model.span import DDL_TABLE_ID
from penstock.model.table import COMMIT_TS, KEY, SchemaHistory, TableSchema
from penstock.source.dataserver.rowcodec import decode_values, schema_versions
from penstock.source.ranged import Decoded
from penstock.source.raw import RAW_DELETE, RAW_PUT, RawBatch

HistoryFetcher = Callable[[int], tuple[Sequence[TableSchema], int]]
"""Returns all versions of a table and a ts at or below which no further one will come."""


class SchemaCache:
    """Schema histories by table, fetched when a version or a ts is not covered yet. Safe for many threads."""

    def __init__(self, fetch: HistoryFetcher) -> None:
        self._fetch = fetch
        self._known: dict[int, tuple[SchemaHistory, int]] = {}
        self._lock = threading.Lock()

    def history(self, table_id: int, covers_ts: int = 0) -> SchemaHistory:
        """Return the history of a table, complete up to a ts."""
        known = self._known.get(table_id)
        if known is None or known[1] < covers_ts:
            return self._load(table_id)
        return known[0]

    def version(self, table_id: int, version: int) -> TableSchema:
        """Return exactly this version of a table."""
        found = self.history(table_id).get(version) or self._load_if_below(table_id, version).get(version)
        if found is None:
            raise PenstockError("SCHEMA_UNKNOWN", f"table {table_id} has no schema version {version}")
        return found

    def _load_if_below(self, table_id: int, version: int) -> SchemaHistory:
        return self.history(table_id, covers_ts=version)

    def _load(self, table_id: int) -> SchemaHistory:
        versions, ts = self._fetch(table_id)
        history = SchemaHistory(table_id, versions)
        with self._lock:
            known = self._known.get(table_id)
            if known is None or known[1] < ts:
                self._known[table_id] = (history, ts)
        return history


class DataServerDecoder:
    """The ``RowDecoder`` of the embedded data server."""

    def __init__(self, schemas: SchemaCache) -> None:
        self._schemas = schemas

    def decode(self, span_id: int, raw: RawBatch) -> Decoded:
        """Decode one raw batch."""
        entries = raw.entries
        if entries.num_rows == 0:
            return Decoded()
        table_id, keys = strip_prefix(entries.column("key"))
        if table_id == DDL_TABLE_ID:
            return Decoded(ddls=_decode_ddls(entries))
        ops = entries.column("op").to_numpy(zero_copy_only=False)
        commit_ts = entries.column("commit_ts").to_numpy(zero_copy_only=False)
        values, olds = entries.column("value"), entries.column("old_value")
        puts = np.flatnonzero(ops == RAW_PUT)
        deletes = np.flatnonzero(ops == RAW_DELETE)
        has_old = olds.is_valid().to_numpy(zero_copy_only=False)
        _check_shape(len(ops), puts, deletes, values, has_old)
        versions = self._target_versions(table_id, puts, deletes, values, commit_ts)
        changes: list[ChangeBatch] = []
        for version in np.unique(versions):
            table = self._schemas.version(table_id, int(version))
            chosen = versions == version
            data = np.flatnonzero(chosen & (ops == RAW_PUT))
            gone = np.flatnonzero(chosen & has_old)
            if len(gone):
                kinds = np.where(ops[gone] == RAW_DELETE, np.uint8(Op.DELETE), np.uint8(Op.BEFORE))
                columns = self._columns(table, _take(olds, gone))
                changes += _batches(span_id, table, BatchKind.TOMBSTONE, commit_ts[gone], kinds, _take(keys, gone), columns)
            if len(data):
                kinds = np.where(has_old[data], np.uint8(Op.UPDATE), np.uint8(Op.INSERT))
                columns = decode_values(table, _take(values, data))
                changes += _batches(span_id, table, BatchKind.DATA, commit_ts[data], kinds, _take(keys, data), columns)
        return Decoded(changes=tuple(changes))

    def decode_rows(self, span_id: int, table: TableSchema, commit_ts: U64, keys: pa.Array, values: pa.Array) -> Iterator[ChangeBatch]:
        """Yield a snapshot's rows as INSERTs of one table version, in the order in which they are given."""
        _, row_keys = strip_prefix(keys)
        columns = self._columns(table, values)
        yield from bounded_batches(
            span_id, table, BatchKind.DATA, change_records(table, commit_ts, _repeat(Op.INSERT, len(keys)), row_keys, columns)
        )

    def _target_versions(self, table_id: int, puts: I64, deletes: I64, values: pa.Array, commit_ts: U64) -> U64:
        versions = np.zeros(len(commit_ts), dtype=np.uint64)
        if len(puts):
            versions[puts] = schema_versions(_take(values, puts))
        if len(deletes):
            history = self._schemas.history(table_id, covers_ts=int(commit_ts[deletes].max()))
            starts = np.array([v.version for v in history.versions()], dtype=np.uint64)
            at = np.searchsorted(starts, commit_ts[deletes], side="right") - 1
            if len(at) and int(at.min()) < 0:
                raise PenstockError("SCHEMA_UNKNOWN", f"table {table_id} has no schema version at ts {int(commit_ts[deletes].min())}")
            versions[deletes] = starts[at]
        return versions

    def _columns(self, table: TableSchema, values: pa.Array) -> list[pa.Array]:
        """Decode values of any version as columns of one version, in the order of the values."""
        versions = schema_versions(values)
        distinct = np.unique(versions)
        if len(distinct) == 1:
            return self._projected(table, int(distinct[0]), values)
        order: list[I64] = []
        parts: list[list[pa.Array]] = []
        for version in distinct:
            rows = np.flatnonzero(versions == version)
            order.append(rows)
            parts.append(self._projected(table, int(version), _take(values, rows)))
        back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
        return [pa.concat_arrays(list(pieces)).take(back) for pieces in zip(*parts, strict=True)]

    def _projected(self, table: TableSchema, version: int, values: pa.Array) -> list[pa.Array]:
        source = self._schemas.version(table.table_id, version)
        history = self._schemas.history(table.table_id, covers_ts=table.version)
        rows = pa.RecordBatch.from_arrays(decode_values(source, values), schema=source.row_schema())
        return project(rows, shown_at(history, table.version), source) if source.version != table.version else rows.columns


def _decode_ddls(entries: pa.RecordBatch) -> tuple[DdlEvent, ...]:
    events = []
    for commit_ts, value in zip(entries.column("commit_ts").to_pylist(), entries.column("value").to_pylist(), strict=True):
        try:
            event = DdlEvent.from_json(value or b"")
        except ValueError as error:
            raise PenstockError("DECODE_FAILED", f"the DDL entry at {commit_ts} is malformed") from error
        if event.commit_ts != commit_ts:
            raise PenstockError("DECODE_FAILED", f"the DDL entry at {commit_ts} claims ts {event.commit_ts}")
        events.append(event)
    return tuple(sorted(events, key=lambda e: e.commit_ts))


def _check_shape(rows: int, puts: I64, deletes: I64, values: pa.Array, has_old: Flags) -> None:
    if len(puts) + len(deletes) != rows:
        raise PenstockError("DECODE_FAILED", "an entry is neither a put nor a delete")
    if len(puts) and values.null_count and _take(values, puts).null_count:
        raise PenstockError("DECODE_FAILED", "a put has no value")
    if not bool(np.all(has_old[deletes])):
        raise PenstockError("DECODE_FAILED", "a delete has no old value: register with old values")


def _take(array: pa.Array, rows: I64) -> pa.Array:
    """Return chosen rows; all of them costs nothing."""
    return array if len(rows) == len(array) else array.take(pa.array(rows))


def _repeat(op: Op, rows: int) -> U8:
    return np.full(rows, int(op), dtype=np.uint8)


def _batches(
    span_id: int, table: TableSchema, kind: BatchKind, commit_ts: U64, ops: U8, keys: pa.Array, columns: list[pa.Array]
) -> Iterator[ChangeBatch]:
    records = change_records(table, commit_ts, ops, keys, columns)
    if not in_order(commit_ts, keys):
        records = records.take(pc.sort_indices(records, sort_keys=[(COMMIT_TS, "ascending"), (KEY, "ascending")]))
    return bounded_batches(span_id, table, kind, records)
