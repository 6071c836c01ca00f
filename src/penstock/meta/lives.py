"""The life of a feed: what is asked of it, and what it reached.

Two facts, two columns: operators write the one, the server that has the lease the other. Invariants: every change is made in one
transaction with the feed's row locked, from a state that allows it, and has its entry in the audit; a window begins and is committed only
while the feed shall run (``transactions/windows.py`` looks at the same row in the same transaction), so progress stands still from the
moment a pause is acknowledged. What a server says it reached is fenced by its epoch. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from penstock.meta.engine import MetaEngine
from penstock.meta.progress import unknown_feed
from penstock.meta.records import Actor, AuditRecord, FeedRecord, ReachedState, RequestedState
from penstock.meta.tables import feed, subscribe
from penstock.meta.transactions import audit, ownership, retries, windows
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError

_FROM: dict[RequestedState, frozenset[RequestedState]] = {
    RequestedState.RUNNING: frozenset({RequestedState.PAUSED}),
    RequestedState.PAUSED: frozenset({RequestedState.RUNNING}),
    RequestedState.CANCELLED: frozenset({RequestedState.RUNNING, RequestedState.PAUSED}),
    RequestedState.REMOVED: frozenset({RequestedState.RUNNING, RequestedState.PAUSED, RequestedState.CANCELLED}),
}
"""From what each state may be asked for."""
VERBS = {
    RequestedState.RUNNING: "resume",
    RequestedState.PAUSED: "pause",
    RequestedState.CANCELLED: "cancel",
    RequestedState.REMOVED: "remove",
}
_RESTS = {
    RequestedState.RUNNING: ReachedState.STOPPED,
    RequestedState.PAUSED: ReachedState.PAUSED,
    RequestedState.CANCELLED: ReachedState.CANCELLED,
    RequestedState.REMOVED: ReachedState.STOPPED,
}
"""What a feed reaches that nobody runs, by what is asked of it."""
_OVER = frozenset({RequestedState.CANCELLED.value, RequestedState.REMOVED.value})
_LEFT = frozenset({ReachedState.FAILED.value, ReachedState.PAUSED.value})
"""From what a feed that shall run goes on only because it was asked for."""


def resting(requested: RequestedState) -> ReachedState:
    """Return what a feed reaches whose run has ended, by what is asked of it."""
    return _RESTS[requested]


class FeedLives:
    """The lives of all feeds of one meta database. Thread safe."""

    def __init__(self, engine: MetaEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def request(self, name: str, wanted: RequestedState, actor: Actor) -> bool:
        """Ask something of a feed; return False where it was asked already.

        Raises ``FEED_UNKNOWN``, and ``FEED_ENDED`` where what was asked before cannot be taken back.
        """
        with self._engine.write() as connection:
            row, now_ms = self._locked(connection, name), self._clock.now_ms()
            before = RequestedState(row.requested_state)
            values: dict[str, Any] = {"requested_state": wanted.value, "updated_ms": now_ms}
            if wanted is RequestedState.RUNNING and row.reached_state in _LEFT:
                values |= {"reached_state": ReachedState.STOPPED.value, "error_code": "", "error_text": ""}
            elif before is wanted:
                return False
            elif wanted is RequestedState.PAUSED and not row.owner:
                # Nobody is there who could say so, and nothing runs.
                values["reached_state"] = ReachedState.PAUSED.value
            finished = row.reached_state == ReachedState.FINISHED.value and wanted is RequestedState.PAUSED
            if finished or (before is not wanted and before not in _FROM[wanted]):
                shown = ReachedState.FINISHED if finished else before
                raise PenstockError("FEED_ENDED", f"feed {name} is {shown.value}, so it cannot be {wanted.value}")
            _write(connection, name, values)
            if wanted.value in _OVER:
                connection.execute(subscribe.update().where(subscribe.c.subscribe_name == name).values(cancel=1))
            audit.write(connection, name, now_ms, VERBS[wanted], actor, _shown(row), _shown(row, **values))
        return True

    def move(self, names: Sequence[str], owner: str, actor: Actor) -> bool:
        """Let a server have feeds while it lives, or any where it is empty; return False where that was asked already."""
        moved = False
        with self._engine.write() as connection:
            for name in sorted(names):
                row, now_ms = self._locked(connection, name), self._clock.now_ms()
                if row.wanted_owner != owner:
                    moved = True
                    _write(connection, name, {"wanted_owner": owner, "updated_ms": now_ms})
                    audit.write(connection, name, now_ms, "move", actor, row.wanted_owner, owner)
        return moved

    def change_config(
        self, connection: sa.Connection, before: FeedRecord, sealed: str, what: str, actor: Actor, old: str, new: str, *, at_once: bool
    ) -> int | None:
        """Do ``MetaDatabase.change_config`` in a transaction of the caller's."""
        name, row, now_ms = before.name, self._locked(connection, before.name), self._clock.now_ms()
        if (row.uuid, row.config_version) != (before.uuid, before.config_version):
            return None
        if row.requested_state in _OVER:
            raise PenstockError("FEED_ENDED", f"feed {name} is {row.requested_state}")
        window = None if at_once else windows.pending(connection, name)
        values = {"config": sealed, "config_version": row.config_version + 1, "owner": "", "lease_until_ms": 0, "updated_ms": now_ms}
        if row.reached_state in {ReachedState.FAILED.value, ReachedState.FINISHED.value}:
            values |= {"reached_state": ReachedState.STOPPED.value, "error_code": "", "error_text": ""}
        _write(connection, name, values)
        connection.execute(subscribe.update().where(subscribe.c.subscribe_name == name).values(owner=""))
        holds_ts = int(row.checkpoint_ts if window is None else window.to_ts)
        audit.write(connection, name, now_ms, what, actor, old, f"{new}, from ts {holds_ts} on")
        return holds_ts

    def reach(self, name: str, epoch: int, expected: ReachedState, new: ReachedState) -> bool:
        """Record where a feed is; return False where it was not in the expected state. Fenced. RUNNING clears the error."""
        values: dict[str, Any] = {"reached_state": new.value, "updated_ms": self._clock.now_ms()}
        if new is ReachedState.RUNNING:
            values |= {"error_code": "", "error_text": ""}
        with self._engine.write() as connection:
            row = ownership.fenced_feed(connection, name, epoch)
            if row.reached_state != expected.value:
                return False
            self.note(connection, row, **values)
        return True

    def rest(self, name: str, epoch: int, *, finished: bool = False) -> ReachedState:
        """Record that nothing of a feed runs any more, and return what it reached by that: what is asked of it decides. Fenced.

        ``finished`` says that it delivered everything up to its end.
        """
        with self._engine.write() as connection:
            row = ownership.fenced_feed(connection, name, epoch)
            new = resting(RequestedState(row.requested_state))
            if finished and new is ReachedState.STOPPED:
                new = ReachedState.FINISHED
            self.note(connection, row, reached_state=new.value, updated_ms=self._clock.now_ms())
        return new

    def note(self, connection: sa.Connection, row: sa.Row[Any], why: str = "", **values: Any) -> None:
        """Write what a server found of a feed, whose row is locked."""
        _write(connection, row.name, values)
        if _shown(row) != _shown(row, **values):
            audit.write(connection, row.name, self._clock.now_ms(), "state", Actor(row.owner, why), _shown(row), _shown(row, **values))

    def record(self, name: str, what: str, actor: Actor, new: str) -> None:
        """Note in the audit what was asked of a feed and is kept elsewhere, such as of one of its tables."""
        with self._engine.write() as connection:
            self._locked(connection, name)
            audit.write(connection, name, self._clock.now_ms(), what, actor, new=new)

    def history(self, name: str) -> list[AuditRecord]:
        """Return what happened to a feed, oldest first, also to one that is gone; raise ``FEED_UNKNOWN`` where nothing is known."""
        with self._engine.read() as connection:
            found = audit.read(connection, name)
            if not found and connection.execute(sa.select(feed.c.name).where(feed.c.name == name)).first() is None:
                raise unknown_feed(connection, name)
        return found

    def _locked(self, connection: sa.Connection, name: str) -> sa.Row[Any]:
        row = ownership.locked_feed(connection, name)
        if row is None:
            raise unknown_feed(connection, name)
        return row


def _write(connection: sa.Connection, name: str, values: dict[str, Any]) -> None:
    connection.execute(feed.update().where(feed.c.name == name).values(**values))
    if values.get("reached_state", ReachedState.RETRYING.value) != ReachedState.RETRYING.value:
        retries.clear(connection, name)


def _shown(row: sa.Row[Any], **changed: Any) -> str:
    """Return both states of a feed as an entry of the audit has them."""
    requested, reached = changed.get("requested_state", row.requested_state), changed.get("reached_state", row.reached_state)
    return f"{requested}, {reached}"
