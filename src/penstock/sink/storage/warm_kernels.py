"""Sends two rows of every type through every protocol, so that the kernels are compiled, or loaded where they were compiled before.

Numba keeps compiled kernels in a cache beside the modules; without it the first batch of each kind takes seconds. Runs at set-up, and
on executors before their first task.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from penstock.format.csv.dialect import CsvSettings
from penstock.format.data_file import RowEncoder, decode_file, file_header, finish_file
from penstock.format.old_values import UpdatePairs
from penstock.format.protocols import DataFormat, Protocol
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import BINARY_KINDS, FLOAT_KINDS, ColumnType, TypeKind
from penstock.sink.storage.spool.file_buffer import FileBuffer

_TEXTS = {TypeKind.DECIMAL: "1.5", TypeKind.DATE: "2026-01-02", TypeKind.TIME: "01:02:03", TypeKind.JSON: "{}", TypeKind.VECTOR: "[1]"}


def sample_table() -> tuple[TableSchema, dict[str, pa.Array]]:
    """Return a table with a column of every type, and two rows of it."""
    columns = tuple(
        Column(number, kind.value.lower(), ColumnType(kind, unsigned=bool(number % 2), elems=("a", "b")), primary_key=number == 1)
        for number, kind in enumerate(TypeKind, 1)
    )
    table = TableSchema(1, "warm", "kernels", 1, columns)
    return table, {c.field_name: pa.array([_value(c), None if not c.primary_key else _value(c)], c.type.arrow()) for c in columns}


def warm_formats() -> None:
    """Encode and decode the sample in every protocol."""
    table, arrays = sample_table()
    records = _records(arrays)
    for data_format in (
        *map(DataFormat, Protocol),
        *(DataFormat(csv=s) for s in (CsvSettings(quote=""), CsvSettings(output_old_value=True))),
    ):
        decode_file(_encoded(data_format, table, records), table, data_format, "warm")


def warm_encoder() -> None:
    """Encode the sample as CSV."""
    table, arrays = sample_table()
    _encoded(DataFormat(Protocol.CSV), table, _records(arrays))


def load_encoder() -> None:
    """Encode as CSV those types of the sample that numba alone encodes. Starts no thread, so a process that forks may do it."""
    table, arrays = sample_table()
    kernels_alone = tuple(c for c in table.columns if c.type.kind not in FLOAT_KINDS | BINARY_KINDS | {TypeKind.ENUM, TypeKind.SET})
    table = msgspec.structs.replace(table, columns=kernels_alone)
    _encoded(DataFormat(Protocol.CSV), table, _records({c.field_name: arrays[c.field_name] for c in kernels_alone}))


def _records(arrays: dict[str, pa.Array]) -> pa.RecordBatch:
    meta = {COMMIT_TS: pa.array([5, 6], pa.uint64()), OP: pa.array([0, 2], pa.uint8())}
    return pa.RecordBatch.from_pydict(meta | arrays)


def _encoded(data_format: DataFormat, table: TableSchema, records: pa.RecordBatch) -> bytes:
    buffer = FileBuffer(1 << 16)
    header = buffer.write(file_header(data_format, table))
    RowEncoder(data_format, table).encode(UpdatePairs(table).add(records) if data_format.pairs_updates else records, buffer)
    return bytes(finish_file(data_format, table, buffer.content(), [buffer.tell() - header]))


def _value(column: Column) -> object:
    arrow = column.type.arrow()
    if pa.types.is_string(arrow):
        return _TEXTS.get(
            column.type.kind, "2026-01-02 03:04:05" if column.type.kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP} else "text"
        )
    return b"bytes" if pa.types.is_binary(arrow) else 1
