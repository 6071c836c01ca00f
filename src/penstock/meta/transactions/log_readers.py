"""Which server reads the log of a source: one at a time, because each counts commit ts on from the marks that it knows.

Invariants: an epoch is never given twice; nobody is given a log whose reader has a lease that lasts, but for the successor of a process in
the same data directory, which is known by its predecessor's row among the servers being gone. Every function runs inside the caller's
transaction. Runs in the server.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from penstock.meta.tables import log_reader, server
from penstock.meta.transactions.servers import home_of


class LogReader(msgspec.Struct, frozen=True):
    """Who reads a log, under which epoch, and until when without renewing."""

    owner: str
    epoch: int
    lease_until_ms: int


def reader_of(connection: sa.Connection, source: str, locked: bool = False) -> LogReader | None:
    """Return who reads a log, or read it last."""
    query = sa.select(log_reader).where(log_reader.c.source == source)
    row = connection.execute(query.with_for_update() if locked else query).first()
    return LogReader(row.owner, row.epoch, row.lease_until_ms) if row is not None else None


def take(connection: sa.Connection, source: str, owner: str, lease_ms: int, now_ms: int) -> tuple[int, str] | None:
    """Make a server the reader of a log; return its epoch and who had it before without letting go, None where another one has it."""
    _ensure(connection, source)
    before = reader_of(connection, source, locked=True)
    assert before is not None
    if before.lease_until_ms > now_ms and before.owner not in ("", owner) and not _is_predecessor(connection, before.owner, owner):
        return None
    values = {"owner": owner, "epoch": before.epoch + 1, "lease_until_ms": now_ms + lease_ms}
    connection.execute(log_reader.update().where(log_reader.c.source == source).values(**values))
    return before.epoch + 1, before.owner


def renew(connection: sa.Connection, source: str, epoch: int, lease_ms: int, now_ms: int) -> bool:
    """Prolong the lease of an epoch; return False where another one began."""
    mine = (log_reader.c.source == source) & (log_reader.c.epoch == epoch)
    return bool(connection.execute(log_reader.update().where(mine).values(lease_until_ms=now_ms + lease_ms)).rowcount)


def release(connection: sa.Connection, source: str, epoch: int) -> None:
    """End the lease of an epoch, if it is still the newest."""
    mine = (log_reader.c.source == source) & (log_reader.c.epoch == epoch)
    connection.execute(log_reader.update().where(mine).values(owner="", lease_until_ms=0))


def _ensure(connection: sa.Connection, source: str) -> None:
    """Make the row of a log that nobody read before.

    A look for it first, or an insert that fails, would leave MariaDB with locks that two of those who come at once cannot both raise.
    """
    row = {"source": source, "owner": "", "epoch": 0, "lease_until_ms": 0}
    if connection.dialect.name == "sqlite":
        connection.execute(sqlite.insert(log_reader).values(row).on_conflict_do_nothing())
    elif connection.dialect.name == "postgresql":
        connection.execute(postgresql.insert(log_reader).values(row).on_conflict_do_nothing())
    else:
        connection.execute(mysql.insert(log_reader).values(row).on_duplicate_key_update(source=source))


def _is_predecessor(connection: sa.Connection, other: str, owner: str) -> bool:
    """Return whether another owner worked in this one's data directory before: it is told of no more, as one in a copy of it would be."""
    alive = connection.execute(sa.select(server.c.owner).where(server.c.owner == other)).first() is not None
    return home_of(other) == home_of(owner) and not alive
