"""A re-read takes from the store the rows of its key range, whatever objects they lie in, and opens no others."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from pathlib import Path

import pytest

from penstock.feed.bootstrap.reread_part import held_rows, range_view
from penstock.model.batch import KEY, Op
from penstock.model.span import DDL_SPAN, Span
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.bulk import write_bulk
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, Row, append_durably, both_sides, row_key

SPAN = Span(TABLE.table_id)
KEYS = 400


@pytest.mark.parametrize("seed", range(4))
def test_the_rows_of_a_key_range(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    state: dict[int, str] = {}
    at: dict[int, dict[int, str]] = {}
    with closing(ColumnarEventStore(tmp_path, StoreSettings())) as store:
        for span in (SPAN, DDL_SPAN):
            store.register_span(span.span_id, span, 1)
        store.put_schemas([TABLE])
        quarters = [[(1, Op.INSERT, key, "first") for key in range(n, n + KEYS // 4)] for n in range(0, KEYS, KEYS // 4)]
        objects = [write_bulk(store.objects, SPAN.span_id, f"{n}", both_sides(SPAN.span_id, q), 1, [TABLE]) for n, q in enumerate(quarters)]
        store.commit_bulk(SPAN.span_id, objects, 1)
        state |= dict.fromkeys(range(KEYS), "first")
        one = range_view(store.view(SPAN.span_id, 0, 1), Span(TABLE.table_id, row_key(110), row_key(220)))
        assert [o.path for o in one.state.objects] == [o.path for o in objects[1:3]], "objects of other keys are not opened"
        for ts in range(2, 14):
            rows: list[Row] = []
            for key in rng.sample(range(KEYS), 40):
                if key in state and rng.random() < 0.3:
                    rows.append((ts, Op.DELETE, key, state.pop(key)))
                else:
                    value = f"{ts} {'x' * 40}"
                    rows += (
                        [(ts, Op.BEFORE, key, state[key]), (ts, Op.UPDATE, key, value)] if key in state else [(ts, Op.INSERT, key, value)]
                    )
                    state[key] = value
            append_durably(store, SPAN.span_id, rows, ts)
            at[ts] = dict(state)
            if rng.random() < 0.5:
                store.flush(SPAN.span_id)
            if ts == 7:
                store.flush(SPAN.span_id)
                assert store.merge(SPAN.span_id)
        ts = 13
        whole = store.view(SPAN.span_id, 0, ts)
        cuts = sorted(rng.sample(range(1, KEYS), 5))
        borders = [b"", *(row_key(c) for c in cuts), b""]
        found: dict[bytes, str] = {}
        for start, end in itertools.pairwise(borders):
            piece = Span(TABLE.table_id, start, end)
            view = range_view(whole, piece)
            for records in held_rows(view, piece, ts, TABLE):
                keys = records.column(KEY).to_pylist()
                assert all(piece.contains(key) for key in keys)
                assert not found.keys() & set(keys)
                found |= dict(zip(keys, records.column("c2").to_pylist(), strict=True))
        assert found == {row_key(key): value for key, value in at[ts].items()}
