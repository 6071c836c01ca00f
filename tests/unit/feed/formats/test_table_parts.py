"""What a read of the format ``penstock`` leaves out: columns, objects beyond keys and times; its parts miss and repeat nothing."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.feed.formats.pushed_filters import kept_rows, keys_of
from penstock.feed.formats.table_parts import plan_parts
from penstock.feed.formats.table_read import TableOptions, plan_read, read_part
from penstock.feed.formats.table_reader import PenstockTable
from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.server import FlightService
from penstock.store.settings import StoreSettings

COLUMNS = (
    Column(1, "id", ColumnType(TypeKind.INT), False, True),
    Column(2, "v", ColumnType(TypeKind.VARCHAR)),
    Column(3, "w", ColumnType(TypeKind.TEXT)),
)
TABLE = TableSchema(7, "d", "t", 1, COLUMNS)
SPAN = Span(TABLE.table_id)
LONG = "w" * 1_000
ROWS = 40_000
Row = tuple[int, int, str | None]


class CountingClient(FlightStoreClient):
    """Counts what the service sends."""

    nbytes = 0

    def stream(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        for records in super().stream(ticket):
            self.nbytes += records.nbytes
            yield records


def batch(kind: BatchKind, op: Op, rows: list[Row]) -> ChangeBatch:
    ids = pa.array([row[1] for row in rows], pa.int32())
    keys = encode_row_keys(TABLE, {"c1": ids})
    head = [pa.array([row[0] for row in rows], pa.uint64()), pa.array([int(op)] * len(rows), pa.uint8()), keys, ids]
    columns = [
        *head,
        pa.array([row[2] for row in rows], pa.string()),
        pa.array([LONG if row[1] >= 30_000 else "w" for row in rows], pa.string()),
    ]
    return ChangeBatch.of(SPAN.span_id, TABLE, kind, pa.RecordBatch.from_arrays(columns, schema=TABLE.batch_schema()))


class Lab:
    """A store: rows by their ids at 10, merged into several objects; four transactions afterwards, an object each; one in memory."""

    def __init__(self, root: Path, parts: contextlib.ExitStack) -> None:
        self.root = root
        settings = StoreSettings(flush_bytes=1 << 30, objects_interval_s=86_400, object_bytes=1 << 18)
        self.store = parts.enter_context(ColumnarEventStore(root, settings))
        self.store.register_span(SPAN.span_id, SPAN, 0)
        self.store.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)
        self.store.put_schemas([TABLE])
        self.state: dict[int, str | None] = {}
        self.changes: list[tuple[int, str, int, str | None]] = []
        self.write([(10, n, None if n % 7 == 0 else f"v{n % 50}") for n in range(-ROWS // 2, ROWS // 2)], 100)
        self.store.flush(SPAN.span_id)
        assert self.store.merge(SPAN.span_id) >= 1
        for ts in (110, 120, 130, 140):
            self.write([(ts, n, f"at {ts}") for n in range(ts, ts + 5)], ts + 5)
            self.store.flush(SPAN.span_id)
        self.write([(150, n, "new") for n in range(30_000, 30_100)], 160)
        self.flight = parts.enter_context(contextlib.closing(FlightService(self.store)))
        self.client = parts.enter_context(contextlib.closing(CountingClient(self.flight.location, self.flight.token)))

    def write(self, rows: list[Row], resolved_ts: int) -> None:
        old = [(ts, n, self.state[n]) for ts, n, _ in rows if n in self.state]
        batches = [batch(BatchKind.DATA, Op.UPDATE if old else Op.INSERT, rows)] + (
            [batch(BatchKind.TOMBSTONE, Op.BEFORE, old)] if old else []
        )
        durable = threading.Event()
        self.store.append(SPAN.span_id, batches, durable.set)
        assert durable.wait(60)
        for span_id in (SPAN.span_id, DDL_SPAN.span_id):
            self.store.advance_resolved_ts(span_id, resolved_ts)
        self.state |= {n: v for _, n, v in rows}
        self.changes += [(ts, "update" if old else "insert", n, v) for ts, n, v in rows]

    def read(self, *filters: Filter, **options: str) -> tuple[list[dict[str, Any]], int]:
        """Return the rows that tasks give to Spark, and how many tasks there are."""
        given = {"location": self.flight.location, "token": self.flight.token, "table": "d.t"} | {
            k.replace("_", "-"): v for k, v in options.items()
        }
        source = PenstockTable(given)
        reader = source.reader(source.schema())
        assert list(reader.pushFilters(list(filters))) == list(filters)  # type: ignore[attr-defined]
        parts = reader.partitions()
        return [row for part in parts for records in reader.read(part) for row in records.to_pylist()], len(parts)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """For tests that only read."""
    with contextlib.ExitStack() as parts:
        yield Lab(tmp_path_factory.mktemp("store"), parts)


@pytest.fixture
def own_lab(tmp_path: Path) -> Iterator[Lab]:
    with contextlib.ExitStack() as parts:
        yield Lab(tmp_path, parts)


def test_parts_have_every_row_once(lab: Lab) -> None:
    expected = sorted(lab.state.items())
    whole, one = lab.read()
    parts, many = lab.read(bytes_per_partition="1")
    assert (one, sorted((r["id"], r["v"]) for r in whole)) == (1, expected)
    assert many >= 3
    assert [(r["id"], r["v"]) for r in parts] == expected, "a state comes in the order of its keys"
    listed, count = lab.read(from_ts="105", bytes_per_partition="1")
    assert count >= 4
    assert [(r["_commit_ts"], r["_op"], r["id"], r["v"]) for r in listed] == [c for c in lab.changes if c[0] > 105], "parts follow in time"
    assert lab.read(from_ts="0", bytes_per_partition="1")[0] == [{"_commit_ts": 160, "_op": "insert"} | row for row in parts]


def test_columns_that_nobody_asks_for_are_not_sent(lab: Lab) -> None:
    def sent(**options: str) -> tuple[int, list[pa.RecordBatch]]:
        plan = plan_read(lab.client, TableOptions.of({"table": "d.t", **{k.replace("_", "-"): v for k, v in options.items()}}))
        lab.client.nbytes = 0
        found = [b for part in plan_parts(lab.client, plan, 1 << 30) for b in read_part(lab.client, plan, part)]
        return lab.client.nbytes, found

    for options in ({}, {"from_ts": "145"}):
        whole, everything = sent(**options)
        narrow, ids = sent(columns="v, id", **options)
        assert whole > 100 * len(LONG)
        assert narrow < whole / 10
        assert ids[0].schema.names[-2:] == ["v", "id"]
        assert [r["id"] for b in ids for r in b.to_pylist()] == [r["id"] for b in everything for r in b.to_pylist()]
    with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*no column x"):
        sent(columns="id,x")


def test_a_schema_that_the_reader_is_given_prunes_too(lab: Lab) -> None:
    source = PenstockTable({"location": lab.flight.location, "token": lab.flight.token, "table": "d.t", "from-ts": "145"})
    reader = source.reader(st.StructType([st.StructField("v", st.StringType()), st.StructField("_op", st.StringType())]))
    rows = [row for part in reader.partitions() for records in reader.read(part) for row in records.to_pylist()]
    assert rows == [{"v": "new", "_op": "insert"}] * 100
    with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*another type.*id"):
        source.reader(st.StructType([st.StructField("id", st.StringType())]))


def test_objects_beyond_the_keys_and_the_window_are_not_opened(own_lab: Lab) -> None:
    """Every object that a read must not need is taken away before it."""
    lab = own_lab
    objects = {o.path: o for o in lab.client.view(SPAN.span_id, 0, 160).state.objects if o.max_key}
    low, high = (encode_row_keys(TABLE, {"c1": pa.array([n], pa.int32())})[0].as_py() for n in (-3, 4))
    beyond = [o for o in objects.values() if o.max_key < low or o.min_key > high]
    assert len(beyond) >= 3
    files = {path.name: path for path in lab.root.rglob("*") if path.is_file()}
    for one in beyond:
        files[one.path.rpartition("/")[2]].unlink()
    wanted = [GreaterThanOrEqual(("id",), -3), LessThan(("id",), 5)]
    assert sorted((r["id"], r["v"]) for r in lab.read(*wanted, bytes_per_partition="1")[0]) == [(n, lab.state[n]) for n in range(-3, 5)]
    assert [r["v"] for r in lab.read(EqualTo(("id",), 2))[0]] == [lab.state[2]]
    with pytest.raises(PenstockError, match="OBJECT_MISSING"):
        lab.read()
    late = [(r["_commit_ts"], r["id"]) for r in lab.read(GreaterThan(("_commit_ts",), 145), from_ts="105")[0]]
    assert late == [(150, n) for n in range(30_000, 30_100)]
    with pytest.raises(PenstockError, match="OBJECT_MISSING"):
        lab.read(from_ts="105")
    for none in ([EqualTo(("id",), 5), LessThan(("id",), 5)], [EqualTo(("id",), 1 << 40)]):
        assert lab.read(*none) == ([], 0)
    assert lab.read(LessThanOrEqual(("_commit_ts",), 50), from_ts="105") == ([], 0)
    # Spark asks for a part where there are none.
    source = PenstockTable({"location": lab.flight.location, "token": lab.flight.token, "table": "d.t"})
    assert list(source.reader(source.schema()).read(InputPartition(None))) == []


def holds(one: Filter, row: dict[str, Any]) -> bool | None:
    """What SQL says of a filter and a row."""
    if isinstance(one, Not):
        inner = holds(one.child, row)
        return None if inner is None else not inner
    value = row[one.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(one, IsNull | IsNotNull):
        return (value is None) == isinstance(one, IsNull)
    if value is None:
        return None
    asked = one.value  # type: ignore[attr-defined]
    checks = {
        EqualTo: lambda: value == asked,
        In: lambda: value in asked,
        GreaterThan: lambda: value > asked,
        GreaterThanOrEqual: lambda: value >= asked,
        LessThan: lambda: value < asked,
        LessThanOrEqual: lambda: value <= asked,
        StringStartsWith: lambda: value.startswith(asked),
    }
    return checks[type(one)]()


def test_filters_leave_out_what_sql_leaves_out() -> None:
    chance = random.Random(5)
    rows = [{"id": n, "v": None if n % 7 == 0 else f"v{n % 50}"} for n in range(-40, 40)]
    records = pa.RecordBatch.from_pylist(rows, pa.schema([("id", pa.int32()), ("v", pa.string())]))

    def some() -> Filter:
        number, text = chance.randrange(-50, 50), f"v{chance.randrange(60)}"
        numeric = chance.choice([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
        one = chance.choice(
            [
                numeric(("id",), number),
                In(("id",), (number, number + 3)),
                In(("v",), (text, "v1")),
                EqualTo(("v",), text),
                StringStartsWith(("v",), "v1"),
                IsNull(("v",)),
                IsNotNull(("v",)),
            ]
        )
        return Not(one) if chance.random() < 0.3 else one

    for _ in range(300):
        filters = [some() for _ in range(chance.randrange(1, 4))]
        expected = [row for row in rows if all(holds(one, row) for one in filters)]
        assert kept_rows(filters, records).to_pylist() == expected, filters
        keys = keys_of(filters, TABLE, [TABLE])
        if keys is not None:
            found = encode_row_keys(TABLE, {"c1": pa.array([row["id"] for row in expected], pa.int32())}).to_pylist()
            assert all(keys[0] <= key < keys[1] for key in found), filters
    # What may mean something else here than to Spark is left to it.
    for foreign in (EqualTo(("id",), 1.0), EqualTo(("id",), 1 << 40), In(("id",), (1, None)), EqualTo(("v", "x"), "y"), EqualTo(("z",), 1)):
        assert kept_rows([foreign], records).num_rows == len(rows)
    other = TableSchema(7, "d", "t", 2, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), *COLUMNS[1:]))
    assert keys_of([EqualTo(("id",), 1)], other, [TABLE, other]) is None, "keys of older rows look different"
