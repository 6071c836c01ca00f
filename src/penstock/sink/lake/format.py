"""What a format of lake tables does for the maintainer: Delta Lake and Iceberg are two of them.

A table is opened as of one version. It tells what the version holds and makes the next one, unless another came meanwhile: then nothing is
written, and whoever asked looks again. Runs beside the driver and wherever a lake is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.sink.lake.data_files import LakeFile
from penstock.sink.lake.partitions.division import PartitionField


class LakeConflict(Exception):  # noqa: N818 - not an error: the table has another version by now
    """Another version of the table came to be since it was opened."""


class Mark(NamedTuple):
    """What a table version says of the feed: the last window and the last DDL that it has, and the epoch that wrote it."""

    window_ts: int = 0
    ddl_ts: int = 0
    epoch: int = 0


def check_epoch(version: TableVersion, epoch: int, name: str) -> None:
    """Raise where a later run of the feed has written the table."""
    if version.mark.epoch > epoch:
        raise PenstockError("FENCED", f"{name}: epoch {version.mark.epoch} has written the table since, this is {epoch}")


class TableVersion(Protocol):
    """A table of the lake as of one version. Not thread safe."""

    mark: Mark
    table: TableSchema | None
    """The upstream's table that it shows, as the last change of its columns left it."""
    schema: pa.Schema
    """The columns that it has, by name."""
    derived: frozenset[str]
    """Those that show partitions and nothing of the upstream."""

    def files(self) -> list[LakeFile]:
        """Return its data files, with the bounds of their columns where they are known."""

    def commit(self, mark: Mark, added: Sequence[LakeFile], removed: Sequence[LakeFile]) -> None:
        """Make the next version, which has other files and the mark. Raises ``LakeConflict``."""

    def replace(
        self, mark: Mark, added: Sequence[LakeFile], table: TableSchema, schema: pa.Schema, fields: Sequence[PartitionField]
    ) -> None:
        """Make a version that has these files alone, and the columns and partitions of a table. Raises ``LakeConflict``."""

    def rewrite(self, added: Sequence[LakeFile], removed: Sequence[LakeFile]) -> None:
        """Make the next version, which has the same rows in other files. Raises ``LakeConflict``."""

    def alter(self, mark: Mark, table: TableSchema, schema: pa.Schema) -> None:
        """Make a version with other columns and the same files, where ``is_free`` says so. Raises ``LakeConflict``."""

    def is_partitioned_by(self, fields: Sequence[PartitionField]) -> bool:
        """Return whether these are its partitions."""

    def is_set_back(self) -> bool:
        """Return whether somebody had an older version take the place of what the feed wrote last."""

    def keeps_partitions(self, schema: pa.Schema) -> bool:
        """Return whether a version with these columns can follow this one, or only one without partitions."""

    def is_free(self, before: TableSchema, after: TableSchema, schema: pa.Schema) -> bool:
        """Return whether columns can change to those of a schema without touching a file."""


class LakeFormat(Protocol):
    """The tables of one lake. Not thread safe."""

    has_small_ints: bool
    keeps_columns: bool
    """Whether a table of changes keeps columns that are dropped or renamed, because it knows columns by their names alone."""

    def open(self, schema: str, table: str) -> TableVersion | None:
        """Return the newest version of a table, or None where there is no such table."""

    def create(self, table: TableSchema, schema: pa.Schema, mark: Mark, fields: Sequence[PartitionField]) -> TableVersion:
        """Make an empty table, or return the one that is there."""

    def drop(self, schema: str, table: str, mark: Mark) -> None:
        """Let a table go; one that is gone already counts as dropped."""

    def rename(self, moves: Mapping[tuple[str, str], TableSchema], mark: Mark) -> None:
        """Give tables, by their names before, the names of their next versions; names may be swapped. Idempotent."""

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield schema and name of every table of the feed."""

    def publish(self, row: pa.Table) -> None:
        """Have the table ``penstock.checkpoint`` hold this row alone."""

    def published(self) -> pa.Table | None:
        """Return the row of ``penstock.checkpoint``, or None."""

    def expire(self, schema: str, table: str, before_ms: int) -> int:
        """Let versions go that were replaced before a moment, and the files that no other has; return how many files went."""
