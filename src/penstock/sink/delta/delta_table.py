"""One Delta table, as of one version: what it holds, and its next version by delta-rs.

A commit carries transactions of Delta's own kind: the window's end, the last DDL's ts and the epoch, each under a name with the feed's.
Columns are known by name. Invariant: delta-rs never tries a commit again by itself, so whoever comes second sees what the first one did.
Runs beside the driver.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from penstock.files.buckets import cause_of
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.sink.lake.columns import OWN_IDS, lake_name
from penstock.sink.lake.data_files import Bounds, LakeFile, read_rows
from penstock.sink.lake.format import LakeConflict, Mark
from penstock.sink.lake.partitions.division import PartitionField
from penstock.sink.lake.rewriting import in_columns
from penstock.target.storage import ObjectTarget

TABLE_PROPERTY = "penstock.table"
_OWN_FIELDS = ("low", "high")
_HISTORY_MAX = 1_000


class DeltaVersion:
    """A Delta table as of one version; implements ``penstock.sink.lake.format.TableVersion``."""

    def __init__(self, opened: DeltaTable, folder: str, feed: str, target: ObjectTarget) -> None:
        self._opened = opened
        self._folder = folder
        self._target = target
        self._feed = feed
        self.mark = Mark(*(opened.transaction_version(name) or 0 for name in _names(feed)))
        self.table = noted_table(opened)
        self.schema = pa.schema(opened.schema().to_arrow())
        self.partition_columns = list(opened.metadata().partition_columns)
        known = {lake_name(c.name) for c in self.table.columns} if self.table is not None else frozenset()
        self.derived = frozenset(name for name in self.partition_columns if name not in known and name not in OWN_IDS)

    def files(self) -> list[LakeFile]:
        """Return the data files."""
        rows = pa.table(self._opened.get_add_actions(flatten=True)).to_pylist()
        return [self._file(row) for row in rows]

    def commit(self, mark: Mark, added: Sequence[LakeFile], removed: Sequence[LakeFile]) -> None:
        """Make the next version."""
        actions = [*(self._add(f) for f in added), *(self._remove(f) for f in removed)]
        self._write(actions, "append", self._opened.schema(), mark)

    def replace(
        self, mark: Mark, added: Sequence[LakeFile], table: TableSchema, schema: pa.Schema, fields: Sequence[PartitionField]
    ) -> None:
        """Make a version that has these files alone, and these columns and partitions."""
        self.overwrite(mark, added, table, schema, [f.name for f in fields])

    def overwrite(self, mark: Mark, added: Sequence[LakeFile], table: TableSchema, schema: pa.Schema, partition_by: list[str]) -> None:
        """Make a version that has these files alone, partitioned by these columns."""
        wanted = delta_schema(schema, table)
        if partition_by == self.partition_columns:
            self._write([self._add(f) for f in added], "overwrite", wanted, mark)
            return
        # A transaction of files keeps the partitions that a table has, whatever it is told: delta-rs itself writes the rows.
        arrow = pa.schema(wanted.to_arrow())
        rows = (in_columns(read_rows(self._target, f.path), arrow, f.partition) for f in added)
        batches = (batch for found in rows for batch in found.to_batches())
        with commits():
            write_deltalake(
                self._opened,
                pa.RecordBatchReader.from_batches(arrow, batches),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=partition_by,
                commit_properties=properties(self._feed, mark),
            )

    def is_partitioned_by(self, fields: Sequence[PartitionField]) -> bool:
        """Return whether these are the columns that divide it: their names say all."""
        return [f.name for f in fields] == self.partition_columns

    def rewrite(self, added: Sequence[LakeFile], removed: Sequence[LakeFile]) -> None:
        """Make the next version, which has the same rows.

        Not by delta-rs, whose own way (1.6) lets two that come at once both write the rows of the same files.
        """
        actions = [*(self._add(f, changes=False) for f in added), *(self._remove(f, changes=False) for f in removed)]
        self._write(actions, "append", self._opened.schema(), None)

    def alter(self, mark: Mark, table: TableSchema, schema: pa.Schema) -> None:
        """Add the columns that are not there."""
        added = pa.schema([f for f in schema if f.name not in self.schema.names])
        told = properties(self._feed, mark)
        with commits():
            if len(added):
                self._opened.alter.add_columns(delta_schema(added, table).fields, commit_properties=told)
            else:
                noted = {TABLE_PROPERTY: table.to_json().decode()}
                self._opened.alter.set_table_properties(noted, raise_if_not_exists=False, commit_properties=told)

    def is_free(self, before: TableSchema, after: TableSchema, schema: pa.Schema) -> bool:
        """Return whether columns are only added, at the end."""
        there = [(f.name, f.type) for f in self.schema]
        return [(f.name, f.type) for f in schema][: len(there)] == there

    def is_set_back(self) -> bool:
        """Return whether somebody restored an older version since the feed's last one."""
        with commits():
            newest = self._opened.history(1)
            if newest and newest[0].get("penstock.feed") == self._feed:
                return False
            since = itertools.takewhile(lambda told: told.get("penstock.feed") != self._feed, self._opened.history(_HISTORY_MAX))
        return any(told.get("operation") == "RESTORE" for told in since)

    def keeps_partitions(self, schema: pa.Schema) -> bool:
        """Return that any columns can follow."""
        return True

    def _write(self, actions: list[Any], mode: str, schema: DeltaSchema, mark: Mark | None) -> None:
        told = CommitProperties(max_commit_retries=0) if mark is None else properties(self._feed, mark)
        with commits():
            self._opened.create_write_transaction(actions, mode, schema, self.partition_columns or None, commit_properties=told)

    def _add(self, file: LakeFile, *, changes: bool = True) -> AddAction:
        return AddAction(self._inside(file), file.nbytes, file.partition, 0, changes, _stats(file))

    def _remove(self, file: LakeFile, *, changes: bool = True) -> RemoveAction:
        return RemoveAction(self._inside(file), changes, SystemClock().now_ms(), file.nbytes, file.partition)

    def _inside(self, file: LakeFile) -> str:
        return file.path.removeprefix(f"{self._folder}/")

    def _file(self, row: Mapping[str, Any]) -> LakeFile:
        bounds = {
            name: Bounds(row.get(f"null_count.{name}") or 0, *(_plain(row.get(f"{side}.{name}")) for side in ("min", "max")))
            for name in self.schema.names
            if row.get(f"min.{name}") is not None
        }
        found = {name: row[f"partition.{name}"] for name in self.partition_columns}
        partition = {name: None if value is None else str(value) for name, value in found.items()}
        # Of a folder with a percent sign the log has the sign's own code.
        return LakeFile(f"{self._folder}/{unquote(row['path'])}", row["num_records"] or 0, row["size_bytes"], bounds, partition)


class commits:  # noqa: N801 - a context manager
    """Tells what delta-rs refuses in the words of the lake."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Raise ``LakeConflict`` where another version came meanwhile, ``SINK_UNAVAILABLE`` where it is not known what happened."""
        if isinstance(error, CommitFailedError):
            raise LakeConflict from None
        if isinstance(error, DeltaError | OSError):
            raise PenstockError("SINK_UNAVAILABLE", f"delta-rs: {cause_of(error)}") from None


def delta_schema(schema: pa.Schema, table: TableSchema) -> DeltaSchema:
    """Return columns as Delta has them; the first says which version of the upstream's table they show, in the same commit as they come."""
    fields = [pa.field(f.name, f.type) for f in schema]
    fields[0] = fields[0].with_metadata({TABLE_PROPERTY: table.to_json().decode()})
    return DeltaSchema.from_arrow(pa.schema(fields))


def noted_table(opened: DeltaTable) -> TableSchema | None:
    """Return the version of the upstream's table that a table's columns show."""
    found = [opened.metadata().configuration.get(TABLE_PROPERTY), *(f.metadata.get(TABLE_PROPERTY) for f in opened.schema().fields)]
    return max((TableSchema.from_json(text) for text in found if text), key=lambda t: t.version, default=None)


def properties(feed: str, mark: Mark) -> CommitProperties:
    """Return what a commit says of the feed."""
    told = [Transaction(name, value) for name, value in zip(_names(feed), mark, strict=True)]
    info = {"penstock.feed": feed, "penstock.window": str(mark.window_ts), "penstock.epoch": str(mark.epoch)}
    return CommitProperties(custom_metadata=info, max_commit_retries=0, app_transactions=told)


def _names(feed: str) -> tuple[str, str, str]:
    """Return the application ids of Delta's transactions: window, DDL and epoch."""
    return f"penstock/{feed}", f"penstock-ddl/{feed}", f"penstock-epoch/{feed}"


def _stats(file: LakeFile) -> str:
    shown = {name: b for name, b in file.bounds.items() if name not in file.partition}
    lows, highs = ({n: getattr(b, side) for n, b in shown.items() if getattr(b, side) is not None} for side in _OWN_FIELDS)
    told = {"numRecords": file.rows, "minValues": lows, "maxValues": highs, "nullCount": {n: b.nulls for n, b in shown.items()}}
    return msgspec.json.encode(told).decode()


def _plain(value: object) -> int | str | None:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str | dt.date) and not isinstance(value, dt.datetime):
        return str(value)
    text = str(value)
    return int(text) if text.lstrip("-").isdigit() else None
