"""Lakes that are read back: verified against their upstream, and brought to its state where history is lost."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS
from penstock.model.timestamp import TS_ZERO
from penstock.server.verify.tables_verification import TablesVerifier
from penstock.server.verify.verification import Verdict
from penstock.sink.catalog import kind_of, open_tables
from penstock.sink.contract import DispatcherWork, DmlEvent
from penstock.sink.lake.upkeep import Upkeep
from penstock.target.dispatcher import DispatcherId
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.paths.whole_path import WholePath, lose_history, read_state, row_key
from testing.targets.lake_kit import LAKES, Lake
from tests.contract.test_sink import T0, TABLE, WHOLE, inserts, rows_of
from tests.integration.targets.lakes.test_lakes import deliver
from tests.integration.targets.tables.test_table_partitions import physical, put
from tests.integration.verifying.test_resnapshot import SETUP, change_meanwhile, crash_in_a_window


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return LAKES[request.param](tmp_path / "lake")


@contextlib.contextmanager
def lab(root: Path, lake: Lake, spans: int = 1, options: dict[str, str] | None = None) -> Iterator[WholePath]:
    splits = {"d.a": [20]} if spans > 1 else {}
    path = WholePath(root, SETUP, target_uri=lake.uri, splits=splits, spans_per_table=spans, sink_options=options)
    with contextlib.closing(path):
        try:
            kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 1)).claim("f")
            path.write({"d.a": {n: f"first {n}" for n in range(40)}, "d.b": dict.fromkeys(range(5))})
            path.drain()
            path.write({"d.a": {n: f"second {n}" for n in range(20)}}, {"d.b": [4]})
            path.drain()
            yield path
        finally:
            FAILPOINTS.arm("")


def verify(path: WholePath) -> Verdict:
    with contextlib.closing(open_tables(path.target_uri, path.sink_options)) as tables:
        return TablesVerifier(tables, path.upstream).verify(sorted(path.live_tables().values()), looks_max=3)


def upstream_rows(path: WholePath, name: str) -> list[tuple[object, ...]]:
    return sorted(read_state(path.upstream, path.table(name), path.upstream.current_ts()).rows())


def replayed(lake: Lake, name: str) -> list[tuple[object, ...]]:
    """Return what a reader makes of a table of changes: of each key the last change counts, since the table was emptied last."""
    found = (
        lake.read("d", name).with_columns(pl.col("_op").is_in(["I", "U"]).alias("comes")).sort("_commit_ts", "comes", maintain_order=True)
    )
    emptied = found.filter(pl.col("_op") == "T").get_column("_commit_ts").max()
    since = found if emptied is None else found.filter(pl.col("_commit_ts") > emptied)
    last = since.unique("id", keep="last").filter("comes")
    return sorted(last.drop("_op", "_commit_ts", "comes").rows())


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_a_lake_is_compared_with_its_upstream(tmp_path: Path, lake: Lake, mode: str) -> None:
    with lab(tmp_path, lake, 2, {"mode": mode}) as path:
        path.upstream.execute_ddl("TRUNCATE TABLE d.b")
        path.write({"d.a": {100: "x"}, "d.b": {1: None}}, {"d.a": [0]})
        path.drain()
        list(Upkeep.open(lake.uri, {}).compact([]))
        assert verify(path).summary() == "verified: 2 tables, 41 rows identical"
        # Somebody else writes into the table.
        if lake.uri.startswith("delta"):
            DeltaTable(str(lake.root / "d" / "a")).delete("id = 3")
            wrong = next(t for t in verify(path).tables if t.name == "d.a")
            assert (wrong.rows, wrong.missing, wrong.different, wrong.unexpected) == (39, 1, 0, 0)


def test_a_window_that_is_in_one_table_only_is_not_compared(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path / "lake")
    with lab(tmp_path, lake) as path:
        path.wait_resolved(path.write({"d.a": {1: "new"}, "d.b": {1: "new"}}))
        FAILPOINTS.arm("lake-commit:after=raise@1")
        with pytest.raises(PenstockError, match="FAILPOINT"):
            path.drain()
        FAILPOINTS.arm("")
        verdict = {t.name: t.unchecked for t in verify(path).tables}
        assert verdict == {"d.a": "a window was being written whenever it was looked at", "d.b": ""}
        path.drain()
        verify(path).check()


@pytest.mark.parametrize(("mode", "spans"), [("merge", 1), ("append", 2)])
def test_a_lake_whose_history_is_lost_gets_what_differs(tmp_path: Path, lake: Lake, mode: str, spans: int) -> None:
    with lab(tmp_path, lake, spans, {"mode": mode}) as path:
        before = lake.read("d", "a").height
        change_meanwhile(path)
        path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN n INT")
        lose_history(path)
        path.write({"d.b": {7: "after"}})
        crash_in_a_window(path)
        path.restart()
        path.drain()
        assert path.meta.resnapshots("f") == 1
        verify(path).check()
        for name in "ab":
            found = sorted(lake.read("d", name).rows()) if mode == "merge" else replayed(lake, name)
            assert found == upstream_rows(path, f"d.{name}")
        if mode == "append":
            assert lake.read("d", "a").height == before + 5, "three rows went, one changed and one came"
        windows = lake.windows("d", "a")
        assert len(windows) == len(set(windows))


def test_a_difference_to_a_table_that_changed_since_is_refused(tmp_path: Path, lake: Lake) -> None:
    kind, run = kind_of(lake.uri), SinkRun("f", 1)
    deliver(lake, TABLE, inserts(5), TS_ZERO, T0 + 10)
    with contextlib.closing(kind.make_sink(lake.uri, {}, None, run)) as sink:
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, TS_ZERO, T0 + 30, is_difference=True))
        # A window of somebody who does not know yet that he was given up.
        deliver(lake, TABLE, rows_of([(T0 + 11, Op.DELETE, 1, None)]), T0 + 10, T0 + 20)
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of([(T0 + 30, Op.DELETE, 2, None)])))
        result = sink.close_dispatcher(WHOLE)
    with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*changed while it was compared"):
        kind.make_maintainer(lake.uri, {}, unfenced, run).record_window(T0 + 10, T0 + 30, [result])
    assert sorted(lake.read("shop", "orders").get_column("id").to_list()) == [0, 2, 3, 4]


PARTS = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))"


@pytest.mark.parametrize(("kind", "mode"), [("delta", "merge"), ("delta", "append"), ("iceberg", "merge")])
def test_rows_go_and_move_with_partitions_that_are_read_by_themselves(tmp_path: Path, kind: str, mode: str) -> None:
    lake = LAKES[kind](tmp_path / "lake")
    columns = "(id INT PRIMARY KEY, v VARCHAR(40))"
    setup = ["CREATE DATABASE d", f"CREATE TABLE d.t {columns} {PARTS}", f"CREATE TABLE d.u {columns}"]
    with contextlib.closing(WholePath(tmp_path, setup, target_uri=lake.uri, sink_options={"mode": mode})) as path:

        def held(table: str) -> list[object]:
            path.drain()
            found = sorted(lake.read("d", table).rows()) if mode == "merge" else replayed(lake, table)
            return [row[0] for row in found]

        first, second = physical(path, "d.t")
        put(path, first, 1, 2, 3)
        put(path, second, 101, 102)
        put(path, physical(path, "d.u")[0], 7)
        assert held("t") == [1, 2, 3, 101, 102]
        for source, to in ((first, second), (second, first)):
            with path.upstream.txn() as txn:
                txn.delete(source, pa.array([row_key(2)], pa.binary()))
                txn.put(to, {"id": pa.array([2], pa.int32()), "v": pa.array(["moved"])})
            assert held("t") == [1, 2, 3, 101, 102]
        path.upstream.execute_ddl("ALTER TABLE d.t TRUNCATE PARTITION p1")
        put(path, physical(path, "d.t")[-1], 103)
        assert held("t") == [1, 2, 3, 103]
        path.upstream.execute_ddl("ALTER TABLE d.t EXCHANGE PARTITION p0 WITH TABLE d.u")
        assert (held("t"), held("u")) == ([7, 103], [1, 2, 3])
        path.upstream.execute_ddl("ALTER TABLE d.t DROP PARTITION p1")
        assert held("t") == [7]


def test_a_part_of_a_table_that_comes_with_its_state_takes_no_row_of_the_others(tmp_path: Path, lake: Lake) -> None:
    kind, run, ts = kind_of(lake.uri), SinkRun("f", 1), T0
    table, parts = TABLE, [DispatcherId(TABLE.table_id, at, 2) for at in range(2)]
    for own in ([(parts[0], 1), (parts[1], 100)], [(parts[1], 101)]):
        sink, results = kind.make_sink(lake.uri, {}, None, run), []
        with contextlib.closing(sink):
            for dispatcher, number in own:
                sink.open_dispatcher(DispatcherWork(dispatcher, table, TS_ZERO, ts + 10))
                sink.add_dml_event(DmlEvent(dispatcher, table, rows_of([(ts + 1, Op.INSERT, number, "x")])))
                results.append(sink.close_dispatcher(dispatcher))
        kind.make_maintainer(lake.uri, {}, unfenced, run).record_window(ts, ts + 10, results)
        ts += 10
    assert sorted(lake.read("shop", "orders").get_column("id").to_list()) == [1, 100, 101]
