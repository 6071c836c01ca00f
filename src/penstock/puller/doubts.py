"""Doubted tables on the side of the log: what the log service promises to those who read a table again.

The interface, in the order in which it is used (all of it on ``LogService``; see ``docs/design/2026-11-15-doubted-tables.md``):

- ``table_states() -> list[TableState]``: every table that was ever in doubt; ``TableState.is_open`` tells those that must be read again.
  Records of ``meta/table_states.py``.
- ``doubt_table(table_id, schema, table, reason) -> None``: an operator, a schedule or a verification wants the table read again.
- ``begin_watch(table_id) -> Watch``: the state becomes ``rereading``; from L = (``Watch.ts``, ``Watch.text``) on, the keys that the log
  changes in this table are remembered. Begin the snapshot *after* it returns. ``Watch.spans`` are the captured spans of the table:
  corrections must be made for each of them, against that span's own state at a resolved ts H >= ``Watch.ts``.
- ``settle(table_id, corrections: Iterable[Corrections], bag = False, check = ..., alone = False, read_at = ()) -> Settlement``: called
  when the whole table was read. ``alone``: raises ``CONGESTED`` where the log changed any row of it since L. ``check`` runs where the
  corrections will stand, before anything is done, and may raise. Each ``Corrections`` is a piece of one span: ``tombstones`` (the
  store's rows that are not so; op DELETE, or BEFORE of an update) and ``data`` (the table's rows; op INSERT or UPDATE). Both sides of
  one key stand in one piece, in the span's batch schema. Whatever ``_ts`` and ``span_id`` they carry is replaced. ``bag``: the table
  has no key. ``read_at``: places of the log at or behind those at which its rows were seen. Where the log changed it between L and one
  of them another round is due, because a row that came then may hide that the store had one too many. Blocks until N is durable; the
  corrections are read and handed over in the caller's thread, while the reader goes on. Raises ``CONGESTED`` where the watch was given
  up (it grew too large, or the process was started again): call ``fail_round`` and try later.
- ``fail_round(table_id, error, retry_s) -> None``: the re-read failed. The watch ends; with an error that is not TRANSIENT the table is
  ``quarantined`` with its code and hint, else ``doubtful``; no attempt before ``retry_s`` seconds. A table that is quarantined with
  ``TABLE_PAUSED`` is left out of the log until a re-read of it begins.
- ``look_again() -> None``: the reader begins again where it is, and asks the source once more about tables of which no version is known.
  A doubt about such a table has only its name, until the log tells a first version: from then on it is a doubt about that table.
- ``forget_table(table_id, schema, table) -> None``: the table is gone, and its doubts with it; one without an id goes by its name.

A doubt is durable before the position that covers it. Corrections stand between two steps, at a place M that the reader reached for
the first time and that lies at or behind the log's end as of the call: so every change up to the end of the snapshot is in the watch, and
no commit of the log was or will be given the ts N. A crash at any point leaves the doubt open. Runs in the log service.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.meta.table_states import TableCondition, TableState
from penstock.model.batch import ChangeBatch
from penstock.model.span import Span
from penstock.source.single_log import TableDoubt


class DoubtBook(Protocol):
    """Where doubts are kept; ``meta/table_states.py`` implements it. What a method did is durable when it returns."""

    def states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""

    def open(self, doubt: TableState) -> bool:
        """Keep a doubt; False where a doubt at or above its ``doubt_ts`` is known already."""

    def identify(self, schema: str, table: str, table_id: int) -> None:
        """Give a doubt of which only the name was known the id of its table."""

    def rename(self, table_id: int, schema: str, table: str) -> None:
        """Give a table that was ever in doubt its present name."""

    def begin(self, table_id: int) -> None:
        """Note that a re-read begins."""

    def fail(self, table_id: int, reason: str, code: str, hint: str, next_attempt_ms: int) -> None:
        """Note that a re-read failed."""

    def forget(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Remove a table that is gone; one without an id goes by its name."""

    def close_doubt(self, table_id: int, covered_ts: int, settled_ts: int) -> bool:
        """Note that corrections are durable; return whether the table is ``ok`` now: no doubt above ``covered_ts`` is open."""


class Watch(msgspec.Struct, frozen=True):
    """A re-read may begin: from this place on the changed keys of the table are remembered."""

    table_id: int
    ts: int
    text: str
    spans: tuple[Span, ...]
    settled_ts: int = 0
    """The ts of the table's last corrections, 0 where there were none."""


class Corrections(msgspec.Struct, frozen=True):
    """A piece of what differs in one span: rows that only the store has, and rows that only the table has. One of them may be empty."""

    span_id: int
    tombstones: tuple[ChangeBatch, ...] = ()
    data: tuple[ChangeBatch, ...] = ()


class Settlement(msgspec.Struct, frozen=True):
    """What came of a re-read. ``closed`` is False where a newer doubt, or a left-out row of a table without a key, needs another round."""

    ts: int
    rows: int
    left_out: int
    closed: bool


def state_of(doubt: TableDoubt) -> TableState:
    """Return how a doubt of the log is kept: with a code the table is quarantined."""
    state = TableCondition.QUARANTINED if doubt.code else TableCondition.DOUBTFUL
    return TableState(doubt.table_id, doubt.schema, doubt.table, state, doubt.reason, doubt.code, doubt.hint, doubt_ts=doubt.ts)
