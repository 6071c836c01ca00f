"""Data files in the making and the way back: which encoder and decoder a format has, and compression of whole files.

A file is its header, runs of encoded rows in order, and ``finish_file``; ``decode_file`` is the way back. Invariants: bytes depend on rows,
table and format alone (compressed ones also on the version of the compression library); what a format writes, the same format
reads. Runs on executors and wherever a target is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import polars as pl
import pyarrow as pa

from penstock.format.csv import encoder as csv_encoder
from penstock.format.json import canal as canal_json
from penstock.format.json import debezium
from penstock.format.parquet_file import ParquetRows
from penstock.format.protocols import Compression, DataFormat
from penstock.format.protocols import Protocol as DataProtocol
from penstock.format.sheet_kernels import Space
from penstock.model.batch import read_ipc, write_ipc
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema

DECODED_BYTES_MAX = 2 << 30
"""What a column of Arrow can hold at most; a file whose rows need more cannot be read at all."""
_INFLATE_BYTES = 1 << 20
_LARGER_HINT = "If the feed that wrote it has a larger file-size, give it: --set file-size=512MiB."


class Buffer(Space, Protocol):
    """Where a file is filled: a growing run of bytes."""

    def tell(self) -> int:
        """Return how many bytes are in."""

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; return how many."""


class RowEncoder:
    """Encodes runs of rows apart from the file that they will stand in: ``file_header``, the runs in order, ``finish_file``."""

    def __init__(self, data_format: DataFormat, table: TableSchema) -> None:
        self._parquet = data_format.protocol is DataProtocol.PARQUET
        self._table = table
        self._encode = _encoder(data_format)

    def encode(self, records: pa.RecordBatch, out: Buffer) -> int:
        """Append rows, which have the format's row schema; return the size by which files are cut.

        That is encoded and not compressed, without a header; Parquet's rows as they lie in memory.
        """
        before = out.tell()
        if self._parquet:
            # Parquet is made of whole files; until then the rows stay as they are.
            out.write(memoryview(write_ipc(records)))
            return int(records.nbytes)
        self._encode(self._table, records, out)
        return out.tell() - before


def file_header(data_format: DataFormat, table: TableSchema) -> bytes:
    """Return what stands before the rows of a file."""
    return data_format.csv.header(table) if data_format.protocol is DataProtocol.CSV else b""


def finish_file(data_format: DataFormat, table: TableSchema, content: memoryview, runs: Sequence[int]) -> bytes | memoryview:
    """Return the whole file of a header and encoded runs of these lengths that lie one after the other."""
    if data_format.protocol is DataProtocol.PARQUET:
        rows, at = ParquetRows(table, data_format.parquet), 0
        for size in runs:
            rows.add(read_ipc(pa.py_buffer(content[at : at + size])))
            at += size
        return rows.finish()
    return content if data_format.compression is Compression.NONE else compress(content, data_format.compression)


def _encoder(data_format: DataFormat) -> Callable[[TableSchema, pa.RecordBatch, Space], None]:
    if data_format.protocol is DataProtocol.CANAL_JSON:
        return lambda table, records, out: canal_json.encode_into(table, records, data_format.canal_json, out)
    if data_format.protocol is DataProtocol.DEBEZIUM:
        return lambda table, records, out: debezium.encode_into(table, records, data_format.debezium, out)
    return lambda table, records, out: csv_encoder.encode_into(table, records, data_format.csv, out)


def compress(content: bytes | memoryview, compression: Compression) -> bytes:
    """Return content as one compressed stream that every tool of that kind reads."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, compression.value) as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def decompress(content: bytes, compression: Compression, path: str, bytes_max: int = DECODED_BYTES_MAX) -> bytes:
    """Return what ``compress`` was given; a damaged stream is an error, and so is one that grows to more than it may."""
    plain = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(content), compression.value) as stream:
            while piece := stream.read(_INFLATE_BYTES):
                plain += piece
                if len(plain) > bytes_max:
                    raise PenstockError("FILE_MALFORMED", f"{path}: inflates to more than {bytes_max} bytes", _LARGER_HINT)
        return bytes(plain)
    except (pa.ArrowException, OSError) as error:
        raise PenstockError("FILE_MALFORMED", f"{path}: byte 0: not whole {compression.value} data") from error


def decode_file(content: bytes, table: TableSchema, data_format: DataFormat, path: str, bytes_max: int = DECODED_BYTES_MAX) -> pl.DataFrame:
    """Return the rows of a data file as change batches hold them, in the order in which they stand in it.

    Whatever else than rows is in a file makes it ``FILE_MALFORMED``; one that inflates to more bytes than allowed is not read to its end.
    """
    if data_format.compression is not Compression.NONE:
        content = decompress(content, data_format.compression, path, bytes_max)
    try:
        return _decode(content, table, data_format, path, bytes_max)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError, pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise PenstockError("FILE_MALFORMED", f"{path}: cannot be read as rows ({type(error).__name__})") from error


def _decode(content: bytes, table: TableSchema, data_format: DataFormat, path: str, bytes_max: int) -> pl.DataFrame:
    if data_format.protocol is DataProtocol.CANAL_JSON:
        from penstock.format.json import canal_decoder

        return canal_decoder.decode(content, table, path)
    if data_format.protocol is DataProtocol.DEBEZIUM:
        from penstock.format.json import debezium_decoder

        return debezium_decoder.decode(content, table, path)
    if data_format.protocol is DataProtocol.PARQUET:
        from penstock.format import parquet_file

        return parquet_file.decode(content, table, path, bytes_max)
    from penstock.format.csv import decoder as csv_decoder

    return csv_decoder.decode(content, table, data_format.csv, path)
