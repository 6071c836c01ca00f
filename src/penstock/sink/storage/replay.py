"""The state of a table at the checkpoint, from the files alone, columns at a time.

The last change of each key decides; versions are put together by column id, so renamed columns go on, dropped ones vanish and added ones
take their default in rows that were written before. Values are those of change batches, columns those of the newest version, in its
order and under their names. Runs anywhere; used by verification.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow as pa

from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import TypeKind
from penstock.sink.storage.ddl_text import renamed_tables
from penstock.sink.storage.reader import StorageReader, TableVersion

COMPACT_ROWS_MIN = 2_000_000

_CLEARING = frozenset({DdlType.TRUNCATE_TABLE, DdlType.CREATE_TABLE, DdlType.DROP_TABLE})
_ROW_OPS = [int(Op.INSERT), int(Op.UPDATE)]
_COUNT = "_count"


def replay_table(reader: StorageReader, schema: str, table: str, up_to_ts: int | None = None) -> pl.DataFrame:
    """Return the rows of a table at the checkpoint, or at an earlier ts, one column per column of the newest version."""
    limit = reader.limit_ts(up_to_ts)
    versions = [v for v in reader.versions(schema, table) if v.table.version <= limit]
    if not versions:
        raise PenstockError("TABLE_UNKNOWN", f"{schema}.{table} has no schema file at or below ts {limit}")
    newest = versions[-1].table
    if not newest.columns:
        return pl.DataFrame()
    floor = max((v.table.version for v in versions if v.type in _CLEARING), default=0)
    keys = row_key([v.table for v in versions if v.table.version >= floor])
    changes = _Changes(newest, keys)
    for frame in _moved(reader, versions, floor):
        changes.add(frame)
    for version, frame in reader.changes(schema, table, limit):
        if version.version >= floor:
            changes.add(project(frame, version, newest))
    rows = _net(changes.all(), newest, keys)
    return rows.select(pl.col(c.field_name).alias(c.name) for c in newest.columns)


def row_key(versions: Sequence[TableSchema]) -> list[str]:
    """Return the fields that name a row in all these versions, the newest last; empty where rows must be counted.

    A unique key stands in for a primary key only where it always did: changes that were written before it may have changed it unseen.
    """
    handles = {tuple(c.field_name for c in version.handle_columns) for version in versions if version.columns}
    return list(handles.pop()) if len(handles) == 1 else [c.field_name for c in versions[-1].key_columns]


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


def last_of_each(changes: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the last change of each key, in order."""
    return changes.unique(subset=keys, keep="last", maintain_order=True)


def project(frame: pl.DataFrame, source: TableSchema, target: TableSchema) -> pl.DataFrame:
    """Return rows of one version with the columns of another, matched by column id."""
    present = {c.id: c for c in source.columns if c.field_name in frame.columns}
    columns = [pl.col(COMMIT_TS), pl.col(OP)]
    for column in target.columns:
        old = present.get(column.id)
        values = default_value(column) if old is None else converted(old, column)
        columns.append(values.alias(column.field_name))
    return frame.select(columns)


def default_value(column: Column) -> pl.Expr:
    """Return what a row that was written before the column existed shows in it."""
    dtype = polars_type(column)
    text = column.default
    if text is None or text.upper() in {"NULL", "CURRENT_TIMESTAMP"}:
        return pl.lit(None, dtype=dtype)
    kind = column.type.kind
    if kind is TypeKind.ENUM:
        return pl.lit(column.type.elems.index(text) + 1 if text in column.type.elems else 0, dtype=dtype)
    if kind is TypeKind.SET:
        chosen = text.split(",") if text else []
        return pl.lit(sum(1 << at for at, elem in enumerate(column.type.elems) if elem in chosen), dtype=dtype)
    if dtype == pl.Binary:
        return pl.lit(text.encode(), dtype=dtype)
    return pl.lit(text).cast(dtype) if dtype != pl.String else pl.lit(text)


def converted(old: Column, new: Column) -> pl.Expr:
    """Return a column's values under the type that a MODIFY gave it."""
    values = pl.col(old.field_name)
    target = polars_type(new)
    if new.type.kind is TypeKind.DECIMAL:
        return _rescaled(values.cast(pl.String), new.type.scale or 0)
    if polars_type(old) == target:
        return values
    return values.cast(target, strict=False)


def polars_type(column: Column) -> pl.DataType:
    """Return the polars type of a column's values."""
    return pl.Series(pa.array([], column.type.arrow())).dtype


def _rescaled(values: pl.Expr, scale: int) -> pl.Expr:
    """Return decimal texts with more fraction digits; texts that have enough stay as they are."""
    if scale == 0:
        return values
    fraction = values.str.extract(r"\.(\d+)$", 1).str.len_bytes().fill_null(0)
    pointed = pl.when(fraction == 0).then(values + ".").otherwise(values)
    zeros = pl.lit("0" * scale).str.slice(0, (scale - fraction.cast(pl.Int64)).clip(lower_bound=0))
    return pl.when(fraction >= scale).then(values).otherwise(pointed + zeros)


def _moved(reader: StorageReader, versions: list[TableVersion], floor: int) -> Iterator[pl.DataFrame]:
    """Yield the rows that the table had under its former name, at the rename."""
    newest = versions[-1].table
    for version in versions:
        if version.type != DdlType.RENAME_TABLE or version.table.version < floor:
            continue
        here = (version.table.schema, version.table.table)
        for old, new in renamed_tables(version.query, version.table.schema):
            if new == here and old in reader.tables():
                rows = replay_table(reader, *old, up_to_ts=version.table.version - 1)
                before = {c.name.lower(): c for c in version.table.columns}
                frame = rows.rename({name: before[name.lower()].field_name for name in rows.columns if name.lower() in before})
                meta = [pl.lit(version.table.version, dtype=pl.UInt64).alias(COMMIT_TS), pl.lit(int(Op.INSERT), dtype=pl.UInt8).alias(OP)]
                yield project(frame.with_columns(meta), version.table, newest)


def _net(changes: pl.DataFrame, table: TableSchema, keys: list[str]) -> pl.DataFrame:
    if keys:
        return last_of_each(changes, keys).filter(pl.col(OP).is_in(_ROW_OPS)).drop(COMMIT_TS, OP)
    return _net_without_key(changes, table)


def _net_without_key(changes: pl.DataFrame, table: TableSchema) -> pl.DataFrame:
    """Count equal rows that came and went; an update must show what it replaced."""
    updates = changes.filter(pl.col(OP) == int(Op.UPDATE)).height
    befores = changes.filter(pl.col(OP) == int(Op.BEFORE)).height
    if updates != befores:
        raise PenstockError(
            "TYPE_UNSUPPORTED", f"{table.full_name} has no primary key and its updates carry no old values", hint="Set output-old-value."
        )
    columns = [c.field_name for c in table.columns]
    sign = pl.when(pl.col(OP).is_in(_ROW_OPS)).then(1).otherwise(-1)
    counted = changes.with_columns(sign.alias(_COUNT)).group_by(columns, maintain_order=True).agg(pl.col(_COUNT).sum())
    repeated = counted.filter(pl.col(_COUNT) > 0).select(pl.all().exclude(_COUNT).repeat_by(pl.col(_COUNT)))
    return repeated.explode(columns)


def _no_rows(table: TableSchema) -> pl.DataFrame:
    schema = table.batch_schema()
    return pl.DataFrame(pa.table({name: pa.array([], schema.field(name).type) for name in schema.names if name != "_key"}))
