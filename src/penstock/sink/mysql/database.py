"""A MySQL or MariaDB server as a target: its types, what its tables have, how their structure changes.

A column has the type that it has upstream; texts compare byte by byte without padding, as every key of the model does. Runs on executors
and beside the driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import polars as pl

from penstock.access.mysql_server import parse_uri
from penstock.ddl.tokens import literal
from penstock.format.csv.dialect import row_columns
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, FLOAT_KINDS, TEXT_KINDS, ColumnType, TypeKind
from penstock.readback.replay_dialect import DIALECTS, MySqlDialect
from penstock.sink.mysql.session import MySqlSession
from penstock.sink.mysql.settings import MySqlSettings, TimestampType
from penstock.sink.tables.database import Database, Session, TableTraits

HOME = "penstock"
_ONE_MOMENT = ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT")
_KEY_CHARS, _KEY_BYTES = 700, 3_000
"""What an index of InnoDB holds, over all columns of a key."""
_DATED = frozenset({TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP})
_DATE = r"^\d{4}-\d\d-\d\d"
_TIME = r"^-?\d{1,3}:\d\d:\d\d(\.\d+)?$"
_SWAP = "penstock_swap_"
_UNPADDED = ("nopad_bin", "0900_bin")


class TargetDialect(MySqlDialect):
    """MySQL as a target writes it."""

    def column_type(self, column: Column, *, in_key: bool = False) -> str:
        """Return a column's type: the upstream's own, bounded in a key, bytes or text for what has none here."""
        kind = column.type.kind
        bounded = in_key or column.primary_key
        if kind in TEXT_KINDS and bounded and (kind not in {TypeKind.CHAR, TypeKind.VARCHAR} or column.type.length is None):
            return f"VARCHAR({_KEY_CHARS})"
        if kind in BINARY_KINDS and bounded and kind not in {TypeKind.BINARY, TypeKind.VARBINARY}:
            return f"VARBINARY({_KEY_BYTES})"
        if kind is TypeKind.VECTOR:
            return "LONGTEXT"
        if kind in FLOAT_KINDS:
            # A declared size would round what the upstream did not.
            return super().column_type(_sized(column, None, None), in_key=in_key)
        return super().column_type(column, in_key=in_key)


def _sized(column: Column, length: int | None, scale: int | None) -> Column:
    kind = column.type
    return Column(column.id, column.name, ColumnType(kind.kind, length=length, scale=scale), column.nullable, column.primary_key)


class MySqlDatabase(Database):
    """One server."""

    one_moment = _ONE_MOMENT
    fractions = 0

    def __init__(self, uri: str, settings: MySqlSettings) -> None:
        self._address = parse_uri(uri)
        self._settings = settings
        base = DIALECTS["mysql"]
        self.dialect = TargetDialect(**{f.name: getattr(base, f.name) for f in dataclasses.fields(base)})
        self.home = unquote(urlsplit(uri).path.strip("/")) or HOME
        self.shown = self._address.shown
        self.target = (uri, settings)
        # Known once a session of its own was entered, and structures are changed over such a one.
        self._no_padding: str | None = None
        self._folds_names = False

    def connect(self) -> MySqlSession:
        """Return a session."""
        settings = self._settings
        session = MySqlSession(self._address, self.dialect, bulk_load=settings.bulk_load, check_foreign_keys=settings.check_foreign_keys)
        if self._no_padding is None:
            wanted = "utf8mb4_nopad_bin" if session.is_mariadb else "utf8mb4_0900_bin"
            known = session.fetch("SELECT 1 FROM information_schema.collations WHERE collation_name = %s", (wanted,))
            self._no_padding = wanted if known else "utf8mb4_bin"
        session.no_padding = self._no_padding
        self.learn(session)
        return session

    def learn(self, session: Session) -> None:
        """Learn how the server stores names, and which collation counts blanks."""
        assert isinstance(session, MySqlSession)
        self._folds_names, self._no_padding = session.folds_names, session.no_padding or self._no_padding

    def stored_name(self, name: tuple[str, str]) -> tuple[str, str]:
        """Return names in lower case where the server has no others."""
        return (name[0].lower(), name[1].lower()) if self._folds_names else name

    def table_options(self) -> str:
        """Return the collation: byte by byte, trailing blanks counted."""
        return f" ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE {self._no_padding or 'utf8mb4_bin'}"

    def column_type(self, column: Column, table: TableSchema) -> str:
        """Return the type of a column; JSON is text where rows are compared whole."""
        if column.type.kind is TypeKind.JSON and not table.handle_columns:
            return "LONGTEXT"
        if column.type.kind is TypeKind.TIMESTAMP and self._settings.timestamp_type is TimestampType.DATETIME:
            return f"DATETIME({column.type.scale})" if column.type.scale else "DATETIME"
        return super().column_type(column, table)

    def shown_value(self, column: Column) -> str:
        """Return the expression by which a column is read."""
        name, kind = self.dialect.identifier(column.name), column.type.kind
        if kind in BINARY_KINDS:
            return name
        if kind is TypeKind.BIT:
            return f"CAST({name} AS UNSIGNED)"
        if kind is TypeKind.DECIMAL and column.type.zerofill:
            return f"CAST({name} + 0 AS CHAR)"
        # A FLOAT is shown with six digits, its double with all that there are.
        return f"{name} + 0E0" if kind in FLOAT_KINDS else f"CAST({name} AS CHAR)"

    def traits(self, session: Session, schema: str, table: str) -> TableTraits:
        """Return what a table has."""
        columns = session.fetch(
            "SELECT c.column_name, coalesce(c.collation_name, ''), coalesce(t.engine, ''), coalesce(e.transactions, ''), c.data_type, "
            "coalesce(c.numeric_scale, -1), coalesce(c.datetime_precision, 0), coalesce(c.character_maximum_length, 0), "
            "c.is_nullable = 'NO' AND c.data_type = 'timestamp', c.extra LIKE '%%auto_increment%%' "
            "FROM information_schema.columns c "
            "JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name "
            f"LEFT JOIN information_schema.engines e ON e.engine = t.engine WHERE {self._same('c')} AND {self._same('t')} "
            "ORDER BY c.ordinal_position",
            self._names(schema, table) * 2,
        )
        parts = session.fetch(
            f"SELECT index_name, coalesce(column_name, ''), sub_part FROM information_schema.statistics s WHERE {self._same('s')} "
            "AND non_unique = 0",
            self._names(schema, table),
        )
        unique: dict[str, set[str]] = {}
        for index, column, prefix in parts:
            unique.setdefault(str(index), set()).add(f"{column}({prefix})" if prefix else str(column))
        collations = {str(c): str(collation) for c, collation, *_ in columns if collation}
        engines = {(str(engine), str(transactions)) for _, _, engine, transactions, *_ in columns}
        unsafe = [f"has no transactions ({engine})" if engine else "is no table" for engine, kept in engines if kept != "YES"]
        return TableTraits(
            tuple(str(c) for c, *_ in columns),
            tuple(frozenset(names) for names in unique.values()),
            frozenset(c for c, collation in collations.items() if not collation.endswith(("_bin", "binary"))),
            frozenset(c for c, collation in collations.items() if collation.endswith("_bin") and not collation.endswith(_UNPADDED)),
            unsafe[0] if unsafe else "",
            tuple((str(c), str(kind), int(scale), int(digits), int(chars)) for c, _, _, _, kind, scale, digits, chars, *_ in columns),
            frozenset(str(c) for c, *_, timed, numbered in columns if timed or numbered),
            frozenset(str(c) for c, *_, numbered in columns if numbered),
            self._acting(session, schema, table) if len(unique) > 1 and self._settings.check_foreign_keys else "",
        )

    def _acting(self, session: Session, schema: str, table: str) -> str:
        found = session.fetch(
            "SELECT r.constraint_name FROM information_schema.referential_constraints r "
            "WHERE r.unique_constraint_schema = %s AND r.referenced_table_name = %s AND r.delete_rule NOT IN ('RESTRICT', 'NO ACTION')",
            (schema, table),
        )
        return f"foreign key {found[0][0]}" if found else ""

    def _same(self, alias: str) -> str:
        """Return the condition that a row of the server's catalog is about a table; equality lets it look at that table alone."""
        same = f"{alias}.table_schema = %s AND {alias}.table_name = %s"
        return same if self._folds_names else f"{same} AND BINARY {alias}.table_schema = %s AND BINARY {alias}.table_name = %s"

    def _names(self, schema: str, table: str) -> tuple[str, ...]:
        return (schema, table) if self._folds_names else (schema, table) * 2

    def alterations(self, before: TableSchema, after: TableSchema, defaults: Mapping[int, Any]) -> list[str]:
        """Return one statement that does everything at once."""
        quoted = self.dialect.identifier
        old, handles = {c.id: c for c in row_columns(before)}, (before.handle_columns, after.handle_columns)
        new = {c.id: c for c in row_columns(after)}
        rekeyed = [(c.id, c.name) for c in handles[0]] != [(c.id, c.name) for c in handles[1]]
        parts = ["DROP PRIMARY KEY"] if rekeyed and handles[0] else []
        parts += [f"DROP COLUMN {quoted(c.name)}" for c in old.values() if c.id not in new]
        for column in new.values():
            kind = f"{self.column_type(column, after)}{' NOT NULL' if column in handles[1] else self.dialect.null}"
            known = old.get(column.id)
            if known is None:
                value = defaults.get(column.id)
                initial = "" if value is None else f" DEFAULT ({_value(column, value)})"
                parts.append(f"ADD COLUMN {quoted(column.name)} {kind}{initial}")
            elif (known.name, known.type) != (column.name, column.type) or (known in handles[0]) != (column in handles[1]):
                parts.append(f"CHANGE COLUMN {quoted(known.name)} {quoted(column.name)} {kind}")
        if rekeyed and handles[1]:
            parts.append(f"ADD PRIMARY KEY ({', '.join(quoted(c.name) for c in handles[1])})")
        return [f"ALTER TABLE {self.dialect.table(after.schema, after.table)} {', '.join(parts)}"] if parts else []

    def renaming(self, pairs: Sequence[tuple[TableSchema, TableSchema]]) -> list[str]:
        """Return one statement that renames all of them at once."""
        if not pairs:
            return []
        away = [self.dialect.table(new.schema, f"{_SWAP}{at}") for at, (_, new) in enumerate(pairs)]
        names = [(self.dialect.table(o.schema, o.table), self.dialect.table(n.schema, n.table)) for o, n in pairs]
        if not {old for old, _ in names} & {new for _, new in names}:
            return ["RENAME TABLE " + ", ".join(f"{old} TO {new}" for old, new in names)]
        steps = [f"{old} TO {spare}" for (old, _), spare in zip(names, away, strict=True)]
        steps += [f"{spare} TO {new}" for (_, new), spare in zip(names, away, strict=True)]
        return ["RENAME TABLE " + ", ".join(steps)]

    def unfit(self, column: Column, values: pl.Series) -> pl.Series | None:
        """Return which values no MySQL takes: numbers and elements that are none, years of five digits, times of other databases."""
        kind = column.type.kind
        if kind is TypeKind.ENUM:
            # What a server that is not strict makes of a text that is none of the elements; a strict one takes it from nobody.
            return None if "" in column.type.elems else (values == 0).fill_null(value=False)
        if kind in FLOAT_KINDS:
            return (values.is_nan() | values.is_infinite()).fill_null(value=False)
        if kind is TypeKind.DECIMAL and values.dtype == pl.String:
            return values.str.contains("[NI]").fill_null(value=False)
        if kind in _DATED and values.dtype == pl.String:
            return (~(values.str.contains(_DATE) & ~values.str.ends_with("BC"))).fill_null(value=False)
        if kind is TypeKind.TIME and values.dtype == pl.String:
            return (~values.str.contains(_TIME)).fill_null(value=False)
        return None


def _value(column: Column, value: Any) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'" if value else "''"
    if column.type.kind is TypeKind.ENUM:
        return literal(["", *column.type.elems][value])
    if column.type.kind is TypeKind.SET:
        return literal(",".join(e for at, e in enumerate(column.type.elems) if value >> at & 1))
    return literal(value) if isinstance(value, str) else str(value)
