"""The types of the API's answers, as its document names them; nothing is made of them at run time.

Invariant: a test calls every route and finds each field of each answer here. A field without a default is always there. Runs in the
server.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.feed.bootstrap.bootstrap import BootstrapProgress
from penstock.meta.records import AuditRecord, RetryRecord
from penstock.server.feeds.ports import SnapshotStatus
from penstock.server.health.feed_watch import FeedProblem
from penstock.server.health.watch import ComponentHealth
from penstock.server.log_tail import LogEntry


class Error(msgspec.Struct):
    """Why a call failed; ``code`` is stable, see docs/errors.md."""

    code: str
    message: str
    hint: str


class FeedSummary(msgspec.Struct, kw_only=True):
    """One line of the list of feeds."""

    name: str
    state: str
    requested_state: str
    checkpoint_ts: int
    checkpoint_time: str | None
    lag_s: float | None
    resolved_ts: int
    rows: int
    bytes: int
    files: int
    windows: int
    owner: str
    epoch: int
    snapshot: SnapshotStatus | None
    error: Error | None
    retry: RetryRecord | None
    problem: FeedProblem | None
    capture_problems: list[str]


class Feeds(msgspec.Struct):
    """All feeds."""

    feeds: list[FeedSummary]


class TableProgress(msgspec.Struct):
    """How far a table is."""

    rows: int
    bytes: int
    files: int
    delivered_ts: int
    checkpoint_ts: int
    lag_s: float | None
    joining: bool


class Table(msgspec.Struct, kw_only=True):
    """A table of a feed; of one in doubt since when, why, and when it is tried again."""

    name: str
    table_id: int | None
    state: str
    progress: TableProgress | msgspec.UnsetType = msgspec.UNSET
    settled_ts: int | msgspec.UnsetType = msgspec.UNSET
    since_ms: int | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    code: str | msgspec.UnsetType = msgspec.UNSET
    hint: str | msgspec.UnsetType = msgspec.UNSET
    attempts: int | msgspec.UnsetType = msgspec.UNSET
    settling: bool | msgspec.UnsetType = msgspec.UNSET
    next_attempt_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    reread: BootstrapProgress | msgspec.UnsetType | None = msgspec.UNSET


class Tables(msgspec.Struct):
    """The tables of a feed."""

    tables: list[Table]


class Range(msgspec.Struct):
    """A range of a table's keys, which one dispatcher delivers: the how-manieth of how many, and how far it is."""

    table: str
    range_id: str
    number: int
    of: int
    rows: int
    bytes: int
    files: int
    delivered_ts: int
    checkpoint_ts: int
    lag_s: float | None
    joining: bool
    stopped: bool


class Ranges(msgspec.Struct):
    """Ranges of a feed's tables, and how many there are of those that were asked for."""

    ranges: list[Range]
    total: int


class Uncovered(msgspec.Struct):
    """A table whose rows the checkpoint does not promise."""

    name: str
    state: str


class KeptHistory(msgspec.Struct):
    """Until when the history is kept that a feed needs next."""

    kept_until_ms: int
    remaining_s: float


class Feed(FeedSummary, kw_only=True):
    """Everything that may be shown of one feed; credentials are masked."""

    uuid: str
    created_ms: int
    updated_ms: int
    source: str
    kind: str
    target: str
    config: dict[str, Any]
    dispatchers: int
    tables: list[Table]
    uncovered: list[Uncovered]
    history: KeptHistory | None
    verification: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class FeedGroup(msgspec.Struct):
    """One feed with several targets: what its members have in common, and each of them."""

    name: str
    state: str
    requested_state: str
    tables: list[Table]
    config: dict[str, Any]
    members: list[Feed]


class Control(msgspec.Struct, kw_only=True):
    """What came of a verb: the states that the feed is asked for and has; more fields by the verb."""

    name: str
    verb: str
    state: str
    requested_state: str
    changed: bool | msgspec.UnsetType = msgspec.UNSET


class History(msgspec.Struct):
    """What was asked of a feed and what it reached, oldest first."""

    history: list[AuditRecord]


class DeadLetters(msgspec.Struct):
    """The names of what a target refused for good."""

    dead_letters: list[str]


class TakenLetter(msgspec.Struct):
    """A dead letter that the target took after all."""

    name: str
    dead_letter: str
    taken: bool


class VerifiedTable(msgspec.Struct):
    """How one table compares."""

    name: str
    rows: int
    missing: int
    unexpected: int
    different: int
    sample_keys: list[str]
    unchecked: str
    identical: bool


class Verification(msgspec.Struct):
    """How the files of a feed compare with its source."""

    identical: bool
    checkpoint_ts: int
    checkpoint_time: str
    stops_at_checkpoint: bool
    rows: int
    tables: list[VerifiedTable]


class VerificationProgress(msgspec.Struct):
    """Whether a verification is under way, and what was told of it."""

    under_way: bool
    progress: list[str]


class CancelledVerification(msgspec.Struct):
    """Whether there was a verification to cancel; whoever waits for it gets ``CANCELLED``."""

    name: str
    cancelled: bool


class PreviewColumn(msgspec.Struct):
    """A column as it would be delivered."""

    name: str
    type: str
    nullable: bool
    key: bool


class PreviewTable(msgspec.Struct):
    """A table as it would be delivered."""

    name: str
    dispatchers: int
    columns: list[PreviewColumn]


class Preview(msgspec.Struct):
    """How a feed would be delivered."""

    name: str
    source: str
    sink: str
    protocol: str
    dispatchers: int
    tasks_at_once: int
    plan: list[str]
    tables: list[PreviewTable]


class SqlOutcome(msgspec.Struct):
    """What came of a statement: ``answer`` is what the route of its verb answers, ``columns`` and ``rows`` the same for people."""

    statement: str
    columns: list[str]
    rows: list[list[Any]]
    answer: Any


class LogLines(msgspec.Struct):
    """Lines of the server's log, and the number of the newest."""

    entries: list[LogEntry]
    last: int


class Server(msgspec.Struct):
    """A server that shares the meta database."""

    owner: str
    url: str
    state: str
    feeds: list[str]
    self: bool


class Servers(msgspec.Struct):
    """All servers."""

    servers: list[Server]


class Draining(msgspec.Struct):
    """Whether this server gives its feeds up, and which are left."""

    owner: str
    draining: bool
    feeds: list[str]


class Liveness(msgspec.Struct):
    """Whether the process can do its work at all."""

    status: str
    detail: str | msgspec.UnsetType = msgspec.UNSET


class Health(msgspec.Struct):
    """How the server fares, each component by name."""

    status: str
    components: dict[str, ComponentHealth]
    version: str | msgspec.UnsetType = msgspec.UNSET


class Token(msgspec.Struct, kw_only=True):
    """Who may call, and for what; ``token`` is shown once, where it is made."""

    id: str
    name: str
    role: str
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None
    valid: bool
    token: str | msgspec.UnsetType = msgspec.UNSET


class Tokens(msgspec.Struct):
    """All tokens that were made."""

    tokens: list[Token]
