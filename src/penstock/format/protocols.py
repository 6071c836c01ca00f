"""The protocols of data files and their options, light enough to be imported wherever settings are read.

A ``DataFormat`` is a protocol with its options; ``data_file`` holds the encoders and decoders behind it. Invariant: with a format whose
``problems`` are empty, what is written can be read back. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from penstock.format.csv.dialect import CsvSettings, row_columns
from penstock.format.old_values import paired_schema
from penstock.model.table import COMMIT_TS, OP, TableSchema


class Protocol(StrEnum):
    """How rows stand in data files."""

    CSV = "csv"
    CANAL_JSON = "canal-json"
    PARQUET = "parquet"
    DEBEZIUM = "debezium"


class Compression(StrEnum):
    """How whole files are compressed; Parquet compresses its pages instead."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    LZ4 = "lz4"


class ParquetCodec(StrEnum):
    """How pages are compressed."""

    SNAPPY = "snappy"
    ZSTD = "zstd"
    GZIP = "gzip"
    LZ4 = "lz4"
    NONE = "none"


_EXTENSIONS = {Protocol.CSV: ".csv", Protocol.CANAL_JSON: ".json", Protocol.PARQUET: ".parquet", Protocol.DEBEZIUM: ".json"}
_SUFFIXES = {Compression.NONE: "", Compression.GZIP: ".gz", Compression.ZSTD: ".zst", Compression.LZ4: ".lz4"}


@dataclass(frozen=True, slots=True)
class CanalSettings:
    """The Canal-JSON protocol's options.

    ``enable_tidb_extension`` defaults to True, unlike in the protocol's origin: without a commit ts readers cannot stop at the checkpoint.
    """

    enable_tidb_extension: bool = True
    content_compatible: bool = False
    only_output_updated_columns: bool = False
    delete_only_output_handle_key_columns: bool = False
    output_row_key: bool = False
    terminator: str = field(default="\r\n", metadata={"unit": "escaped"})

    @property
    def line_end(self) -> bytes:
        """Return the terminator; an empty setting means CR LF."""
        return (self.terminator or "\r\n").encode()

    @property
    def only_updated(self) -> bool:
        """Return whether ``old`` holds changed columns only; ``content_compatible`` implies it."""
        return self.only_output_updated_columns or self.content_compatible

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it) for every setting that cannot be used."""
        if set(self.line_end) - set(b"\r\n"):
            yield "terminator", "must consist of CR and LF"
        if self.output_row_key and not self.enable_tidb_extension:
            yield "output-row-key", "needs enable-tidb-extension"


@dataclass(frozen=True, slots=True)
class ParquetSettings:
    """The options of the protocol."""

    codec: ParquetCodec = ParquetCodec.SNAPPY
    output_old_value: bool = True
    row_group_rows: int = field(default=131_072, metadata={"range": (1, 1 << 24)})
    temporal_as_text: bool = False


@dataclass(frozen=True, slots=True)
class DebeziumSettings:
    """The options of the protocol."""

    output_old_value: bool = True
    terminator: str = field(default="\n", metadata={"unit": "escaped"})

    @property
    def line_end(self) -> bytes:
        """Return the terminator; an empty setting means LF."""
        return (self.terminator or "\n").encode()

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it) for every setting that cannot be used."""
        if set(self.line_end) - set(b"\r\n"):
            yield "terminator", "must consist of CR and LF"


@dataclass(frozen=True, slots=True)
class DataFormat:
    """A protocol with its options; those of other protocols have no effect."""

    protocol: Protocol = Protocol.CSV
    compression: Compression = Compression.NONE
    csv: CsvSettings = field(default_factory=CsvSettings)
    canal_json: CanalSettings = field(default_factory=CanalSettings)
    parquet: ParquetSettings = field(default_factory=ParquetSettings)
    debezium: DebeziumSettings = field(default_factory=DebeziumSettings)

    @property
    def extension(self) -> str:
        """Return the ending of data files."""
        return _EXTENSIONS[self.protocol] + _SUFFIXES[self.compression]

    @property
    def needs_old_values(self) -> bool:
        """Return whether events must carry ``_key`` and BEFORE rows."""
        if self.protocol is Protocol.CSV:
            return self.csv.output_old_value
        return self.pairs_updates

    @property
    def pairs_updates(self) -> bool:
        """Return whether the encoder takes updates with their old values in one row."""
        return self.protocol is not Protocol.CSV

    @property
    def has_commit_ts(self) -> bool:
        """Return whether files tell the commit ts of each row, so that a reader can stop at the checkpoint."""
        if self.protocol is Protocol.CSV:
            return self.csv.include_commit_ts
        return self.protocol is not Protocol.CANAL_JSON or self.canal_json.enable_tidb_extension

    @property
    def has_element_names(self) -> bool:
        """Return whether ENUM and SET stand in files by the names of their elements; else by their numbers."""
        return self.protocol is not Protocol.CANAL_JSON

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it) for every option of the protocol that cannot be used."""
        if self.protocol is Protocol.PARQUET and self.compression is not Compression.NONE:
            yield "compression", "Parquet compresses its pages; set parquet.codec instead"
        chosen: dict[Protocol, tuple[str, Any]] = {
            Protocol.CSV: ("csv", self.csv),
            Protocol.CANAL_JSON: ("canal-json", self.canal_json),
            Protocol.DEBEZIUM: ("debezium", self.debezium),
        }
        if self.protocol in chosen:
            section, settings = chosen[self.protocol]
            yield from ((f"{section}.{key}", what) for key, what in settings.problems())

    def row_schema(self, table: TableSchema) -> pa.Schema:
        """Return the Arrow schema of the rows that a file takes in."""
        if self.pairs_updates:
            return paired_schema(table)
        columns = [pa.field(c.field_name, c.type.arrow()) for c in row_columns(table)]
        return pa.schema([pa.field(COMMIT_TS, pa.uint64()), pa.field(OP, pa.uint8()), *columns])
