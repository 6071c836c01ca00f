"""What an upstream adds whose tables share one log: a binlog, a replication slot.

Such an upstream has no ranges of its own and no resolved ts; both are made here. Commit ts are chained: a transaction gets the
larger of its own time and the one before it plus one, so they grow, and the same log gives the same ts from any place whose ts is known.
While the log is quiet the resolved ts moves on by marks: a mark says that at this place of the log the chain was raised to this ts. Marks
are written down before anyone relies on them, and a reader that passes a mark again raises its chain there again.

Runs in the log service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeGuard, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.model.batch import ChangeBatch
from penstock.model.ddl import DdlEvent
from penstock.model.table import TableSchema
from penstock.model.timestamp import LOGICAL_BITS, compose_ts
from penstock.source.contract import Capability, LogPosition, Upstream

__all__ = ["Beginning", "CommitChain", "LogPosition", "LogStep", "LoggedUpstream", "has_log"]


class TableDoubt(msgspec.Struct, frozen=True):
    """From this ts on the log alone does not tell what rows a table has: it must be read again.

    A source gives a doubt where it stands in the log, so the same log gives the same doubts: a statement that rewrote rows or was not
    understood, a change that stands there as text, rows that the server changed without logging them, rows that cannot be decoded. Changes
    that the log does tell go on behind it. With a ``code`` the table cannot be followed at all for now, and its rows are left out until
    it was read again.
    """

    table_id: int
    """0 where the log names a table of which no version is known."""
    schema: str
    table: str
    ts: int
    reason: str
    """For operators: what was seen. No row values, no secrets."""
    code: str = ""
    """Of ``model/errors.py``; empty where rows go on to be decoded."""
    hint: str = ""


GoneName = tuple[str, str, int]
"""Database, table, and the ts from which on there is none."""


class LogStep(msgspec.Struct, frozen=True):
    """A piece of the log, decoded. ``changes`` carry span id 0: they are not divided by spans yet."""

    changes: tuple[ChangeBatch, ...] = ()
    ddls: tuple[DdlEvent, ...] = ()
    position: LogPosition | None = None
    """Set where no transaction is open: everything at or below its ts has been given by this step and those before."""
    mark: bool = False
    """Whether ``position`` raises the chain while the log is quiet: it is written down before the resolved ts moves there."""
    doubts: tuple[TableDoubt, ...] = ()
    """At or below ``position``; a doubt that is read again after a restart is the same doubt."""
    schemas: tuple[TableSchema, ...] = ()
    """Versions that no DDL of the step carries, for the journal to keep and ``adopt_schemas`` to bring back. One without columns says
    that from its ts on the table is no more."""
    gone: tuple[GoneName, ...] = ()
    """Names of which no version was known, and that belong to no table any more; an empty table stands for all of a database."""

    @property
    def nbytes(self) -> int:
        """Return the weight of the step; at least 1."""
        return max(1, sum(c.header.nbytes for c in self.changes))


class Beginning(msgspec.Struct, frozen=True):
    """Where capture goes on whose log is lost, and what became of tables meanwhile: all of it below the ts of the position."""

    position: LogPosition
    ddls: tuple[DdlEvent, ...] = ()
    schemas: tuple[TableSchema, ...] = ()
    """For the journal, as those of a step."""


class LoggedUpstream(Upstream, Protocol):
    """An upstream with one log for all tables. Declares ``Capability.LOG``."""

    def log_end(self) -> str:
        """Return the end of the log now, in the words of ``LogPosition.text``: every commit acknowledged before stands before it."""

    def reached(self, position: str, end: str) -> bool:
        """Return whether everything before ``end`` stands before ``position`` too."""

    def first_position(self) -> LogPosition:
        """Return where capture begins that has no position yet: the end of the log, with a ts not below any commit before it."""

    def begin_again(self, told_ts: int, above_ts: int) -> Beginning:
        """Return the end of the log as the place where capture goes on that has lost what lies before it.

        Everything is above ``above_ts``. What is told is the difference between the tables that the server shows now and those that were
        told up to ``told_ts``, whatever was read behind that: whoever calls it again, because what it gave was not kept, is told again.
        """

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield the log from a position on, until ``stop`` is set; one thread reads.

        ``marks`` are those at or after ``start``, in order. ``wanted`` tells by table id whose rows are decoded; it may change its mind
        between steps. While the log is quiet a step comes every second or more often, be it an empty one, so that the caller can act.
        Raises ``LOG_PURGED`` where the log does not reach back to ``start``, ``UPSTREAM_UNREACHABLE`` where the
        connection is lost (the caller reads again from its last position).
        """

    def adopt_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Take over table versions that the store knows from earlier runs; called before ``read_log`` and ``schema_history``.

        A server that keeps no history of its schemas cannot tell after a restart which version a row has; one that does ignores this.
        """

    def notes(self) -> Sequence[TableSchema]:
        """Return what the journal shall keep of tables as they were seen and no step has carried yet; steps carry it all the same.

        Asked where a table's capture begins: what is not noted by then cannot be compared after a crash.
        """

    def confirm(self, position: LogPosition) -> None:
        """Tell the upstream that everything before a position is durable here, so that it need not keep it."""

    def release(self) -> None:
        """Give back what was made at the upstream for capture, because nobody needs its log any more. May be called twice.

        A reading that goes on ends with ``LOG_PURGED``; whoever captures again begins with ``begin_again``.
        """


@runtime_checkable
class AsksItsCatalog(Protocol):
    """An upstream whose log does not tell all of its schema changes, so that it asks the catalog, which shows what is so by now."""

    def told_up_to(self, ts: int) -> None:
        """Say up to which ts schema changes were taken over: where the log is read again, none is told there that was not told before."""


@runtime_checkable
class ServesOneReader(Protocol):
    """An upstream whose server lets one reader at a time have the log, and notices late that one stands still."""

    def read_as(self, name: str, before: str, check: Callable[[], None]) -> None:
        """Tell by which name the log is read from now on, and by which it was read before, if that lost it without letting go.

        Connections under these two names may be ended where they are in the way, right after ``check``, which raises where somebody else
        has the log.
        """


def has_log(upstream: Upstream) -> TypeGuard[LoggedUpstream]:
    """Return whether an upstream is declared to have one log."""
    return Capability.LOG in upstream.capabilities


class CommitChain:
    """Gives growing commit ts to the transactions of a log. Not thread safe."""

    def __init__(self, last_ts: int) -> None:
        self.last_ts = last_ts

    def next(self, commit_ms: int) -> int:
        """Return the ts of the next transaction, which committed at this time by the upstream's clock."""
        self.last_ts = max(self.last_ts + 1, compose_ts(max(0, commit_ms)))
        return self.last_ts

    def next_many(self, commit_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the ts of the next transactions, in order; the same as ``next`` for each of them."""
        if len(commit_ms) == 0:
            return np.empty(0, dtype=np.uint64)
        place = np.arange(len(commit_ms), dtype=np.int64)
        floor = np.maximum(commit_ms, 0) << LOGICAL_BITS
        lifted = np.maximum(np.maximum.accumulate(floor - place), self.last_ts + 1) + place
        self.last_ts = int(lifted[-1])
        return lifted.astype(np.uint64)

    def raise_to(self, ts: int) -> None:
        """Raise the chain at a mark."""
        self.last_ts = max(self.last_ts, ts)
