"""What an operator does with one table of a feed, verb by verb: the one handler behind the command line, the API and SQL.

Where the source has one log, all feeds share what is captured of a table, and the verbs are about that (``doubted_tables.py``). Where it
gives every state itself, a verb is an alteration of the one feed. Invariant: a verb stands in the feed's audit, with who asked and why.
Runs in the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.config.tree import load_feed_config
from penstock.feed.window.following import from_record
from penstock.meta.database import MetaDatabase
from penstock.meta.records import Actor, FeedRecord, RequestedState
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.table_pattern import pattern_parts, whole_pattern
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.feeds.control import Asked, FeedControl
from penstock.server.feeds.creation import FeedDocument
from penstock.server.http.table_views import FeedTable, feed_tables, find_table, table_view, unknown_tables
from penstock.server.source_address import same_source
from penstock.settings.masking import mask_text

DoubtedOf = Callable[[FeedRecord], DoubtedTables | None]
"""Gives the doubted tables of a feed's source; None where they are never in doubt."""
_WHOLE = re.compile(r"![^*?\[\]]+\.[^*?\[\]]+")
_AGAIN = frozenset({"retry", "resnapshot"})
"""Verbs that have a table delivered again which its filter stopped."""
_EXCLUDED = {"state": "excluded", "reason": "excluded by an operator", "hint": "Include it when it shall be delivered again."}


class TableControl:
    """Does verbs on tables. Thread safe."""

    def __init__(self, meta: MetaDatabase, doubted_of: DoubtedOf, control: FeedControl) -> None:
        self._meta = meta
        self._doubted_of = doubted_of
        self._control = control

    def do(self, verb: str, name: str, table: str, arguments: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Do a verb on a table of a feed for a caller; return the table as it is shown."""
        try:
            told = decoded(json.dumps(arguments), Asked)
        except msgspec.ValidationError as error:
            raise PenstockError("CONFIG_INVALID", f"table {verb}: {error}") from None
        feed = self._meta.get_feed(name)
        if feed.requested_state in {RequestedState.CANCELLED, RequestedState.REMOVED}:
            raise PenstockError("FEED_ENDED", f"feed {name} is {feed.requested_state.value}")
        doubted = self._doubted_of(feed)
        found = find_table(self.tables(feed, doubted), table)
        actor = Actor(by, mask_text(told.reason))
        stopped = {d.id.table_id for d in map(from_record, self._meta.dispatchers(name) or ()) if d.stopped}
        again = verb == "resnapshot" and doubted is None and not _is_excluded(feed, found)
        if again or (verb in _AGAIN and stopped & set(found.table_ids)):
            # It stands in the audit with the change itself.
            self._control.deliver_again(name, found.name, verb, actor)
            return self.views([found], feed, doubted)[0]
        if doubted is not None:
            TABLE_VERBS[verb](self._meta, doubted, name, found)
        else:
            self._alter(verb, feed, found, actor)
        self._meta.lives.record(name, f"table {verb}", actor, found.name)
        return self.views([found], self._meta.get_feed(name), doubted)[0]

    def _alter(self, verb: str, feed: FeedRecord, table: FeedTable, actor: Actor) -> None:
        """Leave a table out of a feed or have it again, by the feed's patterns."""
        patterns = _patterns(feed)
        wanted = [pattern for pattern in patterns if pattern.lower() != _exception(table)]
        if verb == "exclude":
            wanted.append(f"!{whole_pattern(table.schema, table.table)}")
        elif wanted == patterns:
            self._control.retry_now(feed.name)
            return
        why = actor.why or f"table {verb}"
        self._control.do("alter", feed.name, {"changes": {"tables": wanted}, "reason": why}, actor.by)

    def tables(self, feed: FeedRecord, doubted: DoubtedTables | None) -> list[FeedTable]:
        """Return the tables of a feed, those included of which the log told nothing but the name."""
        known = feed_tables(self._meta.feed_tables(feed.name), self._meta.dispatchers(feed.name))
        if doubted is None:
            return [*known, *_excluded(feed, known)]
        return [*known, *unknown_tables(doubted.states(), FeedDocument.of(feed).feed_config().tables, known)]

    @staticmethod
    def views(tables: Sequence[FeedTable], feed: FeedRecord, doubted: DoubtedTables | None) -> list[dict[str, Any]]:
        """Return the states of tables as they are shown."""
        if doubted is None:
            return [table_view(table, ()) | (_EXCLUDED if _is_excluded(feed, table) else {}) for table in tables]
        states = doubted.states()
        return [table_view(table, states, doubted.progress, doubted.will_settle) for table in tables]


def _resnapshot(_meta: MetaDatabase, settling: DoubtedTables, _feed: str, table: FeedTable) -> None:
    for table_id in table.table_ids:
        settling.resnapshot(table_id, table.schema, table.table)
    if not table.table_ids:
        settling.look_again()


def _retry(_meta: MetaDatabase, settling: DoubtedTables, _feed: str, table: FeedTable) -> None:
    if table.table_ids:
        settling.retry(table.table_ids)
    else:
        settling.look_again()


def _exclude(meta: MetaDatabase, settling: DoubtedTables, feed: str, table: FeedTable) -> None:
    """Leave a table out, unless another feed has it too: they share the event store."""
    if not table.table_ids:
        raise PenstockError("TABLE_UNKNOWN", f"no version of {table.name} is known: none of its rows are captured as it is")
    source = FeedDocument.of(meta.get_feed(feed)).source
    living = [f for f in meta.list_feeds() if f.name != feed and not f.is_over]
    names = [f.name for f in living if same_source(FeedDocument.of(f).source, source)]
    others = [name for name in names if any(d.table_id in table.table_ids for d in meta.dispatchers(name) or ())]
    if others:
        raise PenstockError(
            "CONFIG_INVALID",
            f"{table.name} is also in feed {', '.join(others)}, and feeds of one source share what is captured",
            "Exclude it by the feed's patterns, in a feed of its own.",
        )
    for table_id in table.table_ids:
        settling.exclude(table_id, table.schema, table.table)


TABLE_VERBS: dict[str, Callable[[MetaDatabase, DoubtedTables, str, FeedTable], None]] = {
    "resnapshot": _resnapshot,
    "retry": _retry,
    "include": _retry,
    "exclude": _exclude,
}


def _patterns(feed: FeedRecord) -> list[str]:
    """Return the patterns of a feed, as it was last altered."""
    document = FeedDocument.of(feed)
    return [*load_feed_config(document.next or document.config).tables]


def _exception(table: FeedTable) -> str:
    return f"!{whole_pattern(table.schema, table.table)}".lower()


def _is_excluded(feed: FeedRecord, table: FeedTable) -> bool:
    return _exception(table) in map(str.lower, _patterns(feed))


def _excluded(feed: FeedRecord, known: Sequence[FeedTable]) -> list[FeedTable]:
    """Return the tables that a feed would have, but for an exception by their whole name."""
    names = {table.name.lower() for table in known}
    parts = [pattern_parts(pattern) for pattern in _patterns(feed) if _WHOLE.fullmatch(pattern)]
    found = [FeedTable(schema, table, ()) for schema, table in parts]
    return [table for table in found if table.name.lower() not in names]
