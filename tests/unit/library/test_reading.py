"""A target read by a program: rows and changes as they were written, as of moments, in polars and Arrow."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import penstock
from penstock.model.timestamp import compose_ts, physical_ms, to_datetime
from testing.paths.whole_path import WholePath

SETUP = ["CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))", "CREATE TABLE d.bag (id INT, v VARCHAR(40))"]


def state(frame: pl.DataFrame) -> dict[int, str | None]:
    return dict(frame.select("id", "v").iter_rows())


@pytest.mark.parametrize("protocol", ["csv", "canal-json"])
def test_a_table_and_its_changes(tmp_path: Path, protocol: str) -> None:
    options = {"protocol": protocol} | ({"csv.include-commit-ts": "true"} if protocol == "csv" else {"enable-tidb-extension": "true"})
    with contextlib.closing(WholePath(tmp_path, SETUP, sink_options=options)) as path:
        first_ts = path.write({"d.a": {1: "one", 2: "two"}})
        path.wait_until("a later millisecond", lambda: physical_ms(path.upstream.current_ts()) > physical_ms(first_ts))
        second_ts = path.write({"d.a": {1: "1", 3: "three"}}, {"d.a": [2]})
        path.drain()
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN x INT DEFAULT 7")
        path.drain()
    target = (tmp_path / "files").as_uri()

    def at(moment: int | str | dt.datetime | None) -> pl.DataFrame:
        return penstock.read_table(target, "d.a", as_of=moment, settings=options)

    assert state(at(None)) == {1: "1", 3: "three"}
    assert at(None)["x"].to_list() == [7, 7]
    for moment in (first_ts, str(first_ts), to_datetime(first_ts), to_datetime(first_ts).isoformat()):
        assert state(at(moment)) == {1: "one", 2: "two"}
    with pytest.raises(penstock.PenstockError, match="TABLE_UNKNOWN"):
        at(1)
    arrow = penstock.read_table(target, "d.a", into="arrow", settings=options)
    assert arrow.schema == pa.schema([("id", pa.int32()), ("v", pa.string()), ("x", pa.int32())])
    assert penstock.read_table(tmp_path / "files", "d.bag", settings=options).height == 0

    found = penstock.read_changes(target, "d.a", settings=options)
    expected = [(first_ts, "insert", 1, "one"), (first_ts, "insert", 2, "two"), (second_ts, "delete", 2, "two")]
    assert found.select("_commit_ts", "_op", "id", "v").rows() == [
        *expected,
        (second_ts, "update", 1, "1"),
        (second_ts, "insert", 3, "three"),
    ]
    after = penstock.read_changes(target, "d.a", start=to_datetime(first_ts), settings=options)
    assert after["_commit_ts"].unique().to_list() == [second_ts]
    assert penstock.read_changes(target, "d.a", end=first_ts, into="arrow", settings=options).num_rows == 2
    assert penstock.read_changes(target, "d.a", start=compose_ts(physical_ms(second_ts) + 1), settings=options).height == 0


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    target = tmp_path.as_uri()
    for call, code, text in [
        (lambda: penstock.read_table(target, "d.a"), "TABLE_UNKNOWN", "d.a"),
        (lambda: penstock.read_table(target, "a"), "CONFIG_INVALID", "table"),
        (lambda: penstock.read_table(target, "d.a", as_of="2026-01-02T03:04:05"), "CONFIG_INVALID", "time zone"),
        (lambda: penstock.read_changes(target, "d.a", start="yesterday"), "CONFIG_INVALID", "neither a ts nor a time"),
        (lambda: penstock.read_changes(target, "d.a", start=5, end=4), "CONFIG_INVALID", "lies before start"),
        (lambda: penstock.read_table("kafka://h:1/x", "d.a"), "SINK_URI_INVALID", "kafka"),
        (lambda: penstock.read_table(tmp_path / "misspelt", "d.a"), "SINK_URI_INVALID", "is no folder"),
        (lambda: penstock.read_changes(str(tmp_path / "misspelt"), "d.a"), "SINK_URI_INVALID", "is no folder"),
    ]:
        with pytest.raises(penstock.PenstockError) as caught:
            call()
        assert caught.value.code == code
        assert text in caught.value.detail
    assert list(tmp_path.iterdir()) == []
