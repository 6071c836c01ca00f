"""Altering a feed: which settings may change while it lives, and how the change takes effect at one ts.

An alteration is kept beside the configuration that holds; a window on record is finished under that. Then, between two windows, one
transaction makes the new one hold from the checkpoint on, with the dispatchers that its tables ask for. Invariants: no window has two
configurations; a table that comes in begins with its state, and one that the target has rows of with what differs from them, deletes
included; nothing changes how files that are there must be read. Runs in the server.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.config.sink_policy import place_of
from penstock.config.tree import FeedConfig, SinkConfig, dump_feed_config, flatten, load_feed_config
from penstock.ddl.compose import create_text, table_text
from penstock.feed.window.assignment import Dispatcher, assign_dispatchers
from penstock.feed.window.following import first_dispatchers, from_record, to_record, with_other_rules
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.table_pattern import TablePatterns
from penstock.model.timestamp import TS_ZERO
from penstock.server.feeds.capture import dispatchers_of
from penstock.server.feeds.creation import FeedDocument, TargetMove, claimant
from penstock.settings.loader import Problems, merge
from penstock.settings.masking import mask_tree, mask_uri
from penstock.sink.catalog import is_readable, kind_of, settings_of
from penstock.sink.contract import SinkMaintainer
from penstock.source.contract import Capability, Upstream
from penstock.target.kind import TargetSettings
from penstock.target.positions import newest_directory
from penstock.target.settings import Atomicity, StorageSinkSettings

log = logging.getLogger(__name__)

_TS_DIGITS_MAX = 20
_FIXED_SETTINGS = {"start_ts": "start-ts", "spans_per_table": "spans-per-table", "bootstrap": "bootstrap"}
_OWN_TARGET = "Use `penstock feed clone` to have it in a target of its own."


def altered(document: FeedDocument, changes: Mapping[str, Any]) -> FeedConfig:
    """Return the configuration that a feed is asked to have; raise ``CONFIG_INVALID`` with everything that cannot change.

    Another target has files of its own, so there everything of it may be another.
    """
    before = load_feed_config(document.config)
    sink = changes.get("sink")
    given = {**changes, "sink": {"uri": sink}} if isinstance(sink, str) else changes
    now, named = document.next or document.config, given["sink"].get("uri") if isinstance(given.get("sink"), Mapping) else None
    if isinstance(named, str) and kind_of(named) is not kind_of(now["sink"]["uri"]):
        # Options of one kind of target are none of another's.
        now = {**now, "sink": {}}
    config = load_feed_config(merge(now, given))
    problems = Problems()
    if config.name != before.name:
        problems.add("name", "stays")
    if config.group != before.group:
        problems.add("group", "stays")
    if config.source != before.source:
        problems.add("source", "stays")
    for name, key in _FIXED_SETTINGS.items():
        if getattr(config.settings, name) != getattr(before.settings, name):
            problems.add(key, "cannot change while the feed lives")
    if place_of(config.target.uri) == place_of(before.target.uri):
        old, new = (settings_of(c.target.uri, c.target.options)[1] for c in (before, config))
        for name in sorted(_different(old, new) - old.free_options):
            problems.add(f"sink.{name.replace('_', '-')}", "cannot change: what is there is read by it")
    try:
        problems.raise_if_any()
    except PenstockError as error:
        raise PenstockError(error.code, error.detail, _OWN_TARGET) from None
    return config


def holds_at_once(document: FeedDocument) -> bool:
    """Return whether an alteration may hold for the window on record too: it changes no byte of it, nor what follows from it.

    So what keeps that window from being delivered, such as credentials that ran out, can be mended.
    """
    before, after = (load_feed_config(tree) for tree in (document.config, document.next or document.config))
    if document.move is not None:
        return False
    old, new = (settings_of(config.target.uri, config.target.options)[1] for config in (before, after))
    same = before.tables == after.tables and before.settings.filter == after.settings.filter
    return same and not _different(old, new) & old.cut_options and not document.again


def why_not_back(
    to_ts: int,
    document: FeedDocument,
    dispatchers: Sequence[Dispatcher],
    changed_ts: int,
    positions: Iterable[Mapping[str, int]],
    tables: Sequence[TableSchema],
    kept_from_ts: int | None,
) -> str:
    """Return why a feed cannot deliver once more what comes after a ts; nothing where it can.

    ``changed_ts`` is when its tables last changed; of these files are continued, so none may have to go into a directory that is closed.
    """
    config = document.feed_config()
    sink = settings_of(config.target.uri, config.target.options)[1]
    if not isinstance(sink, StorageSinkSettings) or sink.transaction_atomicity is Atomicity.TRANSACTION:
        of_files = isinstance(sink, StorageSinkSettings)
        return "a transaction stands in its index once" if of_files else "its target is no folder of files, in which rows may come twice"
    newest = [found[0] for found in map(newest_directory, positions) if found is not None]
    without_key = sorted({t.full_name for t in tables if not t.handle_columns})
    if kept_from_ts is None or to_ts < kept_from_ts:
        return f"its history is kept from ts {kept_from_ts} on" if kept_from_ts else "its history is not kept on this server"
    if to_ts < max(changed_ts, document.snapshot_ts, config.settings.start_ts) or any(d.with_state for d in dispatchers):
        return f"its tables changed at ts {max(changed_ts, document.snapshot_ts, config.settings.start_ts)}"
    if any(version > to_ts for version, _ in newest):
        return f"a table has other columns since ts {max(version for version, _ in newest)}"
    if any(date > sink.layout.date_text(to_ts) for _, date in newest):
        return "files of that day are complete"
    return f"{without_key[0]} has no key, by which rows that come twice are one" if without_key else ""


def _different(old: TargetSettings, new: TargetSettings) -> set[str]:
    """Return which fields differ; of two kinds of targets all of them."""
    if type(old) is not type(new):
        return set(old.free_options | old.cut_options | {"uri"})
    return {f.name for f in dataclasses.fields(old) if getattr(old, f.name) != getattr(new, f.name)}  # type: ignore[arg-type]


def with_next(document: FeedDocument, config: FeedConfig, move: TargetMove | None = None) -> FeedDocument:
    """Return the document of a feed that is to have another configuration."""
    return msgspec.structs.replace(document, next=dump_feed_config(config), move=move)


def moved_to(document: FeedDocument, config: FeedConfig, start: str, feed: FeedRecord) -> TargetMove | None:
    """Return how a feed goes over to the target that it is asked to have, None where that is the one that it has; raise where it cannot."""
    if place_of(config.target.uri) == place_of(load_feed_config(document.config).target.uri):
        if start:
            raise PenstockError("CONFIG_INVALID", "start: is for another target, and this is the one that the feed has")
        return None
    if start not in {"", "snapshot", "now"} and not (start.isdecimal() and len(start) < _TS_DIGITS_MAX):
        raise PenstockError("CONFIG_INVALID", "start: must be snapshot, now or a ts")
    if start not in {"", "snapshot"} and not feed.checkpoint_ts:
        raise PenstockError("CONFIG_INVALID", f"start: feed {feed.name} has delivered nothing yet: it begins with a snapshot")
    if 0 < config.settings.until_ts <= feed.checkpoint_ts:
        raise PenstockError("CONFIG_INVALID", f"until-ts: nothing is left for another target up to {config.settings.until_ts}")
    asked = document.move if document.move is not None and document.next and _is_same_place(document.next, config) else None
    broken = feed.error_code.startswith("SINK_") or (asked is not None and asked.abandons)
    return TargetMove(asked.uuid if asked else str(uuid.uuid4()), start or "snapshot", broken)


def _is_same_place(tree: Mapping[str, Any], config: FeedConfig) -> bool:
    return place_of(tree["sink"]["uri"]) == place_of(config.target.uri)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, str]:
    """Return what differs between two configurations, as the audit has it; empty texts where nothing does.

    No secret is shown, so where nothing but a secret differs the two texts are the same, and name it.
    """
    before, after = flatten(old), flatten(new)
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if not keys:
        return "", ""
    masked = (flatten(mask_tree(dict(side))) for side in (old, new))
    old_side, new_side = ({key: side[key] for key in keys if key in side} for side in masked)
    return json.dumps(old_side, ensure_ascii=False), json.dumps(new_side, ensure_ascii=False)


class Adoption:
    """Makes the configuration hold that feeds were altered to. Thread safe."""

    def __init__(
        self,
        meta: MetaDatabase,
        upstream: Upstream,
        open_target: Callable[[FeedRecord, FeedConfig, int], SinkMaintainer],
        close_target: Callable[[FeedRecord, int], str] = lambda _feed, _epoch: "",
        resolve: Callable[[SinkConfig], SinkConfig] = lambda sink: sink,
    ) -> None:
        """``open_target`` opens the target of a feed under an epoch; ``close_target`` publishes what is committed, or says why not.

        ``resolve`` gives what a named connection stands for.
        """
        self._meta = meta
        self._upstream = upstream
        self._open_target = open_target
        self._close_target = close_target
        self._resolve = resolve

    def adopt(self, feed: FeedRecord, epoch: int) -> FeedRecord:
        """Return a feed with the configuration that it was altered to; as it is where it was not, or has a window to finish first."""
        document = FeedDocument.of(feed)
        if document.rewind_to_ts and self._meta.pending_window(feed.name) is None:
            feed = self._rewind(feed, epoch, document)
            document = FeedDocument.of(feed)
        if not document.altered:
            return feed
        abandons = document.move is not None and document.move.abandons
        if self._meta.pending_window(feed.name) is not None and not holds_at_once(document) and not abandons:
            return feed
        if document.move is not None:
            return self._go_over(feed, epoch, document, document.move)
        if holds_at_once(document):
            return self._hold(feed, epoch, document)
        config, ts = load_feed_config(document.next or document.config), self._meta.checkpoint_ts(feed.name)
        before = dispatchers_of(self._meta, feed.name, document)
        after = (
            self._dispatchers(feed.name, config, before, ts, document.again) if ts else self._first(config, before, document.snapshot_ts)
        )
        if ts:
            after = with_other_rules(after, load_feed_config(document.config).settings.filter, config.settings.filter, ts)
            if not self._is_compared(config):
                # It begins anew there, with its whole state in the place of what differs.
                after = tuple(msgspec.structs.replace(d, returns=False) if d.with_state and d.begin_ts == ts else d for d in after)
        self._tell_target(feed, config, after, ts, epoch)
        changed = msgspec.structs.replace(document, config=document.next or document.config, next=None, again=())
        if ts == TS_ZERO:
            changed = msgspec.structs.replace(changed, dispatchers=after)
        self._meta.adopt_config(feed.name, epoch, ts, changed.to_json(), [to_record(d) for d in after])
        log.info("feed is altered", extra={"feed": feed.name, "ts": ts, "dispatchers": len(after)})
        return self._meta.get_feed(feed.name)

    def _go_over(self, feed: FeedRecord, epoch: int, document: FeedDocument, move: TargetMove) -> FeedRecord:
        """Close the target at the checkpoint and begin the next one, with its own start: in one transaction, once that is claimed."""
        name, ts = feed.name, self._meta.checkpoint_ts(feed.name)
        old, config = load_feed_config(document.config), load_feed_config(document.next or document.config)
        closed = self._close_target(feed, epoch) if ts else ""
        target = self._open_target(feed, config, epoch)
        target.check(claimant(name, move.uuid))
        target.claim(claimant(name, move.uuid))
        with_state = move.start == "snapshot"
        start_ts = TS_ZERO if with_state else ts if move.start == "now" else int(move.start)
        config = dataclasses.replace(config, settings=dataclasses.replace(config.settings, start_ts=start_ts))
        before = dispatchers_of(self._meta, name, document)
        if ts:
            again = self._dispatchers(name, config, before, ts, ())
            begins = {"begin_ts": ts if with_state else TS_ZERO, "with_state": with_state, "returns": False, "stopped": ""}
            after = tuple(msgspec.structs.replace(d, **begins) for d in again)
        else:
            after = self._first(config, before, document.snapshot_ts)
        changed = FeedDocument(
            config=dump_feed_config(config),
            source=document.source,
            dispatchers=after,
            snapshot_ts=TS_ZERO if ts else document.snapshot_ts,
            target_uuid=move.uuid,
            target_from_ts=ts if with_state else TS_ZERO,
            skip_until_ts=start_ts if start_ts > ts else 0,
        )
        told = f"{mask_uri(old.target.uri)} is closed at ts {ts}{closed}; {mask_uri(config.target.uri)} begins with "
        told += "the state" if with_state else f"the changes after ts {start_ts}"
        self._meta.change_target(
            name, epoch, ts, changed.to_json(), [to_record(d) for d in after], min(start_ts or ts, ts), mask_uri(config.target.uri), told
        )
        log.info("feed goes over to another target", extra={"feed": name, "ts": ts, "start": move.start})
        return self._meta.get_feed(name)

    def _rewind(self, feed: FeedRecord, epoch: int, document: FeedDocument) -> FeedRecord:
        """Let a feed go back to the ts that it was reset to; it stays where it is where its tables changed since."""
        ts, to_ts = self._meta.checkpoint_ts(feed.name), document.rewind_to_ts
        possible = to_ts >= max(self._meta.dispatcher_marks().get(feed.name, (0,))[-2:])
        furthest_ts = max(document.rewound_from_ts, ts) if possible else document.rewound_from_ts
        changed = msgspec.structs.replace(document, rewind_to_ts=0, rewound_from_ts=furthest_ts)
        self._meta.adopt_config(feed.name, epoch, ts, changed.to_json(), None, to_ts if possible else ts)
        log.warning("feed goes back" if possible else "feed cannot go back any more", extra={"feed": feed.name, "from": ts, "to": to_ts})
        return self._meta.get_feed(feed.name)

    def _hold(self, feed: FeedRecord, epoch: int, document: FeedDocument) -> FeedRecord:
        """Let settings hold that change neither tables nor files."""
        changed = msgspec.structs.replace(document, config=document.next or document.config, next=None)
        self._meta.adopt_config(feed.name, epoch, self._meta.checkpoint_ts(feed.name), changed.to_json(), None)
        return self._meta.get_feed(feed.name)

    def _dispatchers(
        self, name: str, config: FeedConfig, before: Sequence[Dispatcher], ts: int, again: Sequence[str]
    ) -> tuple[Dispatcher, ...]:
        """Return the dispatchers that a feed has from a checkpoint on: those that its tables still ask for, and those that come in.

        A table that shall come ``again`` is one that comes in.
        """
        patterns, leaving = TablePatterns(config.tables), {one.lower() for one in again}
        kept = [d for d in before if patterns.match(d.schema, d.table) and f"{d.schema}.{d.table}".lower() not in leaving]
        known = {d.id.table_id for d in kept}
        tables = [t for t in self._tables_at(ts, patterns) if t.table_id not in known]
        former = self._former(name)
        former |= {i: tuple(d for d in before if d.id.table_id == i) for i in {d.id.table_id for d in before} - known}
        coming = tuple(d for table in tables for d in _coming(table, former.get(table.table_id, ()), self._upstream, ts))
        positions = self._meta.positions(name, [str(d.id) for d in coming])
        # One that stopped may have left a window behind of which the target has files.
        coming = tuple(msgspec.structs.replace(d, returns=bool(positions.get(str(d.id)) or d.stopped), stopped="") for d in coming)
        return tuple(sorted([*kept, *coming], key=lambda d: d.id))

    def _first(self, config: FeedConfig, before: Sequence[Dispatcher], snapshot_ts: int) -> tuple[Dispatcher, ...]:
        """Return the dispatchers that a feed begins with which has not begun; a table that is made after its snapshot comes by its DDL."""
        patterns = TablePatterns(config.tables)
        kept = [d for d in before if patterns.match(d.schema, d.table)]
        known = {d.id.table_id for d in kept}
        there = [t for t in self._tables_at(snapshot_ts, patterns) if not snapshot_ts or t.version <= snapshot_ts]
        coming = assign_dispatchers([t for t in there if t.table_id not in known], self._upstream, config.settings.spans_per_table)
        return tuple(sorted(first_dispatchers([*kept, *coming]), key=lambda d: d.id))

    def _tables_at(self, ts: int, patterns: TablePatterns) -> list[TableSchema]:
        """Return the tables of the source that patterns match, and that did so at a ts: a rename that comes after it brings its own."""
        tables = [t for t in self._upstream.list_tables() if patterns.match(t.schema, t.table)]
        if Capability.RANGES not in self._upstream.capabilities:
            # A log's versions are learned with capture, which begins behind the ts: no name is known from before.
            return tables
        found = []
        for table in tables:
            before = [version for version in self._upstream.schema_history(table.table_id) if version.version <= ts]
            then = before[-1] if before else table
            if patterns.match(then.schema, then.table):
                found.append(then)
        return found

    def _former(self, name: str) -> dict[int, tuple[Dispatcher, ...]]:
        """Return the dispatchers that tables had when they were last in the feed."""
        last: dict[int, list[Dispatcher]] = {}
        for one in map(from_record, self._meta.former_dispatchers(name)):
            there = last.setdefault(one.id.table_id, [])
            if there and there[0].begin_ts != one.begin_ts:
                there.clear()
            there.append(one)
        return {table_id: tuple(found) for table_id, found in last.items()}

    def _is_compared(self, config: FeedConfig) -> bool:
        """Return whether a table that comes again is compared with what the target has."""
        return is_readable(self._resolve(config.target).uri)

    def _tell_target(self, feed: FeedRecord, config: FeedConfig, after: Sequence[Dispatcher], ts: int, epoch: int) -> None:
        """Tell the target of tables that took the name of one that it has rows of: those are no rows of theirs.

        One that comes back to a target that is not compared with it is told to be empty before its state: what went while it was out,
        nothing else tells. Both are told at the checkpoint, behind every DDL that was told before.
        """
        coming = {d.id.table_id for d in after if d.with_state and d.begin_ts == ts and not d.returns}
        if not coming:
            return
        former = self._meta.former_dispatchers(feed.name)
        known, names = {one.table_id for one in former}, {(one.db_name, one.table_name) for one in former}
        known |= {d.id.table_id for d in dispatchers_of(self._meta, feed.name, FeedDocument.of(feed))}
        # One that is made after the ts is told of by its own DDL.
        there = [t for t in self._tables_at(ts, TablePatterns(config.tables)) if t.version <= ts and t.table_id in coming]
        told = [_told(ts, DdlType.CREATE_TABLE, t) for t in there if t.table_id not in known and (t.schema, t.table) in names]
        if not self._is_compared(config):
            told += [_told(ts, DdlType.TRUNCATE_TABLE, t) for t in there if t.table_id in known]
        if told:
            target = self._open_target(feed, config, epoch)
            for event in told:
                target.write_block_event(event)


def _told(ts: int, kind: DdlType, table: TableSchema) -> DdlEvent:
    """Return a DDL that nobody made, in which a table begins without rows at a ts."""
    text = create_text(table) if kind is DdlType.CREATE_TABLE else f"TRUNCATE TABLE {table_text((table.schema, table.table))}"
    return DdlEvent(ts, kind, text, table.schema, (table,))


def _coming(table: TableSchema, former: Sequence[Dispatcher], upstream: Upstream, ts: int) -> list[Dispatcher]:
    """Return the dispatchers of a table that comes in: divided as it was, because file names tell them apart."""
    own = former or assign_dispatchers([table], upstream, 1)
    return [msgspec.structs.replace(d, schema=table.schema, table=table.table, begin_ts=ts, with_state=True, returns=False) for d in own]
