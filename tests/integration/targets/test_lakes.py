"""Feeds whose target is a lake, from the data server to tables that other libraries read, without Spark."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import polars as pl
import pytest
from deltalake import DeltaTable

from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.lake.upkeep import Upkeep
from penstock.target.dispatcher import DispatcherId
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath, read_state
from testing.targets.lake_kit import LAKES, Lake
from tests.contract.test_sink import END, T0, TABLE, WHOLE, inserts

TABLES = ["CREATE DATABASE d", *(f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v VARCHAR(20))" for name in "ab")]


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return LAKES[request.param](tmp_path / "lake")


@pytest.fixture
def path(tmp_path: Path, lake: Lake) -> Iterator[WholePath]:
    opened = WholePath(tmp_path, TABLES, target_uri=lake.uri, splits={"d.a": [5]}, spans_per_table=2)
    try:
        yield opened
    finally:
        FAILPOINTS.arm("")
        opened.close()


def assert_same(path: WholePath, lake: Lake, *names: str) -> None:
    for name in names:
        want = read_state(path.upstream, path.table(name), path.upstream.current_ts()).sort("id")
        found = lake.read(*name.split(".")).sort("id")
        assert found.columns == want.columns
        assert found.rows() == want.rows(), name


def test_tables_of_a_lake_follow_their_upstream_through_ddls(path: WholePath, lake: Lake) -> None:
    path.write({"d.a": {i: f"a{i}" for i in range(10)}, "d.b": {1: "x"}})
    path.drain()
    assert_same(path, lake, "d.a", "d.b")
    path.write({"d.a": {3: "new", 20: "y"}, "d.b": {1: "z", 2: None}}, {"d.a": [4]})
    path.drain()
    path.write({"d.b": {2: "early"}})
    path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN w INT DEFAULT 7")
    path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN w INT")
    path.write({"d.b": {9: "q"}}, {"d.b": [1]})
    path.drain()
    assert_same(path, lake, "d.a", "d.b")
    path.upstream.execute_ddl("ALTER TABLE d.b DROP COLUMN w")
    path.upstream.execute_ddl("ALTER TABLE d.a MODIFY COLUMN w BIGINT")
    path.drain()
    assert_same(path, lake, "d.a", "d.b")
    path.upstream.execute_ddl("TRUNCATE TABLE d.b")
    path.write({"d.b": {5: "after"}})
    path.drain()
    assert_same(path, lake, "d.b")
    path.upstream.execute_ddl("RENAME TABLE d.b TO d.c")
    path.write({"d.c": {6: "renamed"}})
    path.drain()
    assert_same(path, lake, "d.a", "d.c")
    path.upstream.execute_ddl("DROP TABLE d.c")
    path.upstream.execute_ddl("CREATE TABLE d.c (id INT PRIMARY KEY, v VARCHAR(20), u INT)")
    path.write({"d.c": {7: "again"}})
    path.drain()
    assert_same(path, lake, "d.c")
    checkpoint = lake.read("penstock", "checkpoint").row(0, named=True)
    assert (checkpoint["checkpoint_ts"], checkpoint["not_covered"]) == (path.feed.checkpoint_ts(), "{}")


POINTS = (
    *("data-put:after=raise@2", "lake-commit:before=raise@1", "lake-commit:before=raise@2", "lake-commit:after=raise@1"),
    *("lake-commit:after=raise@2", "metadata:before=raise@1", "progress:before=raise@1"),
)


def test_a_window_that_breaks_anywhere_is_one_version_of_each_table(path: WholePath, lake: Lake) -> None:
    path.write({"d.a": {1: "first"}, "d.b": {1: "first"}})
    path.drain()
    for at, script in enumerate(POINTS):
        ts = path.write({"d.a": {1: f"a{at}", 10 + at: "more"}, "d.b": {1: f"b{at}"}}, {"d.a": [9 + at]})
        path.wait_resolved(ts)
        FAILPOINTS.arm(script)
        with pytest.raises(PenstockError, match="FAILPOINT"):
            path.drain()
        FAILPOINTS.arm("")
        path.drain()
        assert_same(path, lake, "d.a", "d.b")
    for name in "ab":
        windows = lake.windows("d", name)
        assert len(windows) == len(set(windows)) >= len(POINTS), "one version for each window, and none twice"


def test_upkeep_beside_a_feed_leaves_every_row(path: WholePath, lake: Lake) -> None:
    for at in range(4):
        path.write({"d.a": {at: "x", 10 + at: "y"}, "d.b": {at: "z"}})
        path.drain()
    upkeep = Upkeep.open(lake.uri, {})
    assert {k.table: k.removed > k.added for k in upkeep.compact(["d.*"])} == {"d.a": True, "d.b": True}
    assert [k.removed for k in upkeep.compact(["d.a"])] == [0], "there is nothing more to do"
    path.write({"d.a": {0: "after", 2: "too"}}, {"d.b": [1], "d.a": [11]})
    path.drain()
    assert_same(path, lake, "d.a", "d.b")
    gone = {k.table: k.removed for k in upkeep.expire([], 0)}
    assert gone["d.a"] > 0
    assert gone["d.b"] > 0
    assert {k.removed for k in upkeep.expire([], 0)} == {0}
    path.write({"d.a": {5: "last"}, "d.b": {0: "last"}})
    path.drain()
    assert_same(path, lake, "d.a", "d.b")


def test_an_owner_that_was_overtaken_changes_nothing(path: WholePath, lake: Lake) -> None:
    path.write({"d.a": {1: "first"}, "d.b": {1: "first"}})
    path.drain()
    old = path.take_over()
    path.write({"d.a": {1: "second"}})
    path.drain()
    before = lake.windows("d", "a")
    path.write({"d.a": {1: "third"}})
    with pytest.raises(PenstockError, match="FENCED"):
        LocalFeed(old).drain(path.upstream.current_ts(), 30)
    assert lake.windows("d", "a") == before
    path.drain()
    assert_same(path, lake, "d.a", "d.b")


def window_result(lake: Lake, run: SinkRun, dispatcher: DispatcherId = WHOLE) -> DispatcherResult:
    sink = kind_of(lake.uri).make_sink(lake.uri, {}, None, run)
    try:
        table = msgspec.structs.replace(TABLE, table_id=dispatcher.table_id, table=f"orders{dispatcher.table_id}")
        sink.open_dispatcher(DispatcherWork(dispatcher, table, T0, END))
        sink.add_dml_event(DmlEvent(dispatcher, table, inserts(50)))
        return sink.close_dispatcher(dispatcher)
    finally:
        sink.close()


def test_a_lower_epoch_is_refused_by_the_table_itself(lake: Lake) -> None:
    late = kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 1))
    result = window_result(lake, SinkRun("f", 1))
    kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 2)).record_window(T0, END - 1, [result])
    (lake.root / ".penstock/lake.json").unlink()
    with pytest.raises(PenstockError, match=r"FENCED.*epoch 2"):
        late.record_window(T0, END, [result])
    assert lake.windows("shop", "orders7") == [END - 1]


def test_of_two_attempts_at_once_one_commits(lake: Lake) -> None:
    run = SinkRun("f", 1)
    tables = [DispatcherId(7), DispatcherId(8), DispatcherId(9)]
    results = [[window_result(lake, run, table) for table in tables] for _ in range(2)]
    assert results[0] == results[1], "an attempt with the same rows finds its files there"
    failures: list[BaseException] = []
    gate = threading.Barrier(2)

    def attempt(own: list[DispatcherResult]) -> None:
        try:
            maintainer = kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, run)
            gate.wait()
            maintainer.record_window(T0, END, own)
        except PenstockError as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt, args=(own,)) for own in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [e for e in failures if not str(e).startswith("[SINK_FILE_GONE]")] == []
    for table in tables:
        assert lake.windows("shop", f"orders{table.table_id}") == [END]
        assert lake.read("shop", f"orders{table.table_id}").sort("id").rows() == [(i, f"note {i}") for i in range(50)]


def read_changes(lake: Lake) -> pl.DataFrame:
    return lake.read("d", "b").sort("_commit_ts", "id").drop("_commit_ts")


@pytest.mark.parametrize("options", [{}, {"partition": "day"}])
def test_changes_stand_one_below_the_other(tmp_path: Path, lake: Lake, options: dict[str, str]) -> None:
    path = WholePath(tmp_path, TABLES, target_uri=lake.uri, sink_options={"mode": "append", **options})
    try:
        path.write({"d.b": {1: "a"}})
        path.drain()
        first = path.write({"d.b": {1: "b", 2: "c"}})
        path.drain()
        path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN w INT DEFAULT 7")
        path.write({}, {"d.b": [1]})
        path.drain()
        path.upstream.execute_ddl("TRUNCATE TABLE d.b")
        path.drain()
        found = read_changes(lake)
        want = [("I", 1, "a", None), ("U", 1, "b", None), ("I", 2, "c", None), ("D", 1, "b", 7), ("T", None, None, None)]
        assert found.select("_op", "id", "v", "w").rows() == want
        assert first in lake.read("d", "b").get_column("_commit_ts")
        if options:
            assert found.get_column("_commit_date").null_count() == 0
    finally:
        path.close()


def test_delta_keeps_the_checkpoint_as_an_application_transaction(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path / "lake")
    result = window_result(lake, SinkRun("f", 3))
    kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 3)).record_window(T0, END, [result])
    table = DeltaTable(str(lake.root / "shop" / "orders7"))
    assert (table.transaction_version("penstock/f"), table.transaction_version("penstock-epoch/f")) == (END, 3)
