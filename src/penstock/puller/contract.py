"""The seam between the log service and the two ways to pull: ``puller/ranged/`` for ranges, ``puller/logged/`` for one log.

A puller gives each subscribed span, through the shared span pipeline, everything above a ts and then growing resolved ts. What its payloads
are is its own: whoever opens it is told how to decode them. ``puller/catalog.py`` chooses. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from penstock.meta.table_states import TableState
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.puller.doubts import Corrections, Settlement, Watch
from penstock.puller.span_pipeline import Advance, Consume, OnError


class SpanState(Enum):
    """Being pulled, stopped by an error, or unsubscribed."""

    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"


class SpanProgress(msgspec.Struct, frozen=True):
    """Where a subscription stands. ``regions`` counts the parts that are fed now, ``regions_waiting`` those that nothing feeds."""

    resolved_ts: int
    regions: int
    regions_waiting: int
    state: SpanState
    last_error: PenstockError | None


class NewBeginning(msgspec.Struct, frozen=True):
    """From which ts on spans can be pulled of which the upstream lost what came next, and the DDLs below it that stand in no log."""

    ts: int
    ddls: tuple[DdlEvent, ...] = ()


class DoubtControl(Protocol):
    """What a puller adds whose tables can be in doubt; see ``puller/doubts.py``. Thread safe."""

    def table_states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""

    def doubt_table(self, table_id: int, schema: str, table: str, reason: str) -> None:
        """Have a table read again."""

    def begin_watch(self, table_id: int) -> Watch:
        """Remember from now on which keys of a table its log changes."""

    def settle(
        self,
        table_id: int,
        corrections: Iterable[Corrections],
        bag: bool,
        check: Callable[[], None],
        alone: bool,
        read_at: Sequence[str],
        secure: Callable[[Sequence[int]], None],
    ) -> Settlement:
        """Give what differed to the table's spans at a ts of its own, and close the doubt when that is durable, and ``secure`` for them."""

    def fail_round(self, table_id: int, error: PenstockError, retry_s: float) -> None:
        """Give a re-read up."""

    def look_again(self) -> None:
        """Have the source asked once more about tables of which no version is known."""

    def forget_table(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Forget the doubts of a table that is gone."""


class Puller(Protocol):
    """Pulls many spans of one upstream. Thread safe."""

    @property
    def doubts(self) -> DoubtControl | None:
        """Return how doubted tables are settled; None where a table is never in doubt."""

    def subscribe(self, span: Span, start_ts: int, consume: Consume, advance: Advance, on_failed: OnError | None = None) -> int:
        """Pull everything of a span with a commit ts above ``start_ts``; return the span's id.

        Args:
            span: what to pull; must not be subscribed now.
            start_ts: rows at or below it are not delivered.
            consume: gets this puller's payloads; see the span pipeline.
            advance: gets growing resolved ts, each after all data before it is persisted.
            on_failed: called once, from a thread of the puller, if the span stops with an error. It must only take note: the owner
                unsubscribes from a thread of its own.
        """

    def unsubscribe(self, span_id: int) -> None:
        """Stop pulling a span: neither of its functions is called after this returns. Does nothing if it is not subscribed."""

    def progress(self, span_id: int) -> SpanProgress | None:
        """Return where a subscription stands, None if there is none."""

    def settled_ts(self) -> int:
        """Return a ts at or above every commit that was acknowledged before the call; subscribed spans resolve up to it by themselves."""

    def begin_again(self, told_ts: int) -> NewBeginning:
        """Go on after the upstream lost what was to be pulled next; ``told_ts`` is up to where its DDLs are durable."""

    def keep_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Take note of table versions that the upstream told, where it could not tell them again after a restart."""

    def release(self) -> None:
        """Give back what was made at the upstream for capture, because nobody captures it any more. May be called twice."""

    def close(self) -> None:
        """Stop everything. The pipeline's owner closes the pipeline before, so that nothing waits for its quota."""
