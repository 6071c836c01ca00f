"""The rows of the meta database as values.

A feed's configuration and its sink URI may hold credentials: the database keeps them, so the records carry them, but no ``repr`` shows
them; whoever shows a feed masks it first (``penstock.settings.masking``). Requested and reached state are two fields, because what was
asked for and what is so are two facts. Runs anywhere.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class RequestedState(StrEnum):
    """What the operator asked for."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    """It ends for good; what it delivered stays, and so does its record."""
    REMOVED = "removed"


class ReachedState(StrEnum):
    """Where the feed is."""

    CREATED = "created"
    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    STOPPED = "stopped"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    """It has delivered everything up to its end ts."""


class Actor(msgspec.Struct, frozen=True):
    """Who asks for something, and why."""

    by: str = ""
    why: str = ""


NOBODY = Actor()


class AuditRecord(msgspec.Struct, frozen=True):
    """One change of a feed: what it was, and what it came to be. Holds no secrets."""

    seq: int
    at_ms: int
    by: str
    what: str
    """The verb of an operator, or ``state`` where a server says what the feed reached."""
    why: str
    old: str
    new: str


class FeedRecord(msgspec.Struct, frozen=True):
    """One feed. ``owner`` is empty where nobody holds the lease; ``checkpoint_ts`` is 0 before a snapshot."""

    name: str
    uuid: str
    config: str
    requested_state: RequestedState = RequestedState.RUNNING
    reached_state: ReachedState = ReachedState.CREATED
    error_code: str = ""
    error_text: str = ""
    owner: str = ""
    epoch: int = 0
    lease_until_ms: int = 0
    checkpoint_ts: int = 0
    created_ms: int = 0
    updated_ms: int = 0
    windows_total: int = 0
    rows_total: int = 0
    nbytes_total: int = 0
    files_total: int = 0
    config_version: int = 0
    """Grows with every change of the configuration."""
    wanted_owner: str = ""
    """The server that shall have the feed while it lives; empty where any may."""

    @property
    def is_over(self) -> bool:
        """Return whether the feed delivers nothing any more, so that nothing is kept for it."""
        return self.requested_state is RequestedState.CANCELLED or self.reached_state is ReachedState.FINISHED

    def __repr__(self) -> str:
        return (
            f"FeedRecord(name={self.name!r}, requested={self.requested_state.value}, reached={self.reached_state.value}, "
            f"owner={self.owner!r}, epoch={self.epoch}, checkpoint_ts={self.checkpoint_ts})"
        )


class RetryRecord(msgspec.Struct, frozen=True):
    """A feed whose last run failed and that is tried again: since when, when next, how often in a row without progress."""

    since_ms: int
    next_attempt_ms: int
    failures: int


class ServerState(StrEnum):
    """Whether a server takes feeds, or gives up those that it has."""

    ACTIVE = "active"
    DRAINING = "draining"


class ServerRecord(msgspec.Struct, frozen=True):
    """A server that shares the meta database; ``owner`` is the name under which it owns feeds."""

    owner: str
    url: str = ""
    state: ServerState = ServerState.ACTIVE
    seen_ms: int = 0


class SubscribeRecord(msgspec.Struct, frozen=True):
    """One table of a feed; ``subscribe_name`` is the feed's name."""

    db_name: str
    table_name: str
    subscribe_name: str
    table_id: int
    master_addrs: str = ""
    sink: str = ""
    cancel: int = 0
    owner: str = ""

    def __repr__(self) -> str:
        return f"SubscribeRecord({self.db_name}.{self.table_name}, table_id={self.table_id}, feed={self.subscribe_name!r})"


class DispatcherRecord(msgspec.Struct, frozen=True):
    """One dispatcher of a feed, which lives while the checkpoint is in ``[begin_ts, end_ts)``; an end of 0: it lives."""

    range_id: str
    table_id: int
    db_name: str
    table_name: str
    document: str
    """The dispatcher as the feed knows it, as JSON."""
    begin_ts: int = 0
    end_ts: int = 0


class Counted(msgspec.Struct, frozen=True):
    """What one dispatcher delivered in a window, or a table in all of them."""

    rows: int = 0
    nbytes: int = 0
    files: int = 0


class TableProgress(msgspec.Struct, frozen=True):
    """What a feed delivered of one table; ``delivered_ts`` is the end of the last window in which it had work."""

    feed: str
    table_id: int
    db_name: str
    table_name: str
    counted: Counted
    delivered_ts: int


class RangeProgress(msgspec.Struct, frozen=True):
    """What a feed delivered of one range of a table, which one dispatcher delivers; ``delivered_ts`` as of a table."""

    range_id: str
    counted: Counted
    delivered_ts: int


class PendingWindow(msgspec.Struct, frozen=True):
    """A window ``(from_ts, to_ts]`` that is recorded before its first file is written, so that a replay has the same end."""

    feed: str
    from_ts: int
    to_ts: int
    plan: str
    epoch: int
    begun_ms: int = 0


class FeedProgress(msgspec.Struct, frozen=True):
    """What a feed delivered. ``positions`` maps a dispatcher to the sink's own record of where it stands."""

    checkpoint_ts: int
    positions: dict[str, dict[str, int]]
    windows: int = 0
    rows: int = 0
    nbytes: int = 0
    files: int = 0
