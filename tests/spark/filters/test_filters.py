"""Filters in Spark SQL, on the whole path: what arrives is what plain Spark makes of a copy of the history in Parquet."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.feed.filters.query_task import CHECK, PART_BITS, PLACE
from penstock.feed.filters.row_queries import QueryJob, SparkRowQueries
from penstock.feed.filters.rules import FilterRule, FilterSettings
from penstock.feed.settings import FeedSettings
from penstock.feed.spark.jobs import SparkJobs
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.replay import replay_table
from testing.checks.target_audit import digests
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath, row_key

COLUMNS = """id INT PRIMARY KEY, price DECIMAL(10,2), at DATETIME(3), day DATE, kind ENUM('a','b'), flags SET('x','y','z'),
big BIGINT UNSIGNED, raw VARBINARY(10), score DOUBLE, note VARCHAR(50), long_time TIME, doc JSON, seen TIMESTAMP"""
ARROW = {
    "price": pa.decimal128(10, 2),
    "at": pa.timestamp("us"),
    "day": pa.date32(),
    "kind": pa.string(),
    "flags": pa.string(),
    "big": pa.decimal128(20, 0),
    "raw": pa.binary(),
    "score": pa.float64(),
    "note": pa.string(),
    "long_time": pa.string(),
    "doc": pa.string(),
    "seen": pa.timestamp("us", "UTC"),
}
WHERE = """(price > 50 OR kind = 'b' AND NOT (note LIKE 'n1%')) AND coalesce(day > DATE'2024-01-03', flags LIKE '%x%')"""
SELECT = """t.id, price, at, day, kind, flags, big, raw, score, note, long_time, doc, seen,
price * 2 AS doubled, upper(note) || '!' AS loud, date_add(day, 1) AS next_day, at + INTERVAL 1 HOUR AS later,
score > 0.5 AS high, big + 1 AS more, CAST(score AS FLOAT) AS single, get_json_object(doc, '$.n') AS n, seen AS shown, k.label"""
JOIN = "LEFT JOIN kinds k ON k.code = t.kind"
PLAIN = {"price", "at", "day", "kind", "flags", "big", "raw", "score", "note", "long_time", "doc"}
DOUBLE, DATETIME, TEXT = (ColumnType(kind) for kind in (TypeKind.DOUBLE, TypeKind.DATETIME, TypeKind.TEXT))
ID = Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True)
Row = dict[str, Any]
"""A row as the upstream holds it; a column that is missing is NULL."""


class History:
    """Writes to tables, and keeps what it wrote: for each transaction what each row was and became."""

    def __init__(self, path: WholePath, tables: tuple[str, ...]) -> None:
        self.path = path
        self.rows: dict[str, dict[int, Row]] = {name: {} for name in tables}
        self.changes: list[tuple[str, int, int, Row | None, Row | None]] = []
        """Table, commit ts, id, before and after."""
        self._random = random.Random(4)

    def transaction(self, writes: int) -> None:
        txn = self.path.upstream.txn()
        noted = []
        for name, rows in self.rows.items():
            table = self.path.table(name)
            there = {c.name for c in table.columns}
            ids = self._random.sample(range(60), writes)
            gone = [i for i in ids if i in rows and self._random.random() < 0.25]
            made = {i: {k: v for k, v in self._row(i).items() if k in there} for i in ids if i not in gone}
            columns = {c.name: pa.array([row.get(c.name) for row in made.values()], c.type.arrow()) for c in table.columns}
            txn.put(table, columns)
            if gone:
                txn.delete(table, pa.array([row_key(i) for i in gone], pa.binary()))
            noted += [(name, i, rows.get(i), None) for i in gone] + [(name, i, rows.get(i), row) for i, row in made.items()]
            for i in gone:
                del rows[i]
            rows.update(made)
        ts = txn.commit()
        self.changes += [(name, ts, i, before, after) for name, i, before, after in noted]

    def _row(self, row_id: int) -> Row:
        draw = self._random
        row = {
            "price": f"{draw.randrange(10_000)}.{draw.randrange(100):02d}" if draw.random() < 0.5 else f"{draw.randrange(60)}.50",
            "at": f"2024-05-06 07:08:09.{draw.randrange(1000):03d}",
            "day": draw.choice(["0000-00-00", "2024-01-01", "2024-01-05", "2024-02-29"]),
            "kind": draw.choice([1, 2]),
            "flags": draw.randrange(8),
            "big": draw.choice([2**64 - 1, 7]),
            "raw": draw.randbytes(3),
            "score": draw.random(),
            "note": f"n{draw.randrange(30)}",
            "long_time": draw.choice(["-838:59:59", "01:02:03"]),
            "doc": draw.choice(['{"n": 1}', "[]"]),
            "seen": "2024-05-06 07:08:09",
        }
        return {"id": row_id} | {k: v for k, v in row.items() if draw.random() < 0.8}


def typed(row: Row) -> Row:
    """Return a row with the values that Spark has for it: what a date of zeros is to MySQL is NULL there."""
    found: Row = {"id": row["id"]}
    moment: Callable[[str], dt.datetime] = dt.datetime.fromisoformat
    makers: dict[str, Callable[[Any], Any]] = {
        "price": Decimal,
        "at": moment,
        "day": lambda v: None if v.startswith("0000") else dt.date.fromisoformat(v),
        "kind": lambda v: "ab"[v - 1],
        "flags": lambda v: ",".join(name for bit, name in enumerate("xyz") if v >> bit & 1),
        "big": Decimal,
        "seen": lambda v: moment(v).replace(tzinfo=dt.UTC),
    }
    for name in ARROW:
        value = row.get(name)
        found[name] = None if value is None else makers.get(name, lambda v: v)(value)
    return found


class Oracle:
    """Plain Spark over Parquet: what an expression makes of each image of each row."""

    def __init__(self, session: Any, folder: Path) -> None:
        self._session = session
        self._folder = folder
        kinds = folder / "kinds"
        kinds.mkdir(parents=True)
        pq.write_table(pa.table({"code": ["a"], "label": ["kind a"]}), kinds / "0.parquet")
        session.read.parquet(str(kinds)).createOrReplaceTempView("kinds")

    def kept(self, images: list[Row], select: str, where: str, join: str) -> dict[int, Row]:
        """Return the images that are kept, by their number, as Spark shows them."""
        schema = pa.schema([pa.field("place", pa.int64()), pa.field("id", pa.int32()), *(pa.field(n, t) for n, t in ARROW.items())])
        path = self._folder / f"images-{len(list(self._folder.iterdir()))}.parquet"
        pq.write_table(pa.Table.from_pylist([typed(row) | {"place": at} for at, row in enumerate(images)], schema), path)
        self._session.read.parquet(str(path)).createOrReplaceTempView("images")
        found = self._session.sql(f"SELECT {select}, t.place AS __place FROM images t {join} WHERE {where}").collect()
        return {row["__place"]: row.asDict() for row in found}


def as_stored(row: Row, image: Row) -> Row:
    """Return what a target shows for a row: plain columns as the upstream gave them, computed ones as texts of MySQL."""
    found: Row = {}
    for name, value in row.items():
        if name == "__place":
            continue
        if name in PLAIN or name in ("id", "seen"):
            found[name] = image.get(name)
        elif isinstance(value, bool):
            found[name] = int(value)
        elif isinstance(value, dt.datetime):
            found[name] = value.replace(tzinfo=None).isoformat(" ", "microseconds")
        elif isinstance(value, (dt.date, Decimal)):
            found[name] = str(value)
        else:
            found[name] = value
    return found


def expected(history: History, table: str, oracle: Oracle, rule: tuple[str, str, str], after_ts: int) -> list[tuple[int, int, Row]]:
    """Return the changes that a filtered table has: what was there at a ts as inserts, then each change by what it was and became."""
    changes = [(ts, i, before, after) for name, ts, i, before, after in history.changes if name == table]
    images = [image for _, _, before, after in changes for image in (before, after) if image is not None]
    kept = iter(range(len(images)))
    shown = oracle.kept(images, *rule)
    found, state = [], {}
    for ts, row_id, before, after in changes:
        was = shown.get(next(kept)) if before is not None else None
        becomes = shown.get(next(kept)) if after is not None else None
        old, new = (None if s is None else as_stored(s, image or {}) for s, image in ((was, before), (becomes, after)))
        if ts <= after_ts:
            state.pop(row_id, None)
            state |= {} if new is None else {row_id: (0, int(Op.INSERT), new)}
        elif old is not None and new is not None:
            found.append((ts, int(Op.UPDATE), new))
        elif new is not None:
            found.append((ts, int(Op.INSERT), new))
        elif old is not None:
            found.append((ts, int(Op.DELETE), old))
    return [*state.values(), *found]


def in_order(changes: list[tuple[int, int, Row]]) -> list[tuple[int, int, Row]]:
    return sorted(changes, key=lambda c: (c[0], c[1] != Op.DELETE, c[2]["id"]))


def delivered(path: WholePath, table: str, after_ts: int) -> list[tuple[int, int, Row]]:
    """Return the changes in the target; those up to a ts are the state that the feed began with."""
    found = []
    for version, frame in path.reader().changes(*table.split(".")):
        names = {c.field_name: c.name for c in version.columns}
        found += [
            (row["_ts"] if row["_ts"] > after_ts else 0, row["_op"], {names[k]: v for k, v in row.items() if k in names})
            for row in frame.to_dicts()
        ]
    return found


def test_what_arrives_is_what_spark_makes_of_the_history(jvm: None, tmp_path: Path) -> None:
    del jvm
    session = open_session(SparkSettings("local[2]"))
    oracle = Oracle(session, tmp_path / "oracle")
    chosen = FilterSettings(
        rules=(FilterRule(("d.t",), where=WHERE, select=SELECT, join=JOIN), FilterRule(("d.u",), where="price > 50 AND score IS NOT NULL"))
    )
    root = tmp_path / "path"
    root.mkdir()
    ddls = ["CREATE DATABASE d", *(f"CREATE TABLE d.{name} ({COLUMNS})" for name in "tuv")]
    path = WholePath(root, ddls, settings=FeedSettings(filter=chosen), late_snapshot=True)
    try:
        jobs = SparkJobs(session, {"kinds": f"parquet:{tmp_path / 'oracle' / 'kinds'}"})
        path.feed = LocalFeed(path.context, before_window=path._capture, jobs=jobs)
        history = History(path, ("d.t", "d.u", "d.v"))
        history.transaction(40)
        path.drain()
        state_ts = path.feed.checkpoint_ts()
        for _ in range(12):
            history.transaction(12)
        path.wait_resolved(path.upstream.current_ts())
        # A window that is done twice gives the same bytes: an attempt that ends before its commit, and another one.
        assert path.feed.run_window(commit=False)
        first = digests(path.target)
        path.drain()
        after = digests(path.target)
        assert {name: after[name] for name in first} == first
        everything = "id, " + ", ".join(ARROW)
        rules = {"d.t": (SELECT, WHERE, JOIN), "d.u": (everything, "price > 50 AND score IS NOT NULL", ""), "d.v": (everything, "true", "")}
        for name, rule in rules.items():
            wanted = in_order(expected(history, name, oracle, rule, state_ts))
            assert len({op for _, op, _ in wanted}) == 3
            assert in_order(delivered(path, name, state_ts)) == wanted
        kinds = {c.name: c.type.kind.value for c in path.reader().versions("d", "t")[-1].table.columns}
        assert {n: kinds[n] for n in ("doubled", "loud", "next_day", "later", "high", "more", "single", "label")} == {
            "doubled": "DECIMAL",
            "loud": "LONGTEXT",
            "next_day": "DATE",
            "later": "DATETIME",
            "high": "TINYINT",
            "more": "DECIMAL",
            "single": "FLOAT",
            "label": "LONGTEXT",
        }
        _break_and_mend(path, history, oracle)
    finally:
        path.close()


def _break_and_mend(path: WholePath, history: History, oracle: Oracle) -> None:
    """A DDL that an expression does not feel goes on, one that breaks it stops its table only, and one that mends it brings it back."""
    path.upstream.execute_ddl("ALTER TABLE d.u ADD COLUMN extra INT")
    path.upstream.execute_ddl("ALTER TABLE d.t DROP COLUMN score")
    history.transaction(12)
    path.feed.drain(path.upstream.current_ts(), 60)
    (broken,) = [d for d in path.live() if d.stopped]
    assert (broken.schema, broken.table) == ("d", "t")
    assert "[FILTER_BROKEN] d.t: select at character" in broken.stopped
    assert "score > 0.5 AS high" in broken.stopped
    assert json.loads((path.target / "metadata").read_text())["not-covered"] == {"d.t": "stopped"}
    assert [c.name for c in path.reader().versions("d", "u")[-1].table.columns][-1] == "extra"
    prices = {i: row["price"] for i, row in history.rows["d.u"].items() if row.get("price") and row.get("score") is not None}
    assert set(replay_table(path.reader(), "d", "u")["id"]) == {i for i, price in prices.items() if Decimal(price) > 50}
    path.upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN score DOUBLE")
    history.transaction(12)
    path.drain()
    assert not any(d.stopped for d in path.live())
    # Rows from before the column have none of its values.
    last: dict[int, Row] = {}
    cut = history.changes[-1][1]
    for name, ts, row_id, _, after in history.changes:
        if name == "d.t":
            last[row_id] = {} if after is None else {k: v for k, v in after.items() if k != "score" or ts == cut}
    images = [row for row in last.values() if row]
    shown = oracle.kept(images, SELECT, WHERE, JOIN)
    wanted_rows = sorted((as_stored(row, images[at]) for at, row in shown.items()), key=lambda row: row["id"])
    found = replay_table(path.reader(), "d", "t").select(list(wanted_rows[0])).to_dicts()
    assert sorted(found, key=lambda row: row["id"]) == wanted_rows


REFUSED = [
    ("where", "price > rand()", "where at character 9: rand"),
    ("where", "at > now()", "where at character 6: now()"),
    ("where", "id = monotonically_increasing_id()", "does not give the same each time"),
    ("where", "uuid() = note", "uuid() does not give the same each time"),
    ("where", "at > TIMESTAMP 'now'", "where at character 6"),
    ("where", "amout > 1", "where at character 1: [UNRESOLVED_COLUMN"),
    ("where", "price >\n  nope(3)", "where at character 11: [UNRESOLVED_ROUTINE]"),
    ("where", "price >", "where"),
    ("select", "id, aes_encrypt(note, '0123456789abcdef') AS x", "select at character 5: aes_encrypt"),
    ("where", "id = 1 LIMIT 3", "where: GlobalLimit makes other rows"),
    ("where", "id IN (SELECT value FROM text.`/etc/passwd`)", "TABLE_OR_VIEW_NOT_FOUND"),
    ("where", "id < ${system:java.specification.version}", "where"),
    ("where", "id < ${env:UNSET}", "where"),
    ("where", "twice(id) > 3", "depends on more than the row"),
    ("select", "price", "select: leaves out id of the key"),
    ("select", "id, explode(array(1, 2)) AS x", "select: Generate"),
    ("select", "id, array(1) AS x", "to_json"),
    ("select", "id, reflect('java.lang.System', 'nanoTime') AS x", "select at character 5: reflect"),
]


def test_expressions_that_are_refused(jvm: None) -> None:
    del jvm
    queries = SparkJobs(open_session(SparkSettings("local[2]"))).queries
    assert isinstance(queries, SparkRowQueries)
    queries._session().udf.register("twice", lambda x: 2 * x, "int")
    table = TableSchema(1, "d", "t", 1, (ID, Column(2, "price", DOUBLE), Column(3, "at", DATETIME), Column(4, "note", TEXT)))
    for field, expression, message in REFUSED:
        with pytest.raises(PenstockError) as caught:
            queries.view(table, FilterRule(("*.*",), **{field: expression}))
        assert caught.value.code == "FILTER_BROKEN"
        assert message in caught.value.detail
        assert repr(expression) in caught.value.detail
    # PostgreSQL tells names apart by case, Spark does not; who names none of them need not mind.
    twins = TableSchema(
        1, "d", "order", 1, (ID, Column(2, "a", DOUBLE), Column(3, "A", TEXT), Column(4, "a.`b", TEXT), Column(5, "naïve", TEXT))
    )
    view = queries.view(twins, FilterRule(("*.*",), where="`order`.id > 3 AND `a.``b` = 'x' AND `NAÏVE` = 'y'"))
    assert (view.shown, [c.name for c in view.read.columns]) == (twins, ["id", "a.`b", "naïve"])
    with pytest.raises(PenstockError, match="Reference `a` is ambiguous"):
        queries.view(twins, FilterRule(("*.*",), where="a > 3"))
    view = queries.view(table, FilterRule(("*.*",), where="price > 3", select="*, length(note) AS size, id AS again"))
    assert [c.name for c in view.read.columns] == ["id", "price", "note"]
    assert [c.name for c in view.shown.columns] == ["id", "price", "at", "note", "size", "again"]


def test_an_expression_that_fails_for_a_row_is_named_and_rows_come_back_to_their_task(jvm: None, tmp_path: Path) -> None:
    del jvm
    twice = tmp_path / "twice"
    twice.mkdir()
    pq.write_table(pa.table({"code": [1, 2, 2]}), twice / "0.parquet")
    queries = SparkJobs(open_session(SparkSettings("local[2]")), {"twice": f"parquet:{twice}"}).queries
    table = TableSchema(1, "d", "t", 1, (ID, Column(2, "price", DOUBLE)))

    def read(task: bytes, part: int) -> Iterator[pa.RecordBatch]:
        rows = int(task)
        places = [(part << PART_BITS) + at for at in range(rows)]
        numbers = pa.array(places, pa.int64())
        yield pa.RecordBatch.from_arrays([numbers, numbers, pa.array(range(rows), pa.int64())], [PLACE, CHECK, "id"])

    def deliver(task: bytes, part: int, kept: Iterator[pa.RecordBatch]) -> bytes:
        places = [place - (part << PART_BITS) for batch in kept for place in batch.column(0).to_pylist()]
        return f"{task.decode()}: {places}".encode()

    def answers(*tasks: bytes, **given: str) -> list[bytes]:
        rule = FilterRule(("d.t",), **given)
        return queries.run(QueryJob("g", "p", "a test", queries.view(table, rule), rule, tasks or [b"4", b"0", b"3"], read, deliver))

    assert isinstance(queries, SparkRowQueries)
    assert answers(where="id % 2 = 0") == [b"4: [0, 2]", b"0: []", b"3: [0, 2]"]
    # The next window of a table has other tasks and the same plan.
    planned = next(iter(queries._planned.values()))
    assert answers(b"1", b"5", b"2", where="id % 2 = 0") == [b"1: [0]", b"5: [0, 2, 4]", b"2: [0]"]
    assert [*queries._planned.values()] == [planned]
    assert answers(where="id <> 1", join="LEFT JOIN twice ON code = id AND code = 1") == [b"4: [0, 2, 3]", b"0: []", b"3: [0, 2]"]
    assert answers(where="id >= 0", join="LEFT JOIN twice ON code = id") == [b"4: [0, 1, 2, 2, 3]", b"0: []", b"3: [0, 1, 2, 2]"]
    with pytest.raises(PenstockError) as caught:
        answers(where="1 / (id - 2) > 0")
    assert caught.value.code == "FILTER_FAILED"
    assert caught.value.detail == "d.t: [DIVIDE_BY_ZERO] while rows were filtered; where = '1 / (id - 2) > 0'"
