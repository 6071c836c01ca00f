"""Changes of one table, folded into what is left to do: rows that come to be, and rows that cease.

The last change of each key decides. Where nothing names a row, equal rows are counted. Everything that ceases is applied before anything
that comes to be, so values of unique keys are free when another row takes them. Columns at a time. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.table import OP, TableSchema
from penstock.model.types import TEXT_KINDS, TypeKind
from penstock.readback.net_rows import COUNT, TAKEN, alive, last_of_each, net_copies, repeated
from penstock.sink.choices import Keyless, UnfitValues
from penstock.sink.tables.bending import bent_columns
from penstock.sink.tables.database import Database, Session, TableTraits
from penstock.sink.tables.settings import TableSinkSettings

_LANE_SEED = 0x1A9E
_OF_VALUES = frozenset({"SINK_VALUE_REFUSED", "SINK_UNAVAILABLE", "SINK_UNWRITABLE"})
_BY_THE_FEED = "Let the feed make the table, or make it one that keeps transactions: InnoDB, or a logged table."


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


def check_traits(table: TableSchema, traits: TableTraits) -> None:
    """Raise where two rows of the source would be one in the target: texts are equal there that are not, or more is unique."""
    names = [c.name for c in (table.handle_columns or row_columns(table)) if c.type.kind in TEXT_KINDS]
    loose = sorted({name.lower() for name in names} & {name.lower() for name in traits.loose})
    if loose:
        raise PenstockError(
            "SINK_UNWRITABLE",
            f"{table.full_name} of the target: column {', '.join(loose)} takes texts for equal that are not the same, and names rows",
            "Give it a collation that compares byte by byte.",
        )
    if traits.unsafe:
        raise PenstockError("SINK_UNWRITABLE", f"{table.full_name} of the target {traits.unsafe}", _BY_THE_FEED)
    handle = {c.id for c in table.handle_columns}
    by_id = {c.id: c.name.lower() for c in table.columns}
    known = [{by_id.get(i, "") for i in key} for key in (handle, *table.unique_keys) if key]
    # A number of the target's own is unique whatever the rows are.
    known += [{name.lower()} for name in traits.numbered if name.lower() not in by_id.values()]
    for names_of in traits.unique_sets:
        lowered = {name.lower() for name in names_of}
        if not any(key <= lowered for key in known):
            shown = ", ".join(name or "an expression" for name in sorted(lowered))
            raise PenstockError(
                "SINK_UNWRITABLE",
                f"{table.full_name} of the target has a unique key over {shown}, which the source has not",
                "Drop it, or make it an index that is not unique.",
            )


def check_blanks(table: TableSchema, traits: TableTraits, frame: pl.DataFrame) -> None:
    """Raise where a text that names a row ends with blanks, and the target would take it for the one without."""
    padded = {name.lower() for name in traits.padded}
    for column in table.handle_columns or row_columns(table):
        if column.name.lower() in padded and column.type.kind in TEXT_KINDS - {TypeKind.CHAR}:
            values = frame[column.field_name]
            if values.dtype == pl.String and values.str.ends_with(" ").any():
                raise PenstockError(
                    "SINK_VALUE_REFUSED",
                    f"{table.full_name}: column {column.name} has a text with blanks at its end, which do not count in the target",
                    "Give it a collation without padding: utf8mb4_nopad_bin in MariaDB, utf8mb4_0900_bin in MySQL.",
                )


def check_table(table: TableSchema, traits: TableTraits, database: Database, frame: pl.DataFrame) -> None:
    """Raise where a table of the target would not be the source's after these changes, and no server would say so."""
    check_traits(table, traits)
    bent = bent_columns(table, traits.shapes, database.fractions)
    if bent:
        raise PenstockError(
            "SINK_UNWRITABLE",
            f"{table.full_name} of the target: columns {', '.join(bent)} would change values without a word",
            "Give them the type that they have upstream.",
        )
    check_blanks(table, traits, frame)


def load(
    session: Session, database: Database, settings: TableSinkSettings, table: TableSchema, traits: TableTraits, frame: pl.DataFrame
) -> None:
    """Put the rows of a first state in, of which none is there; part of the caller's transaction."""
    check_table(table, traits, database, frame)
    check_values(table, traits, frame)
    session.load(table, fitted(frame, table, database, settings))


@contextmanager
def naming(table: TableSchema) -> Iterator[None]:
    """Have errors about values say which table it is, which a server does not always."""
    try:
        yield
    except PenstockError as error:
        if error.code not in _OF_VALUES or table.full_name in error.detail:
            raise
        raise PenstockError(error.code, f"{table.full_name}: {error.detail}", error.hint) from None


def check_values(table: TableSchema, traits: TableTraits, frame: pl.DataFrame) -> None:
    """Raise where a value would be another one in the target: a NULL that is filled, a text whose blanks are cut off at its end."""
    filled = {name.lower() for name in traits.filled}
    for column in row_columns(table) if filled else ():
        if column.name.lower() in filled and frame[column.field_name].null_count():
            text = f"column {column.name} is NULL, and the target's would become something else"
            raise PenstockError("SINK_VALUE_REFUSED", f"{table.full_name}: {text}", "Let the target's column be NULL.")
    lengths = {name.lower(): length for name, kind, _, _, length in traits.shapes if kind == "varchar" and length > 0}
    for column in row_columns(table):
        length = lengths.get(column.name.lower(), 0)
        if not length or column.type.kind not in TEXT_KINDS or (column.type.length or length + 1) <= length:
            continue
        values = frame[column.field_name]
        if values.dtype == pl.String and (values.str.len_bytes() > length).any() and (values.str.len_chars() > length).any():
            text = f"column {column.name} has a text of more than {length} characters"
            raise PenstockError("SINK_VALUE_REFUSED", f"{table.full_name}: {text}", "Make the target's column longer.")


def apply(
    session: Session, database: Database, settings: TableSinkSettings, table: TableSchema, traits: TableTraits, frame: pl.DataFrame
) -> None:
    """Apply changes, which are in order, to a table under its names in the target; part of the caller's transaction."""
    check_table(table, traits, database, frame)
    folded = fold(fitted(frame, table, database, settings), table)
    check_values(table, traits, folded.alive)
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
    if traits.acting:
        # Rows that only change are deleted and put in again below.
        raise PenstockError(
            "SINK_UNWRITABLE",
            f"{table.full_name} of the target has several unique keys, and {traits.acting} deletes or changes rows where one of its goes",
            "Drop its ON DELETE, or the other unique keys; or set replication-role (PostgreSQL), or check-foreign-keys to false.",
        )
    # Another unique key may be taken by a row whose own change is folded behind: all of them go first.
    names = [c.field_name for c in table.handle_columns]
    touched = pl.concat([folded.gone, folded.alive.select(names)])
    if touched.height:
        session.delete(table, touched)
    if folded.alive.height:
        loose = {name.lower() for name in traits.loose | traits.padded}
        strict = all(not loose & {name.lower() for name in names_of} or keys <= names_of for names_of in traits.unique_sets)
        session.insert(table, folded.alive, replacing=strict)
