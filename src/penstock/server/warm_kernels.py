"""``python -m penstock.server.warm_kernels``: compiles every kernel once, so that no first run waits for it.

Numba keeps compiled kernels in a cache beside the modules; without it the first batch of each kind takes seconds. Set-up runs
this; everything works without it. Runs at set-up.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.format.csv_decoder import decode
from penstock.format.csv_dialect import CsvSettings
from penstock.format.csv_encoder import encode
from penstock.format.data_file import DataFile, decode_file
from penstock.format.old_values import UpdatePairs
from penstock.format.protocols import DataFormat, Protocol
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.puller.warm_kernels import warm_kernels as warm_puller
from penstock.sink.storage.file_buffer import FileBuffer
from penstock.source.dataserver.keys import encode_row_keys
from penstock.source.dataserver.rowcodec import decode_values, encode_values

_TEXTS = {TypeKind.DECIMAL: "1.5", TypeKind.DATE: "2026-01-02", TypeKind.TIME: "01:02:03", TypeKind.JSON: "{}", TypeKind.VECTOR: "[1]"}


def warm_kernels() -> None:
    """Send two rows of every type through every codec. Quick when everything is compiled already."""
    warm_puller()
    columns = tuple(
        Column(number, kind.value.lower(), ColumnType(kind, unsigned=bool(number % 2), elems=("a", "b")), primary_key=number == 1)
        for number, kind in enumerate(TypeKind, 1)
    )
    table = TableSchema(1, "warm", "kernels", 1, columns)
    arrays = {c.field_name: pa.array([_value(c), None if not c.primary_key else _value(c)], c.type.arrow()) for c in columns}
    encode_row_keys(table, arrays, b"t")
    decode_values(table, encode_values(table, arrays))
    meta = {COMMIT_TS: pa.array([5, 6], pa.uint64()), OP: pa.array([0, 2], pa.uint8())}
    records = pa.RecordBatch.from_pydict(meta | arrays)
    for settings in (CsvSettings(), CsvSettings(quote=""), CsvSettings(output_old_value=True)):
        decode(encode(table, records, settings), table, settings, "warm.csv")
    paired = UpdatePairs(table).add(records)
    for protocol in Protocol:
        data_format = DataFormat(protocol)
        file = DataFile(data_format, table, FileBuffer(1 << 16))
        file.add(paired if data_format.pairs_updates else records)
        decode_file(bytes(file.finish()), table, data_format, "warm")


def _value(column: Column) -> object:
    arrow = column.type.arrow()
    if pa.types.is_string(arrow):
        return _TEXTS.get(
            column.type.kind, "2026-01-02 03:04:05" if column.type.kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP} else "text"
        )
    return b"bytes" if pa.types.is_binary(arrow) else 1


if __name__ == "__main__":
    warm_kernels()
