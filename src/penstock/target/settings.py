"""The options of the storage sink, from a sink URI and a configuration section.

Owns defaults, names and ranges. Invariants: a ``StorageSinkSettings`` that exists is valid; all faults of one input are reported
together, each with its path; nothing that this module says shows a secret. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from penstock.format.column_selection import ColumnSelector, read_selectors
from penstock.format.csv.dialect import BinaryEncoding, CsvSettings
from penstock.format.key_updates import KeyUpdates
from penstock.format.layout.paths import INDEX_WIDTH_MAX, INDEX_WIDTH_MIN, DateSeparator, Layout
from penstock.format.protocols import (
    CanalSettings,
    Compression,
    DataFormat,
    DebeziumSettings,
    ParquetCodec,
    ParquetSettings,
    Protocol,
)
from penstock.model.errors import PenstockError
from penstock.model.masking import mask_uri
from penstock.model.table import TableSchema
from penstock.target.cron import Cron

SCHEMES = ("file", "s3", "s3a", "gs", "gcs", "az", "azure", "azblob", "memory")
FILE_SIZE_MIN = 1 << 10
FILE_SIZE_MAX = 512 << 20
FLUSH_INTERVAL_MS_MIN = 100
FLUSH_INTERVAL_MS_MAX = 600_000
SPOOL_SIZE_MIN = 1 << 20
SPOOL_SIZE_MAX = 1 << 44
SPOOL_FILES_MIN = 4
"""A spool holds this many whole files, or dispatchers would wait for the interval instead of filling them."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


class Atomicity(StrEnum):
    """Whether the rows of one transaction of one table stay in one file."""

    NONE = "none"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class StorageSinkSettings:
    """What tunes the storage sink; the target itself is a URI beside it."""

    protocol: Protocol = Protocol.CSV
    file_size: int = 64 << 20
    flush_interval_ms: int = 5_000
    date_separator: DateSeparator = DateSeparator.DAY
    file_index_width: int = INDEX_WIDTH_MAX
    enable_partition_separator: bool = True
    output_column_id: bool = False
    output_raw_change_event: bool = False
    transaction_atomicity: Atomicity = Atomicity.NONE
    compression: Compression = Compression.NONE
    csv: CsvSettings = field(default_factory=CsvSettings)
    canal_json: CanalSettings = field(default_factory=CanalSettings)
    parquet: ParquetSettings = field(default_factory=ParquetSettings)
    debezium: DebeziumSettings = field(default_factory=DebeziumSettings)
    column_selectors: tuple[ColumnSelector, ...] = ()
    file_expiration_days: int = 0
    file_cleanup_cron_spec: str = "0 0 2 * * *"
    flush_concurrency: int = 128
    spool_size: int = 2 << 30
    spool_dir: str = ""

    @property
    def layout(self) -> Layout:
        """Return the layout that these settings give."""
        return Layout(self.date_separator, self.file_index_width, self.enable_partition_separator, self.data_format.extension)

    @property
    def data_format(self) -> DataFormat:
        """Return how rows stand in data files."""
        return DataFormat(self.protocol, self.compression, self.csv, self.canal_json, self.parquet, self.debezium)

    @property
    def needs_old_values(self) -> bool:
        """Return whether events of every table must carry ``_key`` and BEFORE rows."""
        return self.data_format.needs_old_values

    def needs_before(self, table: TableSchema) -> bool:
        """Return whether events of a table must carry ``_key`` and BEFORE rows: for old values, or to take updates of unique keys apart."""
        return self.needs_old_values or (not self.output_raw_change_event and KeyUpdates.concern(table))


def from_uri(uri: str, options: Mapping[str, Any] | None = None) -> tuple[str, StorageSinkSettings]:
    """Return the target's URI and the settings of a sink URI with its configuration section.

    Options have the names of the configuration file (``file-size``, or ``csv.delimiter`` / ``csv: {delimiter: ...}``). Query parameters
    of the URI win over them; parameters that are not the sink's own (endpoint, region, credentials) stay in the target's URI. Faults
    stand one per line, each with its key.
    """
    parts = _split(uri)
    given: dict[str, tuple[str, Any]] = {key: (key, value) for key, value in _flatten(options or {}).items()}
    kept = []
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in _READERS:
            given[key] = (f"uri?{key}", value)
        else:
            kept.append((key, value))
    settings, faults = _read(given)
    if parts.scheme in {"file", "memory"}:
        faults += [f"uri?{key}: unknown parameter" for key, _ in kept]
    if faults:
        raise PenstockError("CONFIG_INVALID", "\n".join(faults))
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(kept), "")), settings


def _split(uri: str) -> SplitResult:
    """Return the parts of a URI that names a target; raise where it cannot."""
    shown = mask_uri(uri)
    try:
        parts = urlsplit(uri)
        host = parts.hostname
    except ValueError as error:
        raise PenstockError("SINK_URI_INVALID", f"{shown!r} is not a URI") from error
    if parts.scheme not in SCHEMES:
        raise PenstockError("SINK_URI_INVALID", f"scheme {parts.scheme or 'none'!r} of {shown!r} is not one of {', '.join(SCHEMES)}")
    if parts.scheme not in {"file", "memory"} and not host:
        raise PenstockError("SINK_URI_INVALID", f"{shown!r} names no bucket or container")
    if parts.scheme == "file" and (parts.netloc not in {"", "localhost"} or not parts.path.startswith("/")):
        raise PenstockError("SINK_URI_INVALID", f"{shown!r} must have an absolute path, as in file:///dir")
    if parts.fragment or uri.endswith("#"):
        raise PenstockError("SINK_URI_INVALID", f"{shown!r} is followed by a fragment; write # in a path as %23")
    return parts


def _flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in options.items():
        name = f"{prefix}{key}".replace("_", "-")
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def _read(given: Mapping[str, tuple[str, Any]]) -> tuple[StorageSinkSettings, list[str]]:
    faults: list[str] = []
    values: dict[str, Any] = {}
    for key, (path, raw) in given.items():
        reader = _READERS.get(key)
        if reader is None:
            faults.append(f"{path}: unknown option")
            continue
        name, read = reader
        try:
            values[name] = read(raw)
        except ValueError as error:
            faults.append(f"{path}: {error}")
    sections: dict[str, dict[str, Any]] = {name: {} for name in (*_SECTIONS, "shared")}
    plain = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        if key:
            sections[section][key] = value
        else:
            plain[name] = value
    _share_options(values, sections)
    settings = StorageSinkSettings(**{name: _SECTIONS[name](**given_here) for name, given_here in sections.items()}, **plain)
    faults.extend(f"{given.get(key, (key, None))[0]}: {what}" for key, what in _problems(settings, values))
    return settings, faults


def _share_options(values: Mapping[str, Any], sections: dict[str, dict[str, Any]]) -> None:
    """Give the options that the protocols have in common to each of them, unless it has its own."""
    for key in ("terminator", "output_old_value"):
        shared = values.get(f"shared.{key}")
        for section in ("csv", "canal_json", "debezium", "parquet"):
            if shared is not None and key in _SECTIONS[section].__dataclass_fields__:
                sections[section].setdefault(key, shared)
    sections.pop("shared", None)


def _problems(settings: StorageSinkSettings, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong) of options that do not go together."""
    yield from settings.data_format.problems()
    if settings.protocol is Protocol.CSV and values.get("canal_json.delete_only_output_handle_key_columns"):
        yield "delete-only-output-handle-key-columns", "CSV rows have every column"
    if settings.file_expiration_days and settings.date_separator is not DateSeparator.DAY:
        yield "file-expiration-days", "needs date-separator day"
    if settings.spool_size < SPOOL_FILES_MIN * settings.file_size:
        yield "spool-size", f"must be at least {SPOOL_FILES_MIN} times file-size"
    try:
        Cron.parse(settings.file_cleanup_cron_spec)
    except ValueError as error:
        yield "file-cleanup-cron-spec", str(error)


def _flag(raw: Any) -> bool:
    text = str(raw).strip().lower()
    if text not in {"true", "false", "1", "0"}:
        raise ValueError(f"{raw!r} is neither true nor false")
    return text in {"true", "1"}


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(raw: Any) -> int:
        try:
            value = int(str(raw))
        except ValueError:
            raise ValueError(f"{raw!r} is not a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"{value} is not within {low}..{high}")
        return value

    return read


def _duration_ms(raw: Any) -> int:
    text = str(raw).strip()
    for unit in ("ms", "s", "m", "h"):
        number = text.removesuffix(unit)
        if number != text:
            try:
                value = round(float(number) * _UNITS_MS[unit])
            except ValueError:
                break
            return _whole(FLUSH_INTERVAL_MS_MIN, FLUSH_INTERVAL_MS_MAX)(value)
    raise ValueError(f"{raw!r} is not a duration such as 5s or 500ms")


def _choice(options: type[StrEnum]) -> Callable[[Any], StrEnum]:
    def read(raw: Any) -> StrEnum:
        try:
            return options(str(raw).strip().lower())
        except ValueError:
            raise ValueError(f"{raw!r} is none of {', '.join(o.value for o in options)}") from None

    return read


_ESCAPES = {"\\r\\n": "\r\n", "\\n": "\n", "\\r": "\r", "\\t": "\t"}


def _text(raw: Any) -> str:
    # Configuration files and URIs cannot always hold control characters; their escapes are understood.
    text = str(raw)
    return _ESCAPES.get(text, text)


_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "protocol": ("protocol", _choice(Protocol)),
    "file-size": ("file_size", _whole(FILE_SIZE_MIN, FILE_SIZE_MAX)),
    "flush-interval": ("flush_interval_ms", _duration_ms),
    "date-separator": ("date_separator", _choice(DateSeparator)),
    "file-index-width": ("file_index_width", _whole(INDEX_WIDTH_MIN, INDEX_WIDTH_MAX)),
    "file-index-digit": ("file_index_width", _whole(INDEX_WIDTH_MIN, INDEX_WIDTH_MAX)),
    "enable-partition-separator": ("enable_partition_separator", _flag),
    "output-column-id": ("output_column_id", _flag),
    "output-raw-change-event": ("output_raw_change_event", _flag),
    "transaction-atomicity": ("transaction_atomicity", _choice(Atomicity)),
    "compression": ("compression", _choice(Compression)),
    "column-selectors": ("column_selectors", read_selectors),
    "file-expiration-days": ("file_expiration_days", _whole(0, 36_500)),
    "file-cleanup-cron-spec": ("file_cleanup_cron_spec", str),
    "flush-concurrency": ("flush_concurrency", _whole(1, 512)),
    "spool-size": ("spool_size", _whole(SPOOL_SIZE_MIN, SPOOL_SIZE_MAX)),
    "spool-dir": ("spool_dir", str),
    "terminator": ("shared.terminator", _text),
    "csv.delimiter": ("csv.delimiter", _text),
    "csv.quote": ("csv.quote", str),
    "csv.null": ("csv.null", str),
    "csv.terminator": ("csv.terminator", _text),
    "csv.include-commit-ts": ("csv.include_commit_ts", _flag),
    "csv.binary-encoding-method": ("csv.binary_encoding", _choice(BinaryEncoding)),
    "csv.output-old-value": ("csv.output_old_value", _flag),
    "csv.output-field-header": ("csv.output_field_header", _flag),
    "output-old-value": ("shared.output_old_value", _flag),
    "enable-tidb-extension": ("canal_json.enable_tidb_extension", _flag),
    "content-compatible": ("canal_json.content_compatible", _flag),
    "only-output-updated-columns": ("canal_json.only_output_updated_columns", _flag),
    "delete-only-output-handle-key-columns": ("canal_json.delete_only_output_handle_key_columns", _flag),
    "output-row-key": ("canal_json.output_row_key", _flag),
    "canal-json.terminator": ("canal_json.terminator", _text),
    "parquet.codec": ("parquet.codec", _choice(ParquetCodec)),
    "parquet.output-old-value": ("parquet.output_old_value", _flag),
    "parquet.row-group-rows": ("parquet.row_group_rows", _whole(1, 1 << 24)),
    "parquet.temporal-as-text": ("parquet.temporal_as_text", _flag),
    "debezium.terminator": ("debezium.terminator", _text),
    "debezium.output-old-value": ("debezium.output_old_value", _flag),
}
_SECTIONS: dict[str, Any] = {
    "csv": CsvSettings,
    "canal_json": CanalSettings,
    "parquet": ParquetSettings,
    "debezium": DebeziumSettings,
}
