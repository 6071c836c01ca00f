"""Corrections on their way to one table: in chunks that keep a key together, while every other table goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from penstock.model.batch import KEY, BatchKind, ChangeBatch, Op
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.doubts import Corrections, Settlement
from penstock.puller.logged.hand_over import chunks
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.logged.single_log_puller import SingleLogPuller
from penstock.puller.span_pipeline import SpanPipeline, SpanPipelineSettings
from penstock.source.single_log import LoggedUpstream
from testing.twins.doubt_book import MemoryDoubts
from testing.twins.single_log import MemoryJournal, MemoryLog, key_of, rows_of
from testing.twins.span_receiver import SpanReceiver

WAIT_S = 60.0
DOUBTED, OTHER = Span(1), Span(2)


def keys_of(batches: tuple[ChangeBatch, ...]) -> list[bytes]:
    return [key for b in batches for key in b.records.column(KEY).to_pylist()]


@pytest.mark.parametrize("bytes_max", [1, 40, 300, 2_000, 1 << 20])
def test_chunks_hold_every_row_once_and_both_sides_of_a_key_together(bytes_max: int) -> None:
    gone = (rows_of(1, 1, range(0, 60, 3), BatchKind.TOMBSTONE, Op.BEFORE), rows_of(1, 1, range(60, 90, 3), BatchKind.TOMBSTONE, Op.BEFORE))
    new = (rows_of(1, 1, range(0, 100, 2), op=Op.UPDATE),)
    found = list(chunks(Corrections(7, gone, new), bytes_max))
    assert [k for c in found for k in keys_of(c.tombstones)] == [key_of(v) for v in range(0, 90, 3)]
    assert [k for c in found for k in keys_of(c.data)] == [key_of(v) for v in range(0, 100, 2)]
    at = {key: place for place, c in enumerate(found) for key in keys_of(c.data)}
    assert all(at.get(key, place) == place for place, c in enumerate(found) for key in keys_of(c.tombstones))
    whole = sum(b.header.nbytes for b in (*gone, *new))
    assert len(found) == 1 if bytes_max > whole else len(found) > 1
    assert all(b.header.rows == b.records.num_rows for c in found for b in (*c.tombstones, *c.data))


class Lab:
    """Two tables of one log, each with a worker of its own."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.journal = MemoryJournal()
        self.pipeline = SpanPipeline(SpanPipelineSettings(workers=2), SystemClock())
        settings = SingleLogPullerSettings(
            advance_interval_s=0.0, journal_interval_s=0.0, gather_s=0.001, settle_timeout_s=WAIT_S, hand_over_bytes_max=400
        )
        self.puller = SingleLogPuller(
            cast("LoggedUpstream", self.log), self.pipeline, self.journal, settings, doubts=MemoryDoubts(SystemClock())
        )
        self.doubted, self.other = SpanReceiver(), SpanReceiver()
        for span, receiver in ((DOUBTED, self.doubted), (OTHER, self.other)):
            self.puller.subscribe(span, 0, receiver.consume, receiver.advance)
        self.settled: list[Settlement | PenstockError] = []

    def settle(self, *values: int) -> threading.Thread:
        """Begin to settle in a thread of its own, with rows that only the table has."""

        def run() -> None:
            try:
                self.settled.append(self.puller.doubts.settle(1, [Corrections(DOUBTED.span_id, (), (rows_of(1, 1, values),))]))
            except PenstockError as error:
                self.settled.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        self.doubted.open_gate()
        self.pipeline.close()
        self.puller.close()


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    made.log.commit(1, [1])
    made.log.commit(2, [1])
    made.doubted.wait(made.log.commit(1, [], doubt="a rewrite"))
    made.puller.doubts.begin_watch(1)
    made.doubted.gate_open = False
    try:
        yield made
    finally:
        made.close()


def test_other_tables_go_on_while_corrections_wait_for_the_store(lab: Lab) -> None:
    thread = lab.settle(*range(100, 200))
    lab.doubted.wait_rows(2)
    [mark] = lab.journal.marks_from(0)
    lab.log.note_mark(len(lab.log.commits), mark.ts)
    lab.other.wait(lab.log.commit(2, [2]))
    behind = lab.log.commit(1, [2])
    lab.other.wait(lab.log.commit(2, [3]))
    assert [value for _, value in lab.other.rows] == [1, 2, 3]
    assert lab.settled == []
    taken = [row for row in lab.doubted.rows if row[0] == mark.ts]
    assert 0 < len(taken) < 100, "only so much is on its way"
    assert lab.doubted.resolved_ts < mark.ts < behind, "nothing is resolved beyond what is not there yet"
    lab.doubted.open_gate()
    thread.join(WAIT_S)
    assert lab.settled == [Settlement(mark.ts, 100, 0, closed=True)]
    lab.doubted.wait(behind)
    assert sorted(lab.doubted.rows)[1:] == [*((mark.ts, value) for value in range(100, 200)), (behind, 2)]


def test_a_key_that_the_log_changes_behind_the_mark_is_corrected_all_the_same(lab: Lab) -> None:
    """Of a row that the log deletes later, what the correction gives must have been there."""
    thread = lab.settle(*range(100, 200))
    lab.doubted.wait_rows(2)
    [mark] = lab.journal.marks_from(0)
    lab.log.note_mark(len(lab.log.commits), mark.ts)
    lab.other.wait(lab.log.commit(1, [], deleted=[199]))
    lab.doubted.open_gate()
    thread.join(WAIT_S)
    assert lab.settled == [Settlement(mark.ts, 100, 0, closed=True)]


def test_a_span_that_stops_meanwhile_ends_the_round_and_the_doubt_stays(lab: Lab) -> None:
    thread = lab.settle(*range(100, 200))
    lab.doubted.wait_rows(2)
    [mark] = lab.journal.marks_from(0)
    lab.log.note_mark(len(lab.log.commits), mark.ts)
    lab.puller.unsubscribe(DOUBTED.span_id)
    thread.join(WAIT_S)
    [error] = lab.settled
    assert isinstance(error, PenstockError)
    assert error.code == "CONGESTED"
    assert lab.puller.doubts.table_states()[0].is_open
    lab.other.wait(lab.log.commit(2, [2]))


def test_a_puller_that_closes_lets_whoever_hands_over_go(lab: Lab) -> None:
    thread = lab.settle(*range(100, 200))
    lab.doubted.wait_rows(2)
    lab.close()
    thread.join(WAIT_S)
    [error] = lab.settled
    assert isinstance(error, PenstockError)
    assert error.code == "CANCELLED"
