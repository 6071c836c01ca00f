"""The links by which a meta database knows the objects of its event stores again: see ``store/objects/owner_chain.py``.

Invariant: the newest links of a source stay, in the order in which they were noted. Every function runs inside the caller's transaction.
Runs in the server.
"""

from __future__ import annotations

import contextlib

import sqlalchemy as sa

from penstock.meta.tables import object_link

_KEPT = 8
"""Several, because a server that is about to learn that it lost the objects may note some too."""


def links_of(connection: sa.Connection, source: str, locked: bool = False) -> list[str] | None:
    """Return the links of a source's objects, the newest last; None where there is no row for them."""
    query = sa.select(object_link.c.links).where(object_link.c.source == source)
    row = connection.execute(query.with_for_update() if locked else query).first()
    return row.links.split() if row is not None else None


def note_link(connection: sa.Connection, source: str, link: str) -> None:
    """Add a link."""
    known = links_of(connection, source, locked=True)
    if known is None:
        with contextlib.suppress(sa.exc.IntegrityError), connection.begin_nested():
            connection.execute(object_link.insert().values(source=source, links=""))
        known = links_of(connection, source, locked=True) or []
    kept = " ".join([*known, link][-_KEPT:])
    connection.execute(object_link.update().where(object_link.c.source == source).values(links=kept))
