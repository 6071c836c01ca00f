"""What others do to tables of a lake: the feed goes on where nothing is lost, and says so where something is."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.timestamp import TS_ZERO
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherWork, DmlEvent
from penstock.sink.iceberg.catalogs import open_catalog
from penstock.sink.lake.upkeep import Upkeep
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.targets.lake_kit import LAKES, Lake
from tests.contract.test_sink import T0, TABLE, WHOLE, inserts, rows_of
from tests.integration.targets.lakes.test_lakes import deliver

OTHERS = pa.table({"id": pa.array([9], pa.int64()), "note": ["theirs"]})


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    lake = LAKES[request.param](tmp_path / "lake")
    deliver(lake, TABLE, inserts(3), TS_ZERO, T0 + 10)
    deliver(lake, TABLE, rows_of([(T0 + 11, Op.UPDATE, 1, "second"), (T0 + 11, Op.INSERT, 4, "second")]), T0 + 10, T0 + 20)
    return lake


def third(lake: Lake) -> None:
    deliver(lake, TABLE, rows_of([(T0 + 21, Op.UPDATE, 2, "third")]), T0 + 20, T0 + 30)


def held(lake: Lake) -> dict[int, str | None]:
    return dict(lake.read("shop", "orders").select("id", "note").rows())


def delta(lake: Lake) -> DeltaTable | None:
    return DeltaTable(str(lake.root / "shop" / "orders")) if lake.uri.startswith("delta") else None


def iceberg(lake: Lake) -> Any:
    return open_catalog(lake.root.as_uri(), "", f"file://{lake.root}").load_table(("shop", "orders"))


def set_back(lake: Lake) -> None:
    if table := delta(lake):
        table.restore(1)
    else:
        opened = iceberg(lake)
        with opened.manage_snapshots() as changing:
            changing.rollback_to_snapshot(opened.snapshots()[0].snapshot_id)


def test_a_table_that_was_set_back_gets_no_change_until_it_is_compared(lake: Lake) -> None:
    set_back(lake)
    # Upkeep since does not hide it.
    list(Upkeep.open(lake.uri, {}).compact([]))
    with pytest.raises(PenstockError, match=r"SINK_CONFLICT.*shop.orders was set back"):
        third(lake)
    added = TABLE.columns
    event = DdlEvent(T0 + 22, DdlType.MULTI_SCHEMA_CHANGE, "ALTER …", "shop", (TABLE.__class__(7, "shop", "orders", T0 + 22, added),))
    with pytest.raises(PenstockError, match=r"SINK_CONFLICT.*shop.orders was set back"):
        kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 1)).write_block_event(event)
    assert 4 not in held(lake)
    kind, run = kind_of(lake.uri), SinkRun("f", 1)
    with contextlib.closing(kind.make_sink(lake.uri, {}, None, run)) as sink:
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, TS_ZERO, T0 + 40, is_difference=True))
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of([(T0 + 40, Op.UPDATE, 1, "second"), (T0 + 40, Op.INSERT, 4, "second")])))
        result = sink.close_dispatcher(WHOLE)
    kind.make_maintainer(lake.uri, {}, unfenced, run).record_window(T0 + 20, T0 + 40, [result])
    deliver(lake, TABLE, rows_of([(T0 + 41, Op.DELETE, 0, None)]), T0 + 40, T0 + 50)
    assert held(lake) == {1: "second", 2: "note 2", 4: "second"}


def drop_column(lake: Lake) -> None:
    if table := delta(lake):
        rows = pa.table(table.to_pyarrow_table().select(["id"]))
        write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")
    else:
        with iceberg(lake).update_schema() as changing:
            changing.delete_column("note")


def replace(lake: Lake) -> None:
    lake.forget("shop", "orders")
    if lake.uri.startswith("delta"):
        write_deltalake(str(lake.root / "shop" / "orders"), OTHERS)
    else:
        catalog = open_catalog(lake.root.as_uri(), "", f"file://{lake.root}")
        catalog.create_table(("shop", "orders"), OTHERS.schema, f"file://{lake.root}/theirs").append(OTHERS)


def remove_data(lake: Lake) -> None:
    for path in (lake.root / "shop" / "orders").rglob("*.parquet"):
        path.unlink()


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (drop_column, "SINK_CONFLICT.*has no column 'note'"),
        (replace, "SINK_CONFLICT.*the feed did not make"),
        (remove_data, "SINK_UNAVAILABLE.*parquet is gone"),
    ],
)
def test_what_no_change_can_be_written_on_stops_the_feed(lake: Lake, does: Callable[[Lake], None], said: str) -> None:
    does(lake)
    with pytest.raises(PenstockError, match=said):
        third(lake)
    if does is replace:
        assert held(lake) == {9: "theirs"}


def write_beside(lake: Lake) -> None:
    if table := delta(lake):
        write_deltalake(table, OTHERS, mode="append")
    else:
        iceberg(lake).append(OTHERS)


def delete_beside(lake: Lake) -> None:
    if table := delta(lake):
        table.delete("id = 0")
    else:
        iceberg(lake).delete("id = 0")


def forget_checkpoint(lake: Lake) -> None:
    lake.forget("penstock", "checkpoint")


@pytest.mark.parametrize("does", [write_beside, delete_beside, forget_checkpoint])
def test_what_others_write_and_delete_stays_as_it_is(lake: Lake, does: Callable[[Lake], None]) -> None:
    maintainer = kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 1))
    maintainer.publish_checkpoint(T0 + 20, {})
    does(lake)
    third(lake)
    want: dict[int, str | None] = {0: "note 0", 1: "second", 2: "third", 4: "second"}
    if does is delete_beside:
        del want[0]
    assert held(lake) == want | ({9: "theirs"} if does is write_beside else {})
    maintainer.publish_checkpoint(T0 + 30, {})
    assert lake.read("penstock", "checkpoint").row(0)[0] == T0 + 30


def test_two_warehouses_in_one_catalog_do_not_share_tables(tmp_path: Path) -> None:
    catalog = {"catalog": f"sqlite:///{tmp_path}/catalog.db"}
    for at, name in enumerate(("one", "two")):
        uri = f"iceberg+file://{tmp_path}/{name}"
        kind, run = kind_of(uri), SinkRun(name, 1)
        with contextlib.closing(kind.make_sink(uri, catalog, None, run)) as sink:
            sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, TS_ZERO, T0 + 10))
            sink.add_dml_event(DmlEvent(WHOLE, TABLE, inserts(3 + at)))
            result = sink.close_dispatcher(WHOLE)
        maintainer = kind.make_maintainer(uri, catalog, unfenced, run)
        if name == "one":
            maintainer.record_window(TS_ZERO, T0 + 10, [result])
            maintainer.publish_checkpoint(T0 + 10, {})
            continue
        for step in (
            lambda m=maintainer, r=result: m.record_window(TS_ZERO, T0 + 10, [r]),
            lambda m=maintainer: m.publish_checkpoint(T0, {}),
        ):
            with pytest.raises(PenstockError, match=r"SINK_OCCUPIED.*of the catalog lies in"):
                step()
        assert list(Upkeep.open(uri, catalog).compact([])) == []
    opened = open_catalog(f"file://{tmp_path}/one", catalog["catalog"], f"file://{tmp_path}/one")
    assert opened.load_table(("shop", "orders")).scan().to_arrow().num_rows == 3


def test_a_lake_of_delta_is_moved_to_another_folder(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path / "before")
    deliver(lake, TABLE, inserts(3), TS_ZERO, T0 + 10)
    shutil.move(tmp_path / "before", tmp_path / "after")
    moved = LAKES["delta"](tmp_path / "after")
    deliver(moved, TABLE, rows_of([(T0 + 11, Op.DELETE, 1, None)]), T0 + 10, T0 + 20)
    assert sorted(held(moved)) == [0, 2]
