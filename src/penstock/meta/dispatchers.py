"""The dispatchers of a feed as of a ts: which there are, since when, and until when.

A DDL that a feed follows may end dispatchers and begin others. The change is written in the transaction that commits the window which
the DDL ends, so whoever plans the next window, after any crash and on any server, finds the same dispatchers. Invariants: a dispatcher
lives in ``[begin_ts, end_ts)`` of checkpoints (an end of 0: it lives); rows of the past never change but for their end. Every
function runs inside the caller's transaction. Runs where windows are planned and committed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from penstock.meta.records import DispatcherRecord
from penstock.meta.tables import dispatcher, progress, subscribe


def known(connection: sa.Connection, name: str) -> bool:
    """Return whether dispatchers of the feed were ever written down."""
    return connection.execute(sa.select(dispatcher.c.feed).where(dispatcher.c.feed == name).limit(1)).first() is not None


def mark(connection: sa.Connection, name: str) -> tuple[int, ...]:
    """Return numbers that change whenever dispatchers begin or end: ids and ts only grow."""
    of = dispatcher.c
    wanted = (sa.func.count(), sa.func.max(of.table_id), sa.func.max(of.begin_ts), sa.func.max(of.end_ts))
    row = connection.execute(sa.select(*wanted).where(of.feed == name)).one()
    return tuple(int(value or 0) for value in row)


def live_at(connection: sa.Connection, name: str, ts: int) -> list[DispatcherRecord]:
    """Return the dispatchers of a feed whose checkpoint is this ts, by id."""
    query = (
        sa.select(dispatcher)
        .where(dispatcher.c.feed == name, dispatcher.c.begin_ts <= ts, sa.or_(dispatcher.c.end_ts == 0, dispatcher.c.end_ts > ts))
        .order_by(dispatcher.c.table_id, dispatcher.c.range_id)
    )
    return [_record(row._mapping) for row in connection.execute(query)]


def add(connection: sa.Connection, name: str, records: Sequence[DispatcherRecord]) -> None:
    """Write dispatchers down."""
    if records:
        connection.execute(dispatcher.insert(), [{"feed": name, **msgspec.structs.asdict(r)} for r in records])


def replace_first(connection: sa.Connection, name: str, records: Sequence[DispatcherRecord]) -> None:
    """Make these the dispatchers that a feed begins with."""
    if records:
        connection.execute(dispatcher.delete().where(dispatcher.c.feed == name))
    else:
        # A feed may begin without any table. That it is so must stay known, so the former ones stay with a life that is empty.
        connection.execute(dispatcher.update().where(dispatcher.c.feed == name).values(begin_ts=1, end_ts=1))
    add(connection, name, records)
    _follow_tables(connection, name, records)


def follow(connection: sa.Connection, name: str, ts: int, wanted: Sequence[DispatcherRecord]) -> None:
    """Make exactly these the dispatchers from a ts on: end those that are not among them, begin those that are new."""
    before = {(r.range_id, r.begin_ts): r for r in live_at(connection, name, ts)}
    kept = {(r.range_id, r.begin_ts): r for r in wanted}
    ended = [key for key in before if key not in kept or kept[key].end_ts]
    for range_id, begin_ts in ended:
        its_row = sa.and_(dispatcher.c.feed == name, dispatcher.c.range_id == range_id, dispatcher.c.begin_ts == begin_ts)
        connection.execute(dispatcher.update().where(its_row).values(end_ts=ts))
        # Where it stood is of no use any more: under the same id a new one would begin from nothing.
        connection.execute(progress.delete().where(progress.c.subscribe_name == name, progress.c.range_id == range_id))
    for key in kept.keys() & before.keys():
        if kept[key] != before[key]:
            its_row = sa.and_(dispatcher.c.feed == name, dispatcher.c.range_id == key[0], dispatcher.c.begin_ts == key[1])
            connection.execute(dispatcher.update().where(its_row).values(**msgspec.structs.asdict(kept[key])))
    add(connection, name, [kept[key] for key in kept if key not in before])
    _follow_tables(connection, name, [r for r in wanted if r.end_ts == 0])


def _follow_tables(connection: sa.Connection, name: str, wanted: Sequence[DispatcherRecord]) -> None:
    """Let the subscribed tables be those of the dispatchers."""
    mine = subscribe.c.subscribe_name == name
    rows = list(connection.execute(sa.select(subscribe).where(mine)))
    names = {(r.db_name, r.table_name): r.table_id for r in wanted}
    if not rows or names == {(r.db_name, r.table_name): r.table_id for r in rows}:
        return
    model = dict(rows[0]._mapping)
    connection.execute(subscribe.delete().where(mine))
    fresh = [model | {"db_name": db, "table_name": table, "table_id": table_id} for (db, table), table_id in sorted(names.items())]
    # A feed without tables is still a feed: its next table may come.
    connection.execute(subscribe.insert(), fresh or [model])


def _record(row: sa.RowMapping) -> DispatcherRecord:
    return DispatcherRecord(**{name: value for name, value in row.items() if name != "feed"})
