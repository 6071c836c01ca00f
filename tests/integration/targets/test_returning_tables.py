"""Tables that leave a feed and come back to a target that cannot be read: what went meanwhile is told, by a table that begins anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sink.kafka.transactions import KEPT
from testing.paths.controlled_path import ControlledPath
from testing.paths.controlled_server import ControlledServer
from testing.paths.whole_path import WholePath
from testing.servers.http_receiver import Receiver, http_receiver
from testing.servers.kafka.broker import KafkaBroker, kafka_broker
from testing.servers.kafka.consumer import canal_changes, read_topics
from testing.servers.waiting import wait_until
from testing.twins.local_jobs import LocalQueries

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]
WHILE_OUT = [[], ["TRUNCATE TABLE d.b"], ["DROP TABLE d.b", "CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40))"]]
ROWS = {1: "changed", 7: "while out", 8: "after"}


def live(path: ControlledPath, ddls: list[str]) -> None:
    """Have a table leave, change and come back; another one has a DDL meanwhile, which is newer than those of the first."""
    path.drain()
    path.write({"d.b": {1: "old", 2: "goes"}, "d.a": {1: "x"}})
    path.drain()
    path.do("alter", changes={"tables": ["d.a"]})
    path.drain()
    path.write({"d.b": {1: "changed"}}, {"d.b": [2]})
    for ddl in ddls:
        path.upstream.execute_ddl(ddl)
    path.write({"d.b": {1: "changed", 7: "while out"}})
    path.upstream.execute_ddl("TRUNCATE TABLE d.a")
    path.drain()
    path.do("alter", changes={"tables": ["d.a", "d.b"]})
    path.write({"d.b": {8: "after"}})
    path.drain()


def rows_of(receiver: Receiver) -> dict[int, str]:
    """Return the rows of table b as a receiver makes them that follows the page: repeats of a lane are dropped, DDLs are followed."""
    rows: dict[int, str] = {}
    last: dict[str, str] = {}
    for told in receiver.bodies():
        assert told["feed"] == "f"
        if told["sequence"] <= last.get(told["lane"], ""):
            continue
        last[told["lane"]] = told["sequence"]
        if told["type"] == "ddl" and told["tables"][0]["table"] == "b":
            rows.clear()
        if told["type"] == "rows" and told["table"] == "b":
            for event in told["events"]:
                row = event["after"] or event["before"]
                rows.pop(row["id"], None)
                rows |= {row["id"]: row["v"]} if event["after"] else {}
    return rows


@pytest.mark.parametrize("ddls", WHILE_OUT)
def test_a_receiver_of_http_ends_with_the_table_as_it_is(tmp_path: Path, ddls: list[str]) -> None:
    """Receivers drop what is not beyond the last sequence of its lane, and empty a table that is made or truncated."""
    with (
        http_receiver() as receiver,
        contextlib.closing(ControlledPath(tmp_path, SETUP, tables=("d.a", "d.b"), target_uri=receiver.uri)) as path,
    ):
        live(path, ddls)
        rows = rows_of(receiver)
    assert rows == ROWS


def test_a_table_with_another_condition_begins_anew(tmp_path: Path) -> None:
    """What the condition no longer keeps must go, and a target that is not compared cannot be asked what it has."""

    def rules(left_out: str) -> dict[str, Any]:
        return {"rules": [{"tables": ["d.b"], "where": left_out}]}

    queries = LocalQueries(lambda _where, _text: False)
    with (
        http_receiver() as receiver,
        contextlib.closing(ControlledPath(tmp_path, SETUP, target_uri=receiver.uri, queries=queries, filter=rules("x"))) as path,
    ):
        path.drain()
        path.write({"d.b": {1: "x", 2: "y", 3: "z"}})
        path.drain()
        assert rows_of(receiver) == {2: "y", 3: "z"}
        path.do("alter", changes={"filter": rules("y")})
        path.write({"d.b": {4: "y", 5: "w"}})
        path.drain()
        assert rows_of(receiver) == {1: "x", 3: "z", 5: "w"}


@pytest.mark.parametrize("ddls", WHILE_OUT)
def test_a_reader_of_kafka_ends_with_the_table_as_it_is(tmp_path: Path, ddls: list[str]) -> None:
    """Readers take the rows of a table from the newest DDL on that empties it."""
    try:
        with (
            kafka_broker(2) as broker,
            contextlib.closing(ControlledPath(tmp_path, SETUP, tables=("d.a", "d.b"), target_uri=f"kafka://{broker.address}/lake")) as path,
        ):
            live(path, ddls)
            control: list[Any] = [m.body for m in read_topics(broker.address, ["lake.control"])]
            emptied = [body["_tidb"]["commitTs"] for body in control if body["isDdl"] and body["table"] == "b"]
            changes = sorted(canal_changes(read_topics(broker.address, ["lake.d.b"])), key=lambda change: change[0])
    finally:
        KEPT.close()
    rows: dict[int, str] = {}
    for ts, kind, row in changes:
        if ts > max(emptied, default=0):
            rows.pop(int(row["id"]), None)
            rows |= {} if kind == "DELETE" else {int(row["id"]): row["v"]}
    assert rows == ROWS


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with kafka_broker(1) as broker:
        yield broker
    KEPT.close()


def test_a_running_feed_takes_a_table_that_was_made_again_and_then_leaves_kafka(tmp_path: Path, broker: KafkaBroker) -> None:
    """What a server writes between two runs of a feed, it writes as the run that is to come: brokers know a later epoch otherwise."""
    path = WholePath(tmp_path, SETUP)
    with contextlib.closing(ControlledServer(path, path.upstream, "dataserver://127.0.0.1:1")) as server:
        server.create("d.a", "d.b", sink=f"kafka://{broker.address}/lake")
        server.delivers(path.write({"d.a": {1: "x"}, "d.b": {1: "old"}}))
        server.do("alter", changes={"tables": ["d.a"]})
        wait_until(server.has_tables("d.a"), "it has left", 120)
        path.upstream.execute_ddl("DROP TABLE d.b")
        path.upstream.execute_ddl("CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40))")
        server.delivers(path.write({"d.a": {2: "y"}}))
        server.do("alter", changes={"tables": ["d.a", "d.b"]})
        wait_until(server.has_tables("d.a", "d.b"), "it has come back", 120)
        server.delivers(path.write({"d.b": {7: "new"}}))
        told = [m.body for m in read_topics(broker.address, ["lake.control"])]
        assert [body["type"] for body in told if body["isDdl"]] == ["CREATE_TABLE"]
        server.do("alter", changes={"sink": {"uri": server.out.as_uri()}}, start="snapshot")
        wait_until((server.out / "metadata").exists, "files are the target", 120)
        server.delivers(path.write({"d.b": {8: "files"}}))
        entries = [entry.new for entry in server.meta.lives.history("g") if entry.what == "altered"]
    assert any("is closed at ts" in entry for entry in entries)
    assert all("could not be published" not in entry for entry in entries)
