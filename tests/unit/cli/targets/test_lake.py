"""The verb ``lake``."""

from pathlib import Path

from click.testing import CliRunner

from penstock.cli.targets.lake import lake
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherWork, DmlEvent
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from tests.contract.test_sink import T0, TABLE, WHOLE, inserts


def test_small_files_become_one_and_go_when_they_expire(tmp_path: Path) -> None:
    uri, run = f"delta+file://{tmp_path}/lake", SinkRun("f", 1)
    for at in range(3):
        sink = kind_of(uri).make_sink(uri, {}, None, run)
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0 + at * 10, T0 + at * 10 + 10))
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, inserts(10, at * 10)))
        result = sink.close_dispatcher(WHOLE)
        sink.close()
        kind_of(uri).make_maintainer(uri, {}, unfenced, run).record_window(T0 + at * 10, T0 + at * 10 + 10, [result])
    runner = CliRunner()
    found = runner.invoke(lake, ["optimize", uri, "--table", "shop.*"])
    assert (found.exit_code, found.output) == (0, "shop.orders: 3 files became 1\n")
    found = runner.invoke(lake, ["expire", uri])
    assert "shop.orders: 0 files deleted" in found.output, "they are not old enough"
    assert len(list((tmp_path / "lake/shop/orders").glob("*.parquet"))) == 4


def test_files_are_no_lake(tmp_path: Path) -> None:
    found = CliRunner().invoke(lake, ["optimize", f"file://{tmp_path}"])
    assert "SINK_URI_INVALID" in str(found.exception)
