"""A callable as a target: what it is called with, in which order, and what comes again after it failed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.callback.callbacks import registered
from penstock.sink.callback.changes import Changes
from penstock.sink.callback.kind import ROWS_PER_CALL
from penstock.sink.catalog import check_target, kind_of, open_maintainer, open_sink, settings_of
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.target.storage import unfenced
from testing.paths.whole_path import WholePath

T0 = compose_ts(1_700_000_000_000)
COLUMNS = (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "at", ColumnType(TypeKind.TIMESTAMP)))
TABLE = TableSchema(7, "shop", "orders", 1, COLUMNS)


def rows(*changes: tuple[int, Op, int]) -> pa.RecordBatch:
    ts, ops, ids = zip(*changes, strict=True)
    columns = [pa.array([T0 + t for t in ts], pa.uint64()), pa.array(ops, pa.uint8()), pa.array(ids, pa.int64())]
    return pa.RecordBatch.from_arrays([*columns, pa.array(["2026-01-02 03:04:05"] * len(ids))], ["_ts", "_op", "c1", "c2"])


def spooled(spool: Path, dispatcher: DispatcherId, *events: pa.RecordBatch | DdlEvent) -> DispatcherResult:
    sink = open_sink("python:f", {"spool": str(spool)}, None)
    sink.open_dispatcher(DispatcherWork(dispatcher, TABLE, 1, T0 << 1))
    for event in events:
        if isinstance(event, DdlEvent):
            sink.pass_block_event(dispatcher, event)
            sink.write_block_event(dispatcher, event)
        else:
            sink.add_dml_event(DmlEvent(dispatcher, TABLE, event))
    return sink.close_dispatcher(dispatcher)


def told(given: list[Changes]) -> list[tuple[str, list[tuple[int, str, int]]]]:
    return [(c.ddl or c.table, [(r["_commit_ts"] - T0, r["_op"], r["id"]) for r in c.arrow().to_pylist()]) for c in given]


def test_rows_of_several_dispatchers_come_in_the_order_of_commits_and_ddls_between_rows(tmp_path: Path) -> None:
    given: list[Changes] = []
    ddl = DdlEvent(T0 + 4, DdlType.TABLE_COMMENT, "ALTER TABLE orders COMMENT 'x'", "shop", (TABLE,))
    other = DispatcherId(9)
    with registered("f", given.append):
        maintainer = open_maintainer("python:f", {"spool": str(tmp_path)}, unfenced)
        results = [
            spooled(tmp_path, DispatcherId(7, 0, 2), rows((1, Op.INSERT, 1), (5, Op.UPDATE, 1)), rows((7, Op.DELETE, 1))),
            spooled(tmp_path, DispatcherId(7, 1, 2), rows((2, Op.INSERT, 11), (6, Op.DELETE, 11))),
            spooled(tmp_path, other, rows((3, Op.INSERT, 2)), ddl, rows((5, Op.DELETE, 2))),
            spooled(tmp_path, DispatcherId(10)),
        ]
        maintainer.record_window(1, T0 + 9, results)
        maintainer.record_window(1, T0 + 9, results)
        end = DdlEvent(T0 + 9, DdlType.TRUNCATE_TABLE, "TRUNCATE TABLE orders", "shop", (TABLE,))
        maintainer.write_block_event(end)
        maintainer.write_block_event(end)
    assert told(given) == [
        ("shop.orders", [(1, "insert", 1), (2, "insert", 11), (5, "update", 1), (6, "delete", 11), (7, "delete", 1)]),
        ("shop.orders", [(3, "insert", 2)]),
        (ddl.query, []),
        ("shop.orders", [(5, "delete", 2)]),
        ("TRUNCATE TABLE orders", []),
    ]
    assert str(given[0].polars()["at"].dtype) == "Datetime(time_unit='us', time_zone='UTC')"
    assert [c.commit_ts - T0 for c in given] == [7, 3, 4, 5, 9]
    assert list(tmp_path.iterdir()) == []


def test_what_it_took_before_it_failed_does_not_come_again(tmp_path: Path) -> None:
    count, seen, failing = ROWS_PER_CALL + 5, [], [True]

    def callback(changes: Changes) -> None:
        if len(changes) == 5 and failing.pop():
            raise KeyError("a value of a row")
        seen.extend(changes.polars()["id"].to_list())

    with registered("f", callback) as found:
        maintainer = open_maintainer("python:f", {"spool": str(tmp_path)}, unfenced)
        events = [rows(*((1, Op.INSERT, i) for i in range(start, min(start + 20_000, count)))) for start in range(0, count, 20_000)]
        with pytest.raises(PenstockError) as caught:
            maintainer.record_window(1, T0 + 9, [spooled(tmp_path, DispatcherId(7), *events)])
        assert (caught.value.code, "a value" in str(caught.value), type(found.error)) == ("CALLBACK_FAILED", False, KeyError)
        failing.append(False)
        # Another attempt has the same rows, in events that are cut elsewhere.
        again = [spooled(tmp_path, DispatcherId(7), rows(*((1, Op.INSERT, i) for i in range(count))))]
        maintainer.record_window(1, T0 + 9, again)
    assert seen == list(range(count))


def test_it_is_found_by_its_scheme_and_its_process(tmp_path: Path) -> None:
    assert kind_of("python:f").name == "python"
    assert [finding.ok for finding in check_target("python:f", {"spool": str(tmp_path)})] == [False]
    with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*spool"):
        settings_of("python:f")
    maintainer = open_maintainer("python:f", {"spool": str(tmp_path)}, unfenced)
    with pytest.raises(PenstockError, match="CALLBACK_FAILED"):
        maintainer.check("f")
    with registered("f", print), pytest.raises(PenstockError, match="runs in this process"), registered("f", print):
        pass
    with pytest.raises(PenstockError, match="SPOOL_FAILED"):
        spooled(tmp_path / "gone", DispatcherId(7), rows((1, Op.INSERT, 1)))


def test_through_the_whole_path_a_program_rebuilds_the_tables(tmp_path: Path) -> None:
    setup = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]
    tables: dict[str, dict[int, str | None]] = {"d.a": {}, "d.b": {}}

    def callback(changes: Changes) -> None:
        if changes.ddl.startswith("TRUNCATE"):
            tables[changes.table].clear()
        for row in changes.records.to_pylist():
            if row["_op"] == "delete":
                del tables[changes.table][row["id"]]
            else:
                tables[changes.table][row["id"]] = row["v"]

    with (
        registered("f", callback),
        contextlib.closing(
            WholePath(tmp_path, setup, target_uri="python:f", sink_options={"spool": str(tmp_path)}, splits={"d.a": [5]}, spans_per_table=2)
        ) as path,
    ):
        path.write({"d.a": dict.fromkeys(range(10), "one"), "d.b": {1: "x", 2: "y"}})
        path.drain()
        path.write({"d.a": {1: "two", 12: "new"}}, {"d.a": [9, 2]})
        path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN x INT DEFAULT 7")
        path.write({"d.a": {2: "again"}}, {"d.b": [2]})
        path.upstream.execute_ddl("TRUNCATE TABLE d.b")
        path.write({"d.b": {3: "three"}})
        path.drain()
    assert tables["d.a"] == dict.fromkeys((0, 3, 4, 5, 6, 7, 8), "one") | {1: "two", 2: "again", 12: "new"}
    assert tables["d.b"] == {3: "three"}
