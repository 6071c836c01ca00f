"""Which feeds are tried again: since when, when next, how often.

Invariants: a feed has a row here exactly while its reached state is RETRYING; ``since_ms`` is the first failure since the feed ran well,
and stays while it fails on. Every function runs inside the caller's transaction. Runs in the server.
"""

from __future__ import annotations

import sqlalchemy as sa

from penstock.meta.records import RetryRecord
from penstock.meta.tables import feed_retry


def record(connection: sa.Connection, name: str, retry: RetryRecord) -> None:
    """Write when a feed is tried next; where it is being tried again already, the time since when stays."""
    moved = {"next_attempt_ms": retry.next_attempt_ms, "failures": retry.failures}
    if not connection.execute(feed_retry.update().where(feed_retry.c.feed == name).values(**moved)).rowcount:
        connection.execute(feed_retry.insert().values(feed=name, since_ms=retry.since_ms, **moved))


def clear(connection: sa.Connection, name: str) -> None:
    """Forget that a feed was tried again."""
    connection.execute(feed_retry.delete().where(feed_retry.c.feed == name))


def read_all(connection: sa.Connection) -> dict[str, RetryRecord]:
    """Return every feed that is tried again."""
    rows = connection.execute(sa.select(feed_retry))
    return {row.feed: RetryRecord(row.since_ms, row.next_attempt_ms, row.failures) for row in rows}
