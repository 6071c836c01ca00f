"""How frames of rows get into each database: whole columns at a time wherever the database takes them.

DuckDB reads Arrow tables in place, PostgreSQL takes COPY into a temporary table, MySQL and MariaDB take statements of many rows whose text
is put together by columns, SQLite takes bound rows. A key is touched at most once in what one call is given. Invariant: each
operation leaves the same when it is done again, except ``insert`` and ``delete_copies``, which count rows; the transaction around them is
the caller's. Runs wherever ``penstock replay`` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.model.table import TableSchema
from penstock.readback.replay_dialect import Dialect, shown

ROWS_PER_CALL = 10_000
STATEMENT_BYTES_MAX = 1 << 20
KEYS_PER_STATEMENT = 1_000

Fetch = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
_STAGE = "penstock_stage"
_OWN_STAGE = f"pg_temp.{_STAGE}"
"""Where a session of PostgreSQL keeps its own; a table of the same name elsewhere is somebody's."""
_COUNT, _NUMBER = "penstock_count", "penstock_number"


class TableNames:
    """The names of one table in statements."""

    def __init__(self, dialect: Dialect, table: TableSchema) -> None:
        self.version = table
        self.table = dialect.table(table.schema, table.table)
        self.columns = [dialect.identifier(c.name) for c in row_columns(table)]
        self.keys = [dialect.identifier(c.name) for c in table.handle_columns]
        self.list = ", ".join(self.columns)

    def on_conflict(self) -> str:
        """Return what an INSERT does where the key is there already."""
        others = ", ".join(f"{c} = excluded.{c}" for c in self.columns if c not in self.keys)
        return f"ON CONFLICT ({', '.join(self.keys)}) DO {f'UPDATE SET {others}' if others else 'NOTHING'}"

    def insert_staged(self, stage: str, *, replacing: bool) -> str:
        """Return the statement that puts staged rows in."""
        return f"INSERT INTO {self.table} ({self.list}) SELECT {self.list} FROM {stage} {self.on_conflict() if replacing else ''}"

    def delete_staged(self, stage: str) -> str:
        """Return the statement that removes the rows whose keys are staged."""
        same = " AND ".join(f"t.{k} = s.{k}" for k in self.keys)
        return f"DELETE FROM {self.table} AS t USING {stage} AS s WHERE {same}"

    def delete_copies_staged(self, stage: str, handle: str) -> str:
        """Return the statement that removes as many rows of each staged content as its count says."""
        same = " AND ".join(f"t.{c} IS NOT DISTINCT FROM s.{c}" for c in self.columns)
        numbered = f"SELECT {handle}, {self.list}, row_number() OVER (PARTITION BY {self.list}) AS {_NUMBER} FROM {self.table}"
        chosen = ", ".join(f"t.{part}" for part in handle.split(", "))
        return (
            f"DELETE FROM {self.table} WHERE ({handle}) IN "
            f"(SELECT {chosen} FROM ({numbered}) AS t JOIN {stage} AS s ON {same} WHERE t.{_NUMBER} <= s.{_COUNT})"
        )


class RowLoader(ABC):
    """The operations on rows, inside the transaction of the caller. Rows are named as in change batches."""

    def __init__(self, dialect: Dialect, connection: Any, fetch: Fetch) -> None:
        self._dialect, self._connection, self._fetch = dialect, connection, fetch

    def insert(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in."""
        self._put(TableNames(self._dialect, table), shown(rows, row_columns(table), self._dialect), replacing=False)

    def upsert(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in, in place of those with the same key."""
        self._put(TableNames(self._dialect, table), shown(rows, row_columns(table), self._dialect), replacing=True)

    def delete(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Remove the rows with these keys; other columns do not count."""
        self._remove(TableNames(self._dialect, table), shown(rows, table.handle_columns, self._dialect))

    def delete_copies(self, table: TableSchema, rows: pl.DataFrame, counts: pl.Series) -> None:
        """Remove as many rows of each content as counted, for tables without a key."""
        frame = shown(rows, row_columns(table), self._dialect).with_columns(counts.alias(_COUNT))
        self._remove_copies(TableNames(self._dialect, table), frame)

    @abstractmethod
    def _put(self, names: TableNames, frame: pl.DataFrame, *, replacing: bool) -> None: ...

    @abstractmethod
    def _remove(self, names: TableNames, keys: pl.DataFrame) -> None: ...

    @abstractmethod
    def _remove_copies(self, names: TableNames, frame: pl.DataFrame) -> None: ...


class DuckLoader(RowLoader):
    """DuckDB: Arrow tables are read where they lie."""

    def _put(self, names: TableNames, frame: pl.DataFrame, *, replacing: bool) -> None:
        self._staged(names, frame, names.insert_staged(_STAGE, replacing=replacing))

    def _remove(self, names: TableNames, keys: pl.DataFrame) -> None:
        self._staged(names, keys, names.delete_staged(_STAGE))

    def _remove_copies(self, names: TableNames, frame: pl.DataFrame) -> None:
        self._staged(names, frame, names.delete_copies_staged(_STAGE, "rowid"))

    def _staged(self, names: TableNames, frame: pl.DataFrame, sql: str) -> None:
        by_field = {c.field_name: c for c in names.version.columns}
        casts = [
            f'CAST("{field}" AS {self._dialect.column_type(by_field[field])}) AS {self._dialect.identifier(by_field[field].name)}'
            if field in by_field
            else field
            for field in frame.columns
        ]
        self._connection.register("penstock_rows", _plain_arrow(frame))
        try:
            self._fetch(f"CREATE OR REPLACE TEMP VIEW {_STAGE} AS SELECT {', '.join(casts)} FROM penstock_rows", ())
            self._fetch(sql, ())
            self._fetch(f"DROP VIEW {_STAGE}", ())
        finally:
            self._connection.unregister("penstock_rows")


class PostgresLoader(RowLoader):
    """PostgreSQL: COPY, into the table itself or into one that ends with the transaction."""

    def _put(self, names: TableNames, frame: pl.DataFrame, *, replacing: bool) -> None:
        if replacing:
            self._stage(names, names.columns, frame)
            self._fetch(names.insert_staged(_OWN_STAGE, replacing=True), ())
        else:
            self._copy(names.table, names.columns, frame)

    def _remove(self, names: TableNames, keys: pl.DataFrame) -> None:
        self._stage(names, names.keys, keys)
        self._fetch(names.delete_staged(_OWN_STAGE), ())

    def _remove_copies(self, names: TableNames, frame: pl.DataFrame) -> None:
        self._stage(names, names.columns, frame, counted=True)
        self._fetch(names.delete_copies_staged(_OWN_STAGE, "tableoid, ctid"), ())

    def _stage(self, names: TableNames, columns: list[str], frame: pl.DataFrame, *, counted: bool = False) -> None:
        extra = f", 0::bigint AS {_COUNT}" if counted else ""
        self._fetch(f"DROP TABLE IF EXISTS {_OWN_STAGE}", ())
        self._fetch(f"CREATE TEMP TABLE {_STAGE} ON COMMIT DROP AS SELECT {', '.join(columns)}{extra} FROM {names.table} WITH NO DATA", ())
        self._copy(_OWN_STAGE, [*columns, _COUNT] if counted else columns, frame)

    def _copy(self, table: str, columns: list[str], frame: pl.DataFrame) -> None:
        texts = frame.select(
            (pl.lit("\\x") + pl.col(name).bin.encode("hex")).alias(name) if dtype == pl.Binary else pl.col(name)
            for name, dtype in frame.schema.items()
        )
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT csv, NULL '\\N')") as copy,
        ):
            for part in texts.iter_slices(ROWS_PER_CALL):
                copy.write(part.write_csv(include_header=False, null_value="\\N", quote_style="non_numeric").encode())


class MySqlLoader(RowLoader):
    """MySQL and MariaDB: statements of many rows, bounded in bytes so that any server takes them."""

    def _put(self, names: TableNames, frame: pl.DataFrame, *, replacing: bool) -> None:
        for part in statement_parts(row_texts(frame), ROWS_PER_CALL):
            self._fetch(f"{'REPLACE' if replacing else 'INSERT'} INTO {names.table} ({names.list}) VALUES {part}", ())

    def _remove(self, names: TableNames, keys: pl.DataFrame) -> None:
        for part in statement_parts(row_texts(keys), KEYS_PER_STATEMENT):
            self._fetch(f"DELETE FROM {names.table} WHERE ({', '.join(names.keys)}) IN ({part})", ())

    def _remove_copies(self, names: TableNames, frame: pl.DataFrame) -> None:
        # One statement each, for there is no other way to say it.
        same = [
            pl.concat_str([pl.lit(f"{name} <=> "), literals(frame, field)])
            for name, field in zip(names.columns, frame.columns[:-1], strict=True)
        ]
        conditions = frame.select(pl.concat_str(same, separator=" AND ")).to_series()
        for condition, count in zip(conditions, frame[_COUNT], strict=True):
            self._fetch(f"DELETE FROM {names.table} WHERE {condition} LIMIT {count}", ())


class SqliteLoader(RowLoader):
    """SQLite: bound rows; it runs in this process and has no other way in."""

    def _put(self, names: TableNames, frame: pl.DataFrame, *, replacing: bool) -> None:
        verb, marks = "INSERT OR REPLACE" if replacing else "INSERT", ", ".join("?" * len(names.columns))
        self._many(f"{verb} INTO {names.table} ({names.list}) VALUES ({marks})", frame)

    def _remove(self, names: TableNames, keys: pl.DataFrame) -> None:
        same = " AND ".join(f"{k} = ?" for k in names.keys)
        self._many(f"DELETE FROM {names.table} WHERE {same}", keys)

    def _remove_copies(self, names: TableNames, frame: pl.DataFrame) -> None:
        same = " AND ".join(f"{c} IS ?" for c in names.columns)
        self._many(f"DELETE FROM {names.table} WHERE rowid IN (SELECT rowid FROM {names.table} WHERE {same} LIMIT ?)", frame)

    def _many(self, sql: str, rows: pl.DataFrame) -> None:
        floats = [name for name, dtype in rows.schema.items() if dtype.is_float()]
        odd = rows.select(pl.any_horizontal(pl.col(floats).is_nan()).fill_null(value=False)).to_series() if floats else None
        if odd is not None and odd.any():
            for part in rows.filter(odd).iter_slices(ROWS_PER_CALL):
                self._connection.executemany(sql, [tuple(map(self._dialect.bound, row)) for row in part.rows()])
            rows = rows.filter(~odd)
        # The driver takes rows; batches bound what is held as Python objects.
        for part in rows.iter_slices(ROWS_PER_CALL):
            self._connection.executemany(sql, part.rows())


LOADERS: dict[str, Callable[[Dialect, Any, Fetch], RowLoader]] = {
    "sqlite": SqliteLoader,
    "duckdb": DuckLoader,
    "mysql": MySqlLoader,
    "postgresql": PostgresLoader,
}


def _plain_arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def row_texts(frame: pl.DataFrame) -> pl.Series:
    """Return each row as ``(literal, ...)``."""
    parts = pl.concat_str([literals(frame, field) for field in frame.columns], separator=",")
    return frame.select(pl.concat_str([pl.lit("("), parts, pl.lit(")")])).to_series()


def literals(frame: pl.DataFrame, field: str) -> pl.Expr:
    """Return a column as MySQL literals."""
    values, dtype = pl.col(field), frame.schema[field]
    if dtype == pl.Binary:
        text = pl.concat_str([pl.lit("x'"), values.bin.encode("hex"), pl.lit("'")])
    elif dtype == pl.String:
        escaped = values.str.replace_all("\\", "\\\\", literal=True).str.replace_all("'", "\\'", literal=True)
        escaped = escaped.str.replace_all("\x00", "\\0", literal=True)
        text = pl.concat_str([pl.lit("'"), escaped, pl.lit("'")])
    else:
        # The shortest text of the largest FLOAT is beyond it where it is read as a double.
        text = (values.cast(pl.Float64) if dtype == pl.Float32 else values).cast(pl.String)
    return pl.when(values.is_null()).then(pl.lit("NULL")).otherwise(text)


def statement_parts(rows: pl.Series, rows_max: int, bytes_max: int = STATEMENT_BYTES_MAX) -> Iterator[str]:
    """Yield the texts of rows joined by commas, as many in each as a statement may have; one that is larger stands alone."""
    sizes = rows.str.len_bytes().cast(pl.Int64).cum_sum().to_numpy()
    start = 0
    while start < len(rows):
        before = int(sizes[start - 1]) if start else 0
        fits = int(sizes.searchsorted(before + bytes_max, side="right"))
        end = min(max(fits, start + 1), start + rows_max, len(rows))
        yield rows[start:end].str.join(",").item()
        start = end
