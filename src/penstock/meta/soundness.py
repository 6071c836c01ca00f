"""Whether a meta database holds together: what its tables say of each other, as one transaction sees them.

Nothing is changed and no version is required: a database that this Penstock does not know is told, not upgraded. What cannot be told from
the database alone is named as not checked. Invariant: a problem names feeds, tables and numbers, no secrets and no configurations. Runs
where commands are given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import msgspec
import sqlalchemy as sa

from penstock.meta.api_tokens import Role
from penstock.meta.engine import MetaEngine
from penstock.meta.records import ReachedState, RequestedState
from penstock.meta.sealing import Seal
from penstock.meta.table_states import TableCondition
from penstock.meta.tables import (
    META_VERSION,
    api_token,
    dispatcher,
    feed,
    feed_retry,
    log_position,
    log_reader,
    meta_version,
    metadata,
    pending_window,
    progress,
    resnapshot,
    sink_report,
    subscribe,
    table_state,
)
from penstock.model.errors import PenstockError

_SHOWN_MAX = 20
NOT_CHECKED = (
    "whether targets hold what progress says: `penstock verify FEED` compares them",
    "whether places of a log are in its order, and still there: the source is not asked",
    "whether event stores hold what feeds need next: they are caches, and pulled again",
)


class Findings(msgspec.Struct, frozen=True):
    """What a check found."""

    version: int
    feeds: int
    problems: list[str]
    not_checked: list[str]


def check(engine: MetaEngine, seal: Seal) -> Findings:
    """Look at everything, in one transaction."""
    with engine.read() as connection:
        there = set(sa.inspect(connection).get_table_names())
        if meta_version.name not in there:
            return Findings(0, 0, ["there is no meta database: the table meta_version is missing"], list(NOT_CHECKED))
        versions = connection.execute(sa.select(meta_version.c.version)).scalars().all()
        version = int(versions[0]) if len(versions) == 1 else 0
        if version != META_VERSION:
            known = f"version {version}" if len(versions) == 1 else f"{len(versions)} versions"
            told = f"it has {known}, this Penstock speaks {META_VERSION}: see `penstock meta upgrade --dry-run`"
            return Findings(version, 0, [told], ["everything else", *NOT_CHECKED])
        problems = list(_shape(connection, there))
        if problems:
            return Findings(version, 0, problems, ["what the tables hold", *NOT_CHECKED])
        not_checked = list(NOT_CHECKED)
        for look in _LOOKS:
            problems += look(connection)
        problems += _configurations(connection, seal, not_checked)
        feeds = connection.execute(sa.select(sa.func.count()).select_from(feed)).scalar_one()
    return Findings(version, int(feeds), problems, not_checked)


def _shape(connection: sa.Connection, there: set[str]) -> Iterator[str]:
    yield from (f"the table {name} is missing" for name in sorted(set(metadata.tables) - there))
    for table in metadata.sorted_tables:
        if table.name in there:
            columns = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
            yield from (f"the column {table.name}.{name} is missing" for name in sorted({c.name for c in table.columns} - columns))


def _orphans(connection: sa.Connection) -> Iterator[str]:
    owned = {
        subscribe: subscribe.c.subscribe_name,
        progress: progress.c.subscribe_name,
        dispatcher: dispatcher.c.feed,
        pending_window: pending_window.c.feed,
        resnapshot: resnapshot.c.feed,
        sink_report: sink_report.c.feed,
        feed_retry: feed_retry.c.feed,
    }
    for table, name in owned.items():
        rows = connection.execute(sa.select(name).where(name.not_in(sa.select(feed.c.name))).distinct().limit(_SHOWN_MAX))
        yield from (f"{table.name} has rows of the feed {found}, which is not there" for found in rows.scalars())


def _feeds(connection: sa.Connection) -> Iterator[str]:
    floor = connection.execute(sa.select(meta_version.c.epoch_floor)).scalar_one()
    if floor < 0:
        yield f"the floor of epochs is {floor}"
    requested, reached = {s.value for s in RequestedState}, {s.value for s in ReachedState}
    for row in connection.execute(sa.select(*(column for column in feed.c if column.name != "config")).order_by(feed.c.name)):
        if row.requested_state not in requested or row.reached_state not in reached:
            yield f"feed {row.name}: its states {row.requested_state!r}, {row.reached_state!r} are not known"
        if row.epoch < 0 or row.checkpoint_ts < 0:
            yield f"feed {row.name}: epoch {row.epoch}, checkpoint {row.checkpoint_ts}"
        if row.owner and row.epoch == 0:
            yield f"feed {row.name}: {row.owner} owns it under no epoch"
        if not row.owner and row.lease_until_ms:
            yield f"feed {row.name}: nobody owns it, and a lease runs"


def _windows(connection: sa.Connection) -> Iterator[str]:
    both = sa.select(pending_window, feed.c.checkpoint_ts, feed.c.epoch.label("feed_epoch")).join(
        feed, feed.c.name == pending_window.c.feed
    )
    for row in connection.execute(both):
        if row.from_ts != row.checkpoint_ts or row.to_ts <= row.from_ts:
            yield f"feed {row.feed}: the window ({row.from_ts}, {row.to_ts}] does not begin at the checkpoint {row.checkpoint_ts}"
        if row.epoch > row.feed_epoch:
            yield f"feed {row.feed}: its window has the epoch {row.epoch}, the feed {row.feed_epoch}"


def _progress(connection: sa.Connection) -> Iterator[str]:
    ahead = sa.select(progress.c.subscribe_name, progress.c.range_id, progress.c.checkpoint_ts, feed.c.checkpoint_ts.label("feed_ts"))
    ahead = ahead.join(feed, feed.c.name == progress.c.subscribe_name)
    for row in connection.execute(ahead.where(progress.c.checkpoint_ts > feed.c.checkpoint_ts).limit(_SHOWN_MAX)):
        yield f"feed {row.subscribe_name}: {row.range_id} is at {row.checkpoint_ts}, ahead of the checkpoint {row.feed_ts}"
    for row in connection.execute(ahead.where(progress.c.epoch > feed.c.epoch).limit(_SHOWN_MAX)):
        yield f"feed {row.subscribe_name}: {row.range_id} was written under an epoch that the feed never had"
    late = ahead.where(progress.c.progress_init_snapshot_version > progress.c.checkpoint_ts).limit(_SHOWN_MAX)
    for row in connection.execute(late):
        yield f"feed {row.subscribe_name}: {row.range_id} began with a snapshot behind where it is"
    for name, range_id, position in connection.execute(sa.select(progress.c.subscribe_name, progress.c.range_id, progress.c.position)):
        if not _is_object(position):
            yield f"feed {name}: the position of {range_id} cannot be read"


def _dispatchers(connection: sa.Connection) -> Iterator[str]:
    of = dispatcher.c
    for row in connection.execute(sa.select(dispatcher).where(of.end_ts != 0, of.end_ts < of.begin_ts).limit(_SHOWN_MAX)):
        yield f"feed {row.feed}: the dispatcher {row.range_id} ends at {row.end_ts}, before it begins"
    twice = sa.select(of.feed, of.range_id).where(of.end_ts == 0).group_by(of.feed, of.range_id).having(sa.func.count() > 1)
    for row in connection.execute(twice.limit(_SHOWN_MAX)):
        yield f"feed {row.feed}: the dispatcher {row.range_id} lives twice"
    same = sa.and_(of.feed == progress.c.subscribe_name, of.range_id == progress.c.range_id)
    with_any = sa.select(sa.literal(1)).where(of.feed == progress.c.subscribe_name).exists()
    lost = sa.select(progress.c.subscribe_name, progress.c.range_id).where(with_any, ~sa.select(sa.literal(1)).where(same).exists())
    for row in connection.execute(lost.limit(_SHOWN_MAX)):
        yield f"feed {row.subscribe_name}: progress of {row.range_id}, which is no dispatcher of it"


def _subscriptions(connection: sa.Connection) -> Iterator[str]:
    both = sa.select(subscribe.c.subscribe_name, subscribe.c.owner, subscribe.c.cancel, feed.c.owner.label("has"), feed.c.requested_state)
    over = {RequestedState.CANCELLED.value, RequestedState.REMOVED.value}
    for row in connection.execute(both.join(feed, feed.c.name == subscribe.c.subscribe_name).distinct()):
        if row.owner != row.has:
            yield f"feed {row.subscribe_name}: its tables are owned by {row.owner or 'nobody'}, the feed by {row.has or 'nobody'}"
        if row.cancel and row.requested_state not in over:
            yield f"feed {row.subscribe_name}: its tables are cancelled, and it is {row.requested_state}"


def _retries(connection: sa.Connection) -> Iterator[str]:
    trying = set(connection.execute(sa.select(feed.c.name).where(feed.c.reached_state == ReachedState.RETRYING.value)).scalars())
    noted = set(connection.execute(sa.select(feed_retry.c.feed)).scalars())
    there = set(connection.execute(sa.select(feed.c.name)).scalars())
    yield from (f"feed {name}: nobody says when it is tried again" for name in sorted(trying - noted))
    yield from (f"feed {name}: it is noted as tried again, and is not" for name in sorted((noted & there) - trying))


def _others(connection: sa.Connection) -> Iterator[str]:
    known = {"state": {s.value for s in TableCondition}, "role": {r.value for r in Role}}
    for row in connection.execute(sa.select(table_state.c.db_name, table_state.c.table_name, table_state.c.state)):
        if row.state not in known["state"]:
            yield f"table {row.db_name}.{row.table_name}: its state {row.state!r} is not known"
    for token, role in connection.execute(sa.select(api_token.c.id, api_token.c.role)):
        if role not in known["role"]:
            yield f"token {token}: its role {role!r} is not known"
    for source, owner, epoch, lease_ms in connection.execute(sa.select(log_reader)):
        if epoch < 0 or (lease_ms and not owner):
            yield f"the log of {source}: epoch {epoch}, and a lease of nobody's"
    for source, ts in connection.execute(
        sa.select(log_position.c.source, log_position.c.ts).where(log_position.c.ts < 0).limit(_SHOWN_MAX)
    ):
        yield f"the log of {source}: a place of ts {ts}"


_LOOKS: tuple[Callable[[sa.Connection], Iterator[str]], ...] = (
    _orphans,
    _feeds,
    _windows,
    _progress,
    _dispatchers,
    _subscriptions,
    _retries,
    _others,
)


def _configurations(connection: sa.Connection, seal: Seal, not_checked: list[str]) -> Iterator[str]:
    """Tell configurations that cannot be read; those whose key is not here are not checked."""
    closed = []
    for name, config in connection.execute(sa.select(feed.c.name, feed.c.config).order_by(feed.c.name)):
        try:
            text = seal.open(config)
        except PenstockError:
            closed.append(name)
            continue
        if not _is_object(text):
            yield f"feed {name}: its configuration cannot be read"
    if closed:
        not_checked.append(f"the configurations of {', '.join(closed[:_SHOWN_MAX])}: no key here opens them")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
