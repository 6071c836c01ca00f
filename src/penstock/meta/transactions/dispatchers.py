"""The dispatchers of a feed as of a ts: which there are, since when, and until when.

A DDL that a feed follows may end dispatchers and begin others. The change is written in the transaction that commits the window which
the DDL ends, so whoever plans the next window, after any crash and on any server, finds the same dispatchers. Invariants: a dispatcher
lives in ``[begin_ts, end_ts)`` of checkpoints (an end of 0: it lives); rows of the past never change but for their end. Every
function runs inside the caller's transaction. Runs where windows are planned and committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import sqlalchemy as sa

from penstock.meta.records import DispatcherRecord
from penstock.meta.tables import dispatcher, progress, subscribe

NAMES_AT_ONCE = 500
"""How many rows one statement names: a feed may have ten thousand tables, and a statement for each would be as many ways to the server."""


def batched(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield names in parts that fit one statement."""
    return (names[start : start + NAMES_AT_ONCE] for start in range(0, len(names), NAMES_AT_ONCE))


def known(connection: sa.Connection, name: str) -> bool:
    """Return whether dispatchers of the feed were ever written down."""
    return connection.execute(sa.select(dispatcher.c.feed).where(dispatcher.c.feed == name).limit(1)).first() is not None


def marks(connection: sa.Connection, name: str | None = None) -> dict[str, tuple[int, ...]]:
    """Return numbers that change whenever dispatchers begin or end: ids and ts only grow. Of all feeds, or of one."""
    of = dispatcher.c
    wanted = (of.feed, sa.func.count(), sa.func.max(of.table_id), sa.func.max(of.begin_ts), sa.func.max(of.end_ts))
    query = sa.select(*wanted).group_by(of.feed)
    rows = connection.execute(query if name is None else query.where(of.feed == name))
    return {feed: tuple(int(value or 0) for value in numbers) for feed, *numbers in rows}


def live_at(connection: sa.Connection, name: str, ts: int) -> list[DispatcherRecord]:
    """Return the dispatchers of a feed whose checkpoint is this ts, by id."""
    query = (
        sa.select(*(dispatcher.c[name] for name in DispatcherRecord.__struct_fields__))
        .where(dispatcher.c.feed == name, dispatcher.c.begin_ts <= ts, sa.or_(dispatcher.c.end_ts == 0, dispatcher.c.end_ts > ts))
        .order_by(dispatcher.c.table_id, dispatcher.c.range_id)
    )
    return [DispatcherRecord(*row) for row in connection.execute(query)]


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
    _end(connection, name, ts, [key for key in before if key not in kept or kept[key].end_ts])
    for key in kept.keys() & before.keys():
        if kept[key] != before[key] and not kept[key].end_ts:
            its_row = sa.and_(dispatcher.c.feed == name, dispatcher.c.range_id == key[0], dispatcher.c.begin_ts == key[1])
            connection.execute(dispatcher.update().where(its_row).values(**msgspec.structs.asdict(kept[key])))
    add(connection, name, [kept[key] for key in kept if key not in before])
    _follow_tables(connection, name, [r for r in wanted if r.end_ts == 0])


def _end(connection: sa.Connection, name: str, ts: int, ended: Sequence[tuple[str, int]]) -> None:
    """End dispatchers at a ts. Rows are named by their whole keys, so that no gap between them is locked."""
    begun: dict[int, list[str]] = defaultdict(list)
    for range_id, begin_ts in ended:
        begun[begin_ts].append(range_id)
    for begin_ts, range_ids in begun.items():
        for part in batched(range_ids):
            its_rows = (dispatcher.c.feed == name, dispatcher.c.begin_ts == begin_ts, dispatcher.c.range_id.in_(part))
            connection.execute(dispatcher.update().where(*its_rows).values(end_ts=ts))
    for part in batched([range_id for range_id, _ in ended]):
        # Where they stood is of no use any more: under the same id a new one would begin from nothing.
        connection.execute(progress.delete().where(progress.c.subscribe_name == name, progress.c.range_id.in_(part)))


def _follow_tables(connection: sa.Connection, name: str, wanted: Sequence[DispatcherRecord]) -> None:
    """Let the subscribed tables be those of the dispatchers."""
    mine = subscribe.c.subscribe_name == name
    rows = list(connection.execute(sa.select(subscribe).where(mine)))
    names = {(r.db_name, r.table_name): r.table_id for r in wanted}
    known = {(r.db_name, r.table_name): r.table_id for r in rows}
    if not rows or names == known:
        return
    model = dict(rows[0]._mapping)
    gone = defaultdict(list)
    # A feed without tables is still a feed: its next table may come.
    for db, table in [key for key in known if names.get(key) != known[key]][0 if names else 1 :]:
        gone[db].append(table)
    for db, tables in gone.items():
        for part in batched(tables):
            connection.execute(subscribe.delete().where(mine, subscribe.c.db_name == db, subscribe.c.table_name.in_(part)))
    fresh = [model | {"db_name": db, "table_name": table, "table_id": names[db, table]} for db, table in sorted(names)]
    fresh = [row for row in fresh if known.get((row["db_name"], row["table_name"])) != row["table_id"]]
    if fresh:
        connection.execute(subscribe.insert(), fresh)
