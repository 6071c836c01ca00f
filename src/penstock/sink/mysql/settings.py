"""The settings of a MySQL or MariaDB target. Runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sink.tables.settings import TableSinkSettings


@dataclass(frozen=True, slots=True)
class MySqlSettings(TableSinkSettings):
    """What tunes it beside the settings of every target of tables.

    Attributes:
        check_foreign_keys: whether the server checks foreign keys of the target's tables; rows of tables come in no order among each other.
    """

    check_foreign_keys: bool = False
