"""Transactions as a writer sees them: rows in columns, encoded with the kernels, written in two phases.

``Txn`` works on a ``Writer``, which is the engine itself (in the server's process) or the client (over gRPC). Mutations are sorted by
key, so that each range's log is in key order. Leaving the ``with`` block commits; an error inside it rolls back. Runs with the workload,
and in tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys, row_id_keys, strip_prefix, table_prefix, with_prefix
from penstock.model.table import TableSchema
from penstock.source.dataserver.rowcodec import encode_values
from penstock.source.ranged import RangeInfo

PREWRITE_BYTES_MAX = 2 << 20
"""How much one prewrite call carries; a single larger row passes alone."""


class Writer(Protocol):
    """What a transaction and a workload need of a data server."""

    def begin(self) -> int:
        """Return the start ts of a new transaction."""

    def prewrite(self, start_ts: int, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Lock full keys with their new values (None: delete)."""

    def commit(self, start_ts: int) -> int:
        """Commit; return the commit ts."""

    def rollback(self, start_ts: int) -> None:
        """Give up."""

    def execute_ddl(self, query: str) -> int:
        """Execute a DDL; return its commit ts."""

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the newest version of every table."""

    def list_ranges(self, start_key: bytes, end_key: bytes) -> Sequence[RangeInfo]:
        """Return the ranges that touch a part of the key space."""

    def split(self, key: bytes) -> Sequence[RangeInfo]:
        """Split at a full key."""

    def move_leader(self, range_id: int, store_id: int) -> Sequence[RangeInfo]:
        """Let another store lead a range."""


class Txn:
    """One transaction. Not thread safe."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.start_ts = writer.begin()
        self.commit_ts: int | None = None
        self._mutations: dict[bytes, bytes | None] = {}
        self._row_ids = 0
        self._prewritten = False
        self._ended = False

    @property
    def rows(self) -> int:
        """Return how many rows the transaction writes so far."""
        return len(self._mutations)

    def put(self, table: TableSchema, rows: pa.RecordBatch | Mapping[str, pa.Array]) -> pa.Array:
        """Insert or replace rows given as columns by column name or field name; return their row keys."""
        columns = _by_field(table, rows)
        prefix = table_prefix(table.table_id)
        values = encode_values(table, columns)
        if table.key_columns:
            keys = encode_row_keys(table, columns, prefix)
        else:
            keys = row_id_keys(self.start_ts, self._row_ids, len(values), prefix)
            self._row_ids += len(values)
        self._write(keys.to_pylist(), values.to_pylist())
        return strip_prefix(keys)[1] if len(keys) else keys

    def delete(self, table: TableSchema, row_keys: pa.Array) -> None:
        """Delete rows by row key."""
        self._write(with_prefix(table.table_id, row_keys).to_pylist(), [None] * len(row_keys))

    def prewrite(self) -> None:
        """Lock everything that was put or deleted so far, in bounded calls."""
        if not self._mutations:
            return
        keys = sorted(self._mutations)
        values = [self._mutations[key] for key in keys]
        sizes = np.fromiter((len(key) + len(value or b"") for key, value in zip(keys, values, strict=True)), np.int64, len(keys))
        calls = np.cumsum(sizes) // PREWRITE_BYTES_MAX
        starts = [0, *(np.flatnonzero(np.diff(calls)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
            self._writer.prewrite(self.start_ts, keys[start:end], values[start:end])
        self._prewritten = True

    def commit(self) -> int:
        """Prewrite what is not prewritten, then commit; return the commit ts. A failure rolls back and is raised."""
        if not self._mutations:
            self._ended = True
            self.commit_ts = self.start_ts
            return self.commit_ts
        try:
            if not self._prewritten:
                self.prewrite()
            self.commit_ts = self._writer.commit(self.start_ts)
        except PenstockError:
            # The first error is the one to report, also where the rollback fails for the same reason.
            with contextlib.suppress(PenstockError):
                self.rollback()
            raise
        self._ended = True
        return self.commit_ts

    def rollback(self) -> None:
        """Give up."""
        if not self._ended:
            self._ended = True
            self._writer.rollback(self.start_ts)

    def _write(self, keys: list[bytes], values: Sequence[bytes | None]) -> None:
        self._mutations.update(zip(keys, values, strict=True))
        self._prewritten = False

    def __enter__(self) -> Txn:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.rollback()
        elif not self._ended:
            self.commit()


def _by_field(table: TableSchema, rows: pa.RecordBatch | Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return all columns by field name; a column that is not given is NULL."""
    given = dict(zip(rows.schema.names, rows.columns, strict=True)) if isinstance(rows, pa.RecordBatch) else dict(rows)
    length = len(next(iter(given.values()))) if given else 0
    columns = {}
    for column in table.columns:
        array = given.pop(column.field_name, None)
        if array is None:
            array = given.pop(column.name, None)
        if array is None:
            array = pa.nulls(length, column.type.arrow())
        columns[column.field_name] = array if array.type == column.type.arrow() else array.cast(column.type.arrow())
    if given:
        raise PenstockError("CONFIG_INVALID", f"{table.full_name} has no columns {sorted(given)}")
    return columns
