"""Settling doubted tables: corrections between two steps of the reader, and when a table is trusted again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from penstock.meta.table_states import TableCondition
from penstock.model.batch import BatchKind, Op
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.doubts import Corrections
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.logged.single_log_puller import SingleLogPuller
from penstock.puller.span_pipeline import SpanPipeline, SpanPipelineSettings
from penstock.source.single_log import LoggedUpstream
from testing.twins.doubt_book import NotedDoubts
from testing.twins.single_log import MemoryJournal, MemoryLog, rows_of
from testing.twins.span_receiver import SpanReceiver

WAIT_S = 120.0
SPAN = Span(1)


class Lab:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.order: list[str] = []
        self.journal = MemoryJournal(lambda entry: self.order.append(f"journal {entry.ts}"))
        self.book = NotedDoubts(SystemClock(), self.order)
        self.pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
        settings = SingleLogPullerSettings(advance_interval_s=0.0, journal_interval_s=0.0, gather_s=0.001, settle_timeout_s=WAIT_S)
        self.puller = SingleLogPuller(cast("LoggedUpstream", self.log), self.pipeline, self.journal, settings, doubts=self.book)
        self.receiver = SpanReceiver()
        self.puller.subscribe(SPAN, 0, self.receiver.consume, self.receiver.advance)

    def close(self) -> None:
        self.pipeline.close()
        self.puller.close()


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def test_a_doubt_is_kept_before_the_position_that_covers_it(lab: Lab) -> None:
    lab.receiver.wait(lab.log.commit(1, [1]))
    ts = lab.log.commit(1, [], doubt="a rewrite")
    lab.receiver.wait(ts)
    assert lab.order.index(f"doubt {ts}") < lab.order.index(f"journal {ts}")
    assert [(s.state, s.doubt_ts, s.reason) for s in lab.puller.doubts.table_states()] == [(TableCondition.DOUBTFUL, ts, "a rewrite")]


def test_corrections_come_at_a_ts_of_their_own_between_commits_and_close_the_doubt(lab: Lab) -> None:
    lab.log.commit(1, [1, 2])
    lab.receiver.wait(lab.log.commit(1, [], doubt="a rewrite"))
    watch = lab.puller.doubts.begin_watch(1)
    assert watch.spans == (SPAN,)
    overtaken = lab.log.commit(1, [7])
    gone = rows_of(1, 1, [2], BatchKind.TOMBSTONE, Op.DELETE)
    settled = lab.puller.doubts.settle(1, [Corrections(SPAN.span_id, (gone,), (rows_of(1, 1, [5, 7]),))])
    assert (settled.rows, settled.left_out, settled.closed) == (2, 1, True)
    assert settled.ts > overtaken
    lab.log.note_mark(len(lab.log.commits), settled.ts)
    later = lab.log.commit(1, [8])
    lab.receiver.wait(later)
    assert later > settled.ts
    assert [row for row in lab.receiver.sides if row[0] >= settled.ts] == [
        (settled.ts, BatchKind.TOMBSTONE, 2),
        (settled.ts, BatchKind.DATA, 5),
        (later, BatchKind.DATA, 8),
    ]
    assert [e.ts for e in lab.journal.marks_from(0)] == [settled.ts]
    [state] = lab.puller.doubts.table_states()
    assert (state.state, state.settled_ts) == (TableCondition.OK, settled.ts)


def test_a_bag_with_an_overtaken_row_and_a_doubt_behind_the_beginning_need_another_round(lab: Lab) -> None:
    lab.receiver.wait(lab.log.commit(1, [], doubt="a rewrite"))
    for bag, meanwhile in ((True, ""), (False, "another rewrite")):
        lab.puller.doubts.begin_watch(1)
        lab.log.commit(1, [7], doubt=meanwhile)
        settled = lab.puller.doubts.settle(1, [Corrections(SPAN.span_id, (), (rows_of(1, 1, [7]),))], bag=bag)
        assert (settled.left_out, settled.closed) == (1, False)
        assert lab.puller.doubts.table_states()[0].state is TableCondition.DOUBTFUL
    lab.puller.doubts.begin_watch(1)
    assert lab.puller.doubts.settle(1, []).closed


def test_a_round_without_a_watch_fails_and_says_how_the_table_stands(lab: Lab) -> None:
    lab.receiver.wait(lab.log.commit(1, [], doubt="a rewrite"))
    with pytest.raises(PenstockError, match="CONGESTED"):
        lab.puller.doubts.settle(1, [])
    lab.puller.doubts.begin_watch(1)
    lab.puller.doubts.fail_round(1, PenstockError("UPSTREAM_REFUSED", "no SELECT", "GRANT it"), 60.0)
    [state] = lab.puller.doubts.table_states()
    assert (state.state, state.code, state.hint) == (TableCondition.QUARANTINED, "UPSTREAM_REFUSED", "GRANT it")
    assert state.next_attempt_ms > SystemClock().now_ms()
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        lab.puller.doubts.begin_watch(9)


def test_what_the_corrections_raise_belongs_to_whoever_asked_and_the_reader_goes_on(lab: Lab) -> None:
    lab.receiver.wait(lab.log.commit(1, [], doubt="a rewrite"))
    lab.puller.doubts.begin_watch(1)

    def broken() -> Iterator[Corrections]:
        yield Corrections(SPAN.span_id, (), (rows_of(1, 1, [5]),))
        raise FileNotFoundError("a part")

    with pytest.raises(FileNotFoundError):
        lab.puller.doubts.settle(1, broken())
    [mark] = lab.journal.marks_from(0)
    lab.log.note_mark(len(lab.log.commits), mark.ts)
    lab.receiver.wait(lab.log.commit(1, [8]))
    assert lab.puller.doubts.table_states()[0].is_open
    lab.puller.doubts.begin_watch(1)
    assert lab.puller.doubts.settle(1, []).closed


def test_an_asked_for_doubt_stands_above_what_the_log_said(lab: Lab) -> None:
    first = lab.log.commit(1, [1])
    lab.receiver.wait(first)
    lab.puller.doubts.doubt_table(1, "shop", "t1", "asked for")
    assert [(s.doubt_ts, s.reason) for s in lab.puller.doubts.table_states()] == [(first, "asked for")]
    lab.puller.doubts.begin_watch(1)
    assert lab.puller.doubts.settle(1, []).closed
    lab.puller.doubts.doubt_table(1, "shop", "t1", "once more")
    assert lab.puller.doubts.table_states()[0].is_open


def test_counted_rows_that_the_log_changed_before_they_were_seen_are_read_again(lab: Lab) -> None:
    """Nothing differs, but the row that came may stand for one that the store has and the table had not."""
    lab.log.commit(1, [1])
    lab.receiver.wait(lab.log.commit(1, [], doubt="a rewrite"))
    lab.puller.doubts.begin_watch(1)
    lab.log.commit(1, [7])
    settled = lab.puller.doubts.settle(1, [], bag=True, read_at=[lab.log.log_end()])
    assert not settled.closed
    lab.log.note_mark(len(lab.log.commits), settled.ts)
    lab.puller.doubts.begin_watch(1)
    seen = lab.log.log_end()
    lab.receiver.wait(lab.log.commit(1, [8]))
    assert lab.puller.doubts.settle(1, [], bag=True, read_at=[seen]).closed
