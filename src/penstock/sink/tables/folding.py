"""Changes of one table, folded into what is left to do: rows that come to be, and rows that cease.

The last change of each key decides. Where nothing names a row, equal rows are counted. Everything that ceases is applied before anything
that comes to be, so values of unique keys are free when another row takes them. Columns at a time. Runs on executors.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.table import OP, TableSchema
from penstock.readback.net_rows import COUNT, TAKEN, alive, last_of_each, net_copies, repeated
from penstock.sink.tables.database import Database, Session, TableTraits
from penstock.sink.tables.settings import Keyless, TableSinkSettings, UnfitValues

_LANE_SEED = 0x1A9E


@dataclass(frozen=True, slots=True)
class Folded:
    """What changes come to."""

    alive: pl.DataFrame
    gone: pl.DataFrame
    counts: pl.Series | None = None
    """How many copies of each row that ceases, where nothing names rows."""


def frame_of(records: pa.Table, table: TableSchema) -> pl.DataFrame:
    """Return change rows as a frame: the operation, then the columns that rows carry."""
    return pl.DataFrame(pl.from_arrow(records.select([OP, *(c.field_name for c in row_columns(table))])))


def lanes_of(frame: pl.DataFrame, table: TableSchema, lanes: int) -> pl.Series:
    """Return the lane of each row: rows with one key have one lane."""
    keys = [c.field_name for c in table.handle_columns]
    return frame.select(keys).hash_rows(seed=_LANE_SEED) % lanes


def fold(frame: pl.DataFrame, table: TableSchema) -> Folded:
    """Fold changes, which are in order."""
    columns = [c.field_name for c in row_columns(table)]
    keys = [c.field_name for c in table.handle_columns]
    if keys:
        last = last_of_each(frame, keys)
        # By key, so that transactions of others take their locks in the same order.
        return Folded(last.filter(alive()).select(columns).sort(keys), last.filter(~alive()).select(keys).sort(keys))
    net = net_copies(frame, columns)
    taken = net.filter(pl.col(TAKEN) > 0)
    return Folded(repeated(net.filter(pl.col(COUNT) > 0), columns), taken.select(columns), taken[TAKEN])


def fitted(frame: pl.DataFrame, table: TableSchema, database: Database, settings: TableSinkSettings) -> pl.DataFrame:
    """Return rows as the target can hold them; raise ``SINK_VALUE_REFUSED`` for a value that it cannot, unless it may become NULL."""
    for column in row_columns(table):
        odd = database.unfit(column, frame[column.field_name]) if column.field_name in frame.columns else None
        if odd is None or not odd.any():
            continue
        if settings.unfit_values is UnfitValues.REFUSE or column in table.handle_columns:
            raise PenstockError(
                "SINK_VALUE_REFUSED",
                f"{table.full_name}: column {column.name} ({column.type.kind.value}) has a value that {database.dialect.name} cannot hold",
            )
        frame = frame.with_columns(pl.when(~odd).then(pl.col(column.field_name)).alias(column.field_name))
    return frame


def apply(
    session: Session, database: Database, settings: TableSinkSettings, table: TableSchema, traits: TableTraits, frame: pl.DataFrame
) -> None:
    """Apply changes, which are in order, to a table under its names in the target; part of the caller's transaction."""
    folded = fold(fitted(frame, table, database, settings), table)
    if folded.counts is not None:
        if settings.keyless is Keyless.REFUSE:
            raise PenstockError(
                "TYPE_UNSUPPORTED", f"{table.full_name} has no key, and keyless is refuse", "Give it a key, or set keyless to count."
            )
        if folded.gone.height:
            session.delete_copies(table, folded.gone, folded.counts)
        if folded.alive.height:
            session.load(table, folded.alive)
        return
    keys = frozenset(c.name for c in table.handle_columns)
    if traits.unique_sets == (keys,):
        if folded.gone.height:
            session.delete(table, folded.gone)
        if folded.alive.height:
            session.upsert(table, folded.alive)
        return
    # Another unique key may be taken by a row whose own change is folded behind: all of them go first.
    names = [c.field_name for c in table.handle_columns]
    touched = pl.concat([folded.gone, folded.alive.select(names)])
    if touched.height:
        session.delete(table, touched)
    if folded.alive.height:
        session.insert(table, folded.alive)
