"""The examples of `docs/storage-layout.md` are a target for the reader written from it; so are all date separators, and dispatchers."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path

import pytest

from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId
from testing.consumer.files import Change, Settings, changes
from testing.consumer.layout import partition_records
from testing.consumer.tables import read_target
from testing.consumer.values import column_of
from testing.paths.storage_lab import StorageLab

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "storage-layout.md").read_text(encoding="utf-8")
FIRST = 470481371922432000
PAID = {"id": 17, "state": "paid"}


def example(section: str, kind: str = "") -> str:
    """Return the first block of a kind in a section."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    (block, *_) = re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data, index, schema = example("Paths").split()
    rows = example("CSV", "csv rows").replace("\n", "\r\n")
    content = {
        data: rows,
        index: example("Index file"),
        schema: example("Schema file", "json schema"),
        "metadata": example("`metadata`", "json"),
    }
    for name, text in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("later", "rows"),
    [
        (0, [(17, 'Ada "A." King', Decimal("12.50"), "new", "2026-11-15 12:00:02.000", None)]),
        (1, [(17, 'Ada "A." King', Decimal("12.50"), "paid", "2026-11-15 12:00:02.000", "paid in cash")]),
        (2, []),
    ],
)
def test_the_examples_are_a_target(folder: Path, later: int, rows: list[tuple[object, ...]]) -> None:
    assert read_target(folder).checkpoint == FIRST
    (folder / "metadata").write_text(json.dumps({"checkpoint-ts": FIRST + later}))
    target = read_target(folder)
    orders = target.tables["shop", "orders"]
    assert orders.names == ["id", "customer", "total", "state", "placed_at", "note"]
    assert list(orders.bag()) == rows
    assert orders.key == ("id",)
    assert [(file.version, file.kind) for file in target.ddls] == [(470481371136000000, 5)]


def test_the_day_in_the_example_is_that_of_its_rows() -> None:
    day = dt.datetime.fromtimestamp((FIRST >> 18) / 1000, dt.UTC).date()
    assert example("Paths").split()[0].split("/")[3] == day.isoformat()


def test_the_canal_message_is_read(tmp_path: Path) -> None:
    columns = [column_of(each) for each in json.loads(example("Schema file", "json schema"))["TableColumns"]]
    (tmp_path / "CDC000001.json").write_bytes(example("Canal-JSON", "json").replace("\n", "\r\n").encode())
    assert list(changes(tmp_path / "CDC000001.json", "shop", "orders", columns, Settings())) == [Change("U", FIRST + 1, PAID)]


def test_the_partition_record_is_read(tmp_path: Path) -> None:
    (tmp_path / ".penstock" / "partitions").mkdir(parents=True)
    (tmp_path / ".penstock" / "partitions" / "1_55.json").write_text(example("Reading in order", "json"))
    (record,) = partition_records(tmp_path)
    assert (record.schema, record.table, record.version) == ("shop", "orders", 470481371136000000)
    assert (record.live, record.made, record.dropped, record.inherits) == ({55, 57}, {57}, {56}, False)


@pytest.mark.parametrize("separator", ["none", "year", "month", "day"])
def test_dates_and_dispatchers_are_read_in_order(tmp_path: Path, separator: str) -> None:
    """One key goes and comes again over days, months and years; another dispatcher writes the other keys beside it."""
    days = [dt.datetime(*day, 12, tzinfo=dt.UTC) for day in ((2025, 12, 30), (2025, 12, 31), (2026, 1, 1), (2026, 2, 1))]
    ts = [compose_ts(int(day.timestamp() * 1000)) for day in days]
    table = TableSchema(
        7,
        "s",
        "t",
        ts[0],
        (
            Column(1, "id", ColumnType(TypeKind.INT), nullable=False, primary_key=True),
            Column(2, "v", ColumnType(TypeKind.VARCHAR, length=9)),
        ),
    )
    lab = StorageLab(f"{(tmp_path / 'files').as_uri()}?date-separator={separator}&file-index-width=7")
    low, high = DispatcherId(7, 0, 2), DispatcherId(7, 1, 2)
    history = [(Op.INSERT, "first"), (Op.DELETE, "first"), (Op.INSERT, "second"), (Op.UPDATE, "third")]
    for at, (op, text) in zip(ts, history, strict=True):
        lab.write(table, [(at + 1, op, 1, text)], low)
        lab.write(table, [(at + 1, Op.UPDATE, 50, text), (at + 2, Op.INSERT, at % 97 + 100, None)], high)
    others = [(at % 97 + 100, None) for at in ts]
    for upto, text in enumerate(("first", None, "second", "third")):
        lab.checkpoint(ts[upto] + 5)
        found = read_target(tmp_path / "files", Settings(date_separator=separator)).tables["s", "t"]
        wanted = {(50, history[upto][1]), *others[: upto + 1], *([(1, text)] if text else [])}
        assert dict(found.bag()) == dict.fromkeys(wanted, 1)
    dates = {path.parents[1].name for path in (tmp_path / "files").rglob("CDC_*.index")}
    assert dates == {"none": {str(ts[0])}}.get(separator, {f"{day:%Y-%m-%d}"[: {"year": 4, "month": 7}.get(separator, 10)] for day in days})
