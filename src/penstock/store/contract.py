"""The event store as its callers see it.

The log service appends and advances; readers collect changes, in the same process or on executors through Flight. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, StrEnum
from typing import Protocol

import msgspec

from penstock.model.batch import ChangeBatch
from penstock.model.ddl import DdlEvent
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_MAX


class Hint(Enum):
    """How a step of a changes handle relates to later steps."""

    SNAPSHOT = "Snapshot"
    TAIL_WIP = "Tail_WIP"
    TAIL_DONE = "Tail_Done"


class Changes(msgspec.Struct, frozen=True):
    """One step: rows that came to be, rows that ceased, and the hint. At least one side is not empty.

    Each side is a sequence of batches in order, because one step may span schema versions: each batch is of one table version and
    ordered by (commit ts, key). With TAIL_DONE no later step holds a commit ts at or below this step's largest.
    """

    data: tuple[ChangeBatch, ...]
    tombstones: tuple[ChangeBatch, ...]
    hint: Hint


class EndOfRange(msgspec.Struct, frozen=True):
    """The range is read to its end. Never confused with an empty step or a cancellation."""

    to_ts: int


class ChangesHandle(Protocol):
    """Reads ``(from_ts, to_ts]`` of one span, lower ts first, at one ts deletes first."""

    def next(self) -> Changes | EndOfRange:
        """Return the next step, or the end. Raises ``STALE_READ``, ``OBJECT_MISSING``, ``OBJECT_CORRUPT`` or ``CANCELLED``."""

    def close(self) -> None:
        """Release what the handle holds; ``next`` raises ``CANCELLED`` afterwards. May be called twice and from another thread."""


class SpanWindow(msgspec.Struct, frozen=True):
    """A planned read: how many rows and bytes (estimated where an object is cut) a span has in ``(from_ts, to_ts]``."""

    span_id: int
    rows: int
    nbytes: int


class WindowKind(StrEnum):
    """What a window delivers: the changes in it, or the difference between the target's state at its start and the state at its end."""

    CHANGES = "changes"
    RESNAPSHOT = "resnapshot"


class WindowWish(msgspec.Struct, frozen=True):
    """A window that someone wants: from where on, of which spans, and within how many bytes.

    DDLs count that touch one of the tables, or a table that a pattern matches; those that change one of the ``unsplit`` tables in place
    do not end the window.
    """

    span_ids: Sequence[int]
    table_ids: Sequence[int]
    from_ts: int
    nbytes_max: int
    patterns: Sequence[str] = ()
    unsplit: Sequence[int] = ()
    end_ts: int = TS_MAX
    """Where it ends at the latest."""


class WindowPlan(msgspec.Struct, frozen=True):
    """Where a window over several spans ends: ``to_ts`` is a ts at or below every resolved ts, at the first DDL, within the byte bound."""

    from_ts: int
    to_ts: int
    resolved_ts: int
    spans: tuple[SpanWindow, ...]
    ddls: tuple[DdlEvent, ...]
    """DDLs of the asked tables whose commit ts is ``to_ts``, and which end the window."""
    inner_ddls: tuple[DdlEvent, ...] = ()
    """DDLs in ``(from_ts, to_ts]`` that change one of the ``unsplit`` tables in place and end nothing, oldest first."""
    kind: WindowKind = WindowKind.CHANGES
    positions: dict[str, dict[str, int]] = {}
    """Where dispatchers stand in the target, by their name, where that is further than what was committed."""
    stopped: dict[int, str] = {}
    """Tables that left the window because their filter failed, by id, each with why: from its start on nothing of them is delivered."""


class EventStore(Protocol):
    """Appends for the puller, reads for feeds. Thread safe."""

    def register_span(self, span_id: int, span: Span, start_ts: int) -> int:
        """Open or create a span's store; return the ts from which the puller must go on (the persisted resolved ts, or ``start_ts``)."""

    def append(self, span_id: int, batches: Sequence[ChangeBatch], on_persisted: Callable[[], None]) -> bool:
        """Queue batches; call back exactly once, from another thread, when all of them are durable.

        Returns False if the span is not registered (then nothing is called back). Rows that the store already holds (pulled again after
        a restart) are recognised by commit ts and key and not stored twice.
        """

    def append_ddl(self, ddl: DdlEvent, on_persisted: Callable[[], None]) -> bool:
        """Queue a DDL for the schema log; same callback rule. A DDL that is already there is dropped."""

    def put_schemas(self, schemas: Sequence[TableSchema]) -> None:
        """Make table versions known, such as those at subscribe time; durable when it returns. Versions that are there are dropped."""

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table that is known, oldest first."""

    def advance_resolved_ts(self, span_id: int, ts: int) -> None:
        """Declare that no row at or below this ts will come. Never goes back; made durable with the next group commit."""

    def resolved_ts(self, span_id: int) -> int:
        """Return the span's resolved ts."""

    def is_standing_by(self) -> bool:
        """Return whether registering a span would take the store from another server: nothing is captured before a feed needs it."""

    def is_taken_away(self) -> bool:
        """Return whether another server has taken the store since it was opened here: appends fail with ``FENCED``."""

    def stand_by(self) -> None:
        """Let go of what another server has taken, so that it can be taken back; nothing where nobody did."""

    def recoverable_ts(self, span_ids: Sequence[int]) -> int:
        """Return the ts up to which all of these spans survive the loss of this machine: what lies above is pulled again then.

        ``TS_MAX`` where the store does not survive that, so that nothing more is kept for it.
        """

    def secure(self, span_ids: Sequence[int]) -> None:
        """Make what is resolved of some spans survive the loss of this machine, because it could not be pulled again."""

    def collect_changes(self, span_id: int, from_ts: int, to_ts: int) -> ChangesHandle:
        """Open a handle on ``(from_ts, to_ts]``; ``from_ts = 0`` gives the state at ``to_ts`` as SNAPSHOT steps."""

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """Choose where a window ends; ``to_ts == from_ts`` means that nothing new is resolved."""
