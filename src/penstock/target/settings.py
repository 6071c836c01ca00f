"""The options of the storage sink, from a sink URI and a configuration section.

Owns defaults, names and ranges. Invariants: a ``StorageSinkSettings`` that exists is valid; all faults of one input are reported
together, each with its path; nothing that this module says shows a secret. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from penstock.format.column_selection import ColumnSelector, read_selectors
from penstock.format.csv.dialect import CsvSettings
from penstock.format.key_updates import KeyUpdates
from penstock.format.layout.paths import INDEX_WIDTH_MAX, INDEX_WIDTH_MIN, DateSeparator, Layout
from penstock.format.protocols import (
    CanalSettings,
    Compression,
    DataFormat,
    DebeziumSettings,
    ParquetSettings,
    Protocol,
)
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.settings.loader import Problems, did_you_mean, dotted_keys, known_keys, merge, nested, read
from penstock.settings.masking import mask_uri
from penstock.target.cron import Cron

CONNECTION_SCHEME = "connection"
"""A target that the server's configuration knows by a name."""
SCHEMES = ("file", "s3", "s3a", "gs", "gcs", "az", "azure", "azblob", "memory", CONNECTION_SCHEME)
SPOOL_FILES_MIN = 4
"""A spool holds this many whole files, or dispatchers would wait for the interval instead of filling them."""

_PART = {"part": True}


class Atomicity(StrEnum):
    """What is kept of transactions: nothing, the rows of one table in one file, or an index by which they are applied whole."""

    NONE = "none"
    TABLE = "table"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class StorageSinkSettings:
    """What tunes the storage sink; the target itself is a URI beside it."""

    free_options: ClassVar[frozenset[str]] = frozenset(
        {
            "file_size",
            "flush_interval_ms",
            "flush_concurrency",
            "request_timeout_ms",
            "spool_size",
            "spool_dir",
            "file_expiration_days",
            "file_cleanup_cron_spec",
            "transaction_atomicity",
        }
    )
    """What may change: readers find the files all the same, and read them in the same way."""
    cut_options: ClassVar[frozenset[str]] = frozenset({"file_size", "transaction_atomicity"})

    protocol: Protocol = Protocol.CSV
    file_size: int = field(default=64 << 20, metadata={"range": (1 << 10, 512 << 20)})
    flush_interval_ms: int = field(default=5_000, metadata={"range": (100, 600_000)})
    date_separator: DateSeparator = DateSeparator.DAY
    file_index_width: int = field(
        default=INDEX_WIDTH_MAX, metadata={"range": (INDEX_WIDTH_MIN, INDEX_WIDTH_MAX), "alias": "file-index-digit"}
    )
    enable_partition_separator: bool = True
    output_column_id: bool = False
    output_raw_change_event: bool = False
    transaction_atomicity: Atomicity = Atomicity.NONE
    compression: Compression = Compression.NONE
    csv: CsvSettings = field(default_factory=CsvSettings, metadata=_PART)
    canal_json: CanalSettings = field(default_factory=CanalSettings, metadata=_PART)
    parquet: ParquetSettings = field(default_factory=ParquetSettings, metadata=_PART)
    debezium: DebeziumSettings = field(default_factory=DebeziumSettings, metadata=_PART)
    column_selectors: tuple[ColumnSelector, ...] = field(default=(), metadata={"parse": read_selectors})
    file_expiration_days: int = field(default=0, metadata={"range": (0, 36_500)})
    file_cleanup_cron_spec: str = "0 0 2 * * *"
    request_timeout_ms: int = field(default=90_000, metadata={"range": (100, 600_000)})
    flush_concurrency: int = field(default=128, metadata={"range": (1, 512)})
    spool_size: int = field(default=2 << 30, metadata={"range": (1 << 20, 1 << 44)})
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
    def format_name(self) -> str:
        """Return the protocol of the data files."""
        return self.protocol.value

    @property
    def needs_old_values(self) -> bool:
        """Return whether events of every table must carry ``_key`` and BEFORE rows."""
        return self.data_format.needs_old_values

    @property
    def indexes_transactions(self) -> bool:
        """Return whether an index beside the data tells of transactions over all tables."""
        return self.transaction_atomicity is Atomicity.TRANSACTION

    @property
    def numbers_events(self) -> bool:
        """Return whether each event tells its place in its transaction, for which the rows of a window go through one task."""
        return self.indexes_transactions and self.protocol is Protocol.DEBEZIUM

    def needs_before(self, table: TableSchema) -> bool:
        """Return whether events of a table must carry ``_key`` and BEFORE rows: for old values, or to take updates of unique keys apart."""
        return self.needs_old_values or (not self.output_raw_change_event and KeyUpdates.concern(table))

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong) of options that do not go together."""
        yield from self.data_format.problems()
        if self.protocol is Protocol.CSV and self.canal_json.delete_only_output_handle_key_columns:
            yield "canal-json.delete-only-output-handle-key-columns", "CSV rows have every column"
        if self.file_expiration_days and self.date_separator is not DateSeparator.DAY:
            yield "file-expiration-days", "needs date-separator day"
        if self.indexes_transactions and not self.data_format.has_commit_ts:
            yield "transaction-atomicity", "transaction needs the commit ts in the files: csv.include-commit-ts, enable-tidb-extension"
        if self.spool_size < SPOOL_FILES_MIN * self.file_size:
            yield "spool-size", f"must be at least {SPOOL_FILES_MIN} times file-size"
        try:
            Cron.parse(self.file_cleanup_cron_spec)
        except ValueError as error:
            yield "file-cleanup-cron-spec", str(error)


_OF_CANAL = frozenset(known_keys(CanalSettings)) - {"terminator"}
"""The keys of this protocol that stand without its name, as in the layout's origin."""
SHARED_KEYS = ("terminator", "output-old-value")
"""What the protocols have in common: without a prefix it is given to each that has it, unless that has its own."""
OPTION_KEYS = frozenset(dotted_keys(StorageSinkSettings)) - {f"canal-json.{key}" for key in _OF_CANAL} | _OF_CANAL
"""Every key that stands for one setting, under the name that a user writes."""


def from_uri(uri: str, options: Mapping[str, Any] | None = None) -> tuple[str, StorageSinkSettings]:
    """Return the target's URI and the settings of a sink URI with its configuration section.

    Options have the names of the configuration file (``file-size``, or ``csv.delimiter`` / ``csv: {delimiter: ...}``). Query parameters
    of the URI win over them; parameters that are not the sink's own (endpoint, region, credentials) stay in the target's URI. Faults
    stand one per line, each with its key.
    """
    parts = _split(uri)
    given = {key: (key, value) for key, value in flat_options(options or {}).items()}
    kept = []
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in OPTION_KEYS or key in SHARED_KEYS:
            given[key] = (f"uri?{key}", value)
        else:
            kept.append((key, value))
    places = {place: one for key, one in given.items() for place in _places(key, given)}
    problems = Problems({place: name for place, (name, _) in places.items()})
    if parts.scheme in {"file", "memory", CONNECTION_SCHEME}:
        for key, _ in kept:
            problems.add(f"uri?{key}", f"unknown key{did_you_mean(key, OPTION_KEYS)}")
    tree: dict[str, Any] = {}
    for place, (_, value) in places.items():
        tree = merge(tree, nested(place, value))
    settings = read(StorageSinkSettings, tree, "", problems)
    problems.raise_if_any()
    assert settings is not None
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
        raise PenstockError("SINK_URI_INVALID", f"{shown!r} names no bucket, container or connection")
    if parts.scheme == "file" and (parts.netloc not in {"", "localhost"} or not parts.path.startswith("/")):
        raise PenstockError("SINK_URI_INVALID", f"{shown!r} must have an absolute path, as in file:///dir")
    if "\0" in unquote(uri):
        raise PenstockError("SINK_URI_INVALID", f"{shown!r} has a NUL, which no name has")
    if parts.fragment or uri.endswith("#"):
        raise PenstockError("SINK_URI_INVALID", f"{shown!r} is followed by a fragment; write # in a path as %23")
    return parts


def flat_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return options with dotted keys, as the configuration file writes them."""
    flat: dict[str, Any] = {}
    for key, value in options.items():
        name = f"{prefix}{key}".replace("_", "-")
        flat |= flat_options(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def _places(key: str, given: Collection[str]) -> list[str]:
    """Return where in the tree of settings a key's value stands."""
    if key in _OF_CANAL:
        return [f"canal-json.{key}"]
    if key not in SHARED_KEYS:
        return [key]
    return [own for section in Protocol if (own := f"{section}.{key}") in OPTION_KEYS and own not in given]
