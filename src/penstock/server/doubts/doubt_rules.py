"""What the feeds of a server wish for tables that are in doubt: the rule of each table, and which are read again on a schedule.

Feeds share the event store, so of different wishes for a table one is done, in the order of ``REWRITE_RULES``: what makes the table right
comes first. Runs in the server.
"""

from __future__ import annotations

import msgspec

from penstock.config.tree import FeedConfig
from penstock.feed.settings import REWRITE_RULES, OnRewrite
from penstock.meta.database import MetaDatabase
from penstock.model.table_pattern import TablePatterns
from penstock.server.feeds.creation import FeedDocument
from penstock.server.source_address import same_source


class Recheck(msgspec.Struct, frozen=True):
    """A table that is read again so often, in doubt or not."""

    table_id: int
    schema: str
    table: str
    interval_s: float


class FeedDoubtRules:
    """The wishes of all feeds in a meta database that read one source."""

    def __init__(self, meta: MetaDatabase, source: str) -> None:
        self._meta = meta
        self._source = source

    def rule(self, schema: str, table: str) -> OnRewrite:
        """Return what is done about a table that is in doubt; a table that no feed has is kept as it is."""
        wishes = {
            config.settings.rewrite_rule(schema, table)
            for config in self._configs().values()
            if TablePatterns(config.tables).match(schema, table)
        }
        return next((rule for rule in REWRITE_RULES if rule in wishes), "keep")

    def rechecks(self) -> list[Recheck]:
        """Return the tables that are read again on a schedule, each with the shortest interval that a feed wishes."""
        found: dict[int, Recheck] = {}
        for name, config in self._configs().items():
            wanted = TablePatterns(config.settings.recheck_tables)
            for one in self._meta.dispatchers(name) or [] if wanted.patterns else []:
                if wanted.match(one.db_name, one.table_name):
                    new = Recheck(one.table_id, one.db_name, one.table_name, config.settings.recheck_interval_s)
                    old = found.get(one.table_id, new)
                    found[one.table_id] = min(old, new, key=lambda r: r.interval_s)
        return list(found.values())

    def has_table(self, table_id: int) -> bool:
        """Return whether a feed has a table still: its drop, if there was one, is not delivered yet."""
        return any(one.table_id == table_id for name in self._configs() for one in self._meta.dispatchers(name) or [])

    def concerns(self, table_id: int, schema: str, table: str) -> bool:
        """Return whether a feed has a table, or may come to have it when it gets so far: a pattern matches its name."""
        return any(TablePatterns(c.tables).match(schema, table) for c in self._configs().values()) or self.has_table(table_id)

    def _configs(self) -> dict[str, FeedConfig]:
        documents = {feed.name: FeedDocument.of(feed) for feed in self._meta.list_feeds() if not feed.is_over}
        return {name: d.feed_config() for name, d in documents.items() if same_source(d.source, self._source)}
