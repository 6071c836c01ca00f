"""One span's way into the store: what counts as persisted, and when."""

import contextlib
import threading
from collections.abc import Callable

import msgspec

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.span import Span
from penstock.puller.span_capture import SpanCapture, after_all, as_given
from testing.checks.change_batches import TABLE, change_batch, row_key
from testing.twins.event_store import MemoryEventStore

SPAN = Span(TABLE.table_id)


class Payload(msgspec.Struct):
    changes: tuple[ChangeBatch, ...] = ()
    ddls: tuple[DdlEvent, ...] = ()


def counting() -> tuple[list[int], Callable[[], None]]:
    calls: list[int] = []
    return calls, lambda: calls.append(1)


def test_rows_are_in_the_store_when_they_count_as_persisted() -> None:
    with contextlib.closing(MemoryEventStore()) as store:
        capture = SpanCapture(SPAN, store, as_given)
        assert capture.resume(5) == 5
        persisted = threading.Event()
        ddl = DdlEvent(10, DdlType.CREATE_TABLE, "CREATE TABLE t", "shop", (TABLE,))
        batch = change_batch(SPAN.span_id, [(11, Op.INSERT, 1, "a")], BatchKind.DATA)
        store.hold()
        assert capture.consume(Payload((batch,), (ddl,)), persisted.set)
        assert not persisted.is_set()
        store.release()
        assert persisted.wait(300)
        capture.advance(20)
        assert capture.resolved_ts() == 20
        assert store.ddls == [ddl]
        assert store.rows(SPAN.span_id) == [(11, Op.INSERT, row_key(1))]


def test_nothing_counts_at_once_and_a_span_that_the_store_does_not_know_is_refused() -> None:
    with contextlib.closing(MemoryEventStore()) as store:
        capture = SpanCapture(SPAN, store, as_given)
        calls, finish = counting()
        assert capture.consume(Payload(), finish)
        assert calls == [1]
        assert not capture.consume(Payload((change_batch(SPAN.span_id, [(11, Op.INSERT, 1, "a")], BatchKind.DATA),)), finish)
        assert calls == [1]


def test_the_last_of_several_parts_ends_all() -> None:
    calls, finish = counting()
    part_done = after_all(3, finish)
    for expected in ([], [], [1]):
        part_done()
        assert calls == expected
