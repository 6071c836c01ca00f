"""The spans of a store: known by id, and the same again after the log was read."""

import random
from pathlib import Path

import pytest

from penstock.model.batch import Op
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.store.log.schema_log import SchemaLog
from penstock.store.log.wal import WriteAheadLog
from penstock.store.log.wal_segment import WalRecord
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.shared_records import SpanMark
from penstock.store.objects.span_writer import ObjectSettings
from penstock.store.settings import StoreSettings
from penstock.store.spans import Spans
from testing.checks.change_batches import TABLE, both_sides

SPAN, OTHER = Span(TABLE.table_id), Span(TABLE.table_id + 1)


class Opened:
    """Spans with a schema log and a write-ahead log, as a store that opens has them."""

    def __init__(self, root: Path) -> None:
        self.schema_log = SchemaLog()
        self.spans = Spans(ObjectSpace((root / "objects").as_uri()), self.schema_log, random.Random(7), ObjectSettings(1 << 20, None))
        self.wal = WriteAheadLog(root / "wal", StoreSettings(), SystemClock(), self.spans.head_records)

    def write(self, *records: WalRecord) -> None:
        """Begin a segment, which says what there is, with some records in it, and close the log."""
        assert list(self.wal.replay()) == []
        self.wal.start()
        self.wal.write(records)
        self.wal.close()


def test_a_span_is_made_once_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    spans = Opened(tmp_path).spans
    store, is_new = spans.ensure(SPAN.span_id, SPAN, 10)
    assert (is_new, store.start_ts) == (True, 10)
    assert spans.ensure(SPAN.span_id, SPAN, 99) == (store, False)
    assert spans.of(SPAN.span_id) is spans.get(SPAN.span_id) is store
    assert (spans.ids(), spans.all()) == ((SPAN.span_id,), [store])
    assert spans.get(OTHER.span_id) is None
    with pytest.raises(PenstockError, match=r"\[SPAN_UNKNOWN\]"):
        spans.of(OTHER.span_id)


def test_the_head_of_a_segment_and_its_rows_give_the_same_spans_again(tmp_path: Path) -> None:
    first = Opened(tmp_path)
    for span, ts in ((SPAN, 10), (OTHER, 30)):
        first.spans.ensure(span.span_id, span, ts)
    first.spans.of(OTHER.span_id).advance(40)
    first.schema_log.put([TABLE])
    first.write(*map(WalRecord.of_batch, both_sides(SPAN.span_id, [(11, Op.INSERT, 1, "one"), (12, Op.DELETE, 1, "one")])))
    again = Opened(tmp_path)
    marks = [SpanMark(OTHER.span_id, OTHER, 30, 35), SpanMark(99, Span(99), 50, 60)]
    again.spans.recover(again.wal.replay(), marks)
    found = {s.span_id: (s.span, s.start_ts, s.resolved_ts, s.memory_row_count) for s in again.spans.all()}
    assert found == {SPAN.span_id: (SPAN, 10, 10, 2), OTHER.span_id: (OTHER, 30, 40, 0), 99: (Span(99), 50, 60, 0)}
    assert again.schema_log.versions(TABLE.table_id) == (TABLE,)
    again.wal.close()


def test_rows_of_a_span_that_nobody_registered_are_damage(tmp_path: Path) -> None:
    Opened(tmp_path).write(*map(WalRecord.of_batch, both_sides(SPAN.span_id, [(11, Op.INSERT, 1, "one")])))
    again = Opened(tmp_path)
    with pytest.raises(PenstockError, match=r"\[WAL_CORRUPT\].*never registered"):
        again.spans.recover(again.wal.replay())
    again.wal.close()
