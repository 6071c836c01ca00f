"""Which steps bring a meta database to this version, shown before they are done. Runs where commands are given."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from penstock.meta.engine import MetaEngine, MetaSettings
from penstock.meta.tables import META_VERSION, meta_version
from penstock.meta.transactions import upgrades
from penstock.model.errors import PenstockError


class Step(msgspec.Struct, frozen=True):
    """One step: the version that it leads to, and what it does to this database."""

    version: int
    what: str
    statements: list[str]


class Migration(msgspec.Struct, frozen=True):
    """What is to be done; nothing where both versions are the same and no table is missing."""

    version: int
    to_version: int
    new_tables: list[str]
    steps: list[Step]


def planned(engine: MetaEngine) -> Migration:
    """Return the steps for a database that was opened as it is; raise ``META_INCOMPATIBLE`` where there is no way."""
    with engine.read() as connection:
        if meta_version.name not in sa.inspect(connection).get_table_names():
            raise PenstockError("META_INCOMPATIBLE", f"{engine.shown_url} is no meta database", "A server makes one when it starts.")
        version = connection.execute(sa.select(meta_version.c.version)).scalar_one()
        steps = upgrades.plan(connection, int(version))
        if steps is None:
            raise PenstockError("META_INCOMPATIBLE", f"{engine.shown_url} has version {version}, this Penstock speaks {META_VERSION}")
        return Migration(int(version), META_VERSION, upgrades.missing_tables(connection), [Step(*step) for step in steps])


def upgraded(url: str) -> None:
    """Bring a database to this version, as opening it does."""
    MetaEngine(url, MetaSettings()).close()
