"""Plans windows over parts whose event stores are on executors, and over the server's own store, which has the DDLs.

Each part says where a window over its spans may end within its share of the bytes; the window ends at the first of these ends, and at or
before the first DDL that ends one. Then each says how much it holds up to there. So a window ends at one ts for all parts, at or below
every resolved ts, as with one store. While a part has no receiver, or its receiver does not answer, nothing is resolved beyond where the
window starts; that is no error, it passes. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import msgspec

from penstock.feed.receivers.board import PartBoard
from penstock.model.errors import PenstockError
from penstock.model.timestamp import TS_MAX
from penstock.store.contract import SpanWindow, WindowPlan, WindowWish

R = TypeVar("R")
_WHOLE = TS_MAX >> 1
"""More bytes than there are."""
_CALLS_MAX = 16


class Plans(Protocol):
    """Whatever plans windows: an event store, or a client of one."""

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """Choose where a window ends."""

    def plan_resnapshot(
        self, span_ids: Sequence[int], table_ids: Sequence[int], from_ts: int, patterns: Sequence[str] = (), end_ts: int = TS_MAX
    ) -> WindowPlan:
        """Choose the ts of a state that takes the place of lost history."""


class PartPlanner:
    """Plans for one source. Implements ``Plans``. Thread safe."""

    def __init__(self, board: PartBoard, own: Plans, plans_at: Callable[[int, str], Plans]) -> None:
        """``own`` has the DDLs; ``plans_at`` gives who plans for a part that is served at a location."""
        self._board = board
        self._own = own
        self._plans_at = plans_at
        self._calls = ThreadPoolExecutor(_CALLS_MAX, "part-plans")

    def close(self) -> None:
        """End the threads."""
        self._calls.shutdown(cancel_futures=True)

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """Choose where a window ends; as ``EventStore.plan_window``."""
        span_ids, from_ts, changed = wish.span_ids, wish.from_ts, msgspec.structs.replace
        parts = self._board.parts_of(span_ids)
        ddls = self._own.plan_window(changed(wish, span_ids=()))
        said_ts = min([ddls.resolved_ts, *map(self._board.resolved_ts, span_ids)])
        if said_ts <= from_ts:
            # What receivers said last is at most a moment old, and asking them costs a call for each part.
            return _nothing(from_ts, said_ts, span_ids)
        share = max(1, wish.nbytes_max // max(1, len(parts)))
        ends = self._ask(parts, lambda plans, spans: plans.plan_window(WindowWish(spans, (), from_ts, share, end_ts=wish.end_ts)))
        if ends is None:
            return _nothing(from_ts, from_ts, span_ids)
        resolved_ts = min([ddls.resolved_ts, *(plan.resolved_ts for plan in ends.values())])
        to_ts = min([ddls.to_ts, *(plan.to_ts for plan in ends.values())])
        if to_ts <= from_ts:
            return _nothing(from_ts, resolved_ts, span_ids)
        longer = {number: spans for number, spans in parts.items() if ends[number].to_ts != to_ts}
        sizes = self._ask(longer, lambda plans, spans: plans.plan_window(WindowWish(spans, (), from_ts, _WHOLE, end_ts=to_ts)))
        if sizes is None:
            return _nothing(from_ts, from_ts, span_ids)
        own = self._own.plan_window(changed(wish, span_ids=(), nbytes_max=_WHOLE, end_ts=to_ts))
        spans = _in_order(span_ids, [*(ends | sizes).values()])
        return msgspec.structs.replace(own, resolved_ts=resolved_ts, spans=spans)

    def plan_resnapshot(
        self, span_ids: Sequence[int], table_ids: Sequence[int], from_ts: int, patterns: Sequence[str] = (), end_ts: int = TS_MAX
    ) -> WindowPlan:
        """Choose the ts of a state that all parts know; as ``ColumnarEventStore.plan_resnapshot``."""
        own = self._own.plan_resnapshot((), table_ids, from_ts, patterns, end_ts)
        try:
            parts = self._board.parts_of(span_ids)
            resolved_ts = min([own.resolved_ts, *map(self._board.resolved_ts, span_ids)])
        except PenstockError as error:
            if error.code != "SPAN_UNKNOWN":
                raise
            # Whoever asks has captured them: a receiver will say so.
            return _nothing(from_ts, from_ts, span_ids)
        plans = self._ask(parts, lambda plans, spans: plans.plan_resnapshot(spans, (), from_ts, end_ts=resolved_ts))
        if plans is None:
            return _nothing(from_ts, from_ts, span_ids)
        if any(plan.to_ts != resolved_ts for plan in plans.values()):
            return _nothing(from_ts, min([resolved_ts, *(plan.resolved_ts for plan in plans.values())]), span_ids)
        own = self._own.plan_resnapshot((), table_ids, from_ts, patterns, resolved_ts)
        return msgspec.structs.replace(own, spans=_in_order(span_ids, [*plans.values()]))

    def _ask(self, parts: dict[int, list[int]], ask: Callable[[Plans, list[int]], R]) -> dict[int, R] | None:
        """Ask all parts at once; None where one of them has nobody who answers."""
        answers = self._calls.map(lambda item: self._ask_one(item[0], item[1], ask), parts.items())
        found = {number: answer for number, answer in zip(parts, answers, strict=True) if answer is not None}
        return found if len(found) == len(parts) else None

    def _ask_one(self, number: int, spans: list[int], ask: Callable[[Plans, list[int]], R]) -> R | None:
        try:
            answer = ask(self._plans_at(number, self._board.location(spans[0])), spans)
        except PenstockError as error:
            if error.code != "STORE_UNREACHABLE":
                raise
            self._board.note_reached(number, error)
            return None
        self._board.note_reached(number, None)
        return answer


def _nothing(from_ts: int, resolved_ts: int, span_ids: Sequence[int]) -> WindowPlan:
    return WindowPlan(from_ts, from_ts, resolved_ts, tuple(SpanWindow(span_id, 0, 0) for span_id in span_ids), ())


def _in_order(span_ids: Sequence[int], plans: Sequence[WindowPlan]) -> tuple[SpanWindow, ...]:
    sizes = {span.span_id: span for plan in plans for span in plan.spans}
    return tuple(sizes[span_id] for span_id in span_ids)
