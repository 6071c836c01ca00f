"""Data files as the sink makes them, in one call: header, encoded runs, whole file.

Invariant: rows take the way of production, ``file_header``, ``RowEncoder`` and ``finish_file``. Runs in tests.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from penstock.format.csv.dialect import CsvSettings
from penstock.format.data_file import RowEncoder, file_header, finish_file
from penstock.format.old_values import UpdatePairs
from penstock.format.protocols import CanalSettings, DataFormat, DebeziumSettings, Protocol
from penstock.model.table import TableSchema
from penstock.sink.storage.spool.file_buffer import FileBuffer


def table_rows(table: TableSchema, *given: tuple[object, ...]) -> pa.RecordBatch:
    """Return rows of a table, given as (ts, op, key, values...)."""
    arrays = [pa.array([r[at] for r in given], field.type) for at, field in enumerate(table.batch_schema())]
    return pa.RecordBatch.from_arrays(arrays, schema=table.batch_schema())


def paired_rows(table: TableSchema, *given: tuple[object, ...]) -> pa.RecordBatch:
    """Return such rows as protocols with old values take them: each update with its before-image."""
    return UpdatePairs(table).add(table_rows(table, *given))


def whole_file(data_format: DataFormat, table: TableSchema, runs: Iterable[pa.RecordBatch]) -> bytes:
    """Return the file of some runs of rows, each of which has the format's row schema."""
    buffer, encoder, sizes = FileBuffer(64), RowEncoder(data_format, table), []
    buffer.write(file_header(data_format, table))
    for records in runs:
        before = buffer.tell()
        encoder.encode(records, buffer)
        sizes.append(buffer.tell() - before)
    return bytes(finish_file(data_format, table, buffer.content(), sizes))


def encode(table: TableSchema, records: pa.RecordBatch, settings: CsvSettings | CanalSettings | DebeziumSettings) -> bytes:
    """Return rows as the bytes that stand for them in a file, without a header."""
    if isinstance(settings, CsvSettings):
        chosen = DataFormat(Protocol.CSV, csv=settings)
    elif isinstance(settings, CanalSettings):
        chosen = DataFormat(Protocol.CANAL_JSON, canal_json=settings)
    else:
        chosen = DataFormat(Protocol.DEBEZIUM, debezium=settings)
    buffer = FileBuffer(64)
    RowEncoder(chosen, table).encode(records, buffer)
    return bytes(buffer.content())
