"""The settings of a PostgreSQL target. Runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sink.tables.settings import TableSinkSettings


@dataclass(frozen=True, slots=True)
class PostgresSettings(TableSinkSettings):
    """What tunes it beside the settings of every target of tables.

    Attributes:
        replication_role: whether sessions are those of a replica, in which neither triggers nor foreign keys act; it needs the right to.
    """

    replication_role: bool = False
