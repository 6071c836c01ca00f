"""What an operator does with a feed, verb by verb: the one handler behind the command line, the API, and whatever else asks.

A verb has a name, arguments that are checked here, and one method. Invariants: a verb is one transaction of the meta database, with who
asked and why in the audit; what it asks for is reached later, by the server that has the feed, and shown beside it. No argument and no
answer of the audit holds a secret. Thread safe. Runs in the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.config.tree import dump_feed_config, load_feed_config
from penstock.meta.database import MetaDatabase
from penstock.meta.records import Actor, FeedRecord, RequestedState, ServerState
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.server.feeds.alteration import altered, difference, holds_at_once, moved_to, why_not_back, with_next
from penstock.server.feeds.capture import dispatchers_of
from penstock.server.feeds.creation import FeedCreator, FeedDocument
from penstock.server.feeds.ports import Liveness
from penstock.settings.loader import merge
from penstock.settings.masking import mask_text, mask_uri
from penstock.sink.kind import LetterBox

_TS_DIGITS_MAX = 20
_TRIES_MAX = 5


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every verb may be told."""

    reason: str = ""


class Reset(Asked, frozen=True, forbid_unknown_fields=True):
    """``to`` is ``now``, ``snapshot`` or a ts."""

    to: str = ""


class Alter(Asked, frozen=True, forbid_unknown_fields=True):
    """``changes`` is a part of a feed's configuration: what it names is replaced.

    ``start`` is with what another target begins: ``snapshot``, which it is where nothing is said, ``now`` or a ts.
    """

    changes: dict[str, Any] = {}
    start: str = ""


class Move(Asked, frozen=True, forbid_unknown_fields=True):
    """``to`` is a server, by its name or its address; empty for any."""

    to: str = ""


class Clone(Asked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``name`` is that of the new feed; ``changes`` is what of its configuration is not that of the other: its target at least."""

    name: str
    changes: dict[str, Any]


class FeedControl:
    """Does verbs."""

    def __init__(self, meta: MetaDatabase, creator: FeedCreator, supervisor: Liveness) -> None:
        self._meta = meta
        self._creator = creator
        self._supervisor = supervisor

    def do(self, verb: str, name: str, arguments: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Do a verb on a feed for a caller; return what came of it. Raises ``CONFIG_INVALID`` for arguments that it does not have."""
        known = VERBS[verb]
        try:
            told = decoded(json.dumps(arguments), known.arguments)
        except msgspec.ValidationError as error:
            raise PenstockError("CONFIG_INVALID", f"{verb}: {error}") from None
        answer = self._tried(known, name, told, Actor(by, mask_text(told.reason)))
        self._supervisor.wake()
        return {"name": name, "verb": verb, **self._states(name), **answer}

    def _tried(self, verb: Verb, name: str, told: Asked, actor: Actor) -> dict[str, Any]:
        """Do a verb; where the feed was changed meanwhile, mostly by its server that let another change hold, do it to what it is now."""
        for _ in range(_TRIES_MAX - 1):
            try:
                return verb.do(self, name, told, actor)
            except PenstockError as error:
                if error.code != "CONGESTED":
                    raise
        return verb.do(self, name, told, actor)

    def history(self, name: str) -> list[dict[str, Any]]:
        """Return what happened to a feed, oldest first."""
        return [msgspec.to_builtins(entry) for entry in self._meta.lives.history(name)]

    def dead_letters(self, name: str) -> LetterBox:
        """Return what the target of a feed refused for good."""
        return self._creator.letter_box(FeedDocument.of(self._meta.get_feed(name)).feed_config())

    def deliver_again(self, name: str, table: str, verb: str, actor: Actor) -> None:
        """Have a table of a feed delivered once more as it is, as far as the target differs from it."""
        feed = self._meta.get_feed(name)
        document = FeedDocument.of(feed)
        changed = msgspec.structs.replace(document, again=tuple(sorted({*document.again, table})))
        if changed != document:
            self._change(feed, changed, f"table {verb}", actor, "", table)
        self._supervisor.wake()

    def retry_now(self, name: str) -> None:
        """Try a feed at once that waits for its next attempt."""
        self._supervisor.retry_now(name)

    def _states(self, name: str) -> dict[str, str]:
        try:
            feed = self._meta.get_feed(name)
        except PenstockError as error:
            if error.code != "FEED_UNKNOWN":
                raise
            # It was asked to go, and is gone.
            return {"requested_state": RequestedState.REMOVED.value, "state": "gone"}
        return {"requested_state": feed.requested_state.value, "state": feed.reached_state.value}

    def _pause(self, name: str, _asked: Asked, actor: Actor) -> dict[str, Any]:
        return {"changed": self._meta.lives.request(name, RequestedState.PAUSED, actor)}

    def _resume(self, name: str, _asked: Asked, actor: Actor) -> dict[str, Any]:
        resumed = self._meta.lives.request(name, RequestedState.RUNNING, actor)
        self._supervisor.retry_now(name)
        return {"changed": resumed, "resumed": resumed}

    def _remove(self, name: str, _asked: Asked, actor: Actor) -> dict[str, Any]:
        return {"changed": self._meta.lives.request(name, RequestedState.REMOVED, actor)}

    def _cancel(self, name: str, _asked: Asked, actor: Actor) -> dict[str, Any]:
        return {"changed": self._meta.lives.request(name, RequestedState.CANCELLED, actor)}

    def _reset(self, name: str, asked: Reset, actor: Actor) -> dict[str, Any]:
        feed = self._meta.get_feed(name)
        document, checkpoint_ts = FeedDocument.of(feed), feed.checkpoint_ts
        if not checkpoint_ts:
            raise PenstockError("CONFIG_INVALID", f"feed {name} has delivered nothing yet: it begins with a snapshot anyway")
        if asked.to == "snapshot":
            if document.feed_config().settings.start_ts:
                raise PenstockError("CONFIG_INVALID", f"feed {name} began at a start-ts: its target holds no state to compare with")
            changed, new = msgspec.structs.replace(document, resnapshot_from_ts=checkpoint_ts), "snapshot"
        else:
            to_ts = self._reset_ts(asked.to, document)
            back = to_ts < checkpoint_ts
            if back:
                self._check_rewind(feed, document, to_ts)
            places = {"skip_until_ts": 0, "resnapshot_from_ts": None, "rewind_to_ts": to_ts} if back else {"skip_until_ts": to_ts}
            changed, new = msgspec.structs.replace(document, **places), f"{asked.to}: {to_ts}" if asked.to == "now" else asked.to
        return self._change(feed, changed, "reset", actor, f"checkpoint {checkpoint_ts}", new) | {"to": new}

    def _reset_ts(self, to: str, document: FeedDocument, what: str = "reset") -> int:
        """Return the ts that a feed is reset to; raise where there is none."""
        if to != "now" and not (to.isdecimal() and len(to) < _TS_DIGITS_MAX):
            raise PenstockError("CONFIG_INVALID", "reset: to must be now, snapshot or a ts")
        now_ts = self._creator.current_ts(document.source)
        to_ts = now_ts if to == "now" else int(to)
        if to_ts > now_ts:
            raise PenstockError("CONFIG_INVALID", f"{what}: ts {to_ts} is still to come", "Use until-ts to end a feed at a ts.")
        return to_ts

    def _check_start(self, feed: FeedRecord, document: FeedDocument, start_ts: int) -> None:
        """Raise where what comes after a ts cannot be delivered into another target."""
        self._reset_ts(str(start_ts), document, "start")
        live = dispatchers_of(self._meta, feed.name, document)
        changed_ts = max(self._meta.dispatcher_marks().get(feed.name, (0,))[-2:])
        kept_from_ts = self._creator.past_of(document, live)[1]
        if start_ts < feed.checkpoint_ts and (kept_from_ts is None or start_ts < max(kept_from_ts, changed_ts)):
            least = max(kept_from_ts or 0, changed_ts) or feed.checkpoint_ts
            raise PenstockError("CONFIG_INVALID", f"start: changes are kept from ts {least} on", "Begin with now or snapshot.")

    def _check_rewind(self, feed: FeedRecord, document: FeedDocument, to_ts: int) -> None:
        """Raise where a feed cannot deliver once more what it has delivered after a ts."""
        live = dispatchers_of(self._meta, feed.name, document)
        changed_ts = max(self._meta.dispatcher_marks().get(feed.name, (0,))[-2:])
        positions = self._meta.positions(feed.name, [str(d.id) for d in live])
        why = why_not_back(to_ts, document, live, changed_ts, positions.values(), *self._creator.past_of(document, live))
        if why:
            raise PenstockError(
                "CONFIG_INVALID",
                f"reset: everything up to {feed.checkpoint_ts} is in the target, and {why}",
                "Use `penstock feed clone` with --start-ts to have older changes in a target of their own, or reset to snapshot.",
            )

    def _alter(self, name: str, asked: Alter, actor: Actor) -> dict[str, Any]:
        feed = self._meta.get_feed(name)
        document = FeedDocument.of(feed)
        config = altered(document, asked.changes)
        move = moved_to(document, config, asked.start, feed)
        self._creator.check_alteration(document, config, move)
        if move is not None and move.start.isdecimal():
            self._check_start(feed, document, int(move.start))
        if 0 < config.settings.until_ts < feed.checkpoint_ts:
            raise PenstockError("CONFIG_INVALID", f"until-ts: everything up to {feed.checkpoint_ts} is delivered already")
        changed = with_next(document, config, move)
        old, new = difference(document.next or document.config, changed.next or {})
        if not (old or new) and move == document.move:
            return {"changed": False, "effective_ts": feed.checkpoint_ts}
        at_once = holds_at_once(changed) or (move is not None and move.abandons)
        answer = self._change(feed, changed, "alter", actor, old, new, at_once=at_once)
        return answer | ({"start": move.start, "closes": mask_uri(load_feed_config(document.config).target.uri)} if move else {})

    def _move(self, name: str, asked: Move, actor: Actor) -> dict[str, Any]:
        servers = [s for s in self._supervisor.servers if s.state is ServerState.ACTIVE]
        found = next((s.owner for s in servers if asked.to in {s.owner, s.url.rstrip("/")}), None) if asked.to else ""
        if found is None:
            known = ", ".join(f"{s.owner} ({s.url})" for s in servers)
            raise PenstockError("CONFIG_INVALID", f"move: no server {asked.to!r} takes feeds; there are {known or 'none'}")
        names = self._supervisor.companions(self._meta.get_feed(name))
        return {"changed": self._meta.lives.move(names, found, actor), "to": found, "feeds": sorted(names)}

    def _clone(self, name: str, asked: Clone, actor: Actor) -> dict[str, Any]:
        document = FeedDocument.of(self._meta.get_feed(name))
        before = document.next or document.config
        sink = asked.changes.get("sink")
        own = {"name": asked.name} | ({"sink": {"uri": sink}} if isinstance(sink, str) else {})
        config = load_feed_config(merge(before, {**asked.changes, **own}))
        if config.target.uri == load_feed_config(before).target.uri:
            raise PenstockError("CONFIG_INVALID", "clone: sink: two feeds cannot have one target", "Name another one.")
        made = self._creator.create(dump_feed_config(config), Actor(actor.by, actor.why or f"a clone of {name}"))
        return {"changed": True, "clone": made.name}

    def _change(
        self, feed: FeedRecord, document: FeedDocument, what: str, actor: Actor, old: str, new: str, *, at_once: bool = False
    ) -> dict[str, Any]:
        """Give a feed another document; return from which ts on it holds."""
        holds_ts = self._meta.change_config(feed, document.to_json(), what, actor, old, new, at_once=at_once)
        if holds_ts is None:
            raise PenstockError(
                "CONGESTED", f"feed {feed.name} was changed by somebody else meanwhile", "Look at its history, and ask again."
            )
        return {"changed": True, "effective_ts": holds_ts}


class Verb(NamedTuple):
    """A verb: what it is told, and what does it."""

    arguments: type[Asked]
    do: Callable[[FeedControl, str, Any, Actor], dict[str, Any]]
    waits: bool = False
    """Whether it asks the source or a target."""


VERBS: dict[str, Verb] = {
    "pause": Verb(Asked, FeedControl._pause),
    "resume": Verb(Asked, FeedControl._resume),
    "cancel": Verb(Asked, FeedControl._cancel),
    "reset": Verb(Reset, FeedControl._reset, waits=True),
    "alter": Verb(Alter, FeedControl._alter, waits=True),
    "move": Verb(Move, FeedControl._move),
    "clone": Verb(Clone, FeedControl._clone, waits=True),
    "remove": Verb(Asked, FeedControl._remove),
}
