"""What a store does by itself when memory has grown; when it merges is in ``objects/test_merging.py``."""

import random
from pathlib import Path

from penstock.model.batch import Op
from penstock.model.clock import SystemClock
from penstock.model.span import Span
from penstock.store.event_store import ColumnarEventStore
from penstock.store.log.schema_log import SchemaLog
from penstock.store.log.wal import WriteAheadLog
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.span_writer import ObjectSettings
from penstock.store.settings import StoreSettings
from penstock.store.spans import Spans
from penstock.store.upkeep import Upkeep, Work
from testing.checks.change_batches import TABLE, append_durably, both_sides, read_rows
from testing.checks.looked_inside import object_rows

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
WAIT_S = 60


def test_memory_is_flushed_when_it_has_grown(tmp_path: Path) -> None:
    with ColumnarEventStore(tmp_path, StoreSettings(flush_bytes=4_000, wal_segment_bytes=4_000)) as store:
        store.register_span(SPAN_ID, SPAN, 100)
        rows = [(ts, Op.INSERT, ts, "x" * 50) for ts in range(101, 1_001)]
        for at in range(0, len(rows), 50):
            append_durably(store, SPAN_ID, rows[at : at + 50], rows[at : at + 50][-1][0])
        store.flush(SPAN_ID)
        stats = next(s for s in store.stats().spans if s.span_id == SPAN_ID)
        assert object_rows(store, SPAN_ID) == {"appendable": 900}
        assert stats.memory_rows == 0
        assert len(list((tmp_path / "wal").glob("*.wal"))) <= 3
        assert read_rows(store.collect_changes(SPAN_ID, 100, 1_000)) == rows


def test_a_span_whose_resolved_ts_hangs_spills_to_a_mapped_file(tmp_path: Path) -> None:
    """Rows above the resolved ts cannot be flushed; they leave the heap and are still read, flushed and recovered."""
    with ColumnarEventStore(tmp_path, StoreSettings(spill_bytes=200_000)) as store:
        store.register_span(SPAN_ID, SPAN, 100)
        rows = [(101 + n // 7, Op.INSERT, n, "x" * 50) for n in range(20_000)]
        for at in range(0, len(rows), 2_000):
            append_durably(store, SPAN_ID, rows[at : at + 2_000], 100)
        span = store._spans.of(SPAN_ID)
        span.spill(tmp_path / "spill")
        assert span.heap_nbytes == 0
        assert span.memory_nbytes > 1_000_000
        assert list((tmp_path / "spill").iterdir()) == []
        append_durably(store, SPAN_ID, [(9_000, Op.INSERT, 1, "last")], 2_000)
        assert read_rows(store.collect_changes(SPAN_ID, 100, 2_000)) == [r for r in rows if r[0] <= 2_000]
        assert store.flush(SPAN_ID)
        store.advance_resolved_ts(SPAN_ID, 9_000)
        assert read_rows(store.collect_changes(SPAN_ID, 100, 9_000)) == [*rows, (9_000, Op.INSERT, 1, "last")]
        assert store.flush(SPAN_ID)
        assert span.memory_row_count == 0
        assert read_rows(store.collect_changes(SPAN_ID, 100, 9_000)) == [*rows, (9_000, Op.INSERT, 1, "last")]


def test_a_span_that_is_gone_ends_no_thread(tmp_path: Path) -> None:
    """A store that stands by forgets its spans; one that was asked for before may still wait for its turn."""
    settings, clock = StoreSettings(flush_bytes=1_000), SystemClock()
    spans = Spans(ObjectSpace(tmp_path.as_uri()), SchemaLog(), random.Random(7), ObjectSettings(1 << 20, None))
    wal = WriteAheadLog(tmp_path / "wal", settings, clock, spans.head_records)
    flushed: list[int] = []
    work = Work(lambda span_id: flushed.append(span_id) is None, lambda _: 0, lambda: 0)
    upkeep = Upkeep(settings, spans, lambda: wal, work, tmp_path / "spill", clock, shared=False)
    try:
        for gone in (True, False):
            store, _ = spans.ensure(SPAN_ID, SPAN, 10)
            for batch in both_sides(SPAN_ID, [(11, Op.INSERT, key, "x" * 50) for key in range(100)]):
                store.add(batch)
            store.advance(20)
            if gone:
                spans.clear()
            upkeep.after_resolved(store)
            assert upkeep.flusher.wait_idle(WAIT_S)
        assert flushed == [SPAN_ID]
    finally:
        upkeep.close()
        wal.close()
