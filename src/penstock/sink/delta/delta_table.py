"""One Delta table, as of one version: what it holds, and its next version by delta-rs.

A commit carries transactions of Delta's own kind: the window's end, the last DDL's ts and the epoch, each under a name with the feed's.
Columns are known by name. Invariant: delta-rs never tries a commit again by itself, so whoever comes second sees what the first one did.
Runs beside the driver.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from penstock.files.buckets import cause_of
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.sink.lake.data_files import Bounds, LakeFile
from penstock.sink.lake.format import LakeConflict, Mark
from penstock.sink.lake.settings import DAY_COLUMN

TABLE_PROPERTY = "penstock.table"
_OWN_FIELDS = ("low", "high")


class DeltaVersion:
    """A Delta table as of one version; implements ``penstock.sink.lake.format.TableVersion``."""

    def __init__(self, opened: DeltaTable, folder: str, feed: str) -> None:
        self._opened = opened
        self._folder = folder
        self._feed = feed
        self.mark = Mark(*(opened.transaction_version(name) or 0 for name in _names(feed)))
        self.table = noted_table(opened)
        self.schema = pa.schema(opened.schema().to_arrow())

    def files(self) -> list[LakeFile]:
        """Return the data files."""
        rows = pa.table(self._opened.get_add_actions(flatten=True)).to_pylist()
        return [self._file(row) for row in rows]

    def commit(self, mark: Mark, added: Sequence[LakeFile], removed: Sequence[LakeFile]) -> None:
        """Make the next version."""
        actions = [*(self._add(f) for f in added), *(self._remove(f) for f in removed)]
        self._write(actions, "append", self._opened.schema(), mark)

    def replace(self, mark: Mark, added: Sequence[LakeFile], table: TableSchema, schema: pa.Schema) -> None:
        """Make a version that has these files alone, and these columns."""
        self._write([self._add(f) for f in added], "overwrite", delta_schema(schema, table), mark)

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

    def _write(self, actions: list[Any], mode: str, schema: DeltaSchema, mark: Mark) -> None:
        partition_by = [DAY_COLUMN] if DAY_COLUMN in [f.name for f in schema.fields] else None
        with commits():
            self._opened.create_write_transaction(actions, mode, schema, partition_by, commit_properties=properties(self._feed, mark))

    def _add(self, file: LakeFile) -> AddAction:
        values = {} if file.day is None else {DAY_COLUMN: file.day}
        return AddAction(self._inside(file), file.nbytes, values, 0, True, _stats(file))

    def _remove(self, file: LakeFile) -> RemoveAction:
        now_ms = SystemClock().now_ms()
        return RemoveAction(self._inside(file), True, now_ms, file.nbytes, {} if file.day is None else {DAY_COLUMN: file.day})

    def _inside(self, file: LakeFile) -> str:
        return file.path.removeprefix(f"{self._folder}/")

    def _file(self, row: Mapping[str, Any]) -> LakeFile:
        bounds = {
            name: Bounds(row.get(f"null_count.{name}") or 0, *(_plain(row.get(f"{side}.{name}")) for side in ("min", "max")))
            for name in self.schema.names
            if row.get(f"min.{name}") is not None
        }
        day = row.get(f"partition.{DAY_COLUMN}")
        return LakeFile(
            f"{self._folder}/{row['path']}", row["num_records"] or 0, row["size_bytes"], bounds, None if day is None else str(day)
        )


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
    shown = {name: b for name, b in file.bounds.items() if name != DAY_COLUMN}
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
