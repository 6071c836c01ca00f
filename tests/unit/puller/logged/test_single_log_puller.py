"""The puller of an upstream with one log: who gets which rows, in which order the journal and resolved ts move, and what failures do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import JournalEntry, JournalSettings, LogJournal
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.metrics import names
from penstock.model.span import DDL_SPAN, Span
from penstock.puller.doubts import DoubtBook
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.logged.single_log_puller import SingleLogPuller
from penstock.puller.span_pipeline import SpanPipeline, SpanPipelineSettings
from penstock.source.single_log import LoggedUpstream, LogPosition, LogStep
from testing.twins.clock import SimulatedClock
from testing.twins.doubt_book import MemoryDoubts
from testing.twins.single_log import FIRST_TS, MemoryJournal, MemoryLog, MemoryReader, key_of
from testing.twins.span_receiver import SpanReceiver

WAIT_S = 60.0
SETTINGS = SingleLogPullerSettings(retry_min_s=0.01, advance_interval_s=0.0, journal_interval_s=0.0, gather_s=0.001, confirm_interval_s=0.0)


class Lab:
    def __init__(self, needed_from: Callable[[], int] | None = None, log: MemoryLog | None = None, doubts: DoubtBook | None = None) -> None:
        self.log = log or MemoryLog()
        self.order: list[tuple[str, int]] = []
        self.on_save: Callable[[JournalEntry], None] | None = None
        self.journal = MemoryJournal(self.saved)
        self.pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
        upstream = cast("LoggedUpstream", self.log)
        self.puller = SingleLogPuller(upstream, self.pipeline, self.journal, SETTINGS, needed_from=needed_from, doubts=doubts)

    def saved(self, entry: JournalEntry) -> None:
        self.order.append(("journal", entry.ts))
        if self.on_save is not None:
            self.on_save(entry)

    def subscribe(self, span: Span, start_ts: int) -> SpanReceiver:
        receiver = SpanReceiver()
        self.puller.subscribe(span, start_ts, receiver.consume, receiver.advance, receiver.failed)
        return receiver

    def close(self) -> None:
        self.pipeline.close()
        self.puller.close()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to be")


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def test_spans_get_their_rows_by_table_and_key_and_the_resolved_ts_of_all(lab: Lab) -> None:
    low, high = lab.subscribe(Span(1, b"", key_of(5)), 0), lab.subscribe(Span(1, key_of(5), b""), 0)
    other = lab.subscribe(Span(2), 0)
    first, second = lab.log.commit(1, [1, 4, 5, 9]), lab.log.commit(2, [7])
    last = lab.log.commit(3, [1])
    for receiver in (low, high, other):
        receiver.wait(last)
    assert low.rows == [(first, 1), (first, 4)]
    assert high.rows == [(first, 5), (first, 9)]
    assert other.rows == [(second, 7)]
    assert low.resolved == sorted(set(low.resolved))


def test_a_mark_is_in_the_journal_before_its_ts_is_resolved(lab: Lab) -> None:
    receiver = SpanReceiver()
    note = receiver.advance

    def advance(ts: int) -> None:
        lab.order.append(("resolved", ts))
        note(ts)

    lab.puller.subscribe(Span(1), 0, receiver.consume, advance, receiver.failed)
    marked = lab.log.commit(1, [], mark=True)
    receiver.wait(marked)
    assert lab.order.index(("journal", marked)) < lab.order.index(("resolved", marked))
    assert [e.ts for e in lab.journal.marks_from(0)] == [marked]


def test_a_log_that_nobody_wants_is_neither_read_nor_journaled_and_then_read_on(lab: Lab) -> None:
    """Another server may read it meanwhile, and a journal has one writer."""
    receiver = lab.subscribe(Span(1), 0)
    first = lab.log.commit(1, [1])
    receiver.wait(first)
    lab.puller.unsubscribe(Span(1).span_id)
    until(lambda: lab.puller._place.position is None)
    saved = list(lab.order)
    lab.log.commit(1, [2])
    marked = lab.log.commit(1, [], mark=True)
    assert lab.order == saved
    again = lab.subscribe(Span(1), first)
    again.wait(marked)
    assert [value for _, value in again.rows] == [2]


def test_a_span_that_joins_further_back_gets_its_rows_and_the_others_none_twice(lab: Lab) -> None:
    early = lab.subscribe(Span(1), 0)
    seen = [lab.log.commit(1, [n]) for n in range(5)]
    early.wait(seen[-1])
    late = lab.subscribe(Span(1, b"", key_of(100)), seen[1])
    ahead = lab.subscribe(Span(2), seen[-1])
    last = lab.log.commit(1, [50])
    for receiver in (early, late, ahead):
        receiver.wait(last)
    assert early.rows == [(ts, n) for n, ts in enumerate(seen)] + [(last, 50)]
    assert late.rows == [(seen[2], 2), (seen[3], 3), (seen[4], 4), (last, 50)]
    assert lab.log.starts[-1].ts <= seen[1]


def test_a_lost_connection_is_read_again_from_the_last_position_without_repeats(lab: Lab) -> None:
    receiver = lab.subscribe(Span(1), 0)
    first = lab.log.commit(1, [1])
    receiver.wait(first)
    lab.log.fail_before(first + 1, PenstockError("UPSTREAM_UNREACHABLE", "gone"))
    lab.log.commit(1, [2])
    last = lab.log.commit(1, [3])
    receiver.wait(last)
    assert [value for _, value in receiver.rows] == [1, 2, 3]
    assert receiver.errors == []
    assert len(lab.log.starts) == 2


def test_an_error_that_only_an_operator_can_end_fails_every_span(lab: Lab) -> None:
    one, two = lab.subscribe(Span(1), 0), lab.subscribe(DDL_SPAN, 0)
    first = lab.log.commit(1, [1])
    one.wait(first)
    lab.log.fail_before(first + 1, PenstockError("LOG_PURGED", "gone"))
    lab.log.commit(1, [2])
    for receiver in (one, two):
        with receiver.changed:
            assert receiver.changed.wait_for(lambda r=receiver: r.errors == ["LOG_PURGED"], WAIT_S)
    # Subscribed again by its owner, from where the store is.
    lab.puller.unsubscribe(Span(1).span_id)
    again = lab.subscribe(Span(1), first)
    again.wait(first + 1)
    assert again.rows == [(first + 1, 2)]


def test_a_span_from_before_the_journal_fails_and_one_from_zero_begins_with_it(lab: Lab) -> None:
    whole = lab.subscribe(Span(1), 0)
    whole.wait(lab.log.commit(1, [1]))
    old = lab.subscribe(Span(2), FIRST_TS - 10)
    with old.changed:
        assert old.changed.wait_for(lambda: old.errors == ["LOG_PURGED"], WAIT_S)
    last = lab.log.commit(1, [2])
    whole.wait(last)
    assert [value for _, value in whole.rows] == [1, 2]


def test_settled_covers_what_was_committed_and_only_durable_positions_are_confirmed(lab: Lab) -> None:
    receiver = lab.subscribe(Span(1), 0)
    for n in range(20):
        lab.log.commit(1, [n])
    settled = lab.puller.settled_ts()
    assert settled >= FIRST_TS + 20
    receiver.wait(settled)
    confirmed: list[Any] = list(lab.log.confirmed)
    assert all(p.ts <= receiver.resolved[-1] for p in confirmed)
    assert lab.puller.progress(Span(1).span_id) is not None
    assert lab.puller.progress(Span(9).span_id) is None


def test_nothing_is_confirmed_that_a_feed_without_a_span_or_a_failed_span_may_want_again() -> None:
    needed = [FIRST_TS + 3]
    lab = Lab(needed_from=lambda: needed[0])
    try:
        receiver, failed = lab.subscribe(Span(1), 0), lab.subscribe(Span(2), 0)
        receiver.wait(lab.log.commit(1, [1]))
        for n in range(10):
            receiver.wait(lab.log.commit(1, [n]))
        assert lab.log.confirmed, "what nobody wants any more is let go"
        assert max(p.ts for p in lab.log.confirmed) <= needed[0]
        needed[0] = 1 << 62
        before = failed.resolved[-1]
        failed.refuse = PenstockError("STORE_FAILED", "scripted")
        receiver.wait(lab.log.commit(2, [1]))
        for n in range(10):
            receiver.wait(lab.log.commit(1, [n]))
        assert failed.errors == ["STORE_FAILED"]
        assert needed[0] > before >= max(p.ts for p in lab.log.confirmed)
    finally:
        lab.close()


def test_an_error_at_one_place_is_shown_and_pauses_grow_while_steps_before_it_come_again(lab: Lab) -> None:
    receiver = lab.subscribe(Span(1), 0)
    seen = [lab.log.commit(1, [n]) for n in range(3)]
    receiver.wait(seen[-1])
    # A span further back makes every reading give steps again before it comes to the broken place.
    lab.log.fail_before(seen[-1] + 1, PenstockError("SCHEMA_UNKNOWN", "scripted"), times=6)
    lab.log.commit(1, [7])
    late = lab.subscribe(Span(2), seen[0])
    began_s = SystemClock().monotonic_s()
    receiver.wait(seen[-1] + 1)
    late.wait(seen[-1] + 1)
    # 10, 20, 40, 80, 160 and 320 ms, at least three quarters of each.
    assert SystemClock().monotonic_s() - began_s > 0.75 * 0.63 - 0.02
    assert [value for _, value in receiver.rows] == [0, 1, 2, 7]
    progress = lab.puller.progress(Span(1).span_id)
    assert progress is not None
    assert (progress.last_error, progress.regions) == (None, 1)


def test_the_lag_grows_while_the_reader_cannot_get_on(lab: Lab) -> None:
    receiver = lab.subscribe(Span(1), 0)
    first = lab.log.commit(1, [1])
    receiver.wait(first)
    lab.log.fail_before(first + 1, PenstockError("SCHEMA_UNKNOWN", "scripted"), times=1_000)
    lab.log.commit(1, [2])
    until(lambda: (found := lab.puller.progress(Span(1).span_id)) is not None and "SCHEMA_UNKNOWN" in str(found.last_error))
    progress = lab.puller.progress(Span(1).span_id)
    assert progress is not None
    assert progress.regions_waiting == 1
    lag = lab.puller.metrics.registry.get_sample_value(names.RESOLVED_LAG_SECONDS.name)
    until(lambda: (lab.puller.metrics.registry.get_sample_value(names.RESOLVED_LAG_SECONDS.name) or 0) > (lag or 0))


def test_capture_that_begins_again_knows_of_its_mark_at_once(lab: Lab) -> None:
    """The reader that is under way begins again, so that its chain is raised there as it will be after a restart."""
    receiver = lab.subscribe(Span(1), 0)
    receiver.wait(lab.log.commit(1, [1]))
    lab.log.purge()
    begun = lab.puller.begin_again(0).ts
    assert begun > FIRST_TS + 1
    lab.log.note_mark(1, begun)
    later = lab.log.commit(1, [2])
    receiver.wait(later)
    assert receiver.rows == [(FIRST_TS + 1, 1), (later, 2)]
    assert later > begun


class AheadLog(MemoryLog):
    """Decodes everything that is there before it gives the first step, as a source does with a buffer."""

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        self.starts.append(start)
        reader = MemoryReader(self, start, marks, wanted)
        while not stop.is_set():
            decoded = []
            while reader.has_more:
                decoded.append(reader.next())
            yield from decoded or [LogStep()]
            stop.wait(0.01)


class SlowLog(MemoryLog):
    """Takes its time to find out that a place is gone, as a busy server does."""

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        if int(start.text) == 0 and self.commits:
            yield LogStep()
            yield LogStep()
            raise PenstockError("LOG_PURGED", "gone")
        yield from super().read_log(start, marks, wanted, stop)


def test_whoever_needs_what_is_purged_fails_alone_also_where_the_server_is_slow_to_say_so() -> None:
    lab = Lab(log=SlowLog())
    try:
        lab.journal.save(JournalEntry(FIRST_TS, "0"))
        first = lab.log.commit(1, [1])
        lab.journal.save(JournalEntry(first, "1"))
        near = lab.subscribe(Span(1), first)
        near.wait(lab.log.commit(1, [2]))
        far = lab.subscribe(Span(2), FIRST_TS)
        until(lambda: far.errors == ["LOG_PURGED"])
        near.wait(lab.log.commit(1, [3]))
        assert near.errors == []
        assert [value for _, value in near.rows] == [2, 3]
    finally:
        lab.close()


def test_a_span_of_a_table_that_is_not_decoded_makes_the_reader_begin_again_wherever_it_joins() -> None:
    """It joins exactly at the reader's place, but its rows of what comes next were left out when that was decoded."""
    lab, late = Lab(log=AheadLog()), SpanReceiver()
    try:
        first, second = lab.log.commit(1, [1]), lab.log.commit(2, [7])

        def join(entry: JournalEntry) -> None:
            if entry.ts == first:
                lab.puller.subscribe(Span(2), first, late.consume, late.advance, late.failed)

        lab.on_save = join
        lab.subscribe(Span(1), 0).wait(second)
        late.wait(second)
        assert late.rows == [(second, 7)]
    finally:
        lab.close()


def test_rows_that_were_resolved_come_once_more_after_a_start_and_one_that_is_missing_has_the_table_read_again() -> None:
    """The journal is behind the store: what lies between goes to the store once more, which tells what it lacks."""
    book = MemoryDoubts(SystemClock())
    lab = Lab(doubts=book)
    try:
        seen = [lab.log.commit(1, [n]) for n in range(4)]
        lab.journal.save(JournalEntry(FIRST_TS, "0"))
        lab.journal.save(JournalEntry(seen[0], "1"))
        receiver = lab.subscribe(Span(1), seen[2])
        receiver.wait(seen[3])
        assert receiver.rows == [(ts, n) for n, ts in enumerate(seen) if n > 0], "not what lies before its journaled place"
        lab.puller.unsubscribe(Span(1).span_id)
        lacking = SpanReceiver()
        lacking.refuse = PenstockError("RESOLVED_TS_VIOLATED", "scripted")
        lab.puller.subscribe(Span(1), seen[2], lacking.consume, lacking.advance, lacking.failed)
        until(lambda: lacking.errors == ["RESOLVED_TS_VIOLATED"])
        assert [(s.table_id, s.is_open) for s in book.states()] == [(1, True)]
        lab.puller.unsubscribe(Span(1).span_id)
        again = lab.subscribe(Span(1), seen[2])
        again.wait(seen[3])
        assert again.rows == [(seen[3], 3)], "it is not asked again"
    finally:
        lab.close()


def test_a_log_has_one_reader_at_a_time_and_a_commit_one_ts(tmp_path: Path) -> None:
    """Each puts marks that the other does not know, so what both read at once would have two ts."""
    log, clock = MemoryLog(), SimulatedClock()
    with ExitStack() as stack:

        def start(reader: str) -> SingleLogPuller:
            journal = LogJournal(sqlite_url(tmp_path / "meta.db"), "log", JournalSettings(lease_s=6.0), clock, reader=reader)
            stack.callback(journal.close)
            pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
            puller = SingleLogPuller(cast("LoggedUpstream", log), pipeline, journal, SETTINGS)
            stack.callback(puller.close)
            stack.callback(pipeline.close)
            return puller

        one, two = start("a~1"), start("b~1")
        here, there = SpanReceiver(), SpanReceiver()
        number = one.subscribe(Span(1), 0, here.consume, here.advance)
        first = log.commit(1, [1])
        here.wait(first)
        other = two.subscribe(Span(1), 0, there.consume, there.advance)
        until(lambda: getattr(two.progress(other), "last_error", None) is not None)
        assert [p.last_error.code for p in [two.progress(other)] if p is not None and p.last_error is not None] == ["LOG_HELD"]
        assert (there.rows, there.resolved) == ([], [])
        one.unsubscribe(number)
        there.wait(first)
        # A reader that was away for longer than its lease gives nothing more of what it reads.
        back = SpanReceiver()
        one.subscribe(Span(1), 0, back.consume, back.advance)
        second = log.commit(1, [2])
        there.wait(second)
        assert back.rows == []
        assert there.rows == [(first, 1), (second, 2)]
