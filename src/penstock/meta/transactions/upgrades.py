"""Brings a meta database of an earlier version to the present one, by numbered steps.

A step says which statements are still to be done, by looking at the database; so what it says can be shown before it is done. A table that
a step adds is made before, with all others that are missing. Invariants: a step that was cut off is done again and finds what it did (MySQL
and MariaDB commit each statement by itself); the version is written last. An older Penstock refuses what a newer one wrote. Every
function runs inside the caller's transaction, under its lock. Runs wherever a meta database is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from penstock.meta.tables import META_VERSION, feed, meta_version, metadata, progress, subscribe


class UpgradeStep(NamedTuple):
    """One step, by the version that it leads to."""

    version: int
    what: str
    statements: Callable[[sa.Connection], list[str]]
    """Returns what is still to be done."""


class PlannedStep(NamedTuple):
    """A step with its statements for one database."""

    version: int
    what: str
    statements: list[str]


def plan(connection: sa.Connection, version: int) -> list[PlannedStep] | None:
    """Return the steps from a version to the present one, with what each would do now; None where there is no way."""
    if not _FIRST <= version <= META_VERSION:
        return None
    return [PlannedStep(step.version, step.what, step.statements(connection)) for step in _STEPS if step.version > version]


def missing_tables(connection: sa.Connection) -> list[str]:
    """Return the tables that are made before any step."""
    return sorted(set(metadata.tables) - set(sa.inspect(connection).get_table_names()))


def upgrade(connection: sa.Connection, version: int) -> bool:
    """Bring the database from a version to the present one; return False where there is no way, and change nothing."""
    if version == META_VERSION:
        return True
    steps = [step for step in _STEPS if step.version > version]
    if not _FIRST <= version < META_VERSION:
        return False
    for step in steps:
        for statement in step.statements(connection):
            connection.exec_driver_sql(statement)
    connection.execute(meta_version.update().values(version=META_VERSION))
    return True


def _add_columns(*columns: sa.Column[object]) -> Callable[[sa.Connection], list[str]]:
    def statements(connection: sa.Connection) -> list[str]:
        return [
            f"ALTER TABLE {column.table.description} ADD COLUMN {CreateColumn(column).compile(dialect=connection.dialect)}"
            for column in columns
            if column.name not in _columns(connection, column.table.description)
        ]

    return statements


def _drop_columns(table: sa.Table, names: Sequence[str]) -> Callable[[sa.Connection], list[str]]:
    """Return what takes columns away, of which some may have been part of the primary key."""

    def statements(connection: sa.Connection) -> list[str]:
        there = [name for name in names if name in _columns(connection, table.name)]
        if not there:
            return []
        key = [column.name for column in table.primary_key]
        before = sa.inspect(connection).get_pk_constraint(table.name)
        same_key = set(before["constrained_columns"]) == set(key)
        if connection.dialect.name == "sqlite":
            return _rebuilt(connection, table)
        changes = [f"DROP COLUMN {name}" for name in there]
        if not same_key:
            drop = f"DROP CONSTRAINT {before['name']}" if connection.dialect.name == "postgresql" else "DROP PRIMARY KEY"
            changes = [drop, *changes, f"ADD PRIMARY KEY ({', '.join(key)})"]
        # One statement, so that no database stands between two keys.
        return [f"ALTER TABLE {table.name} {', '.join(changes)}"]

    return statements


def _rebuilt(connection: sa.Connection, table: sa.Table) -> list[str]:
    """Return what makes a table anew without some columns: SQLite keeps the columns of a key."""
    columns = ", ".join(column.name for column in table.columns)
    dialect = connection.dialect
    return [
        *(f"DROP INDEX IF EXISTS {index.name}" for index in table.indexes),
        f"ALTER TABLE {table.name} RENAME TO {table.name}_before",
        str(CreateTable(table).compile(dialect=dialect)).strip(),
        f"INSERT INTO {table.name} ({columns}) SELECT {columns} FROM {table.name}_before",
        f"DROP TABLE {table.name}_before",
        *(str(CreateIndex(index).compile(dialect=dialect)) for index in sorted(table.indexes, key=lambda index: str(index.name))),
    ]


def _columns(connection: sa.Connection, table: str) -> set[str]:
    return {known["name"] for known in sa.inspect(connection).get_columns(table)}


def _both(*parts: Callable[[sa.Connection], list[str]]) -> Callable[[sa.Connection], list[str]]:
    return lambda connection: [statement for part in parts for statement in part(connection)]


_FIRST = 1
_STEPS = (
    UpgradeStep(
        2,
        "what feeds were altered to, where they shall run, and what each dispatcher delivered",
        _add_columns(feed.c.config_version, feed.c.wanted_owner, progress.c.rows_total, progress.c.nbytes_total, progress.c.files_total),
    ),
    UpgradeStep(
        3,
        "columns of subscribe and progress that nothing read go",
        _both(
            _drop_columns(subscribe, ("cluster_id", "db_id")),
            _drop_columns(
                progress,
                ("progress_stage", "progress_current_snapshot_version", "progress_last_snapshot_key", "progress_last_log_index"),
            ),
        ),
    ),
)
