"""Creating a feed: every check first, then one transaction.

Invariants: the order of the checks is configuration, source, tables, name, target, so that the cheapest and most certain error comes
first; nothing is written before all of them pass, and where the target cannot be claimed after that, the feed is removed again. The
division in dispatchers and the ts of the first snapshot are decided here, once, and kept in the feed's document. Runs in the server.
"""

from __future__ import annotations

import difflib
import functools
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from penstock.config.feed_group import MEMBERS_MAX, member_trees
from penstock.config.sink_policy import SinkPolicy
from penstock.config.tree import FeedConfig, SinkConfig, dump_feed_config, load_feed_config
from penstock.feed.filters.checks import check_columns_stay, check_filter
from penstock.feed.filters.views import Viewer
from penstock.feed.settings import FeedSettings
from penstock.feed.window.assignment import Dispatcher, assign_dispatchers
from penstock.feed.window.following import from_record, to_record
from penstock.meta.database import MetaDatabase
from penstock.meta.records import NOBODY, Actor, FeedRecord, SubscribeRecord
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.table_pattern import match_table, whole_pattern
from penstock.model.timestamp import TS_ZERO
from penstock.server.feeds.ports import FeedSources
from penstock.settings.masking import mask_uri
from penstock.sink.catalog import kind_of
from penstock.sink.contract import SinkMaintainer
from penstock.sink.kind import LetterBox
from penstock.source.contract import Capability, Upstream
from penstock.target.storage import Guard, unfenced

_NEAR_MATCHES_MAX = 3
_UNMATCHED_SHOWN_MAX = 20
_LOOKS_MAX = 10


class TargetMove(msgspec.Struct, frozen=True):
    """What was decided when a feed was altered to another target."""

    uuid: str
    """By what the new target will know the feed."""
    start: str = "snapshot"
    """With what it begins: ``snapshot``, ``now`` (with the changes behind what the old one has), or a ts."""
    abandons: bool = False
    """Whether the window on record is given up, because the old target takes nothing."""


class FeedDocument(msgspec.Struct, frozen=True):
    """What the meta database keeps about a feed: its configuration and what was decided when it was created. Holds secrets."""

    config: dict[str, Any]
    source: str
    dispatchers: tuple[Dispatcher, ...]
    snapshot_ts: int
    next: dict[str, Any] | None = None
    """The configuration that the feed was altered to and that does not hold yet."""
    move: TargetMove | None = None
    """How the feed goes over to the target of ``next``, where that is another place."""
    target_uuid: str = ""
    """By what the target knows the feed, where it is not the feed's own uuid: one that it went over to."""
    target_from_ts: int = 0
    """The checkpoint at which the feed went over to a target that begins with its state; nothing is published there before it has one."""
    skip_until_ts: int = 0
    """The ts that an operator reset the feed to, before which nothing is delivered any more."""
    rewind_to_ts: int = 0
    """The ts that an operator reset the feed to, behind which everything is delivered once more."""
    rewound_from_ts: int = 0
    """The furthest checkpoint that the feed went back from: up to there its target is published already."""
    resnapshot_from_ts: int | None = None
    """The checkpoint at which an operator asked for a new snapshot."""
    again: tuple[str, ...] = ()
    """Tables, by name, that an operator asked to have delivered once more as they are: what differs from the target."""

    def __repr__(self) -> str:
        return f"FeedDocument(dispatchers={len(self.dispatchers)}, snapshot_ts={self.snapshot_ts})"

    @property
    def altered(self) -> bool:
        """Return whether something of it shall hold that does not yet."""
        return self.next is not None or bool(self.again) or self.rewind_to_ts > 0

    def to_json(self) -> str:
        """Return the document as it is stored."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, feed: FeedRecord) -> FeedDocument:
        """Read the document of a stored feed."""
        return _document(feed.config)

    def claimant(self, feed: FeedRecord) -> str:
        """Return how the target knows the feed."""
        return claimant(feed.name, self.target_uuid or feed.uuid)

    def feed_config(self) -> FeedConfig:
        """Return the configuration as settings."""
        return load_feed_config(self.config)


@functools.lru_cache(maxsize=4_096)
def _document(config: str) -> FeedDocument:
    """Read a document once: every feed is looked at each second, by several parts of a server, and one may have thousands of tables."""
    return decoded(config, FeedDocument)


class FeedPlan(msgspec.Struct, frozen=True):
    """What a feed is, or would be: its tables as the source has them now, and how they are divided. Holds secrets."""

    config: FeedConfig
    source: str
    tables: list[TableSchema]
    dispatchers: tuple[Dispatcher, ...]
    reads_by_job: bool

    def __repr__(self) -> str:
        return f"FeedPlan(name={self.config.name!r})"


class FeedCreator:
    """Checks and creates feeds. Thread safe; creations wait for nothing but their own target and the database."""

    def __init__(
        self,
        meta: MetaDatabase,
        sources: FeedSources,
        open_target: Callable[[SinkConfig, Guard], SinkMaintainer],
        policy: SinkPolicy | None = None,
        viewer: Viewer | None = None,
    ) -> None:
        """``policy`` says what callers of the API may write to; ``viewer`` asks Spark whether expressions of filters can be used."""
        self._meta = meta
        self._sources = sources
        self._open_target = open_target
        self._policy = policy or SinkPolicy()
        self._viewer = viewer

    def create(self, tree: Mapping[str, Any], actor: Actor = NOBODY, *, configured: bool = False) -> FeedRecord:
        """Create a feed from its configuration, or raise and leave nothing behind.

        ``configured`` says that whoever configured the server asks for it, and no caller: then any target will do.
        """
        config = load_feed_config(tree)
        if not configured:
            self._policy.check(config.target)
        source_uri = self._sources.choose(config.source)
        with self._sources.using(source_uri) as source:
            source.begin()
            return self._create(config, source_uri, source.upstream, actor)

    def create_all(self, tree: Mapping[str, Any], actor: Actor = NOBODY, *, configured: bool = False) -> list[FeedRecord]:
        """Create a feed for each target of a tree, all of them or none."""
        created: list[FeedRecord] = []
        trees = member_trees(tree)
        for config in map(load_feed_config, trees if len(trees) > 1 else ()):
            # Each target is looked at before the first is claimed: a claim stays where a later feed of the group is refused.
            if not configured:
                self._policy.check(config.target)
            self._check_others(config)
            self._open_target(config.target, unfenced).check(claimant(config.name, ""))
        try:
            created.extend(self.create(one, actor, configured=configured) for one in trees)
        except BaseException:
            for feed in created:
                self._meta.remove_feed(feed.name)
            raise
        return created

    def plan(self, tree: Mapping[str, Any]) -> FeedPlan:
        """Return what a feed of a configuration would be; nothing is created, and the target is not asked."""
        config = load_feed_config(tree)
        self._policy.check(config.target)
        source_uri = self._sources.choose(config.source)
        with self._sources.using(source_uri) as source:
            tables = match_tables(config.tables, source.upstream.list_tables())
            dispatchers = assign_dispatchers(tables, source.upstream, config.settings.spans_per_table)
            return FeedPlan(config, source_uri, tables, dispatchers, reads_state_by_job(source.upstream, config.settings))

    def plan_of(self, document: FeedDocument, dispatchers: tuple[Dispatcher, ...]) -> FeedPlan:
        """Return what a feed is that has these dispatchers."""
        config = document.feed_config()
        with self._sources.using(self._sources.choose(document.source)) as source:
            live = {d.id.table_id for d in dispatchers}
            there = [table for table in source.upstream.list_tables() if table.table_id in live]
            tables = sorted(there, key=lambda t: (t.full_name, t.table_id))
            return FeedPlan(config, document.source, tables, dispatchers, reads_state_by_job(source.upstream, config.settings))

    def check_alteration(self, document: FeedDocument, config: FeedConfig, move: TargetMove | None = None) -> None:
        """Raise where a feed must not have another configuration: its target is forbidden or taken, or a pattern matches no table."""
        if config.target != document.feed_config().target:
            self._policy.check(config.target)
        before = document.feed_config()
        if move is not None:
            self._check_others(config, own=config.name)
            self._open_target(config.target, unfenced).check(claimant(config.name, move.uuid))
        chosen = config.settings.filter
        if tuple(config.tables) != tuple(before.tables) or chosen != before.settings.filter:
            with self._sources.using(self._sources.choose(document.source)) as source:
                # A table that the feed had may be gone by now; what is asked for anew must be there.
                tables = match_tables(config.tables, source.upstream.list_tables(), set(config.tables) - set(before.tables))
            check_filter(chosen, tables, self._viewer)
            stopped = {d.id.table_id for d in map(from_record, self._meta.dispatchers(config.name) or ()) if d.stopped}
            if move is None:
                check_columns_stay(before.settings.filter, chosen, tables, stopped, self._viewer)

    def past_of(self, document: FeedDocument, dispatchers: Sequence[Dispatcher]) -> tuple[list[TableSchema], int | None]:
        """Return the tables of a feed's dispatchers as they are, and from which ts on all their changes are kept, if that is known."""
        plan = self.plan_of(document, tuple(dispatchers))
        with self._sources.using(self._sources.choose(document.source)) as source:
            return plan.tables, source.kept_from_ts([d.span.span_id for d in dispatchers])

    def letter_box(self, config: FeedConfig) -> LetterBox:
        """Return the dead letters of a feed."""
        sink = self._policy.resolved(config.target)
        return kind_of(sink.uri).letter_box(sink.uri, sink.options, config.name)

    def current_ts(self, source_uri: str) -> int:
        """Return a ts of a source that is larger than that of every commit so far."""
        with self._sources.using(self._sources.choose(source_uri)) as source:
            return source.upstream.current_ts()

    def _create(self, config: FeedConfig, source_uri: str, upstream: Upstream, actor: Actor) -> FeedRecord:
        tables, snapshot_ts = _tables(upstream, config)
        check_filter(config.settings.filter, tables, self._viewer)
        self._check_others(config)
        start_ts, until_ts = config.settings.start_ts, config.settings.until_ts
        if start_ts > snapshot_ts:
            raise PenstockError("CONFIG_INVALID", f"start-ts: {start_ts} is still to come; it is {snapshot_ts} now")
        uid = str(uuid.uuid4())
        # Nobody owns the feed yet: what is written is the claim, which one feed alone can make.
        target = self._open_target(config.target, unfenced)
        target.check(claimant(config.name, uid))
        if 0 < until_ts <= (start_ts or snapshot_ts):
            detail = f"until-ts: must be above {start_ts or snapshot_ts}, with which the feed begins"
            raise PenstockError("CONFIG_INVALID", detail, "Give a later one, or until-ts=0: then the feed has no end.")
        document = FeedDocument(
            config=dump_feed_config(config),
            source=source_uri,
            dispatchers=assign_dispatchers(tables, upstream, config.settings.spans_per_table),
            # Where Spark tasks read the state first, the planner decides the ts once they have.
            snapshot_ts=TS_ZERO if start_ts or reads_state_by_job(upstream, config.settings) else snapshot_ts,
        )
        record = FeedRecord(config.name, uid, document.to_json(), checkpoint_ts=start_ts)
        subscriptions = {table.full_name: _subscription(config, table, source_uri) for table in tables}
        created = self._meta.create_feed(record, list(subscriptions.values()), [to_record(d) for d in document.dispatchers], actor)
        try:
            target.claim(claimant(config.name, uid))
        except BaseException:
            self._meta.remove_feed(config.name)
            raise
        return created

    def _check_others(self, config: FeedConfig, own: str = "") -> None:
        """Raise where another feed has the name, or a target in a folder of which this one's would lie; its own former one counts too."""
        for feed in self._meta.list_feeds():
            if feed.name in {config.name, config.group} and feed.name != own:
                raise PenstockError("FEED_EXISTS", f"feed {feed.name} exists")
            # The trees alone: there may be a thousand feeds.
            document = FeedDocument.of(feed)
            if document.config.get("group") == config.name:
                raise PenstockError("FEED_EXISTS", f"feed {config.name} exists, as a group")
            trees = [document.config, *([document.next] if document.next and feed.name != own else [])]
            if any(self._policy.lies_inside(config.target, SinkConfig(tree["sink"]["uri"])) for tree in trees):
                raise PenstockError("SINK_OCCUPIED", f"{mask_uri(config.target.uri)} lies in the target of feed {feed.name}")


def members_of(meta: MetaDatabase, group: str) -> list[FeedRecord]:
    """Return the feeds of a group, in the order of their numbers; none where there is no such group."""
    # By their names, of which there are few: each call about one feed asks this, and there may be thousands of others.
    named = meta.find_feeds([f"{group}.{number}" for number in range(1, MEMBERS_MAX + 1)])
    members = [feed for feed in named if FeedDocument.of(feed).config.get("group") == group]
    return sorted(members, key=lambda feed: int(feed.name.rpartition(".")[2]))


def _tables(upstream: Upstream, config: FeedConfig) -> tuple[list[TableSchema], int]:
    """Return the feed's tables and a ts at which they are these; a DDL that comes in between makes it look again."""
    for _ in range(_LOOKS_MAX):
        before = upstream.list_tables()
        ts = upstream.current_ts()
        # Columns may change in between: their versions are known by ts.
        if {(t.table_id, t.full_name) for t in before} == {(t.table_id, t.full_name) for t in upstream.list_tables()}:
            return match_tables(config.tables, before), ts
    raise PenstockError("UPSTREAM_CHANGING", f"the source's tables changed {_LOOKS_MAX} times while the feed was created")


def reads_state_by_job(upstream: Upstream, settings: FeedSettings) -> bool:
    """Return whether the state that a feed begins with is read by Spark tasks."""
    return settings.start_ts == TS_ZERO and (settings.bootstrap == "job" or Capability.RANGES not in upstream.capabilities)


def claimant(name: str, uid: str) -> str:
    """Return how a target knows its feed. A feed that was removed and created again is another one: its files would collide."""
    return f"{name}/{uid[:8]}"


def match_tables(patterns: Sequence[str], known: Sequence[TableSchema], required: Collection[str] | None = None) -> list[TableSchema]:
    """Return the tables that any pattern matches, each partition once; raise ``TABLE_UNKNOWN`` that names patterns without a table.

    Where some are ``required``, others may have none.
    """
    names = sorted({(table.schema, table.table) for table in known})
    found: set[tuple[str, str]] = set()
    unmatched = []
    for pattern in patterns:
        matched = [name for name in names if match_table(pattern, *name)]
        if pattern.startswith("!"):
            found.difference_update(matched)
            continue
        if not matched and (required is None or pattern in required):
            unmatched.append(pattern)
        found.update(matched)
    if unmatched:
        problems = [f"{pattern!r} matches no table{_near(pattern, names)}" for pattern in unmatched[:_UNMATCHED_SHOWN_MAX]]
        problems += [f"and {left} more"] if (left := len(unmatched) - len(problems)) else []
        raise PenstockError("TABLE_UNKNOWN", "; ".join(problems))
    return sorted((t for t in known if (t.schema, t.table) in found), key=lambda t: (t.full_name, t.table_id))


def _near(pattern: str, names: Sequence[tuple[str, str]]) -> str:
    near = difflib.get_close_matches(pattern, [whole_pattern(*name) for name in names], n=_NEAR_MATCHES_MAX, cutoff=0.5)
    if near:
        return f" (near: {', '.join(near)})"
    return f" (the source has {len(names)} tables)" if names else " (the source has no tables)"


def _subscription(config: FeedConfig, table: TableSchema, source_uri: str) -> SubscribeRecord:
    return SubscribeRecord(
        db_name=table.schema,
        table_name=table.table,
        subscribe_name=config.name,
        table_id=table.table_id,
        # Told, not used: what is needed to enter source and target is in the feed's configuration alone.
        master_addrs=mask_uri(source_uri).partition("://")[2],
        sink=mask_uri(config.target.uri),
    )
