"""Brings a meta database of an earlier version to the present one, step by step.

A table that a step adds is made before, with all others that are missing; a step adds columns, each with a default for rows that are there.
Invariants: a step that was cut off is done again and finds what it did (MySQL and MariaDB commit each statement by itself); the version is
written last. An older Penstock refuses what a newer one wrote. Every function runs inside the caller's transaction, under its lock. Runs
wherever a meta database is opened.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

from penstock.meta.tables import META_VERSION, feed, meta_version, progress

_COLUMNS: dict[int, tuple[sa.Column[object], ...]] = {
    1: (feed.c.config_version, feed.c.wanted_owner, progress.c.rows_total, progress.c.nbytes_total, progress.c.files_total),
}
"""The columns that came with the version after this one."""


def upgrade(connection: sa.Connection, version: int) -> bool:
    """Bring the database from a version to the present one; return False where there is no way, and change nothing."""
    if version == META_VERSION:
        return True
    if any(step not in _COLUMNS for step in range(version, META_VERSION)) or version > META_VERSION:
        return False
    for step in range(version, META_VERSION):
        for column in _COLUMNS[step]:
            _add(connection, column)
    connection.execute(meta_version.update().values(version=META_VERSION))
    return True


def _add(connection: sa.Connection, column: sa.Column[object]) -> None:
    table = column.table.description
    if column.name not in {known["name"] for known in sa.inspect(connection).get_columns(table)}:
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {CreateColumn(column).compile(dialect=connection.dialect)}")
