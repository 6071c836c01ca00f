"""The contract of upgrades: a meta database of an earlier version becomes one of this version, in every database."""

from __future__ import annotations

from penstock.meta.database import MetaDatabase
from penstock.meta.records import (
    Actor,
    RequestedState,
)
from testing.checks.meta_feeds import make


def test_a_database_of_the_first_version_is_brought_up(url: str) -> None:
    with MetaDatabase(url) as meta:
        made = make(meta)
        with meta._engine.write() as connection:
            added = {"feed": ("config_version", "wanted_owner"), "progress": ("rows_total", "nbytes_total", "files_total")}
            for table, column in ((table, column) for table, columns in added.items() for column in columns):
                connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
            connection.exec_driver_sql("DROP TABLE feed_audit")
            connection.exec_driver_sql("UPDATE meta_version SET version = 1")
    for _ in range(2):
        with MetaDatabase(url) as meta:
            assert meta.get_feed("orders") == made
    with MetaDatabase(url) as meta:
        assert meta.lives.request("orders", RequestedState.PAUSED, Actor("ada"))
        assert [e.what for e in meta.lives.history("orders")] == ["pause"]
        make(meta, "new")
