"""Who owns a feed: leases with a growing epoch.

Invariants: at most one owner at a time; the epoch grows by one whenever the lease goes to a new holder, and a released or removed feed
fences its last holder as well. A lease that ran out but was not taken still counts: time alone takes nothing away from an owner,
another owner does.
Every function runs inside the caller's write transaction. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from penstock.meta.tables import feed, subscribe
from penstock.meta.transactions.servers import home_of
from penstock.model.errors import PenstockError


def locked_feed(connection: sa.Connection, name: str) -> sa.Row[Any] | None:
    """Return the feed's row, locked against other writers until the transaction ends."""
    return connection.execute(sa.select(feed).where(feed.c.name == name).with_for_update()).first()


def fenced_feed(connection: sa.Connection, name: str, epoch: int) -> sa.Row[Any]:
    """Return the feed's row if this epoch is its current one; otherwise raise ``FENCED``."""
    return _current(locked_feed(connection, name), name, epoch)


def check(connection: sa.Connection, name: str, epoch: int) -> None:
    """Raise ``FENCED`` unless this epoch is the feed's current one; takes no lock."""
    _current(connection.execute(sa.select(feed).where(feed.c.name == name)).first(), name, epoch)


def _current(row: sa.Row[Any] | None, name: str, epoch: int) -> sa.Row[Any]:
    if row is None:
        raise PenstockError("FENCED", f"feed {name} was removed")
    if row.epoch != epoch or not row.owner:
        holder = f"owner {row.owner} holds epoch {row.epoch}" if row.owner else f"epoch {row.epoch} was released"
        raise PenstockError("FENCED", f"feed {name}: epoch {epoch} has ended, {holder}")
    return row


def claim(connection: sa.Connection, name: str, owner: str, lease_ms: int, now_ms: int) -> int | None:
    """Take a free or expired lease and return its epoch; return None where another owner's lease is alive or the feed is gone."""
    if not owner:
        raise ValueError("an owner needs a name")
    row = locked_feed(connection, name)
    if row is None:
        return None
    alive = bool(row.owner) and row.lease_until_ms > now_ms
    if alive and row.owner != owner:
        return None
    epoch = int(row.epoch) if alive else int(row.epoch) + 1
    connection.execute(
        feed.update().where(feed.c.name == name).values(owner=owner, epoch=epoch, lease_until_ms=now_ms + lease_ms, updated_ms=now_ms)
    )
    connection.execute(subscribe.update().where(subscribe.c.subscribe_name == name).values(owner=owner))
    return epoch


def renew(connection: sa.Connection, owner: str, epochs: Mapping[str, int], lease_ms: int, now_ms: int) -> set[str]:
    """Extend leases by the names of their feeds; return which of them are lost. Two statements, however many there are."""
    wanted = sa.select(feed.c.name, feed.c.owner, feed.c.epoch).where(feed.c.name.in_(sorted(epochs)))
    # In one order, so that two servers that believe in the same leases do not wait for each other.
    rows = connection.execute(wanted.order_by(feed.c.name).with_for_update())
    held = {row.name for row in rows if (row.owner, row.epoch) == (owner, epochs[row.name])}
    if held:
        connection.execute(feed.update().where(feed.c.name.in_(sorted(held))).values(lease_until_ms=now_ms + lease_ms))
    return set(epochs) - held


def release(connection: sa.Connection, name: str, owner: str, epoch: int, now_ms: int) -> bool:
    """Give the lease back; return False where it was lost before."""
    result = connection.execute(
        feed.update()
        .where(feed.c.name == name, feed.c.owner == owner, feed.c.epoch == epoch)
        .values(owner="", lease_until_ms=0, updated_ms=now_ms)
    )
    if result.rowcount == 0:
        return False
    connection.execute(subscribe.update().where(subscribe.c.subscribe_name == name).values(owner=""))
    return True


def release_home(connection: sa.Connection, home: str, now_ms: int) -> list[str]:
    """Give back every lease of whoever worked in a data directory before; return the names of the feeds."""
    held = [
        row for row in connection.execute(sa.select(feed.c.name, feed.c.owner, feed.c.epoch)) if row.owner and home_of(row.owner) == home
    ]
    return [row.name for row in held if release(connection, row.name, row.owner, row.epoch, now_ms)]
