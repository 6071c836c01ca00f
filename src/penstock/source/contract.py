"""What every upstream gives, whatever it is, and how it says what more it can do.

Every upstream lists its tables, keeps schema versions by ts, divides spans, reads a table as it is now, and gives snapshots by ticket.
How its changes come is a capability: ``source/ranged.py`` for ranges with a change stream, ``source/single_log.py`` for one log. To read
the past is another. An upstream declares its capabilities; nobody looks for methods. ``open_upstream`` in ``source/catalog.py`` builds one
from a URI. Runs in the log service, in the server, and (reading snapshots) on executors: it is opened where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Flag, auto
from typing import Protocol, TypeGuard

import msgspec

from penstock.model.batch import ChangeBatch
from penstock.model.span import Span
from penstock.model.table import TableSchema


class Capability(Flag):
    """What an upstream can do beyond what every upstream does. Each has ``RANGES`` or ``LOG``."""

    RANGES = auto()
    """Implements ``RangedUpstream``; its change stream begins with the state of a span that is captured from ts 0."""
    LOG = auto()
    """Implements ``LoggedUpstream``."""
    PAST = auto()
    """Implements ``PastReader``."""


class LogPosition(msgspec.Struct, frozen=True):
    """A place between two transactions of a log, in the source's own words, and the ts of everything before it."""

    ts: int
    text: str


class SnapshotTicket(msgspec.Struct, frozen=True):
    """How the tasks of one bootstrap read. ``exact`` where all of them see precisely the state at ``start.ts``."""

    start: LogPosition
    token: str = ""
    exact: bool = False


class Upstream(Protocol):
    """A connected upstream. Methods may be called from any thread; each raises ``UPSTREAM_UNREACHABLE`` when nobody answers.

    A snapshot is read beside the changes. Its rows count as committed at the ticket's ts, where the capture of the span begins; a row
    that changed while the snapshot was read is among the changes as well, and the newer event wins by key. So once everything is captured
    that had committed when the snapshot ended, state and changes together are exactly the table. The span id of batches is the caller's to
    set: it may read a piece of a span.
    """

    @property
    def capabilities(self) -> Capability:
        """Return what this upstream can do; always the same."""

    def current_ts(self) -> int:
        """Return a ts that is larger than every commit that was acknowledged before the call."""

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the newest version of every table."""

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table, oldest first. Raises ``TABLE_UNKNOWN``."""

    def divide(self, span: Span, pieces_max: int | None = None) -> Sequence[Span]:
        """Return pieces that are the span together, in key order, as many as are worth it or as are asked for at most."""

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        """Yield the rows of a span as they are now, all seen at one moment, as INSERT in key order and in the newest table version.

        Their commit ts is their own where the upstream keeps it, else one of about now.
        """

    def begin_snapshot(self) -> SnapshotTicket:
        """Prepare a snapshot; changes from its start on must be captured. What it holds open is released by ``end_snapshot``.

        Where the changes are being read, its start is a place that the reader has come to; otherwise reading begins there.
        """

    def read_snapshot(self, ticket: SnapshotTicket, span: Span, table: TableSchema, page_rows: int) -> Iterator[ChangeBatch]:
        """Yield the rows of a span in key order as INSERT at the ticket's ts, page by page, each after the last key of the one before.

        Called on executors, of an upstream opened there. Raises ``SNAPSHOT_LOST`` where what this call gave is of no use any more: the
        caller drops it and calls again.
        """

    def end_snapshot(self, ticket: SnapshotTicket) -> None:
        """Release what a snapshot held open. May be called twice."""

    def close(self) -> None:
        """Release connections. Called once, by the owner."""


class PastReader(Upstream, Protocol):
    """An upstream that keeps old versions of rows. Declares ``Capability.PAST``."""

    def read_table(self, span: Span, ts: int) -> Iterator[ChangeBatch]:
        """Yield the rows of a span as of a ts, as INSERT at their own commit ts, in key order and in the table version of that ts."""


def reads_past(upstream: Upstream) -> TypeGuard[PastReader]:
    """Return whether an upstream is declared to keep old versions of rows."""
    return Capability.PAST in upstream.capabilities
