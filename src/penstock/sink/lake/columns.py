"""Columns of a table as a lake has them: names, plain types, and the way of values there and back.

Integers keep width and sign where the format has it; unsigned ones take the next wider type, 64 bits a decimal of 20 digits. DECIMAL to 38
digits is a decimal, DATE a date, DATETIME and TIMESTAMP microseconds (TIMESTAMP in UTC); ENUM and SET are their names, TIME, JSON, VECTOR
and longer decimals are text, as MySQL prints it. A column that has the name of one of ours has one more underscore. Invariant: what comes
back from the lake is what went there, but for dates that no calendar has, which are refused unless NULL is asked for. Runs on executors and
in the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format.csv.dialect import row_columns
from penstock.format.parquet_file import plain_type, text_of, typed_values
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.rows.elements import ELEMENT_KINDS, element_values
from penstock.model.rows.projection import project
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.timestamp import LOGICAL_BITS
from penstock.model.types import TypeKind
from penstock.sink.choices import UnfitValues
from penstock.sink.lake.partitions.division import Partition, PartitionField, divided
from penstock.sink.lake.partitions.rules import Transform, read_rules, terms_for
from penstock.sink.lake.settings import DAY_COLUMN, ByDay, LakeSettings

OP_COLUMN, TS_COLUMN, COUNT_COLUMN = "_op", "_commit_ts", "_count"
OWN_IDS = {OP_COLUMN: 1, TS_COLUMN: 2, DAY_COLUMN: 3}
"""Ids of our own columns; those of a table come behind."""
_OWN = frozenset({*OWN_IDS, COUNT_COLUMN})
_DERIVED_ID = 50
FIRST_ID = 100
LETTERS = pa.array(["I", "U", "D", "B"])
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
_NO_SMALL = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
_DAY_MS = 86_400_000


class LakeShape(msgspec.Struct, frozen=True):
    """How a format and the settings of a feed show tables."""

    settings: LakeSettings
    has_small_ints: bool
    """Whether the format has integers of 8 and 16 bits."""
    partition_in_files: bool = True
    """Whether data files have the columns by which a table is partitioned, and columns are known by ids."""

    def type_of(self, column: Column) -> pa.DataType:
        """Return the type of a column's values."""
        if column.type.kind in ELEMENT_KINDS:
            return pa.string()
        found = plain_type(column)
        if found is not None and not (self.settings.temporal_as_text and pa.types.is_temporal(found)):
            return found
        plain = column.type.arrow()
        if column.type.kind is TypeKind.BIT and (column.type.length or 1) < 64:
            plain = pa.int64()
        plain = _WIDER.get(plain, plain)
        return plain if self.has_small_ints else _NO_SMALL.get(plain, plain)

    def schema(self, table: TableSchema) -> pa.Schema:
        """Return the Arrow schema of a table's rows, each field with its id."""
        own = []
        if not self.settings.is_merge:
            own = [_field(OP_COLUMN, pa.string(), OWN_IDS[OP_COLUMN]), _field(TS_COLUMN, pa.int64(), OWN_IDS[TS_COLUMN])]
            if self.settings.partition is ByDay.DAY:
                own.append(_field(DAY_COLUMN, pa.date32(), OWN_IDS[DAY_COLUMN]))
        columns = [_field(lake_name(c.name), self.type_of(c), FIRST_ID + c.id) for c in row_columns(table)]
        taken = [name for name in (f.name.lower() for f in columns) if [f.name.lower() for f in columns].count(name) > 1]
        if taken:
            raise PenstockError("SINK_DDL_REFUSED", f"{table.full_name}: columns of a lake differ by more than case: {taken[0]!r}")
        return pa.schema([*own, *columns])

    def table_schema(self, table: TableSchema) -> pa.Schema:
        """Return the columns of the lake's table: those of its rows, and before them what shows partitions that no column has."""
        rows, fields = self.schema(table), self.partition(table)
        names = {name.lower() for name in rows.names}
        taken = [f.name for f in fields if f.is_derived and f.name.lower() in names]
        if taken:
            raise PenstockError(
                "SINK_DDL_REFUSED", f"{table.full_name} has a column {taken[0]!r}, the name of a partition; see partition-by"
            )
        if self.partition_in_files:
            return rows
        return pa.schema([*(_field(f.name, f.derived_type, _DERIVED_ID + at) for at, f in enumerate(fields) if f.is_derived), *rows])

    def partition(self, table: TableSchema) -> tuple[PartitionField, ...]:
        """Return what a table is partitioned by."""
        by_name = {c.name.lower(): c for c in row_columns(table)}
        found = []
        if self.settings.partition is ByDay.DAY:
            found.append(PartitionField(Transform.IDENTITY, DAY_COLUMN, column_id=OWN_IDS[DAY_COLUMN] if self.partition_in_files else 0))
        for term in terms_for(read_rules(self.settings.partition_by), table.schema, table.table, by_name):
            column = by_name[term.column.lower()]
            number = FIRST_ID + column.id if self.partition_in_files else 0
            field = PartitionField(term.transform, lake_name(column.name), term.buckets, number)
            if not field.takes(self.type_of(column)):
                what = f"{table.full_name}: column {column.name!r} is {self.type_of(column)}, not divided by {term.transform.value}"
                raise PenstockError("SINK_DDL_REFUSED", f"{what}; change partition-by")
            if not self.partition_in_files and quote(field.name, safe="") != field.name:
                # Of folders readers decode values, but not names.
                raise PenstockError("SINK_DDL_REFUSED", f"{table.full_name}: {column.name!r} names no folder; change partition-by")
            found.append(field)
        return tuple(found)

    def divided(self, table: TableSchema, rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        """Yield rows of the lake by their partitions, without the columns that stand beside a file."""
        for partition, own in divided(self.partition(table), rows):
            beside = [] if self.partition_in_files else [name for name in partition if name in own.column_names]
            yield partition, own.drop_columns(beside) if beside else own

    def rows(self, table: TableSchema, records: pa.Table) -> pa.Table:
        """Return change rows as rows of the lake's table."""
        schema = self.schema(table)
        found: list[pa.ChunkedArray] = []
        if not self.settings.is_merge:
            found = [pc.take(LETTERS, records.column(OP)), pc.cast(records.column(COMMIT_TS), pa.int64())]
            if self.settings.partition is ByDay.DAY:
                found.append(days_of(records.column(COMMIT_TS)))
        found += [self.values(c, records.column(c.field_name)) for c in row_columns(table)]
        return pa.Table.from_arrays([v.cast(f.type) if v.type != f.type else v for v, f in zip(found, schema, strict=True)], schema=schema)

    def values(self, column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column's values with their type in the lake."""
        wanted = self.type_of(column)
        if column.type.kind not in ELEMENT_KINDS and values.type == wanted:
            return values
        typed = typed_values(column, values, temporal_as_text=self.settings.temporal_as_text)
        if pa.types.is_temporal(wanted) and not pa.types.is_temporal(typed.type):
            return self._moments(column, values, wanted)
        try:
            return typed if typed.type == wanted else _chunked(pc.cast(typed, wanted))
        except pa.ArrowInvalid as error:
            if pa.types.is_string(typed.type) and self.settings.unfit_values is UnfitValues.NULL:
                # PostgreSQL has numbers that are none, and infinite ones.
                fits = pc.match_substring_regex(typed, r"^-?[0-9]*\.?[0-9]*$")
                return _chunked(pc.cast(pc.if_else(fits, typed, pa.scalar(None, typed.type)), wanted))
            raise PenstockError("SINK_VALUE_REFUSED", f"column {column.name}: a value does not fit {wanted}; see unfit-values") from error

    def _moments(self, column: Column, values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
        """Return texts of moments of which some are none."""
        text = pl.Series(values)
        if pa.types.is_date(wanted):
            found = text.str.to_date("%Y-%m-%d", strict=False)
        else:
            found = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
        lost = found.null_count() - text.null_count()
        if lost and self.settings.refuses_dates:
            raise PenstockError(
                "SINK_VALUE_REFUSED",
                f"column {column.name}: {lost} values are no {column.type.kind.value.lower()} of a calendar; see unfit-values",
            )
        moments = found.to_arrow(compat_level=pl.CompatLevel.oldest())
        return pa.chunked_array([moments.cast(pa.timestamp("us")).cast(wanted) if pa.types.is_timestamp(wanted) else moments.cast(wanted)])

    def records(self, table: TableSchema, rows: pa.Table) -> pa.Table:
        """Return rows of the lake as change batches hold them, without commit ts and operation; a column that it lacks is NULL."""
        arrays = []
        for column in row_columns(table):
            name, wanted = lake_name(column.name), column.type.arrow()
            values = rows.column(name) if name in rows.column_names else pa.chunked_array([pa.nulls(rows.num_rows, wanted)])
            arrays.append(_physical(column, values, wanted))
        return pa.Table.from_arrays(arrays, names=[c.field_name for c in row_columns(table)])

    def reshaped(self, rows: pa.Table, before: TableSchema, after: TableSchema) -> pa.Table:
        """Return rows of one version of a table as another one shows them: the same that every reader of changes sees."""
        if rows.num_rows == 0:
            return self.schema(after).empty_table()
        batch = self.records(before, rows).combine_chunks().to_batches()[0]
        schema = self.schema(after)
        columns = dict(zip((c.id for c in after.columns), project(batch, after, before), strict=True))
        own = [rows.column(name) for name in schema.names if name in OWN_IDS]
        found = [*own, *(self.values(c, pa.chunked_array([columns[c.id]])) for c in row_columns(after))]
        return pa.Table.from_arrays([v.cast(f.type) for v, f in zip(found, schema, strict=True)], schema=schema)

    def shown_keys(self, keys: pa.Table | None, before: TableSchema, after: TableSchema) -> pa.Table | None:
        """Return keys, or counted rows, of one version of a table as another one shows them."""
        if keys is None or before.columns == after.columns:
            return keys
        counted = COUNT_COLUMN in keys.column_names
        rows = self.reshaped(keys.drop_columns([COUNT_COLUMN]) if counted else keys, before, after)
        if counted:
            return rows.append_column(COUNT_COLUMN, keys.column(COUNT_COLUMN))
        names = {c.id: lake_name(c.name) for c in after.columns}
        if any(c.id not in names for c in before.handle_columns):
            raise PenstockError("SINK_DDL_REFUSED", f"{after.full_name} lost a column of its key in a window that changed rows under it")
        return rows.select([names[c.id] for c in before.handle_columns])


def lake_name(name: str) -> str:
    """Return a table column's name in the lake; names that are ours get one more underscore."""
    return f"_{name}" if name.startswith("_") and f"_{name.lstrip('_').lower()}" in _OWN else name


def key_names(table: TableSchema) -> list[str]:
    """Return the names, in the lake, of the columns that name a row; empty where nothing does."""
    return [lake_name(c.name) for c in table.handle_columns]


def days_of(ts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the UTC dates of commit ts."""
    days = pc.divide(pc.shift_right(ts, pa.scalar(LOGICAL_BITS, pa.uint64())), pa.scalar(_DAY_MS, pa.uint64()))
    return _chunked(pc.cast(pc.cast(days, pa.int32()), pa.date32()))


def _physical(column: Column, values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if column.type.kind in ELEMENT_KINDS:
        found = element_values(column, pl.Series(values))
        return pa.chunked_array([found.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(wanted)])
    if pa.types.is_string(wanted):
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        return _chunked(values if is_text else text_of(column, values)).cast(wanted)
    return _chunked(values.cast(wanted))


def _chunked(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])


def _field(name: str, data_type: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, data_type, True, {"PARQUET:field_id": str(field_id)})


def truncation_row(shape: LakeShape, table: TableSchema, commit_ts: int) -> pa.Table:
    """Return the change that says that everything of a table before a ts is gone."""
    schema = shape.schema(table)
    values = {OP_COLUMN: "T", TS_COLUMN: commit_ts}
    if OP_COLUMN not in schema.names:
        raise InvariantError("a merged table has no changes")
    arrays = [pa.array([values.get(f.name)], f.type) for f in schema]
    if DAY_COLUMN in schema.names:
        arrays[schema.names.index(DAY_COLUMN)] = days_of(pa.chunked_array([pa.array([commit_ts], pa.uint64())])).combine_chunks()
    return pa.Table.from_arrays(arrays, schema=schema)
