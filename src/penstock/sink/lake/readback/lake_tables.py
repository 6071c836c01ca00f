"""Tables of a lake, read back for verification: each as of one version, which never changes. Runs in the server.

Invariant: a table is told to stand at the checkpoint only where its version has no later window and no later DDL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.feed_record import FeedRecord
from penstock.sink.lake.format import LakeFormat, TableVersion
from penstock.sink.lake.readback.held_rows import HeldRows
from penstock.target.storage import ObjectTarget
from penstock.target.tables import StandingTable, canonical

OpenLake = Callable[[str], LakeFormat]
"""Opens a lake as one feed's."""


class LakeTables:
    """Reads tables of one lake; implements ``penstock.target.tables.TargetTables``."""

    def __init__(self, target: ObjectTarget, shape: LakeShape, open_lake: OpenLake) -> None:
        self._target, self._shape = target, shape
        self._lake = open_owned(target, open_lake)

    def checkpoint_ts(self) -> int | None:
        """Return the published checkpoint, or None."""
        found = self._lake.published()
        return None if found is None or not found.num_rows else int(found.column("checkpoint_ts")[0].as_py())

    @contextmanager
    def read(self, partitions: Sequence[TableSchema]) -> Iterator[StandingTable]:
        """Read one version of a table; the checkpoint first, because all that it tells of is in every later version."""
        table, checkpoint_ts = partitions[0], self.checkpoint_ts() or 0
        version = open_version(self._lake, table)
        if version is None or version.table is None:
            raise PenstockError("TABLE_UNKNOWN", f"{self._target.name} has no table {table.full_name}")
        present = {c.name.lower() for c in version.table.columns}
        missing = [c.name for c in row_columns(table) if c.name.lower() not in present]
        if missing:
            raise PenstockError("TABLE_UNKNOWN", f"{table.full_name} of {self._target.name} lacks {', '.join(missing)}")
        newest_ts = max(version.mark.window_ts, version.mark.ddl_ts)
        yield StandingTable(checkpoint_ts if newest_ts <= checkpoint_ts else None, self._rows(version, table))

    def close(self) -> None:
        """Nothing is held open."""

    def _rows(self, version: TableVersion, table: TableSchema) -> Iterator[pl.DataFrame]:
        texts = [c for c in row_columns(table) if pa.types.is_string(c.type.arrow())]
        for batch in HeldRows(self._target, self._shape, version, table).changes():
            frame = pl.DataFrame(batch)
            yield frame.with_columns(canonical(c.type, frame.get_column(c.field_name)) for c in texts)


def open_owned(target: ObjectTarget, open_lake: OpenLake) -> LakeFormat:
    """Open a lake as that of the feed which it belongs to: tables tell each feed how far it has come."""
    return open_lake(FeedRecord(target).owner())


def open_version(lake: LakeFormat, table: TableSchema) -> TableVersion | None:
    """Return the newest version of a table that the feed keeps."""
    found = lake.open(table.schema, table.table)
    return None if found is None or found.table is None else found
