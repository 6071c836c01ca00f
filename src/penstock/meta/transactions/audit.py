"""What was asked of feeds and what they reached: who, when, what, why, the old and the new.

Invariants: an entry is written in the transaction that makes the change, and never changed; numbers of a feed's entries only grow, also
where a feed of the same name comes again. So many of the newest are kept for each feed, and those of a feed that is gone for so long.
Every function runs inside the caller's transaction, which has the feed's row locked. Runs wherever the meta database is written.
"""

from __future__ import annotations

import sqlalchemy as sa

from penstock.meta.records import Actor, AuditRecord
from penstock.meta.tables import feed, feed_audit

ENTRIES_MAX = 1_000
GONE_MS_MAX = 90 * 86_400_000
_WHY_CHARS_MAX = 2_000
_VALUE_CHARS_MAX = 8_192
_NAME_CHARS_MAX = 190


def write(connection: sa.Connection, name: str, now_ms: int, what: str, actor: Actor, old: str = "", new: str = "") -> None:
    """Add an entry. The caller has masked what it says."""
    mine = feed_audit.c.feed == name
    last = connection.execute(sa.select(sa.func.max(feed_audit.c.seq)).where(mine)).scalar() or 0
    values = {"feed": name, "seq": last + 1, "at_ms": now_ms, "changed_by": actor.by[:_NAME_CHARS_MAX], "what": what}
    values |= {"why": actor.why[:_WHY_CHARS_MAX], "old": old[:_VALUE_CHARS_MAX], "new": new[:_VALUE_CHARS_MAX]}
    connection.execute(feed_audit.insert().values(**values))
    if last >= ENTRIES_MAX:
        connection.execute(feed_audit.delete().where(mine, feed_audit.c.seq <= last + 1 - ENTRIES_MAX))


def read(connection: sa.Connection, name: str) -> list[AuditRecord]:
    """Return the entries of a feed, oldest first."""
    rows = connection.execute(sa.select(feed_audit).where(feed_audit.c.feed == name).order_by(feed_audit.c.seq))
    return [AuditRecord(row.seq, row.at_ms, row.changed_by, row.what, row.why, row.old, row.new) for row in rows]


def forget_gone(connection: sa.Connection, now_ms: int) -> None:
    """Let old entries of feeds go that are not there any more."""
    there = sa.select(feed.c.name)
    connection.execute(feed_audit.delete().where(feed_audit.c.at_ms < now_ms - GONE_MS_MAX, feed_audit.c.feed.not_in(there)))
