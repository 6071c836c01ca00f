"""The changes that benchmarks move: a 12-column table of ints, decimals, strings, timestamps and NULLs, with updates and deletes.

Generated in columns from a seed, so every run and every baseline sees the same rows. Runs in the benchmark's process.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind

BASE_TS = compose_ts(1_700_000_000_000)
SCHEMA_TS = BASE_TS - 1
CHUNK_ROWS = 131_072
UPDATE_SHARE = 0.10
DELETE_SHARE = 0.05
ROWS_PER_TXN = 20

_K = TypeKind
ORDERS = TableSchema(
    table_id=11,
    schema="shop",
    table="orders",
    version=SCHEMA_TS,
    columns=(
        Column(1, "id", ColumnType(_K.BIGINT, length=20), nullable=False, primary_key=True),
        Column(2, "customer_id", ColumnType(_K.INT, length=11), nullable=False),
        Column(3, "quantity", ColumnType(_K.SMALLINT, unsigned=True, length=5)),
        Column(4, "amount", ColumnType(_K.DECIMAL, length=12, scale=2)),
        Column(5, "tax", ColumnType(_K.DECIMAL, length=10, scale=4)),
        Column(6, "email", ColumnType(_K.VARCHAR, length=64)),
        Column(7, "street", ColumnType(_K.VARCHAR, length=64)),
        Column(8, "status", ColumnType(_K.CHAR, length=8)),
        Column(9, "created_at", ColumnType(_K.DATETIME, scale=6)),
        Column(10, "updated_at", ColumnType(_K.TIMESTAMP)),
        Column(11, "score", ColumnType(_K.DOUBLE)),
        Column(12, "note", ColumnType(_K.VARCHAR, length=128)),
    ),
)


def spans(count: int) -> list[Span]:
    """Divide the table's keys in equal parts; `changes` of part i lie in span i."""
    borders = [_row_keys(np.array([part << 40], dtype=np.int64))[0].as_py() for part in range(1, count)]
    return [Span(ORDERS.table_id, a, b) for a, b in zip([b"", *borders], [*borders, b""], strict=True)]


def changes(part: int, span_id: int, rows: int, seed: int = 7) -> Iterator[tuple[ChangeBatch, ...]]:
    """Yield about the given number of changes of one part, in commit order: inserts, then updates and deletes of earlier rows.

    A change is an insert, an update (a row and its before-image) or a delete.
    """
    rng = np.random.default_rng([seed, part])
    sent, next_id, ts = 0, part << 40, BASE_TS + 1 + part
    while sent < rows:
        count = min(CHUNK_ROWS, rows - sent)
        updates, deletes = int(count * UPDATE_SHARE), int(count * DELETE_SHARE)
        inserts = count - updates - deletes
        ids = np.arange(next_id, next_id + inserts, dtype=np.int64)
        commit = (ts + (np.arange(inserts) // ROWS_PER_TXN) * 16).astype(np.uint64)
        yield (_batch(span_id, BatchKind.DATA, ids, commit, Op.INSERT, rng),)
        ts = int(commit[-1]) + 16
        touched = np.sort(rng.choice(ids, updates + deletes, replace=False))
        changed, gone = touched[:updates], touched[updates:]
        commit = (ts + (np.arange(updates + deletes) // ROWS_PER_TXN) * 16).astype(np.uint64)
        before = _batch(span_id, BatchKind.TOMBSTONE, changed, commit[:updates], Op.BEFORE, rng)
        after = _batch(span_id, BatchKind.DATA, changed, commit[:updates], Op.UPDATE, rng)
        yield after, before, _batch(span_id, BatchKind.TOMBSTONE, gone, commit[updates:], Op.DELETE, rng)
        ts = int(commit[-1]) + 16
        next_id, sent = next_id + inserts, sent + count


def _batch(span_id: int, kind: BatchKind, ids: np.ndarray, commit: np.ndarray, op: Op, rng: np.random.Generator) -> ChangeBatch:
    columns = [pa.array(commit), pa.array(np.full(len(ids), op, dtype=np.uint8)), _row_keys(ids), *_values(ids, rng)]
    return ChangeBatch.of(span_id, ORDERS, kind, pa.RecordBatch.from_arrays(columns, schema=ORDERS.batch_schema()))


def _row_keys(ids: np.ndarray) -> pa.Array:
    flipped = (ids.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")
    offsets = np.arange(0, 8 * len(ids) + 1, 8, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(flipped)])


def _values(ids: np.ndarray, rng: np.random.Generator) -> list[pa.Array]:
    n = len(ids)
    cents, moment = rng.integers(0, 10**8, n), rng.integers(1_600_000_000_000_000, 1_700_000_000_000_000, n)
    status = pl.Series(["NEW", "PAID", "SHIPPED", "CLOSED"]).gather(pl.Series(rng.integers(0, 4, n)))
    frame = pl.DataFrame({"cents": cents, "moment": moment, "mail": rng.integers(0, 1 << 40, n), "house": rng.integers(1, 999, n)})
    frame = frame.select(
        amount=(pl.col("cents") // 100).cast(pl.String) + "." + (pl.col("cents") % 100).cast(pl.String).str.zfill(2),
        tax=(pl.col("cents") % 10_000).cast(pl.String) + ".2500",
        email=pl.col("mail").cast(pl.String) + "@example.com",
        street=pl.col("house").cast(pl.String) + " Long Street",
        created=pl.col("moment").cast(pl.Datetime("us")).dt.strftime("%Y-%m-%d %H:%M:%S%.6f"),
        updated=pl.col("moment").cast(pl.Datetime("us")).dt.strftime("%Y-%m-%d %H:%M:%S"),
    )
    texts = [frame.to_series(i).to_arrow().cast(pa.string()) for i in range(frame.width)]
    amount, tax, email, street, created, updated = texts
    score = pa.array(rng.random(n) * 100, mask=rng.random(n) < 0.2)
    note = pa.array(np.full(n, "a note about the order", dtype=object), pa.string(), mask=rng.random(n) < 0.5)
    ints = [pa.array(ids), pa.array(rng.integers(0, 1 << 30, n).astype(np.int32)), pa.array(rng.integers(0, 100, n).astype(np.uint16))]
    return [*ints, amount, tax, email, street, status.to_arrow().cast(pa.string()), created, updated, score, note]
