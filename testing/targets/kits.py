"""Every kit, by name: a new target adds a line here, and the contract suite runs on it."""

from __future__ import annotations

from testing.targets.callback_kit import callback_kit
from testing.targets.database_kit import mariadb_kit, mysql_kit, postgres_kit
from testing.targets.http_kit import http_kit
from testing.targets.kafka_kit import kafka_at_least_once_kit, kafka_kit
from testing.targets.kit import MakeKit
from testing.targets.lake_kit import delta_kit, iceberg_kit
from testing.targets.storage_kit import folder_kit, memory_kit
from testing.targets.written_kit import written_kit

FILE_KITS: dict[str, MakeKit] = {"file": folder_kit, "memory": memory_kit}
"""Targets that are files: what is said of names, bytes and numbers holds for these."""
KITS: dict[str, MakeKit] = {
    **FILE_KITS,
    "mariadb": mariadb_kit,
    "mysql": mysql_kit,
    "postgres": postgres_kit,
    "http": http_kit,
    "callback": callback_kit,
    "delta": delta_kit,
    "iceberg": iceberg_kit,
    "kafka": kafka_kit,
    "kafka-at-least-once": kafka_at_least_once_kit,
    "written": written_kit,
}
