"""The matching kernel against a straightforward per-entry implementation of the same rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.puller.ranged.matching.matcher import Entries, RegionMatcher
from penstock.puller.ranged.matching.wire_scan import scan_message
from penstock.source.proto import cdc_pb2 as pb

PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = 1, 2, 3, 4, 5


class Oracle:
    """One dictionary, one entry at a time."""

    def __init__(self, start_key: bytes, end_key: bytes, floor_ts: int) -> None:
        self.prewrites: dict[tuple[int, bytes], pb.Event.Row] = {}
        self.cached: list[pb.Event.Row] = []
        self.initialized = False
        self.bounds = (start_key, end_key)
        self.floor_ts = floor_ts
        self.out: list[tuple[object, ...]] = []

    def feed(self, rows: list[pb.Event.Row]) -> list[tuple[object, ...]]:
        self.out = []
        missing = sum(self._one(r) for r in rows)
        if missing:
            raise PenstockError("PREWRITE_MISSING", "")
        return self.out

    def _one(self, row: pb.Event.Row, late: bool = False) -> bool:  # noqa: PLR0912
        key = (row.start_ts, row.key)
        if row.type == INITIALIZED:
            if not self.initialized:
                self.initialized = True
                for cached in self.cached:
                    self._one(cached, late=True)
                self.cached = []
        elif row.type == PREWRITE:
            if key not in self.prewrites or row.value:
                self.prewrites[key] = row
        elif row.type == ROLLBACK:
            if self.initialized:
                self.prewrites.pop(key, None)
            else:
                self.cached.append(row)
        elif row.type == COMMIT:
            known = self.prewrites.get(key)
            if not self.initialized and (known is None or not known.value):
                self.cached.append(row)
            elif known is None:
                return row.commit_ts > self.floor_ts and not late
            else:
                del self.prewrites[key]
                self._emit(row, known.op_type, known.value, known.old_value)
        else:
            self._emit(row, row.op_type, row.value, row.old_value)
        return False

    def _emit(self, row: pb.Event.Row, op: int, value: bytes, old_value: bytes) -> None:
        start, end = self.bounds
        if row.commit_ts > self.floor_ts and row.key >= start and (not end or row.key < end):
            self.out.append((row.commit_ts, row.start_ts, op, row.key, None if op == 2 else value, old_value or None))


keys = st.sampled_from([b"", b"a", b"aa", b"b", b"bb", b"c", b"\xff"])
rows = st.builds(
    lambda kind, start, wait, op, key, value, old: pb.Event.Row(
        type=kind, start_ts=start, commit_ts=start + wait, op_type=op, key=key, value=value, old_value=old
    ),
    st.sampled_from([PREWRITE, PREWRITE, PREWRITE, COMMIT, COMMIT, ROLLBACK, COMMITTED]),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 2),
    keys,
    st.sampled_from([b"", b"v", b"value" * 9]),
    st.sampled_from([b"", b"o", b"older" * 9]),
)


def scan(event_rows: list[pb.Event.Row]) -> Entries:
    message = pb.ChangeDataEvent(events=[pb.Event(region_id=1, entries=pb.Event.Entries(entries=event_rows))])
    scanned = scan_message(message.SerializeToString())
    return Entries.of(scanned, 0, len(event_rows))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(rows, max_size=12), min_size=1, max_size=6),
    st.integers(0, 6),
    st.integers(0, 12),
    st.sampled_from([(b"", b""), (b"a", b"c"), (b"aa", b"")]),
    st.integers(0, 5),
)
def test_matcher_equals_the_oracle(
    script: list[list[pb.Event.Row]], at_event: int, at_row: int, bounds: tuple[bytes, bytes], floor_ts: int
) -> None:
    if at_event < len(script):
        script[at_event].insert(at_row, pb.Event.Row(type=INITIALIZED))
    matcher, oracle = RegionMatcher(*bounds), Oracle(*bounds, floor_ts)
    for event_rows in script:
        try:
            expected = oracle.feed(event_rows)
        except PenstockError:
            with pytest.raises(PenstockError, match="PREWRITE_MISSING"):
                matcher.feed(scan(event_rows), floor_ts)
            return
        committed = matcher.feed(scan(event_rows), floor_ts)
        got = [tuple(r.values()) for r in committed.records.to_pylist()] if committed is not None else []
        assert got == expected
        if committed is not None:
            committed.records.validate(full=True)
            assert (committed.low_ts, committed.high_ts) == (min(r[0] for r in got), max(r[0] for r in got))
        assert matcher.initialized == oracle.initialized
        assert matcher.pending == len(oracle.prewrites)
        assert sum(len(c.rows) for c in matcher._cached or ()) == len(oracle.cached)


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(200, 1500))
def test_many_prewrites_grow_and_compact(rng: object, count: int) -> None:
    """Enough entries that the table is rebuilt with live and dead slots in it."""
    shuffle = rng.shuffle  # type: ignore[attr-defined]
    matcher, oracle = RegionMatcher(), Oracle(b"", b"", 0)
    matcher.feed(scan([pb.Event.Row(type=INITIALIZED)]))
    oracle.initialized = True
    waiting: list[pb.Event.Row] = []
    for round_ in range(4):
        fresh = [
            pb.Event.Row(
                type=PREWRITE, start_ts=round_ + 1, op_type=1, key=b"k%d" % i, value=b"v%d" % (i * round_), old_value=b"o" * (i % 7)
            )
            for i in range(count)
        ]
        waiting += fresh
        shuffle(waiting)
        ended, waiting = waiting[: count * 3 // 4], waiting[count * 3 // 4 :]
        ends = [
            pb.Event.Row(type=ROLLBACK if i % 5 == 0 else COMMIT, start_ts=r.start_ts, commit_ts=100 + i, key=r.key, op_type=1)
            for i, r in enumerate(ended)
        ]
        for part in (fresh, ends):
            committed = matcher.feed(scan(part))
            got = [tuple(r.values()) for r in committed.records.to_pylist()] if committed is not None else []
            assert got == oracle.feed(part)
        assert matcher.pending == len(waiting)
