"""What the tasks of a feed counted, added up: for metrics, never for decisions.

The text is the sink's own; this package only keeps it. It moves after progress does, in a transaction of its own, so a crash between the
two loses the counts of one window and nothing else. Every function runs inside the caller's transaction. Runs where windows are committed
and in the server.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from penstock.meta.tables import sink_report
from penstock.meta.transactions.ownership import fenced_feed


def update(connection: sa.Connection, name: str, epoch: int, add: Callable[[str], str]) -> None:
    """Replace a feed's report by what ``add`` makes of it; of an empty text where there is none."""
    # The feed's row is locked, so nobody else inserts meanwhile.
    fenced_feed(connection, name, epoch)
    known = connection.execute(sa.select(sink_report.c.report).where(sink_report.c.feed == name)).scalar()
    text = add(known or "")
    if known is None:
        connection.execute(sink_report.insert().values(feed=name, report=text))
    else:
        connection.execute(sink_report.update().where(sink_report.c.feed == name).values(report=text))


def read_all(connection: sa.Connection) -> dict[str, str]:
    """Return every feed's report."""
    return {row.feed: row.report for row in connection.execute(sa.select(sink_report))}


def remove(connection: sa.Connection, name: str) -> None:
    """Forget a feed's report."""
    connection.execute(sink_report.delete().where(sink_report.c.feed == name))
