"""Where a window over several spans ends.

The end is at or below every resolved ts, at the first DDL of the asked tables, and where the bytes that lie between reach the bound.
Bytes come from headers and zone maps: a piece (a batch in memory or in an object) that the window cuts counts by its share of time. A
window that holds anything makes progress: it takes at least the first commit ts, however large. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.model.batch import BatchKind, commit_ts_array
from penstock.model.errors import PenstockError
from penstock.model.table_pattern import TablePatterns
from penstock.model.timestamp import TS_ZERO
from penstock.store.changes.changes import SpanView
from penstock.store.changes.ordering import window_rows
from penstock.store.contract import SpanWindow, WindowKind, WindowPlan, WindowWish
from penstock.store.log.schema_log import SchemaLog
from penstock.store.memory import MemoryRows

Numbers = npt.NDArray[np.float64]


class SpanPieces:
    """The pieces of one span that reach into ``(from_ts, to_ts]``, as columns relative to ``from_ts``."""

    def __init__(self, view: SpanView, from_ts: int, to_ts: int) -> None:
        self.view = view
        self._from_ts = from_ts
        pieces: list[tuple[int, int, int, int]] = []
        for meta in view.state.needed(from_ts, to_ts):
            if meta.min_ts > from_ts and meta.max_ts <= to_ts:
                pieces.append((meta.min_ts, meta.max_ts, meta.rows, meta.nbytes))
                continue
            zones = view.space.footer(meta).zones
            pieces.extend((z.min_ts, z.max_ts, z.rows, z.nbytes) for z in zones if z.max_ts > from_ts and z.min_ts <= to_ts)
        if isinstance(view.memory, MemoryRows):
            batches = (*view.memory.data, *view.memory.tombstones)
            headers = [b.header for b in batches if b.header.max_ts > from_ts and b.header.min_ts <= to_ts]
            pieces.extend((h.min_ts, h.max_ts, h.rows, h.nbytes) for h in headers)
        # Differences are taken on integers: a float cannot tell neighbouring timestamps apart.
        self._low: Numbers = np.array([p[0] - from_ts for p in pieces], dtype=np.float64)
        self._high: Numbers = np.array([p[1] - from_ts for p in pieces], dtype=np.float64)
        self._rows: Numbers = np.array([p[2] for p in pieces], dtype=np.float64)
        self._nbytes: Numbers = np.array([p[3] for p in pieces], dtype=np.float64)

    def estimate(self, to_ts: int) -> tuple[int, int]:
        """Return rows and bytes in ``(from_ts, to_ts]``."""
        if len(self._low) == 0:
            return 0, 0
        end = float(to_ts - self._from_ts)
        start = np.maximum(self._low, 1.0)
        inside = np.clip((np.minimum(self._high, end) - start + 1.0) / (self._high - self._low + 1.0), 0.0, 1.0)
        return int(np.ceil((self._rows * inside).sum())), int(np.ceil((self._nbytes * inside).sum()))

    def has_start_in(self, to_ts: int) -> bool:
        """Return whether a piece begins in the window, which proves a row there."""
        return bool(((self._low > 0) & (self._low <= float(to_ts - self._from_ts))).any())

    def first_ts(self, to_ts: int) -> int | None:
        """Return the smallest commit ts in the window by looking at the rows; None where there is none."""
        found: list[int] = []
        for meta in self.view.state.needed(self._from_ts, to_ts):
            first = next(self.view.space.batches(meta, self._from_ts, to_ts), None)
            found.extend([first.header.min_ts] if first else [])
        if isinstance(self.view.memory, MemoryRows):
            for side in BatchKind:
                for batch in self.view.memory.side(side):
                    if batch.header.max_ts > self._from_ts and batch.header.min_ts <= to_ts:
                        ts = commit_ts_array(window_rows(batch.records, self._from_ts, to_ts))
                        found.extend([int(ts.min())] if len(ts) else [])
        return min(found, default=None)


def plan_window(views: Sequence[SpanView], schema_log: SchemaLog, wish: WindowWish, resolved_ts: int) -> WindowPlan:
    """Choose where the window ends. ``resolved_ts`` is the smallest of the spans and of the DDL span."""
    from_ts = wish.from_ts
    if resolved_ts <= from_ts:
        return WindowPlan(from_ts, from_ts, resolved_ts, tuple(SpanWindow(v.state.span_id, 0, 0) for v in views), ())
    ddls = schema_log.ddls(wish.table_ids, from_ts, resolved_ts, TablePatterns(tuple(wish.patterns)))
    alone = frozenset(wish.unsplit)
    ends = tuple(d for d in ddls if d.one_table_id not in alone)
    to_ts = ends[0].commit_ts if ends else resolved_ts
    pieces = [SpanPieces(v, from_ts, to_ts) for v in views]
    to_ts = _cut_by_bytes(pieces, from_ts, to_ts, wish.nbytes_max)
    spans = tuple(SpanWindow(p.view.state.span_id, *p.estimate(to_ts)) for p in pieces)
    inner = tuple(d for d in ddls if d.commit_ts <= to_ts and d.one_table_id in alone)
    return WindowPlan(from_ts, to_ts, resolved_ts, spans, tuple(d for d in ends if d.commit_ts == to_ts), inner)


def check_reach(views: Sequence[SpanView], from_ts: int) -> None:
    """Raise ``STALE_READ`` where the history of a span does not reach back to the start of a window."""
    for state in (v.state for v in views):
        if TS_ZERO < from_ts < state.history_start_ts:
            raise PenstockError(
                "STALE_READ", f"span {state.span_id}: history starts at ts {state.history_start_ts}, after the requested {from_ts}"
            )


def plan_resnapshot(
    views: Sequence[SpanView],
    schema_log: SchemaLog,
    table_ids: Sequence[int],
    resolved_ts: int,
    from_ts: int,
    patterns: Sequence[str] = (),
) -> WindowPlan:
    """Plan a window from a state that the target holds to one that the store knows; its DDLs are those on the way."""
    known = resolved_ts > from_ts and all(v.state.base_ts is not None and v.state.base_ts <= resolved_ts for v in views)
    if not known:
        return WindowPlan(from_ts, from_ts, resolved_ts, tuple(SpanWindow(v.state.span_id, 0, 0) for v in views), ())
    pieces = [SpanPieces(v, TS_ZERO, resolved_ts) for v in views]
    spans = tuple(SpanWindow(p.view.state.span_id, *p.estimate(resolved_ts)) for p in pieces)
    ddls = schema_log.ddls(table_ids, from_ts, resolved_ts, TablePatterns(tuple(patterns)))
    return WindowPlan(from_ts, resolved_ts, resolved_ts, spans, ddls, kind=WindowKind.RESNAPSHOT)


def _cut_by_bytes(pieces: Sequence[SpanPieces], from_ts: int, to_ts: int, nbytes_max: int) -> int:
    """Return the largest end whose estimated bytes are within the bound, at least the first commit ts."""
    if _nbytes(pieces, to_ts) <= nbytes_max:
        return to_ts
    low, high = from_ts, to_ts
    while high - low > 1:
        middle = (low + high) // 2
        if _nbytes(pieces, middle) <= nbytes_max:
            low = middle
        else:
            high = middle
    if low > from_ts and any(p.has_start_in(low) for p in pieces):
        return low
    firsts = [ts for ts in (p.first_ts(to_ts) for p in pieces) if ts is not None]
    return max(low, min(firsts)) if firsts else to_ts


def _nbytes(pieces: Sequence[SpanPieces], to_ts: int) -> int:
    return sum(p.estimate(to_ts)[1] for p in pieces)
