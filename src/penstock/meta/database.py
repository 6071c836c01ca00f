"""The meta database as a server needs it: feeds, their tables, who owns them, which servers there are; windows are in ``progress.py``.

Every method is one transaction, and safe from any thread and any process. Methods that take an ``epoch`` are fenced: they raise
``FENCED`` and change nothing once another owner holds the lease, or it was released, or the feed was removed. State changes are
compare-and-set. Runs in the server.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from penstock.meta.engine import MetaSettings
from penstock.meta.lives import FeedLives
from penstock.meta.progress import ProgressDatabase, unknown_feed
from penstock.meta.records import (
    NOBODY,
    Actor,
    DispatcherRecord,
    FeedRecord,
    PendingWindow,
    ReachedState,
    RequestedState,
    RetryRecord,
    ServerRecord,
    SubscribeRecord,
)
from penstock.meta.sealing import Seal
from penstock.meta.tables import dispatcher, feed, meta_version, pending_window, progress, resnapshot, subscribe
from penstock.meta.transactions import audit, dispatchers, object_links, ownership, reports, retries, servers, windows
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError

_ERROR_TEXT_CHARS_MAX = 8_192
_FIELDS = [name for name in FeedRecord.__struct_fields__ if name != "config"]
_LISTED = sa.select(*(feed.c[name] for name in _FIELDS)).order_by(feed.c.name)
_CREATED_MS, _CONFIG_VERSION = _FIELDS.index("created_ms"), _FIELDS.index("config_version")
_REQUESTED, _REACHED = {state.value: state for state in RequestedState}, {state.value: state for state in ReachedState}


class MetaDatabase(ProgressDatabase):
    """The whole of it, as a server needs it."""

    def __init__(self, url: str, clock: Clock | None = None, settings: MetaSettings | None = None) -> None:
        super().__init__(url, clock, settings)
        self._seal = Seal(url, os.environ)
        # Of a feed this rarely changes, and it is by far the largest of its columns: lists are read every second.
        self._configs: dict[_Created, str] = {}
        self.lives = FeedLives(self._engine, self._clock)
        """What is asked of feeds and what they reached, with who asked."""

    # Feeds

    def create_feed(
        self,
        record: FeedRecord,
        tables: Sequence[SubscribeRecord],
        first: Sequence[DispatcherRecord] = (),
        actor: Actor = NOBODY,
    ) -> FeedRecord:
        """Add a feed, its tables and its first dispatchers, all or nothing; raise ``FEED_EXISTS``.

        Owner, epoch, times and totals of the record are set here.
        """
        now_ms, sealed = self._clock.now_ms(), self._seal.close(record.config)
        with self._engine.write() as connection:
            # On MySQL and PostgreSQL this row's lock also puts concurrent creations of one name in order.
            floor = connection.execute(sa.select(meta_version.c.epoch_floor).with_for_update()).scalar_one()
            if connection.execute(sa.select(feed.c.name).where(feed.c.name == record.name)).first() is not None:
                raise PenstockError("FEED_EXISTS", f"feed {record.name} exists")
            created = FeedRecord(
                record.name,
                record.uuid,
                record.config,
                requested_state=record.requested_state,
                epoch=floor,
                checkpoint_ts=record.checkpoint_ts,
                created_ms=now_ms,
                updated_ms=now_ms,
            )
            connection.execute(feed.insert().values(**_columns(created) | {"config": sealed}))
            if tables:
                rows = [_columns(msgspec.structs.replace(table, subscribe_name=record.name)) for table in tables]
                connection.execute(subscribe.insert(), rows)
            dispatchers.add(connection, record.name, first)
            audit.write(connection, record.name, now_ms, "create", actor, new=created.requested_state.value)
        return created

    def get_feed(self, name: str) -> FeedRecord:
        """Return a feed; raise ``FEED_UNKNOWN``."""
        with self._engine.read() as connection:
            row = connection.execute(sa.select(feed).where(feed.c.name == name)).first()
            if row is None:
                raise unknown_feed(connection, name)
        return self._feed_record(row)

    def find_feeds(self, names: Collection[str]) -> list[FeedRecord]:
        """Return those of some feeds that there are, by name; costs the same however many others there are."""
        with self._engine.read() as connection:
            rows = connection.execute(sa.select(feed).where(feed.c.name.in_(names)).order_by(feed.c.name)).all()
        return [self._feed_record(row) for row in rows]

    def list_feeds(self) -> list[FeedRecord]:
        """Return all feeds by name."""
        known = self._configs
        with self._engine.read() as connection:
            rows = connection.execute(_LISTED).all()
            created = [_created(row) for row in rows]
            unknown = [one[0] for one in created if one not in known]
            fetched: dict[str, str] = {}
            for part in dispatchers.batched(unknown):
                found = connection.execute(sa.select(feed.c.name, feed.c.config).where(feed.c.name.in_(part)))
                fetched |= {name: self._seal.open(config) for name, config in found}
        # Those of removed feeds go.
        configs = {one: fetched[one[0]] if one[0] in fetched else known[one] for one in created}
        self._configs = configs
        # There may be thousands, and many ask: fields by their places, which cost a third of fields by their names.
        return [
            FeedRecord(name, uuid, configs[one], _REQUESTED[wanted], _REACHED[state], *rest)
            for one, (name, uuid, wanted, state, *rest) in zip(created, rows, strict=True)
        ]

    def _feed_record(self, row: sa.Row[Any]) -> FeedRecord:
        values = dict(row._mapping)
        values["config"] = self._seal.open(values["config"])
        values["requested_state"] = RequestedState(values["requested_state"])
        values["reached_state"] = ReachedState(values["reached_state"])
        return FeedRecord(**values)

    def change_config(
        self, before: FeedRecord, config: str, what: str, actor: Actor, old: str, new: str, *, at_once: bool = False
    ) -> int | None:
        """Give a feed another configuration; return from which checkpoint on it holds, None where it was changed meanwhile.

        That is the end of the window on record, which is finished under the one before, or else, and with ``at_once``, the checkpoint. The
        run under way is fenced, so nothing begins under the one before any more. Raises ``FEED_ENDED``.
        """
        sealed = self._seal.close(config)
        with self._engine.write() as connection:
            return self.lives.change_config(connection, before, sealed, what, actor, old, new, at_once=at_once)

    def adopt_config(
        self, name: str, epoch: int, ts: int, config: str, wanted: Sequence[DispatcherRecord] | None, to_ts: int | None = None
    ) -> None:
        """Let a configuration hold from a checkpoint on, with these dispatchers. Fenced.

        ``to_ts`` is an older checkpoint, to which the feed goes back. Only between two windows, unless dispatchers and checkpoint stay.
        """
        sealed = self._seal.close(config)
        with self._engine.write() as connection:
            row = ownership.fenced_feed(connection, name, epoch)
            under_way = (wanted is not None or to_ts is not None) and windows.pending(connection, name) is not None
            if row.checkpoint_ts != ts or under_way:
                raise PenstockError("WINDOW_OUT_OF_ORDER", f"feed {name} is not between two windows at ts {ts}")
            if wanted is not None and ts:
                dispatchers.alter(connection, name, ts, wanted)
            elif wanted is not None:
                dispatchers.replace_first(connection, name, wanted)
            holds_ts = ts if to_ts is None else to_ts
            values = {"config": sealed, "config_version": row.config_version + 1, "updated_ms": self._clock.now_ms()}
            connection.execute(feed.update().where(feed.c.name == name).values(**values, checkpoint_ts=holds_ts))
            audit.write(connection, name, self._clock.now_ms(), "altered", Actor(row.owner), new=f"holds from ts {holds_ts} on")

    def change_target(
        self, name: str, epoch: int, ts: int, config: str, first: Sequence[DispatcherRecord], from_ts: int, sink: str, told: str
    ) -> None:
        """Let a feed that stands at a checkpoint go on into another target: its dispatchers begin there with nothing. Fenced.

        A window on record is given up. ``from_ts`` is the checkpoint from then on, ``sink`` the target as it is shown.
        """
        sealed = self._seal.close(config)
        with self._engine.write() as connection:
            row, now_ms = ownership.fenced_feed(connection, name, epoch), self._clock.now_ms()
            if row.checkpoint_ts != ts:
                raise PenstockError("WINDOW_OUT_OF_ORDER", f"feed {name} is not at ts {ts}")
            connection.execute(pending_window.delete().where(pending_window.c.feed == name))
            connection.execute(progress.delete().where(progress.c.subscribe_name == name))
            connection.execute(resnapshot.delete().where(resnapshot.c.feed == name))
            dispatchers.replace_first(connection, name, first)
            connection.execute(subscribe.update().where(subscribe.c.subscribe_name == name).values(sink=sink))
            values = {"config": sealed, "config_version": row.config_version + 1, "updated_ms": now_ms, "checkpoint_ts": from_ts}
            connection.execute(feed.update().where(feed.c.name == name).values(**values))
            audit.write(connection, name, now_ms, "altered", Actor(row.owner), new=f"holds from ts {ts} on: {told}")

    def adopt_progress(self, before: FeedRecord, to_ts: int, positions: windows.Positions, config: str, actor: Actor) -> None:
        """Let a feed that nobody runs go on from a ts, because its target has everything up to it; whoever ran it is fenced.

        Raises ``FENCED`` where a server has the feed, or it changed since ``before`` was read.
        """
        sealed = self._seal.close(config)
        with self._engine.write() as connection:
            row, now_ms = ownership.locked_feed(connection, before.name), self._clock.now_ms()
            if row is None or (row.uuid, row.config_version, row.checkpoint_ts) != (
                before.uuid,
                before.config_version,
                before.checkpoint_ts,
            ):
                raise PenstockError("FENCED", f"feed {before.name} changed meanwhile")
            if row.owner and row.lease_until_ms > self._now(connection):
                raise PenstockError("FENCED", f"feed {before.name} is run by {row.owner}", "Stop that server, or pause the feed.")
            epoch = int(row.epoch) + 1
            windows.adopt(connection, PendingWindow(before.name, int(row.checkpoint_ts), to_ts, "", epoch), positions)
            values = {"config": sealed, "config_version": row.config_version + 1, "epoch": epoch, "owner": "", "lease_until_ms": 0}
            rest = {"reached_state": ReachedState.STOPPED.value, "error_code": "", "error_text": "", "updated_ms": now_ms}
            connection.execute(feed.update().where(feed.c.name == before.name).values(**values, **rest))
            connection.execute(subscribe.update().where(subscribe.c.subscribe_name == before.name).values(owner=""))
            retries.clear(connection, before.name)
            audit.write(connection, before.name, now_ms, "adopt", actor, f"ts {row.checkpoint_ts}", f"ts {to_ts}")

    def former_dispatchers(self, name: str) -> list[DispatcherRecord]:
        """Return the dispatchers of a feed that ended, the oldest first."""
        with self._engine.read() as connection:
            return dispatchers.ended(connection, name)

    def feed_tables(self, name: str) -> list[SubscribeRecord]:
        """Return the tables of a feed by name; empty where there is no such feed."""
        query = sa.select(subscribe).where(subscribe.c.subscribe_name == name).order_by(subscribe.c.db_name, subscribe.c.table_name)
        with self._engine.read() as connection:
            return [SubscribeRecord(**row._mapping) for row in connection.execute(query)]

    def remove_feed(self, name: str) -> None:
        """Delete a feed with its tables, progress and recorded window; raise ``FEED_UNKNOWN``. Its last owner is fenced from then on."""
        with self._engine.write() as connection:
            floor = connection.execute(sa.select(meta_version.c.epoch_floor).with_for_update()).scalar_one()
            row = ownership.locked_feed(connection, name)
            if row is None:
                raise unknown_feed(connection, name)
            connection.execute(meta_version.update().values(epoch_floor=max(floor, row.epoch)))
            connection.execute(pending_window.delete().where(pending_window.c.feed == name))
            connection.execute(progress.delete().where(progress.c.subscribe_name == name))
            connection.execute(subscribe.delete().where(subscribe.c.subscribe_name == name))
            connection.execute(dispatcher.delete().where(dispatcher.c.feed == name))
            connection.execute(resnapshot.delete().where(resnapshot.c.feed == name))
            reports.remove(connection, name)
            retries.clear(connection, name)
            now_ms = self._clock.now_ms()
            audit.write(connection, name, now_ms, "state", Actor(row.owner), row.reached_state, "gone")
            connection.execute(feed.delete().where(feed.c.name == name))
            audit.forget_gone(connection, now_ms)

    def record_error(self, name: str, epoch: int, code: str, text: str, retry: RetryRecord | None = None) -> None:
        """Record why a feed failed: for good, or until it is tried again as ``retry`` says. Fenced. The caller has masked the text."""
        state = ReachedState.FAILED if retry is None else ReachedState.RETRYING
        with self._engine.write() as connection:
            row = ownership.fenced_feed(connection, name, epoch)
            if retry is not None:
                retries.record(connection, name, retry)
            values = {"reached_state": state.value, "error_code": code, "error_text": text[:_ERROR_TEXT_CHARS_MAX]}
            self.lives.note(connection, row, why=code, **values, updated_ms=self._clock.now_ms())

    def retries(self) -> dict[str, RetryRecord]:
        """Return the feeds that are tried again after a failure."""
        with self._engine.read() as connection:
            return retries.read_all(connection)

    # Servers

    def announce(self, record: ServerRecord, lease_ms: int) -> list[ServerRecord]:
        """Say that a server lives; return all that do, this one among them."""
        with self._engine.write() as connection:
            now_ms = self._now(connection)
            servers.announce(connection, record, now_ms)
            return servers.live(connection, lease_ms, now_ms)

    def withdraw(self, owner: str) -> None:
        """Take a server out that ends."""
        with self._engine.write() as connection:
            servers.withdraw(connection, owner)

    # Objects on shared storage

    def object_links(self, source: str) -> list[str]:
        """Return the links that were noted last of a source's objects, the newest last."""
        with self._engine.read() as connection:
            return object_links.links_of(connection, source) or []

    def note_object_link(self, source: str, link: str) -> None:
        """Note a link that is about to be written beside a source's objects."""
        with self._engine.write() as connection:
            object_links.note_link(connection, source, link)

    # Ownership

    def take_over(self, owner: str) -> list[str]:
        """Release what earlier processes held that worked in this owner's data directory; return the names of the feeds.

        One that lives all the same, in a copy of the directory, is fenced by that.
        """
        home = servers.home_of(owner)
        with self._engine.write() as connection:
            servers.withdraw_home(connection, home)
            return ownership.release_home(connection, home, self._clock.now_ms())

    def claim(self, name: str, owner: str, lease_ms: int, now_ms: int | None = None) -> int | None:
        """Take a free or expired lease; return its epoch, or None where another owner's lease is alive or the feed is gone.

        The epoch grows by one with every new holder. A holder that claims again while its lease is alive keeps its epoch.
        """
        with self._engine.write() as connection:
            return ownership.claim(connection, name, owner, lease_ms, self._now(connection, now_ms))

    def renew(self, owner: str, epochs: Mapping[str, int], lease_ms: int, now_ms: int | None = None) -> set[str]:
        """Extend the leases of feeds, each under its epoch; return the names of those whose lease is lost."""
        with self._engine.write() as connection:
            return ownership.renew(connection, owner, epochs, lease_ms, self._now(connection, now_ms))

    def release(self, name: str, owner: str, epoch: int) -> bool:
        """Give a lease back, so that any server can take it at once; return False where it was lost before."""
        with self._engine.write() as connection:
            return ownership.release(connection, name, owner, epoch, self._clock.now_ms())

    def now_ms(self) -> int:
        """Return the time by which leases run, as it was a moment ago."""
        with self._engine.read() as connection:
            return self._now(connection)

    def _now(self, connection: sa.Connection, given_ms: int | None = None) -> int:
        """Return the time by which leases run: the database server's own, so that the clocks of machines need not agree."""
        if given_ms is not None:
            return given_ms
        told_ms = self._engine.server_now_ms(connection)
        return self._clock.now_ms() if told_ms is None else told_ms


_Created = tuple[str, str, int, int]
"""Which configuration of which creation of a feed: its name may be given again."""


def _created(row: Sequence[Any]) -> _Created:
    return row[0], row[1], row[_CREATED_MS], row[_CONFIG_VERSION]


def _columns(record: msgspec.Struct) -> dict[str, Any]:
    """Return a record's fields for an insert; enums as the text that they are."""
    return {name: getattr(value, "value", value) for name, value in msgspec.structs.asdict(record).items()}
