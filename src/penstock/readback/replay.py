"""The state of a table at the checkpoint, from the files alone, columns at a time.

The last change of each key decides; versions are put together by column id, so renamed columns go on, dropped ones vanish and added ones
take their default in rows that were written before. Values are those of change batches, columns those of the newest version, in its
order and under their names. Runs anywhere; used by verification.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from penstock.model.rows.projection import converted, default_of, is_converted
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.readback.lineage import Lineage, lineage
from penstock.readback.net_rows import COUNT, alive, keyless_updates, last_of_each, net_copies, repeated, unexplained_updates
from penstock.readback.reader import StorageReader

COMPACT_ROWS_MIN = 2_000_000

_SHARE_SEED = 0x5EED


@dataclass(frozen=True, slots=True)
class Share:
    """One of several parts of a table's rows, chosen by a hash of what names a row, so that parts can be replayed apart."""

    number: int
    of: int

    def keep(self, frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
        """Return the rows of this part."""
        if self.of == 1:
            return frame
        return frame.filter(frame.select(keys).hash_rows(seed=_SHARE_SEED) % self.of == self.number)


WHOLE = Share(0, 1)


def replay_table(reader: StorageReader, schema: str, table: str, up_to_ts: int | None = None, share: Share = WHOLE) -> pl.DataFrame:
    """Return the rows of a table at the checkpoint, or at an earlier ts, one column per column of the newest version."""
    life = lineage(reader, schema, table, reader.limit_ts(up_to_ts))
    newest, keys = life.newest, life.row_key
    if not newest.columns:
        return pl.DataFrame()
    names = keys or [c.field_name for c in newest.columns]
    changes, unexplained = _Changes(newest, keys), 0
    for frame in table_changes(reader, life):
        unexplained += unexplained_updates(frame)
        changes.add(share.keep(frame, names))
    if unexplained and not keys:
        raise keyless_updates(newest)
    rows = _net(changes.all(), newest, keys)
    return rows.select(pl.col(c.field_name).alias(c.name) for c in newest.columns)


def table_changes(reader: StorageReader, life: Lineage) -> Iterator[pl.DataFrame]:
    """Yield all changes that a table is made of, in order, under its newest version."""
    for segment in life.segments:
        for directory, frame in reader.changes(segment.schema, segment.table, segment.to_ts):
            version = segment.version(directory.version)
            if version is not None:
                yield project(under_ids(frame, directory, version), version, life.newest)


def under_ids(frame: pl.DataFrame, source: TableSchema, target: TableSchema) -> pl.DataFrame:
    """Return rows of a version with its columns named by the ids that another form of the same version gives them."""
    renamed = {old.field_name: new.field_name for old, new in zip(source.columns, target.columns, strict=True)}
    return frame if source.columns == target.columns else frame.rename({o: n for o, n in renamed.items() if o in frame.columns})


class _Changes:
    """Changes of one table in order; once they are many, only the last of each key is kept, so memory follows the table's size."""

    def __init__(self, table: TableSchema, keys: list[str]) -> None:
        self._keys = keys
        self._parts = [_no_rows(table)]
        self._rows = 0
        self._compact_at = COMPACT_ROWS_MIN

    def add(self, frame: pl.DataFrame) -> None:
        """Add changes that follow all that are there."""
        self._parts.append(frame)
        self._rows += frame.height
        if self._keys and self._rows > self._compact_at:
            kept = last_of_each(self.all(), self._keys)
            self._parts, self._rows = [kept], kept.height
            self._compact_at = max(COMPACT_ROWS_MIN, 2 * kept.height)

    def all(self) -> pl.DataFrame:
        """Return everything that is kept."""
        return pl.concat(self._parts)


def project(frame: pl.DataFrame, source: TableSchema, target: TableSchema) -> pl.DataFrame:
    """Return rows of one version with the columns of another, as ``penstock.model.rows.projection`` shows them."""
    present = {c.id: c for c in source.columns if c.field_name in frame.columns}
    columns = [pl.col(COMMIT_TS), pl.col(OP)]
    for column in target.columns:
        old = present.get(column.id)
        if old is None:
            values = default_value(column)
        elif is_converted(old, column):
            stored = frame[old.field_name].to_arrow(compat_level=pl.CompatLevel.oldest())
            values = pl.lit(pl.Series(converted(stored.cast(old.type.arrow()), old, column)))
        else:
            values = pl.col(old.field_name)
        columns.append(values.alias(column.field_name))
    return frame.select(columns)


def default_value(column: Column) -> pl.Expr:
    """Return what a row that was written before the column existed shows in it."""
    return pl.lit(default_of(column).as_py(), dtype=polars_type(column))


def polars_type(column: Column) -> pl.DataType:
    """Return the polars type of a column's values."""
    return pl.Series(pa.array([], column.type.arrow())).dtype


def _net(changes: pl.DataFrame, table: TableSchema, keys: list[str]) -> pl.DataFrame:
    if keys:
        return last_of_each(changes, keys).filter(alive()).drop(COMMIT_TS, OP)
    columns = [c.field_name for c in table.columns]
    return repeated(net_copies(changes, columns).filter(pl.col(COUNT) > 0), columns)


def _no_rows(table: TableSchema) -> pl.DataFrame:
    schema = table.batch_schema()
    return pl.DataFrame(pa.table({name: pa.array([], schema.field(name).type) for name in schema.names if name != "_key"}))
