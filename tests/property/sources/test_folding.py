"""Changes of transactions brought together by key, against an oracle: what every source does with them, and what comes out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import Op
from penstock.source.folding import arrange
from penstock.source.mysql.rows.folding import fold as fold_images
from penstock.source.postgres.rows.row_changes import Events
from penstock.source.postgres.rows.row_changes import fold as fold_events
from penstock.source.postgres.wire.pgoutput import DELETE, INSERT, UPDATE

KEYS = [b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"abcdefgh", b"abcdefgh\x00", b"abcdefghi", b"abcdefg", b"\xff" * 9, b"\xff" * 8]
STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KEYS)), max_size=40)


@settings(deadline=None)
@given(STEPS, st.booleans())
def test_changes_are_ordered_by_ts_and_key_and_stay_in_log_order_within_one(steps: list[tuple[int, bytes]], rising: bool) -> None:
    """The order of keys is that of their bytes, whatever follows the eighth."""
    if rising:
        steps = sorted(steps, key=lambda step: step[0])
    keys = pa.array([key for _, key in reversed(steps)], pa.binary())
    numbers = np.arange(len(steps))[::-1].copy()
    found = arrange(np.array([ts for ts, _ in steps], np.uint64), numbers, keys)
    order = range(len(steps)) if found.order is None else found.order.tolist()
    assert list(order) == sorted(range(len(steps)), key=lambda at: (*steps[at], at))
    ordered = [steps[at] for at in order]
    assert found.begins.tolist() == [at == 0 or ordered[at] != ordered[at - 1] for at in range(len(ordered))]
    groups = sorted(set(steps))
    assert [(ordered[a], ordered[b]) for a, b in zip(found.first, found.last, strict=True)] == [(g, g) for g in groups]


class Log:
    """Transactions over a few keys, as both sources show them, and what becomes of each key in each."""

    def __init__(self, steps: list[tuple[int, bytes]]) -> None:
        self.changes: list[tuple[int, bytes, int, int, int]] = []
        """(ts, key, kind, row that ceased, row that became), rows numbered per side."""
        rows: dict[bytes, int] = {}
        ceased = became = 0
        for ts, (wish, key) in enumerate(steps):
            kind = INSERT if key not in rows else DELETE if wish == 0 else UPDATE
            gone = ceased if kind != INSERT else -1
            came = became if kind != DELETE else -1
            ceased, became = ceased + (kind != INSERT), became + (kind != DELETE)
            self.changes.append((ts // 4, key, kind, gone, came))
            rows.pop(key, None)
            if kind != DELETE:
                rows[key] = came

    def expected(self) -> list[tuple[int, bytes, bool, bool, int, int]]:
        """(ts, key, whether it was there before, whether it is after, the image before, the image after)."""
        groups: dict[tuple[int, bytes], list[tuple[int, int, int]]] = {}
        for ts, key, *rest in self.changes:
            groups.setdefault((ts, key), []).append((rest[0], rest[1], rest[2]))
        found = []
        for (ts, key), steps in sorted(groups.items()):
            existed, exists = steps[0][0] != INSERT, steps[-1][0] != DELETE
            images = [gone for _, gone, _ in steps if gone >= 0]
            before = images[0] if images and (existed or not exists) else -1
            found.append((ts, key, existed, exists, before, steps[-1][2] if exists else -1))
        return found


@settings(deadline=None)
@given(STEPS)
def test_images_fold_to_the_first_before_and_the_last_after(steps: list[tuple[int, bytes]]) -> None:
    log = Log(steps)
    ceased = [(ts, key) for ts, key, _, gone, _ in log.changes if gone >= 0]
    became = [(ts, key) for ts, key, _, _, came in log.changes if came >= 0]
    sides = [side for *_, gone, came in log.changes for side, row in ((0, gone), (1, came)) if row >= 0]
    folded = fold_images(
        np.array(sides, np.uint8),
        np.array([ts for ts, _ in ceased], np.uint64),
        pa.array([key for _, key in ceased], pa.binary()),
        np.array([ts for ts, _ in became], np.uint64),
        pa.array([key for _, key in became], pa.binary()),
    )
    expected = log.expected()
    gone = [(before, Op.BEFORE if exists else Op.DELETE) for _, _, _, exists, before, _ in expected if before >= 0]
    came = [(after, Op.UPDATE if existed else Op.INSERT) for _, _, existed, exists, _, after in expected if exists]
    assert list(zip(folded.ceased.tolist(), folded.ceased_ops.tolist(), strict=True)) == gone
    assert list(zip(folded.became.tolist(), folded.became_ops.tolist(), strict=True)) == came


@settings(deadline=None)
@given(STEPS)
def test_events_fold_to_the_same(steps: list[tuple[int, bytes]]) -> None:
    """But for the image of a row that came and went in one transaction, which is that of its delete."""
    log = Log(steps)
    ts, key, kind, gone, came = (list(column) for column in zip(*log.changes, strict=True)) if log.changes else ([], [], [], [], [])
    at = np.arange(len(ts), dtype=np.int64)
    events = Events(np.array(ts, np.uint64), at, *(np.array(column, np.int64) for column in (kind, gone, came)))
    arranged = arrange(events.ts, events.key, pa.array(key, pa.binary()))
    ordered = events if arranged.order is None else events.take(arranged.order)
    folded = fold_events(ordered, arranged.first, arranged.last)
    expected = log.expected()
    assert [(t, key[k]) for t, k in zip(folded.ts.tolist(), folded.key.tolist(), strict=True)] == [e[:2] for e in expected]
    assert list(zip(folded.existed.tolist(), folded.alive.tolist(), strict=True)) == [e[2:4] for e in expected]
    assert folded.after.tolist() == [e[5] for e in expected]
    shown = [(b, e[4]) for b, e in zip(folded.before.tolist(), expected, strict=True) if e[2]]
    assert [b for b, _ in shown] == [b for _, b in shown]
    assert all(b >= 0 for b, e in zip(folded.before.tolist(), expected, strict=True) if not e[3])
