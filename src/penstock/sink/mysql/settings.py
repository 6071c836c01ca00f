"""The settings of a MySQL or MariaDB target. Runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.sink.tables.settings import TableSinkSettings


class TimestampType(StrEnum):
    """What a point in time becomes."""

    TIMESTAMP = "timestamp"
    DATETIME = "datetime"


@dataclass(frozen=True, slots=True)
class MySqlSettings(TableSinkSettings):
    """What tunes it beside the settings of every target of tables.

    Attributes:
        timestamp_type: what a point in time becomes in tables that are made; a TIMESTAMP ends in 2038, a DATETIME is in UTC.
        check_foreign_keys: whether the server checks foreign keys of the target's tables; rows of tables come in no order among each other.
    """

    timestamp_type: TimestampType = TimestampType.TIMESTAMP
    check_foreign_keys: bool = False
