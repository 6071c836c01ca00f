"""One span by itself: what is in memory, what in objects, what readers see of both."""

import random
from pathlib import Path

import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.store.changes.changes import open_changes
from penstock.store.objects.manifest import load_manifests
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.span_writer import ObjectSettings
from penstock.store.span_store import SpanStore
from testing.checks.change_batches import TABLE, Row, both_sides, read_rows

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
WRITTEN = ObjectSettings(1 << 20, None)
ROWS: list[Row] = [(ts, Op.INSERT, ts, f"row {ts}") for ts in range(11, 31)]


@pytest.fixture
def space(tmp_path: Path) -> ObjectSpace:
    return ObjectSpace(tmp_path.as_uri())


@pytest.fixture
def span(space: ObjectSpace) -> SpanStore:
    return SpanStore.create(space, SPAN_ID, SPAN, 10, random.Random(7), WRITTEN)


def add(span: SpanStore, rows: list[Row], resolved_ts: int) -> None:
    for batch in both_sides(SPAN_ID, rows):
        span.add(batch)
    span.advance(resolved_ts)


def tail(span: SpanStore, from_ts: int, to_ts: int) -> list[Row]:
    return read_rows(open_changes(span.view([TABLE], from_ts, to_ts), from_ts, to_ts, 8, 16))


def test_a_flush_takes_what_is_resolved_and_readers_see_no_seam(span: SpanStore) -> None:
    add(span, ROWS, 20)
    assert (span.held_ts(), span.memory_row_count) == (10, 20)
    assert span.flush([TABLE])
    assert (span.flushed_ts, span.held_ts(), span.memory_row_count) == (20, 20, 10)
    assert not span.flush([TABLE]), "nothing more is resolved"
    span.advance(30)
    assert tail(span, 10, 30) == ROWS
    assert tail(span, 15, 25) == ROWS[5:15]


def test_a_span_that_is_opened_again_leaves_out_what_its_objects_hold(span: SpanStore, space: ObjectSpace) -> None:
    add(span, ROWS, 20)
    span.flush([TABLE])
    again = SpanStore(space, load_manifests(space)[SPAN_ID], random.Random(8), WRITTEN)
    add(again, ROWS, 30)
    assert again.memory_row_count == 10
    assert tail(again, 10, 30) == ROWS


def test_rows_that_come_again_are_left_out_and_new_ones_below_the_resolved_ts_are_refused(span: SpanStore) -> None:
    add(span, ROWS, 25)
    span.flush([TABLE])
    [fresh] = both_sides(SPAN_ID, [(31, Op.INSERT, 1, "new")])
    assert span.unseen(fresh) is fresh
    [repeated] = both_sides(SPAN_ID, ROWS[8:])
    kept = span.unseen(repeated)
    assert kept is not None
    assert (kept.header.min_ts, kept.header.rows) == (26, 5)
    [known] = both_sides(SPAN_ID, ROWS[:3])
    assert span.unseen(known) is None
    [late] = both_sides(SPAN_ID, [(24, Op.INSERT, 99, "never seen")])
    with pytest.raises(PenstockError, match=r"\[RESOLVED_TS_VIOLATED\].*1 new rows from ts 24"):
        span.unseen(late)


def test_history_that_left_the_manifest_is_read_from_its_checkpoint_until_that_goes_too(span: SpanStore) -> None:
    for cut in (10, 20):
        add(span, ROWS[cut - 10 : cut], cut + 10)
        span.flush([TABLE])
    assert span.expire_history(20, checkpoints_ts=0) == 1
    assert (span.start_ts, len(span.objects)) == (20, 1)
    assert tail(span, 10, 30) == ROWS
    first = next(o for o in span.view([TABLE], 10, 30).state.objects if o.max_ts == 20)
    assert span.names(first.path)
    assert span.expire_history(20, checkpoints_ts=20) == 0
    assert not span.names(first.path)
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        tail(span, 10, 30)
    assert tail(span, 20, 30) == ROWS[10:]


def test_a_span_that_begins_again_knows_nothing_of_before(span: SpanStore) -> None:
    add(span, ROWS, 30)
    with pytest.raises(PenstockError, match=r"\[RESOLVED_TS_VIOLATED\]"):
        span.reset(29)
    span.reset(40)
    assert (span.resolved_ts, span.flushed_ts, span.start_ts, span.memory_row_count, span.objects) == (40, 40, 40, 0, ())
    add(span, [(41, Op.INSERT, 1, "new")], 50)
    assert tail(span, 40, 50) == [(41, Op.INSERT, 1, "new")]
