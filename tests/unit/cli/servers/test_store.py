"""The verb ``store`` on a small store: what it lists, that it notices damage, and that it changes nothing it should not."""

import json
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import run
from penstock.cli.servers.store import store as verb
from penstock.model.batch import Op
from penstock.model.span import DDL_SPAN, Span
from penstock.server.data_directory import DataDirectory
from penstock.store.event_store import ColumnarEventStore
from penstock.store.log.wal_segment import RECORD_HEADER, SEGMENT_HEADER
from testing.checks.change_batches import TABLE, both_sides, read_rows

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
FIRST = [(10, Op.INSERT, key, f"{key}@10") for key in range(20)]
SECOND = [(20, Op.DELETE, 3, "3@10"), (20, Op.INSERT, 30, "30@20")]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    with ColumnarEventStore(tmp_path / "store") as store:
        for span in (SPAN, DDL_SPAN):
            store.register_span(span.span_id, span, 0)
        store.put_schemas([TABLE])
        for rows in (FIRST, SECOND):
            durable = threading.Event()
            store.append(SPAN_ID, both_sides(SPAN_ID, rows), durable.set)
            assert durable.wait(120)
            store.advance_resolved_ts(SPAN_ID, rows[-1][0] + 5)
            store.flush(SPAN_ID)
    return tmp_path


def asked(*arguments: object, code: int = 0) -> dict[str, object] | list[dict[str, object]]:
    result = CliRunner().invoke(verb, [*map(str, arguments), "--output", "json"])
    assert (result.exit_code, result.exception is None) == (code, code == 0), result.output
    return json.loads(result.output)


def test_it_lists_checks_compacts_and_collects(data_dir: Path) -> None:
    (listed,) = asked("ls", data_dir)
    assert (listed["span_id"], listed["objects"], listed["merged"], listed["rows"]) == (SPAN_ID, 3, 0, 22)
    assert asked("check", data_dir) == {"spans": 1, "objects": 3, "segments": 1, "problems": []}
    assert asked("compact", data_dir) == {"replaced": {str(SPAN_ID): 3, str(DDL_SPAN.span_id): 0}, "total": 3}
    (listed,) = asked("ls", data_dir / "store")
    assert (listed["objects"], listed["merged"], listed["replaced"]) == (4, 1, 3)
    assert asked("check", data_dir)["problems"] == []
    assert asked("gc", data_dir)["total"] == 3, "ts of a few milliseconds after 1970 are older than any history"
    assert asked("check", data_dir)["problems"] == []
    shown = asked("show", data_dir, SPAN_ID)
    assert [o["object_kind"] for o in shown["object_list"]] == ["merged"]
    with ColumnarEventStore(data_dir / "store") as store:
        assert len(read_rows(store.collect_changes(SPAN_ID, 0, 25))) == 20
    assert "merged" in CliRunner().invoke(verb, ["show", str(data_dir), str(SPAN_ID)]).output
    assert "span" in CliRunner().invoke(verb, ["ls", str(data_dir)]).output


@pytest.mark.parametrize(
    ("offset", "code"), [(3, "OBJECT_CORRUPT"), (200, "OBJECT_CORRUPT"), (-20, "OBJECT_CORRUPT"), (None, "OBJECT_MISSING")]
)
def test_check_notices_damage(data_dir: Path, offset: int | None, code: str) -> None:
    file = next((data_dir / "store" / "objects").rglob("*-data.arrow"))
    if offset is None:
        file.unlink()
    else:
        damaged = bytearray(file.read_bytes())
        damaged[offset] ^= 1
        file.write_bytes(bytes(damaged))
    result = CliRunner().invoke(verb, ["check", str(data_dir), "--output", "json"])
    assert [p["code"] for p in json.loads(result.output)["problems"]] == [code]
    assert run(["store", "check", str(data_dir)]) == 1


def test_check_reads_the_log_and_leaves_it_as_it_is(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ColumnarEventStore(data_dir / "store") as store:
        durable = threading.Event()
        store.append(SPAN_ID, both_sides(SPAN_ID, [(30, Op.INSERT, 40, "40@30")]), durable.set)
        assert durable.wait(120)
    (file,) = sorted((data_dir / "store" / "wal").glob("*.wal"))[-1:]
    content = file.read_bytes()
    # A torn end is what a crash leaves; nobody who only looks cuts it.
    file.write_bytes(content + b"\x01" * 40)
    assert asked("check", data_dir)["problems"] == []
    assert file.read_bytes() == content + b"\x01" * 40
    damaged = bytearray(content)
    damaged[SEGMENT_HEADER.size + RECORD_HEADER.size + 2] ^= 1
    file.write_bytes(bytes(damaged))
    result = CliRunner().invoke(verb, ["check", str(data_dir), "--output", "json"])
    assert [(p["span_id"], p["path"], p["code"]) for p in json.loads(result.output)["problems"]] == [(0, f"wal/{file.name}", "WAL_CORRUPT")]
    assert run(["store", "check", str(data_dir)]) == 1
    shown = capsys.readouterr().out
    assert f"log: wal/{file.name}: [WAL_CORRUPT]" in shown
    assert file.read_bytes() == bytes(damaged)
    # One span has no log of its own, and that is said.
    assert run(["store", "check", str(data_dir), "--span", str(SPAN_ID)]) == 0
    assert "not checked: the write-ahead log" in capsys.readouterr().out


def test_a_used_directory_a_wrong_one_and_an_unknown_span_are_refused(data_dir: Path, tmp_path: Path) -> None:
    lock = DataDirectory(data_dir)
    try:
        lock.owner("a", "1")
        shop = data_dir / "sources" / "shop"
        shutil.copytree(data_dir / "store", lock.store_of("shop"))
        assert run(["store", "ls", str(shop)]) == 0
        assert run(["store", "compact", str(shop)]) == run(["store", "gc", str(shop / "store")]) == 2
        assert run(["store", "compact", str(data_dir)]) == 2
        assert run(["store", "gc", str(data_dir)]) == 2
        assert run(["store", "check", str(data_dir)]) == 0
    finally:
        lock.close()
    assert run(["store", "compact", str(shop)]) == 0
    assert run(["store", "show", str(data_dir), "1"]) == 2
    (tmp_path / "empty").mkdir()
    assert run(["store", "ls", str(tmp_path / "empty")]) == 2
