"""The Parquet protocol: one file per cut, with operation, commit ts and old values as columns, and the way back.

Columns: ``_op`` (I, U, D), ``_commit_ts`` (unsigned 64 bits), then the table's columns under their own names, then, where old values are
asked for, ``_old`` (whether they are there) and ``_old_<name>``. Types are the plain ones: integers keep width and sign, DECIMAL up to 38
digits is a decimal, DATE a date, DATETIME and TIMESTAMP are microseconds (TIMESTAMP in UTC). A file in which such a column has a value
that no date can hold (MySQL's zero dates) has the column as text, as all files have with ``temporal_as_text``; the decoder takes either.
ENUM and SET are their names, binary data stays binary, TIME, JSON and VECTOR are text. A table column that has the name of one of ours
is escaped with one more underscore. Invariant: bytes depend on rows, table and settings alone. Runs on executors and wherever a target
is read.
"""

from __future__ import annotations

import io

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.format.column_texts import text_values
from penstock.format.csv.decoder import empty_frame
from penstock.format.csv.dialect import row_columns
from penstock.format.old_values import OLD, expand_updates, old_name
from penstock.format.parquet_pages import read_columns
from penstock.format.protocols import ParquetSettings
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.rows.elements import ELEMENT_KINDS, element_values
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import TypeKind

OP_COLUMN, TS_COLUMN, OLD_PREFIX = "_op", "_commit_ts", "_old_"
_OWN = frozenset({OP_COLUMN, TS_COLUMN, OLD})
_LETTERS = pa.array(["I", "U", "D"])
_OPS = {"I": int(Op.INSERT), "U": int(Op.UPDATE), "D": int(Op.DELETE)}
_NAMED = frozenset({TypeKind.ENUM, TypeKind.SET})
_TEMPORAL = {TypeKind.DATE: pa.date32(), TypeKind.DATETIME: pa.timestamp("us"), TypeKind.TIMESTAMP: pa.timestamp("us", "UTC")}


class ParquetRows:
    """The rows of one file, gathered until it is cut. Not thread safe."""

    def __init__(self, table: TableSchema, settings: ParquetSettings) -> None:
        self._table = table
        self._settings = settings
        self._parts: list[pa.RecordBatch] = []
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Return about how large the rows are in memory, by which files are cut."""
        return self._nbytes

    def add(self, records: pa.RecordBatch) -> None:
        """Take paired rows in."""
        self._parts.append(records)
        self._nbytes += records.nbytes

    def finish(self) -> bytes:
        """Return the file."""
        table = typed_table(self._table, pa.Table.from_batches(self._parts), self._settings)
        out = io.BytesIO()
        text = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        pq.write_table(
            table,
            out,
            row_group_size=self._settings.row_group_rows,
            compression=self._settings.codec.value,
            use_dictionary=[OP_COLUMN, *text],
            store_schema=False,
        )
        return out.getvalue()


def typed_table(table: TableSchema, rows: pa.Table, settings: ParquetSettings) -> pa.Table:
    """Return paired rows as the columns of a file."""
    arrays: dict[str, pa.ChunkedArray] = {
        OP_COLUMN: pc.take(_LETTERS, rows.column(OP)),
        TS_COLUMN: rows.column(COMMIT_TS),
    }
    columns = row_columns(table)
    for column in columns:
        arrays[file_name(column.name)] = typed_values(column, rows.column(column.field_name), temporal_as_text=settings.temporal_as_text)
    if settings.output_old_value:
        arrays[OLD] = pc.cast(rows.column(OLD), pa.bool_())
        for column in columns:
            arrays[OLD_PREFIX + column.name] = typed_values(
                column, rows.column(old_name(column)), temporal_as_text=settings.temporal_as_text
            )
    return pa.table(arrays)


def file_name(name: str) -> str:
    """Return a table column's name in a file; names that begin like ours get one more underscore."""
    bare = name.lstrip("_")
    return f"_{name}" if name.startswith("_") and (f"_{bare}" in _OWN or f"_{bare}".startswith(OLD_PREFIX)) else name


def typed_values(column: Column, values: pa.ChunkedArray, *, temporal_as_text: bool = False) -> pa.ChunkedArray:
    """Return a column's values with the plain type of its kind, or as text where that would lose something."""
    kind = column.type.kind
    if kind in _NAMED:
        return text_values(column, values.combine_chunks()).to_arrow(compat_level=pl.CompatLevel.oldest())
    dtype = plain_type(column)
    if dtype is None or (temporal_as_text and pa.types.is_temporal(dtype)):
        return values
    if pa.types.is_temporal(dtype) and not _one_length(values, text_length(column)):
        return values
    try:
        return pc.cast(values, pa.timestamp("us")).cast(dtype) if pa.types.is_timestamp(dtype) else pc.cast(values, dtype)
    except pa.ArrowInvalid:
        return values


def plain_type(column: Column) -> pa.DataType | None:
    """Return the Arrow type of a text kind's values in a file, or None where it has no better one than its own."""
    kind, scale = column.type.kind, column.type.scale or 0
    if kind is TypeKind.DECIMAL:
        digits = column.type.length or 10
        return pa.decimal128(digits, scale) if digits <= 38 else None
    return _TEMPORAL.get(kind)


def text_length(column: Column) -> int:
    """Return how many characters every value of a temporal column has."""
    scale = column.type.scale or 0
    return 10 if column.type.kind is TypeKind.DATE else 19 + (scale + 1 if scale else 0)


def _one_length(values: pa.ChunkedArray, length: int) -> bool:
    """Return whether every text has this length; then, and only then, does a parsed moment print as the same text."""
    bounds = pc.min_max(pc.binary_length(values)).as_py()
    return bounds["min"] is None or bounds["min"] == bounds["max"] == length


def text_of(column: Column, typed: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return typed values as the text that change batches hold."""
    kind = column.type.kind
    if kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP}:
        scale = column.type.scale or 0
        form = "%Y-%m-%d %H:%M:%S" + (f"%.{scale}f" if scale in {3, 6} else "%.6f" if scale else "")
        series = pl.Series(typed).dt.strftime(form)
        if scale and scale not in {3, 6}:
            series = series.str.head(20 + scale)
        return series.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())
    if kind is TypeKind.DECIMAL:
        # Arrow would write small numbers with an exponent.
        return pl.Series(typed).cast(pl.String).to_arrow(compat_level=pl.CompatLevel.oldest())
    return pc.cast(typed, pa.string())


def decode(content: bytes, table: TableSchema, path: str = "Parquet", bytes_max: int = 2 << 30) -> pl.DataFrame:
    """Return the rows of a data file as change batches hold them; an update with old values is a BEFORE and an UPDATE row."""
    columns = row_columns(table)
    names = {OP_COLUMN, TS_COLUMN, OLD, *(file_name(c.name) for c in columns), *(OLD_PREFIX + c.name for c in columns)}
    try:
        rows = read_columns(content, names, bytes_max)
    except (pa.ArrowException, OSError, ValueError) as error:
        # Arrow's own errors have several lines, and are of Python's kinds too.
        what = f"not a Parquet file: {(str(error).splitlines() or [type(error).__name__])[0]}"
        raise PenstockError("FILE_MALFORMED", f"{path}: byte 0: {what}") from error
    missing = [n for n in (OP_COLUMN, TS_COLUMN, *(file_name(c.name) for c in columns)) if n not in rows.column_names]
    if missing:
        raise PenstockError("FILE_MALFORMED", f"{path}: byte 0: no column {missing[0]!r}")
    if rows.num_rows == 0:
        return empty_frame(table)
    letters = pl.Series(rows.column(OP_COLUMN))
    if not letters.is_in(list(_OPS)).fill_null(False).all():
        raise PenstockError("FILE_MALFORMED", f"{path}: byte 0: the operation is none of I, U, D")
    ops = letters.replace_strict(list(_OPS), list(_OPS.values()), return_dtype=pl.UInt8)
    series = [pl.Series(COMMIT_TS, rows.column(TS_COLUMN)).cast(pl.UInt64), ops.alias(OP)]
    with_old = OLD in rows.column_names
    has_old = pl.Series(rows.column(OLD)).cast(pl.UInt8) if with_old else pl.repeat(0, rows.num_rows, dtype=pl.UInt8, eager=True)
    series.append(has_old.alias(OLD))
    series += [_canonical(c, rows.column(file_name(c.name)), path).alias(c.field_name) for c in columns]
    if with_old:
        series += [_canonical(c, rows.column(OLD_PREFIX + c.name), path).alias(old_name(c)) for c in columns]
    return expand_updates(pl.DataFrame(series), table)


def _canonical(column: Column, values: pa.ChunkedArray, path: str) -> pl.Series:
    """Return a file's column as change batches hold it."""
    kind, wanted = column.type.kind, column.type.arrow()
    text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    try:
        if kind in ELEMENT_KINDS:
            found = element_values(column, pl.Series(values))
            if found.null_count() > values.null_count:
                raise pl.exceptions.InvalidOperationError("not an element")
            return found
        if pa.types.is_string(wanted):
            return pl.Series(values if text else text_of(column, values))
        return pl.Series(pc.cast(values, wanted))
    except (pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise PenstockError("FILE_MALFORMED", f"{path}: byte 0: column {column.name}: not values of {kind.value}") from error
