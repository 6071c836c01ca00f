"""A PostgreSQL server as a target: its types, what its tables have, how their structure changes.

A column has the nearest type that keeps every value exactly, text where there is none. Runs on executors and beside the driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, ColumnType, TypeKind
from penstock.readback.replay_dialect import DIALECTS, Dialect
from penstock.sink.postgres.session import PostgresSession
from penstock.sink.postgres.settings import PostgresSettings
from penstock.sink.tables.database import Database, Session, TableTraits

HOME = "penstock"
_NAME_BYTES_MAX = 63
_DATED = frozenset({TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP})
_DAY = r"^\d{4}-\d\d-\d\d"
_NO_DATE = r"^0000|^\d+-00|^\d+-\d\d-00"
_SIGNED = {TypeKind.TINYINT: "SMALLINT", TypeKind.SMALLINT: "SMALLINT", TypeKind.MEDIUMINT: "INTEGER", TypeKind.INT: "INTEGER"}
_UNSIGNED = {TypeKind.TINYINT: "SMALLINT", TypeKind.SMALLINT: "INTEGER", TypeKind.MEDIUMINT: "INTEGER"}
_SPARE = "penstock_spare_"
_KEPT = ("rp", "pp")
"""Kinds of relations and how they are kept: tables, plain or partitioned, that are there after a crash."""


class TargetDialect(Dialect):
    """PostgreSQL as a target writes it."""

    def column_type(self, column: Column, *, in_key: bool = False) -> str:
        """Return a column's type."""
        kind = column.type.kind
        if kind in INTEGER_KINDS:
            narrow = (_UNSIGNED if column.type.unsigned or column.type.zerofill else _SIGNED).get(kind)
            if narrow is not None:
                return narrow
        if kind is TypeKind.YEAR:
            return "SMALLINT"
        if kind is TypeKind.TIMESTAMP:
            return "TIMESTAMPTZ"
        if kind is TypeKind.JSON and not in_key:
            return "JSON"
        return super().column_type(column, in_key=in_key)


class PostgresDatabase(Database):
    """One server."""

    fractions = 6
    tried = ("CREATE TEMPORARY TABLE penstock_probe (n BIGINT)", "DROP TABLE pg_temp.penstock_probe")
    one_moment = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)

    def __init__(self, uri: str, settings: PostgresSettings) -> None:
        self._uri, self._settings = uri, settings
        base = DIALECTS["postgresql"]
        self.dialect = TargetDialect(**{f.name: getattr(base, f.name) for f in dataclasses.fields(base)})
        self.home = HOME
        parts = urlsplit(uri)
        self.shown = f"postgresql://{parts.hostname or ''}:{parts.port or 5432}{parts.path}"
        self.target = (uri, settings)

    def connect(self) -> PostgresSession:
        """Return a session."""
        return PostgresSession(self._uri, self.shown, self.dialect, replication_role=self._settings.replication_role)

    def column_type(self, column: Column, table: TableSchema) -> str:
        """Return the type of a column; JSON is text where rows are compared whole."""
        _check_name(column.name, "column names")
        if column.type.kind is TypeKind.JSON and not table.handle_columns:
            return "TEXT"
        return super().column_type(column, table)

    def shown_value(self, column: Column) -> str:
        """Return the expression by which a column is read."""
        name, kind = self.dialect.identifier(column.name), column.type.kind
        if kind in BINARY_KINDS:
            return name
        # Without the zone, which is UTC in these sessions.
        return f"{name}::timestamp::text" if kind is TypeKind.TIMESTAMP else f"{name}::text"

    def traits(self, session: Session, schema: str, table: str) -> TableTraits:
        """Return what a table has."""
        for name in (schema, table):
            _check_name(name, "names")
        columns = session.fetch(
            "SELECT a.attname, t.typname IN ('citext', 'bpchar') OR NOT coalesce(o.collisdeterministic, true), "
            "c.relkind::text, c.relpersistence::text, c.relhasrules, t.typname, "
            "coalesce(information_schema._pg_numeric_scale(a.atttypid, a.atttypmod), 1000), "
            "coalesce(information_schema._pg_datetime_precision(a.atttypid, a.atttypmod), 6), "
            "coalesce(information_schema._pg_char_max_length(a.atttypid, a.atttypmod), 0), "
            "a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid), '') LIKE 'nextval(%%' FROM pg_attribute a "
            "LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
            "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_type t ON t.oid = a.atttypid "
            "LEFT JOIN pg_collation o ON o.oid = a.attcollation "
            "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind <> 'i' ORDER BY a.attnum",
            (schema, table),
        )
        parts = session.fetch(
            "SELECT i.indexrelid::bigint, coalesce(a.attname, '') FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid "
            "AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
            "WHERE n.nspname = %s AND c.relname = %s AND i.indisunique",
            (schema, table),
        )
        unique: dict[int, set[str]] = {}
        for index, column in parts:
            unique.setdefault(int(index), set()).add(str(column))
        unsafe = _unsafe(columns)
        return TableTraits(
            tuple(str(c) for c, *_ in columns),
            tuple(frozenset(names) for names in unique.values()),
            frozenset(str(c) for c, is_loose, *_ in columns if is_loose),
            unsafe=unsafe,
            shapes=tuple((str(c), str(kind), int(scale), int(digits), int(chars)) for c, *_, kind, scale, digits, chars, _ in columns),
            numbered=frozenset(str(c) for c, *_, numbered in columns if numbered),
            acting=self._acting(session, schema, table) if len(unique) > 1 and not self._settings.replication_role else "",
        )

    def _acting(self, session: Session, schema: str, table: str) -> str:
        found = session.fetch(
            "SELECT k.conname FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND k.contype = 'f' AND k.confdeltype NOT IN ('a', 'r')",
            (schema, table),
        )
        return f"foreign key {found[0][0]}" if found else ""

    def alterations(self, before: TableSchema, after: TableSchema, defaults: Mapping[int, Any]) -> list[str]:
        """Return the statements, in an order in which no name is taken."""
        quoted, full = self.dialect.identifier, self.dialect.table(after.schema, after.table)
        old, new = {c.id: c for c in row_columns(before)}, {c.id: c for c in row_columns(after)}
        handles = (before.handle_columns, after.handle_columns)
        rekeyed = [(c.id, c.name) for c in handles[0]] != [(c.id, c.name) for c in handles[1]]
        steps = []
        if rekeyed and handles[0]:
            steps.append(_without_primary_key(full))
            steps += [f"ALTER TABLE {full} ALTER COLUMN {quoted(c.name)} DROP NOT NULL" for c in handles[0] if c.id in old]
        steps += [f"ALTER TABLE {full} DROP COLUMN {quoted(c.name)}" for c in old.values() if c.id not in new]
        renamed = [(old[i], c) for i, c in new.items() if i in old and old[i].name != c.name]
        steps += [f"ALTER TABLE {full} RENAME COLUMN {quoted(o.name)} TO {_SPARE}{n.id}" for o, n in renamed]
        steps += [f"ALTER TABLE {full} RENAME COLUMN {_SPARE}{n.id} TO {quoted(n.name)}" for _, n in renamed]
        for column in new.values():
            kind, known = self.column_type(column, after), old.get(column.id)
            if known is None:
                value = defaults.get(column.id)
                initial = "" if value is None else f" DEFAULT {_value(column, value)}"
                steps.append(f"ALTER TABLE {full} ADD COLUMN {quoted(column.name)} {kind}{initial}")
            elif self.column_type(known, before) != kind:
                using = f"{quoted(column.name)}::text::{kind}"
                steps.append(f"ALTER TABLE {full} ALTER COLUMN {quoted(column.name)} TYPE {kind} USING {using}")
        if rekeyed and handles[1]:
            steps.append(f"ALTER TABLE {full} ADD PRIMARY KEY ({', '.join(quoted(c.name) for c in handles[1])})")
        return steps

    def renaming(self, pairs: Sequence[tuple[TableSchema, TableSchema]]) -> list[str]:
        """Return the statements, over names that nobody has."""
        quoted, table = self.dialect.identifier, self.dialect.table
        away = [f"ALTER TABLE {table(o.schema, o.table)} RENAME TO {_SPARE}{at}" for at, (o, _) in enumerate(pairs)]
        for at, (old, new) in enumerate(pairs):
            if old.schema != new.schema:
                away.append(f"ALTER TABLE {table(old.schema, f'{_SPARE}{at}')} SET SCHEMA {quoted(new.schema)}")
        return [*away, *(f"ALTER TABLE {table(n.schema, f'{_SPARE}{at}')} RENAME TO {quoted(n.table)}" for at, (_, n) in enumerate(pairs))]

    def unfit(self, column: Column, values: pl.Series) -> pl.Series | None:
        """Return which values no PostgreSQL holds: NUL in texts, dates that are none."""
        if values.dtype != pl.String:
            return None
        odd = values.str.contains("\0", literal=True)
        if column.type.kind in _DATED:
            odd |= values.str.contains(_NO_DATE)
            # MySQL may hold a 31st of February. Years of five digits and those before Christ are PostgreSQL's own.
            plain = values.str.contains(_DAY) & ~values.str.ends_with("BC")
            odd |= plain & values.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False).is_null()
        return odd.fill_null(value=False)


def _unsafe(columns: Sequence[tuple[Any, ...]]) -> str:
    """Return why a relation is none that keeps rows as they are given."""
    for _, _, kind, kept, has_rules, *_ in columns[:1]:
        if kind not in {"r", "p"}:
            return "is no table"
        if kind + kept not in _KEPT:
            return "is unlogged: a crash empties it"
        if has_rules:
            return "has rules, which do something else than they are told"
    return ""


def _check_name(name: str, what: str) -> None:
    """Raise for a name that the server would cut, and take for another one."""
    if len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX:
        hint = "Rename the column, or leave it out of the feed." if what == "column names" else "Set table-name."
        raise PenstockError("SINK_UNWRITABLE", f"{name}: PostgreSQL has {what} of {_NAME_BYTES_MAX} bytes", hint)


def _without_primary_key(full: str) -> str:
    text = full.replace("'", "''")
    return (
        f"DO $penstock$ DECLARE found text; BEGIN SELECT conname INTO found FROM pg_constraint WHERE conrelid = '{text}'::regclass "
        f"AND contype = 'p'; IF found IS NOT NULL THEN EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', '{text}', found); END IF; "
        "END $penstock$"
    )


def _value(column: Column, value: Any) -> str:
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    kind: ColumnType = column.type
    if kind.kind is TypeKind.ENUM:
        value = ["", *kind.elems][value]
    elif kind.kind is TypeKind.SET:
        value = ",".join(e for at, e in enumerate(kind.elems) if value >> at & 1)
    return "'{}'".format(str(value).replace("'", "''"))
