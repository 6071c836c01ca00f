"""Doubts while a log is read: what is written when, and what a watch leaves out of corrections."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from penstock.meta.table_states import TableCondition
from penstock.model.batch import KEY, BatchKind, ChangeBatch, Op
from penstock.model.clock import SystemClock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.doubts import Corrections, Watch
from penstock.puller.logged.doubted_tables import DoubtedTables, KeyWatch, corrected
from penstock.source.single_log import TableDoubt
from testing.twins.clock import SimulatedClock
from testing.twins.doubt_book import MemoryDoubts, NotedDoubts
from testing.twins.single_log import key_of, rows_of, table_of

WAIT_S = 120.0
SPAN = Span(1)


def keys(*values: int) -> pa.Array:
    return pa.array([key_of(v) for v in values], pa.binary())


def doubt(ts: int, code: str = "") -> TableDoubt:
    return TableDoubt(1, "shop", "t1", ts, "a rewrite", code, "look" if code else "")


def test_a_watch_knows_what_changed_behind_its_beginning_and_nothing_before() -> None:
    watch = KeyWatch(Watch(1, 50, "p", (SPAN,)), 1_000)
    for ts, value in ((49, 1), (50, 2), (51, 3), (60, 4)):
        watch.add(rows_of(1, ts, [value]))
    mixed = pa.concat_batches([rows_of(1, ts, [v]).records for ts, v in ((50, 5), (52, 6))])
    watch.add(ChangeBatch.of(0, table_of(1), BatchKind.DATA, mixed))
    assert watch.unchanged(keys(1, 2, 3, 4, 5, 6, 7)).tolist() == [True, True, False, False, True, False, True]


def test_a_watch_that_grows_beyond_its_bound_is_given_up() -> None:
    book = MemoryDoubts(SimulatedClock())
    doubts = DoubtedTables(book, SimulatedClock(), keys_max=10)
    doubts.note([doubt(40)])
    doubts.begin_watch(Watch(1, 50, "p", (SPAN,)))
    doubts.watch([rows_of(1, 60, range(10))])
    assert doubts.watch_of(1).unchanged(keys(9, 10)).tolist() == [False, True]
    doubts.watch([rows_of(1, 61, [10])])
    doubts.watch_of(1).end()
    with pytest.raises(PenstockError, match="CONGESTED"):
        doubts.watch_of(1)


def test_corrections_get_one_ts_and_leave_out_both_sides_of_a_key_that_the_log_changed() -> None:
    watch = KeyWatch(Watch(1, 50, "p", (SPAN,)), 1_000)
    watch.add(rows_of(1, 60, [2]))
    gone, new = rows_of(1, 1, [3, 2], BatchKind.TOMBSTONE, Op.BEFORE), rows_of(1, 1, [5, 4, 2], op=Op.UPDATE)
    kept, left_out = corrected(Corrections(77, (gone,), (new,)), watch, 99)
    assert left_out == 2
    assert [(b.header.span_id, b.header.kind, b.header.min_ts, b.header.max_ts, b.header.rows) for b in kept] == [
        (77, BatchKind.TOMBSTONE, 99, 99, 1),
        (77, BatchKind.DATA, 99, 99, 2),
    ]
    assert kept[1].records.column(0).to_pylist() == [99, 99]
    assert kept[1].records.column(KEY).to_pylist() == [key_of(4), key_of(5)], "ordered by key"


def test_a_doubt_read_again_is_not_written_again_and_a_span_from_before_corrections_doubts_the_table() -> None:
    book = MemoryDoubts(SimulatedClock())
    doubts = DoubtedTables(book, SimulatedClock(), 10)
    doubts.note([doubt(40)])
    doubts.begin_watch(Watch(1, 50, "p", (SPAN,)))
    assert doubts.close(1, 60, "")
    assert [s.state for s in book.states()] == [TableCondition.OK]
    doubts.note([doubt(40)])
    doubts.joined(1, 60)
    assert [s.state for s in book.states()] == [TableCondition.OK]
    doubts.joined(1, 59)
    assert [(s.state, s.doubt_ts) for s in book.states()] == [(TableCondition.DOUBTFUL, 60)]


def test_newer_doubts_about_an_open_table_cost_no_write_and_outlast_a_reread_that_began_before_them() -> None:
    order: list[str] = []
    book = NotedDoubts(SystemClock(), order)
    doubts = DoubtedTables(book, SimulatedClock(), 10)
    doubts.note([doubt(40)])
    doubts.note([doubt(ts) for ts in range(41, 50)])
    assert order == ["doubt 40"]
    doubts.note([doubt(45, "DECODE_FAILED")])
    assert order == ["doubt 40", "doubt 45"], "that it cannot be decoded is said at once"
    doubts.begin_watch(Watch(1, 50, "p", (SPAN,)))
    doubts.note([doubt(55, "DECODE_FAILED")])
    assert not doubts.close(1, 60, "")
    assert [(s.state, s.code, s.doubt_ts) for s in book.states()] == [(TableCondition.QUARANTINED, "DECODE_FAILED", 55)]
    doubts.begin_watch(Watch(1, 60, "p", (SPAN,)))
    assert doubts.close(1, 70, "")
    doubts.note([doubt(ts) for ts in (40, 45, 55, 60)])
    assert [s.state for s in book.states()] == [TableCondition.OK]


def test_a_doubt_that_somebody_asks_for_while_the_table_is_read_outlasts_that_reading_where_the_log_stands_still() -> None:
    book = NotedDoubts(SystemClock(), [])
    doubts = DoubtedTables(book, SimulatedClock(), 10)
    doubts.request(1, "s", "t", "first", 40)
    doubts.begin_watch(Watch(1, 50, "p", (SPAN,)))
    doubts.request(1, "s", "t", "second", 50)
    assert not doubts.close(1, 60, "")
    doubts.begin_watch(Watch(1, 60, "p", (SPAN,)))
    assert doubts.close(1, 70, "")


def test_a_paused_table_is_left_out_until_a_re_read_begins_and_a_forgotten_one_is_no_longer_known() -> None:
    book = MemoryDoubts(SimulatedClock())
    doubts = DoubtedTables(book, SimulatedClock(), keys_max=10)
    changes = (rows_of(1, 60, [1]), rows_of(2, 61, [1]))
    doubts.note([doubt(40)])
    assert doubts.followed(changes) is changes
    doubts.fail(1, PenstockError("TABLE_PAUSED", "left out"), 0.0)
    assert doubts.followed(changes) == changes[1:]
    assert DoubtedTables(book, SimulatedClock(), keys_max=10).followed(changes) == changes[1:], "after a restart too"
    doubts.begin_watch(Watch(1, 62, "p", (SPAN,)))
    assert doubts.followed(changes) is changes
    doubts.fail(1, PenstockError("UPSTREAM_REFUSED", "denied"), 0.0)
    assert doubts.followed(changes) is changes, "another error does not pause it again"
    doubts.forget(1)
    assert doubts.states() == []
    doubts.note([doubt(30)])
    assert [s.doubt_ts for s in doubts.states()] == [30], "what comes after it is a doubt of its own"


def test_a_doubt_with_only_a_name_becomes_one_about_the_next_table_that_gets_the_name() -> None:
    book = MemoryDoubts(SimulatedClock())
    doubts = DoubtedTables(book, SimulatedClock(), keys_max=10)
    doubts.note([TableDoubt(0, "shop", "t1", 40, "no version of it is known", "SCHEMA_UNKNOWN", "look")])
    doubts.created([table_of(2), table_of(1)])
    assert [(s.table_id, s.state) for s in book.states()] == [(0, TableCondition.QUARANTINED)], "an older version is another table's"
    doubts.created([msgspec.structs.replace(table_of(1), version=55)])
    assert [(s.table_id, s.table, s.state, s.code, s.doubt_ts) for s in book.states()] == [
        (1, "t1", TableCondition.QUARANTINED, "SCHEMA_UNKNOWN", 40)
    ]
    doubts.note([TableDoubt(0, "shop", "t1", 40, "no version of it is known", "SCHEMA_UNKNOWN", "look")])
    doubts.created([msgspec.structs.replace(table_of(1), version=55)])
    doubts.begin_watch(Watch(1, 60, "p", (SPAN,)))
    assert doubts.close(1, 70, "")
    assert [(s.table_id, s.state) for s in book.states()] == [(1, TableCondition.OK)], "read again, the same log changes nothing"


def test_a_doubt_with_only_a_name_ends_where_no_table_has_the_name() -> None:
    book = MemoryDoubts(SimulatedClock())
    doubts = DoubtedTables(book, SimulatedClock(), keys_max=10)
    names = [("shop", "t1"), ("shop", "t2"), ("bank", "t1"), ("bank", "t3")]
    doubts.note([TableDoubt(0, *name, 40, "no version of it is known", "SCHEMA_UNKNOWN", "look") for name in names])
    doubts.note([doubt(40)])
    doubts.gone([("shop", "t1", 39), ("shop", "t9", 50)])
    assert len(book.states()) == 5, "a drop from before it is another table's"
    doubts.gone([("shop", "t1", 50)])
    assert [(s.schema, s.table) for s in book.states() if s.table_id == 0] == [("bank", "t1"), ("bank", "t3"), ("shop", "t2")]
    doubts.gone([("bank", "", 50)])
    assert [(s.table_id, s.schema, s.table) for s in book.states()] == [(0, "shop", "t2"), (1, "shop", "t1")]


def test_doubts_go_with_the_names_of_their_tables_and_the_newer_ones_too() -> None:
    book = MemoryDoubts(SimulatedClock())
    doubts = DoubtedTables(book, SimulatedClock(), keys_max=10)
    doubts.note([doubt(40)])
    doubts.begin_watch(Watch(1, 50, "p", (SPAN,)))
    doubts.note([doubt(60)])
    moved = msgspec.structs.replace(table_of(1), schema="elsewhere", table="t9", version=70)
    doubts.renamed(
        [DdlEvent(70, DdlType.RENAME_TABLE, "", "elsewhere", (moved,)), DdlEvent(71, DdlType.CREATE_TABLE, "", "", (table_of(2),))]
    )
    assert [(s.table_id, s.schema, s.table) for s in doubts.states()] == [(1, "elsewhere", "t9")]
    assert not doubts.close(1, 80, ""), "the newer doubt is opened"
    assert [(s.schema, s.table, s.doubt_ts) for s in doubts.states()] == [("elsewhere", "t9", 60)]
