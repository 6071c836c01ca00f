"""What a lake holds of one dispatcher, for a feed whose history is lost.

A table holds the rows of all its dispatchers, so one of them compares it for all. Nothing of a window is in a table before all of the
window is, so every attempt reads the same; one that comes after the commit finds its window in the table, and one that compared with an
earlier version is refused by the maintainer. Runs on executors; ``position`` beside the driver.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.model.table import TableSchema
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.readback.held_rows import HeldRows, held_columns
from penstock.sink.lake.readback.lake_tables import OpenLake, open_owned, open_version
from penstock.target.dispatcher import DispatcherId, DispatcherWork
from penstock.target.storage import ObjectTarget


class LakeState:
    """Reads dispatchers of one lake back; implements ``penstock.target.state.TargetState``."""

    def __init__(self, target: ObjectTarget, shape: LakeShape, open_lake: OpenLake) -> None:
        self._target, self._shape, self._open_lake = target, shape, open_lake

    def position(self, dispatcher: DispatcherId, table: TableSchema) -> dict[str, int]:
        """Return nothing: a table's version tells how far the table is."""
        return {}

    def columns(self, table: TableSchema) -> TableSchema:
        """Return the table with the columns that the lake holds."""
        return held_columns(table)

    def row_key(self, work: DispatcherWork) -> list[str]:
        """Return the fields that name a row; empty where rows are counted."""
        return [c.field_name for c in work.table.handle_columns]

    def changes(self, work: DispatcherWork) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the table has, or its changes."""
        version = open_version(open_owned(self._target, self._open_lake), work.table)
        if version is not None:
            yield from HeldRows(self._target, self._shape, version, work.table).changes()
