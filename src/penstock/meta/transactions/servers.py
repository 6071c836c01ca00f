"""Which servers share the meta database: each says again and again that it lives, and whether it takes feeds.

Invariants: a row is written by its own server alone; one that was not seen for longer than a lease counts as gone, whatever it says.
Nothing about ownership hangs on these rows: they decide who *should* take a feed, the lease decides who may. Every function runs inside
the caller's transaction. Runs in the server.
"""

from __future__ import annotations

import sqlalchemy as sa

from penstock.meta.records import ServerRecord, ServerState
from penstock.meta.tables import server

PROCESS_SIGN = "~"
"""Stands between the name of a data directory and that of the process that works in it."""


def home_of(owner: str) -> str:
    """Return the data directory of an owner: its processes, one after the other, share it. Copies of a directory have the same name."""
    return owner.rpartition(PROCESS_SIGN)[0] or owner


def announce(connection: sa.Connection, record: ServerRecord, now_ms: int) -> None:
    """Say that a server lives."""
    values = {"url": record.url, "state": record.state.value, "seen_ms": now_ms}
    # A server writes its own row alone, so this needs no dialect's own upsert.
    if not connection.execute(server.update().where(server.c.owner == record.owner).values(**values)).rowcount:
        connection.execute(server.insert().values(owner=record.owner, **values))


def withdraw(connection: sa.Connection, owner: str) -> None:
    """Take a server out that ends."""
    connection.execute(server.delete().where(server.c.owner == owner))


def withdraw_home(connection: sa.Connection, home: str) -> None:
    """Take out whoever worked in a data directory before."""
    for owner in [row.owner for row in connection.execute(sa.select(server.c.owner)) if home_of(row.owner) == home]:
        withdraw(connection, owner)


def live(connection: sa.Connection, lease_ms: int, now_ms: int) -> list[ServerRecord]:
    """Return the servers that were seen within a lease, by name."""
    rows = connection.execute(sa.select(server).where(server.c.seen_ms > now_ms - lease_ms).order_by(server.c.owner))
    return [ServerRecord(row.owner, row.url, ServerState(row.state), row.seen_ms) for row in rows]
