"""The options of a target that is tables of a lake, of any format, and how its URI names an object store.

``delta+s3://bucket/prefix?…`` is the object store ``s3://bucket/prefix?…`` under a format. Invariant: settings that exist are valid. Runs
anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar
from urllib.parse import urlsplit

from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.settings.masking import mask_uri
from penstock.sink.choices import Keyless, UnfitValues
from penstock.sink.lake.partitions.rules import read_rules

DAY_COLUMN = "_commit_date"
"""The column of changes by which they may be partitioned."""
STORE_SCHEMES = ("file", "s3", "s3a", "gs", "gcs", "az", "azure", "azblob")
BUCKET_PARAMETERS = frozenset(
    {
        *("access-key", "access-key-id", "secret-access-key", "session-token", "token", "region"),
        *("default-region", "endpoint", "endpoint-url", "force-path-style", "path-style", "virtual-hosted-style-request"),
        *("allow-http", "skip-signature", "account-name", "account-key", "sas-token", "client-id"),
        *("client-secret", "tenant-id", "use-emulator", "bearer-token", "service-account-path", "application-credentials"),
    }
)
"""What an object store's client is told in the URI; underscores stand for dashes."""


class Mode(StrEnum):
    """What a lake's table is: the table itself, or its changes one below the other."""

    MERGE = "merge"
    APPEND = "append"


class Codec(StrEnum):
    """How Parquet pages are compressed."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    NONE = "none"


class ByDay(StrEnum):
    """Whether changes are partitioned by the day of their commit in append mode."""

    NONE = "none"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """What tunes tables of a lake; where they are is a URI beside it."""

    free_options: ClassVar[frozenset[str]] = frozenset(
        {"file_size", "flush_interval_ms", "compression", "merge_size", "invalid_dates", "unfit_values", "partition_by"}
    )
    cut_options: ClassVar[frozenset[str]] = frozenset()

    mode: Mode = Mode.MERGE
    flush_interval_ms: int = field(default=30_000, metadata={"range": (100, 600_000)})
    file_size: int = field(default=128 << 20, metadata={"range": (1 << 10, 1 << 30)})
    merge_size: int = field(default=256 << 20, metadata={"range": (1 << 10, 4 << 30)})
    """How much of a table's window a task folds at once, and about how much of it is in memory."""
    compression: Codec = Codec.ZSTD
    old_values: bool = False
    keyless: Keyless = Keyless.COUNT
    invalid_dates: UnfitValues = UnfitValues.REFUSE
    """What becomes of a date that no calendar has, as MySQL's zero dates."""
    unfit_values: UnfitValues = UnfitValues.REFUSE
    """The same of every value, dates as well."""
    temporal_as_text: bool = False
    partition: ByDay = ByDay.NONE
    partition_by: str = ""
    """Rules by which tables are partitioned, as ``partitions.rules`` reads them."""
    catalog: str = ""
    """Iceberg only: the SQLAlchemy URL, or the address, of the catalog."""

    indexes_transactions: ClassVar[bool] = False
    numbers_events: ClassVar[bool] = False
    holds_tables: ClassVar[bool] = True

    @property
    def format_name(self) -> str:
        """Return what a table of the target is."""
        return self.mode.value

    @property
    def refuses_dates(self) -> bool:
        """Return whether a date that no calendar has stops the feed."""
        return UnfitValues.NULL not in {self.invalid_dates, self.unfit_values}

    @property
    def is_merge(self) -> bool:
        """Return whether a table of the lake is the table itself."""
        return self.mode is not Mode.APPEND

    def needs_before(self, table: TableSchema) -> bool:
        """Return whether before-images travel: where they are asked for, and where only they say which row an update changed."""
        return not table.key_columns if self.is_merge else self.old_values

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong) of options that do not go together."""
        if self.is_merge and self.old_values:
            yield "old-values", "needs mode append: a merged table has no old values"
        if self.is_merge and self.partition is not ByDay.NONE:
            yield "partition", "needs mode append: rows of a merged table have no commit date"
        try:
            read_rules(self.partition_by)
        except ValueError as error:
            yield "partition-by", str(error)


def store_uri(uri: str) -> str:
    """Return the URI of the object store that a lake's URI names."""
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[2]
    if scheme not in STORE_SCHEMES:
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} names no object store")
    if scheme == "file" and (parts.netloc not in {"", "localhost"} or len(parts.path.strip("/")) == 0):
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} must have an absolute path, as in {parts.scheme}:///dir")
    if scheme != "file" and not parts.hostname:
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} names no bucket or container")
    return uri.partition("+")[2]
