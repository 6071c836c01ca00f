"""``import penstock`` in a process that has a Spark of its own, as a notebook has: captures beside it, one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from notebook_doc import CELLS, NOTEBOOK, cells
from pyspark.sql import SparkSession

import penstock
from penstock.source.dataserver.client import DataServerUpstream
from penstock.spark import register

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 200.0


@pytest.fixture
def spark(jvm: None) -> Iterator[SparkSession]:
    """A user's own Spark, with settings of theirs, in the JVM that is there."""
    SparkSession.builder.getOrCreate().stop()
    settings = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    session = SparkSession.builder.master("local[2]").appName("mine").config(map=settings).getOrCreate()
    yield session
    session.stop()


def put(upstream: DataServerUpstream, ids: range, text: str) -> None:
    with upstream.txn() as txn:
        txn.put(upstream.table("shop", "orders"), {"id": pa.array(ids, pa.int64()), "v": pa.array([text] * len(ids))})


def test_captures_beside_a_users_spark(spark: SparkSession, upstream: DataServerUpstream, tmp_path: Path) -> None:
    upstream.execute_ddl("CREATE DATABASE shop")
    upstream.execute_ddl("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, v VARCHAR(40))")
    put(upstream, range(5), "first")
    rows: dict[int, str] = {}
    quick = {"server": {"spark": {"warm-up": False}}, "flush-interval": "200ms"}

    def keep(changes: penstock.Changes) -> None:
        if "poison" in changes.polars()["v"]:
            raise LookupError("cannot digest it")
        rows.update(changes.polars().select("id", "v").iter_rows())

    with penstock.capture(upstream.uri, "shop.*", keep, settings=quick) as capture:
        reached = capture.wait_until_caught_up(WAIT_S)
        assert (rows, reached.rows, reached.state, reached.uncovered) == (dict.fromkeys(range(5), "first"), 5, "running", ())
        with pytest.raises(penstock.PenstockError, match="runs in this process"), penstock.capture(upstream.uri, "shop.*", keep):
            pass
        put(upstream, range(4, 7), "second")
        moved = next(progress for progress in capture if progress.rows == 8)
        assert moved.checkpoint_ts > reached.checkpoint_ts
        put(upstream, range(1), "poison")
        with pytest.raises(penstock.PenstockError) as failed:
            capture.wait_until_caught_up(WAIT_S)
    assert (failed.value.code, type(failed.value.__cause__)) == ("CALLBACK_FAILED", LookupError)
    assert rows == dict.fromkeys(range(4), "first") | dict.fromkeys(range(4, 7), "second")
    with pytest.raises(penstock.PenstockError, match="does not run"):
        capture.progress()

    target = (tmp_path / "files").as_uri()
    expected = rows | {0: "poison"}
    with penstock.capture(upstream.uri, ["shop.*"], target, data_dir=tmp_path / "data", settings=quick) as capture:
        first_ts = capture.wait_until_caught_up(WAIT_S).checkpoint_ts
        with capture.client() as client:
            assert [feed["name"] for feed in client.feeds()] == ["run"]
        register(spark)
        live = spark.read.format("penstock").option("data-dir", str(capture.data_dir)).option("table", "shop.orders").load()
        assert {row["id"]: row["v"] for row in live.collect()} == expected
    assert {row["id"]: row["v"] for row in penstock.read_table(target, "shop.orders", into="spark", spark=spark).collect()} == expected
    assert dict(penstock.read_table(target, "shop.orders", as_of=first_ts).iter_rows()) == expected
    assert penstock.read_changes(target, "shop.orders", start=first_ts, into="spark", spark=spark).count() == 0
    # Nothing of the user's Spark was changed, and it runs on.
    assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
    assert spark.range(3).count() == 3


def test_the_snippets_of_the_page(spark: SparkSession, upstream: DataServerUpstream, tmp_path: Path) -> None:
    """As they stand in docs/library.md, one after the other, on a shop of two orders."""
    upstream.execute_ddl("CREATE DATABASE shop")
    upstream.execute_ddl("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, total DECIMAL(12,2))")
    with upstream.txn() as txn:
        txn.put(upstream.table("shop", "orders"), {"id": pa.array([1, 2], pa.int64()), "total": pa.array(["1.50", "2.00"])})
    target, data_dir = (tmp_path / "files").as_uri(), str(tmp_path / "data")
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "library.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, Any] = {"SOURCE": upstream.uri, "TARGET": target, "DATA_DIR": data_dir, "spark": spark}
    for block in blocks[:3]:
        exec(compile(block, "docs/library.md", "exec"), names)
    assert names["totals"] == {1: Decimal("1.50"), 2: Decimal("2.00")}
    assert sorted(names["orders"].rows()) == sorted(names["totals"].items())
    assert (names["changes"]["_op"].to_list(), names["late"].height) == (["insert", "insert"], 0)
    with penstock.capture(upstream.uri, ["shop.*"], target, data_dir=data_dir, settings={"flush-interval": "500ms"}) as capture:
        names |= {"URL": capture.url, "TOKEN": (tmp_path / "data" / "api-token").read_text().strip()}
        # It goes on where it stopped, and delivers nothing twice.
        assert capture.wait_until_caught_up(WAIT_S).rows == 2
        for block in blocks[3:]:
            exec(compile(block, "docs/library.md", "exec"), names)
        assert sorted(tuple(row) for row in names["rows"]) == sorted(names["totals"].items())
        # A user may stop their Spark under a capture, which cannot go on then and says so.
        spark.stop()
        with pytest.raises(penstock.PenstockError, match="SPARK_LOST"):
            capture.progress()


@pytest.mark.chaos
def test_the_cells_of_the_notebook(spark: SparkSession) -> None:
    names: dict[str, Any] = {}
    for kind, content in cells(CELLS.read_text(encoding="utf-8")):
        if kind == "code":
            exec(compile(content, "notebook.py", "exec"), names)
    # A notebook leaves its pipe to the end of the process; a test that ends first would be blamed for it.
    names["shop"].stdout.close()
    alive = {row["id"] for row in names["now"].iter_rows(named=True)}
    assert alive == {int(row["id"]) for row in spark.table("orders").collect()}


def test_the_notebook_has_the_cells_and_what_they_gave() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    told = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert told == cells(CELLS.read_text(encoding="utf-8"))
    outputs = json.dumps([cell.get("outputs", []) for cell in notebook["cells"]])
    assert "decimal(12,2)" in outputs
    assert not re.search(r"/tmp/|/home/|/work/|\"ename\"", outputs)
