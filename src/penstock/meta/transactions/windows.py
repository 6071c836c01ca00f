"""Windows and progress: the transaction that makes delivery exactly-once.

Invariants: a feed has at most one recorded window, it starts at the feed's checkpoint, and once recorded its end never changes until it
is committed; neither happens while the feed shall not run. The checkpoint, the positions of the dispatchers and the removal of the window
move in one transaction, and only for the epoch that holds the lease. Every function runs inside the caller's transaction. Runs where
windows are planned and committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from penstock.meta.records import Counted, DispatcherRecord, FeedProgress, PendingWindow, RangeProgress, RequestedState, TableProgress
from penstock.meta.tables import dispatcher, feed, pending_window, progress, resnapshot, subscribe
from penstock.meta.transactions import dispatchers
from penstock.meta.transactions.ownership import fenced_feed
from penstock.model.decoding import decoded
from penstock.model.errors import InvariantError, PenstockError

Positions = Mapping[str, Mapping[str, int]]
_COUNTED = {"rows_total": "rows", "nbytes_total": "nbytes", "files_total": "files"}
_HALTED = frozenset({RequestedState.PAUSED.value, RequestedState.CANCELLED.value})


def pending(connection: sa.Connection, name: str) -> PendingWindow | None:
    """Return the recorded window, or None."""
    row = connection.execute(sa.select(pending_window).where(pending_window.c.feed == name)).first()
    return None if row is None else PendingWindow(**row._mapping)


def begin(connection: sa.Connection, wanted: PendingWindow) -> PendingWindow:
    """Record a window before its first file; where one that starts at the same ts is recorded, return that one instead."""
    if wanted.to_ts <= wanted.from_ts:
        raise InvariantError(f"feed {wanted.feed}: window ({wanted.from_ts}, {wanted.to_ts}] is empty")
    row = fenced_feed(connection, wanted.feed, wanted.epoch)
    _check_asked(row)
    if row.checkpoint_ts != wanted.from_ts:
        raise PenstockError(
            "WINDOW_OUT_OF_ORDER",
            f"feed {wanted.feed}: a window from {wanted.from_ts} does not start at the checkpoint {row.checkpoint_ts}",
        )
    recorded = pending(connection, wanted.feed)
    if recorded is None:
        connection.execute(pending_window.insert().values(**msgspec.structs.asdict(wanted)))
        return wanted
    if recorded.from_ts != wanted.from_ts:
        raise InvariantError(f"feed {wanted.feed}: recorded window starts at {recorded.from_ts}, the checkpoint is {row.checkpoint_ts}")
    if recorded.epoch != wanted.epoch:
        connection.execute(pending_window.update().where(pending_window.c.feed == wanted.feed).values(epoch=wanted.epoch))
    return msgspec.structs.replace(recorded, epoch=wanted.epoch)


def amend(connection: sa.Connection, wanted: PendingWindow) -> PendingWindow:
    """Give the recorded window another plan."""
    fenced_feed(connection, wanted.feed, wanted.epoch)
    recorded = _recorded(connection, wanted)
    connection.execute(pending_window.update().where(pending_window.c.feed == wanted.feed).values(plan=wanted.plan, epoch=wanted.epoch))
    return msgspec.structs.replace(recorded, plan=wanted.plan, epoch=wanted.epoch)


def begin_resnapshot(connection: sa.Connection, wanted: PendingWindow) -> PendingWindow:
    """Record a window that takes the place of lost history; one that was recorded before and cannot be delivered any more gives way."""
    fenced_feed(connection, wanted.feed, wanted.epoch)
    connection.execute(pending_window.delete().where(pending_window.c.feed == wanted.feed))
    begun = begin(connection, wanted)
    row = {"feed": wanted.feed, "from_ts": wanted.from_ts, "to_ts": wanted.to_ts}
    # A window that is planned anew to the same end counts once.
    connection.execute(resnapshot.delete().where(*(resnapshot.c[name] == value for name, value in row.items())))
    connection.execute(resnapshot.insert().values(**row, begun_ms=wanted.begun_ms))
    return begun


def commit(
    connection: sa.Connection,
    window: PendingWindow,
    positions: Positions,
    *,
    rows: int,
    nbytes: int,
    files: int,
    now_ms: int,
    followers: Sequence[DispatcherRecord] | None = None,
    counts: Mapping[str, Counted] | None = None,
) -> bool:
    """Move the checkpoint to the window's end; return False where that was done before.

    ``followers`` are the dispatchers from then on, where a DDL at the end changed them; ``counts`` what each of those with a position
    delivered.
    """
    row = fenced_feed(connection, window.feed, window.epoch)
    if row.checkpoint_ts >= window.to_ts:
        return False
    _check_asked(row)
    _recorded(connection, window)
    _write_positions(connection, window, positions, counts or {})
    if followers is not None:
        dispatchers.follow(connection, window.feed, window.to_ts, followers)
    connection.execute(
        feed.update()
        .where(feed.c.name == window.feed)
        .values(
            checkpoint_ts=window.to_ts,
            updated_ms=now_ms,
            windows_total=feed.c.windows_total + 1,
            rows_total=feed.c.rows_total + rows,
            nbytes_total=feed.c.nbytes_total + nbytes,
            files_total=feed.c.files_total + files,
        )
    )
    connection.execute(pending_window.delete().where(pending_window.c.feed == window.feed))
    return True


def _recorded(connection: sa.Connection, window: PendingWindow) -> PendingWindow:
    """Return the recorded window; raise ``WINDOW_OUT_OF_ORDER`` where it is another one."""
    recorded = pending(connection, window.feed)
    if recorded is None or (recorded.from_ts, recorded.to_ts) != (window.from_ts, window.to_ts):
        found = "none" if recorded is None else f"({recorded.from_ts}, {recorded.to_ts}]"
        raise PenstockError(
            "WINDOW_OUT_OF_ORDER", f"feed {window.feed}: window ({window.from_ts}, {window.to_ts}] is not the recorded one: {found}"
        )
    return recorded


def adopt(connection: sa.Connection, window: PendingWindow, positions: Positions) -> None:
    """Make a ts the checkpoint, with these positions, because the target has everything up to it; a recorded window is given up."""
    _write_positions(connection, window, positions, {})
    connection.execute(feed.update().where(feed.c.name == window.feed).values(checkpoint_ts=window.to_ts))
    connection.execute(pending_window.delete().where(pending_window.c.feed == window.feed))


def _check_asked(row: sa.Row[Any]) -> None:
    """Raise ``FEED_PAUSED`` where the feed shall not go on: who asked for that was told so, and progress stands still from then on."""
    if row.requested_state in _HALTED:
        raise PenstockError("FEED_PAUSED", f"feed {row.name} is {row.requested_state}: its window stays on record")


def read_progress(connection: sa.Connection, name: str) -> FeedProgress | None:
    """Return what a feed delivered, or None where there is no such feed."""
    row = connection.execute(sa.select(feed).where(feed.c.name == name)).first()
    if row is None:
        return None
    found = connection.execute(sa.select(progress.c.range_id, progress.c.position).where(progress.c.subscribe_name == name))
    positions = {range_id: decoded(position, dict[str, int]) for range_id, position in found}
    return FeedProgress(row.checkpoint_ts, positions, row.windows_total, row.rows_total, row.nbytes_total, row.files_total)


def read_positions(connection: sa.Connection, name: str, of: Collection[str]) -> dict[str, dict[str, int]]:
    """Return where some dispatchers of a feed stand; those that never delivered anything are left out."""
    found: dict[str, dict[str, int]] = {}
    for part in dispatchers.batched(list(of)):
        mine = (progress.c.subscribe_name == name, progress.c.range_id.in_(part))
        rows = connection.execute(sa.select(progress.c.range_id, progress.c.position).where(*mine))
        found |= {range_id: decoded(position, dict[str, int]) for range_id, position in rows}
    return found


def read_tables(connection: sa.Connection, name: str | None = None) -> list[TableProgress]:
    """Return what was delivered of the tables that feeds have now: of all feeds, or of one."""
    total = [sa.func.sum(progress.c[column]).label(column) for column in _COUNTED]
    key = (dispatcher.c.feed, dispatcher.c.table_id, dispatcher.c.db_name, dispatcher.c.table_name)
    same = sa.and_(progress.c.subscribe_name == dispatcher.c.feed, progress.c.range_id == dispatcher.c.range_id)
    query = sa.select(*key, *total, sa.func.max(progress.c.checkpoint_ts).label("ts")).select_from(dispatcher.join(progress, same))
    query = query.where(dispatcher.c.end_ts == 0).group_by(*key).order_by(*key)
    rows = connection.execute(query if name is None else query.where(dispatcher.c.feed == name))
    return [
        TableProgress(
            row.feed,
            row.table_id,
            row.db_name,
            row.table_name,
            Counted(int(row.rows_total), int(row.nbytes_total), int(row.files_total)),
            int(row.ts),
        )
        for row in rows
    ]


def read_ranges(connection: sa.Connection, name: str) -> list[RangeProgress]:
    """Return what was delivered of each range of a feed's tables; those that never had anything are left out."""
    rows = connection.execute(sa.select(progress).where(progress.c.subscribe_name == name).order_by(progress.c.range_id))
    counted = ((row, Counted(int(row.rows_total), int(row.nbytes_total), int(row.files_total))) for row in rows)
    return [RangeProgress(row.range_id, count, int(row.checkpoint_ts)) for row, count in counted]


def _write_positions(connection: sa.Connection, window: PendingWindow, positions: Positions, counts: Mapping[str, Counted]) -> None:
    """Upsert one row per dispatcher, without a dialect's own upsert: the feed's row is locked, so nobody else inserts meanwhile.

    Only the rows of these dispatchers are looked at, many by one statement: a feed may have ten thousand more.
    """
    texts = {dispatcher: msgspec.json.encode(position).decode() for dispatcher, position in positions.items()}
    created: list[str] = []
    for part in dispatchers.batched(list(texts)):
        mine = (progress.c.subscribe_name == window.feed, progress.c.range_id.in_(part))
        known = set(connection.execute(sa.select(progress.c.range_id).where(*mine)).scalars())
        created += [dispatcher for dispatcher in part if dispatcher not in known]
        if known:
            text = sa.case({dispatcher: texts[dispatcher] for dispatcher in part if dispatcher in known}, value=progress.c.range_id)
            more = {column: progress.c[column] + _by_dispatcher(counts, field, part) for column, field in _COUNTED.items()}
            connection.execute(progress.update().where(*mine).values(**_moved(window), position=text, **more))
    if created:
        names = _table_names(connection, window.feed)
        rows = [_created(window, dispatcher, texts[dispatcher], names) | _counted(counts.get(dispatcher)) for dispatcher in created]
        connection.execute(progress.insert(), rows)


def _by_dispatcher(counts: Mapping[str, Counted], field: str, part: Sequence[str]) -> sa.ColumnElement[int]:
    known = {dispatcher: getattr(counts[dispatcher], field) for dispatcher in part if dispatcher in counts}
    return sa.case(known, value=progress.c.range_id, else_=0) if known else sa.literal(0)


def _counted(count: Counted | None) -> dict[str, int]:
    return {column: getattr(count or Counted(), field) for column, field in _COUNTED.items()}


def _moved(window: PendingWindow) -> dict[str, Any]:
    return {"checkpoint_ts": window.to_ts, "epoch": window.epoch}


def _created(window: PendingWindow, dispatcher: str, position: str, names: dict[str, tuple[str, str]]) -> dict[str, Any]:
    # A table that appeared after the feed was created (truncate gives a new id) has no subscribe row; its dispatcher alone identifies it.
    db_name, table_name = names.get(dispatcher.partition("-")[0], ("", ""))
    return {
        "db_name": db_name,
        "table_name": table_name,
        "subscribe_name": window.feed,
        "range_id": dispatcher,
        "progress_init_snapshot_version": window.to_ts if window.from_ts == 0 else 0,
        "position": position,
        **_moved(window),
    }


def _table_names(connection: sa.Connection, name: str) -> dict[str, tuple[str, str]]:
    found = connection.execute(
        sa.select(subscribe.c.table_id, subscribe.c.db_name, subscribe.c.table_name).where(subscribe.c.subscribe_name == name)
    )
    return {str(table_id): (db_name, table_name) for table_id, db_name, table_name in found}
