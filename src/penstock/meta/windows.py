"""Windows and progress: the transaction that makes delivery exactly-once.

Invariants: a feed has at most one recorded window, it starts at the feed's checkpoint, and once recorded its end never changes until it
is committed; the checkpoint, the positions of the dispatchers and the removal of the window move in one transaction, and only for the
epoch that holds the lease. Every function runs inside the caller's transaction. Runs where windows are planned and committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from penstock.meta import dispatchers
from penstock.meta.ownership import fenced_feed
from penstock.meta.records import DispatcherRecord, FeedProgress, PendingWindow, ProgressStage
from penstock.meta.tables import feed, pending_window, progress, resnapshot, subscribe
from penstock.model.decoding import decoded
from penstock.model.errors import InvariantError, PenstockError

Positions = Mapping[str, Mapping[str, int]]


def pending(connection: sa.Connection, name: str) -> PendingWindow | None:
    """Return the recorded window, or None."""
    row = connection.execute(sa.select(pending_window).where(pending_window.c.feed == name)).first()
    return None if row is None else PendingWindow(**row._mapping)


def begin(connection: sa.Connection, wanted: PendingWindow) -> PendingWindow:
    """Record a window before its first file; where one that starts at the same ts is recorded, return that one instead."""
    if wanted.to_ts <= wanted.from_ts:
        raise InvariantError(f"feed {wanted.feed}: window ({wanted.from_ts}, {wanted.to_ts}] is empty")
    row = fenced_feed(connection, wanted.feed, wanted.epoch)
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
) -> bool:
    """Move the checkpoint to the window's end; return False where that was done before.

    ``followers`` are the dispatchers from then on, where a DDL at the end changed them.
    """
    row = fenced_feed(connection, window.feed, window.epoch)
    if row.checkpoint_ts >= window.to_ts:
        return False
    recorded = pending(connection, window.feed)
    if recorded is None or (recorded.from_ts, recorded.to_ts) != (window.from_ts, window.to_ts):
        found = "none" if recorded is None else f"({recorded.from_ts}, {recorded.to_ts}]"
        raise PenstockError(
            "WINDOW_OUT_OF_ORDER", f"feed {window.feed}: window ({window.from_ts}, {window.to_ts}] is not the recorded one: {found}"
        )
    _write_positions(connection, window, positions)
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


def read_progress(connection: sa.Connection, name: str) -> FeedProgress | None:
    """Return what a feed delivered, or None where there is no such feed."""
    row = connection.execute(sa.select(feed).where(feed.c.name == name)).first()
    if row is None:
        return None
    found = connection.execute(sa.select(progress.c.range_id, progress.c.position).where(progress.c.subscribe_name == name))
    positions = {range_id: decoded(position, dict[str, int]) for range_id, position in found}
    return FeedProgress(row.checkpoint_ts, positions, row.windows_total, row.rows_total, row.nbytes_total, row.files_total)


def _write_positions(connection: sa.Connection, window: PendingWindow, positions: Positions) -> None:
    """Upsert one row per dispatcher, without a dialect's own upsert: the feed's row is locked, so nobody else inserts meanwhile."""
    if not positions:
        return
    known = set(connection.execute(sa.select(progress.c.range_id).where(progress.c.subscribe_name == window.feed)).scalars())
    names = _table_names(connection, window.feed)
    updated = [_moved(window, d, p) for d, p in positions.items() if d in known]
    created = [_created(window, d, p, names) for d, p in positions.items() if d not in known]
    if updated:
        connection.execute(
            progress.update()
            .where(progress.c.subscribe_name == sa.bindparam("b_name"), progress.c.range_id == sa.bindparam("b_range"))
            .values({name: sa.bindparam(name) for name in _MOVED}),
            updated,
        )
    if created:
        connection.execute(progress.insert(), created)


_MOVED = ("progress_stage", "progress_last_log_index", "checkpoint_ts", "epoch", "position")


def _moved(window: PendingWindow, dispatcher: str, position: Mapping[str, int]) -> dict[str, Any]:
    return {
        "b_name": window.feed,
        "b_range": dispatcher,
        "progress_stage": int(ProgressStage.LOG),
        "progress_last_log_index": window.to_ts,
        "checkpoint_ts": window.to_ts,
        "epoch": window.epoch,
        "position": msgspec.json.encode(position).decode(),
    }


def _created(window: PendingWindow, dispatcher: str, position: Mapping[str, int], names: dict[str, tuple[str, str]]) -> dict[str, Any]:
    # A table that appeared after the feed was created (truncate gives a new id) has no subscribe row; its dispatcher alone identifies it.
    db_name, table_name = names.get(dispatcher.partition("-")[0], ("", ""))
    snapshot_ts = window.to_ts if window.from_ts == 0 else 0
    return {
        "db_name": db_name,
        "table_name": table_name,
        "subscribe_name": window.feed,
        "range_id": dispatcher,
        "progress_init_snapshot_version": snapshot_ts,
        "progress_current_snapshot_version": snapshot_ts,
        "progress_last_snapshot_key": "",
        **{name: value for name, value in _moved(window, dispatcher, position).items() if name in _MOVED},
    }


def _table_names(connection: sa.Connection, name: str) -> dict[str, tuple[str, str]]:
    found = connection.execute(
        sa.select(subscribe.c.table_id, subscribe.c.db_name, subscribe.c.table_name).where(subscribe.c.subscribe_name == name)
    )
    return {str(table_id): (db_name, table_name) for table_id, db_name, table_name in found}
