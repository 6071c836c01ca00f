"""Random transactions through the whole path, without Spark, end in the same table state as an oracle, change by change.

Between windows ranges split and leaders move, the log service and the store are closed and opened again, and windows crash before their
commit.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import polars as pl
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.batch import COMMIT_TS, OP
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from testing.paths.whole_path import WholePath

IDS = st.integers(-3, 12)
TEXT = st.one_of(st.none(), st.text(max_size=6))
WRITE = st.tuples(st.just("write"), st.lists(st.tuples(st.sampled_from(["d.a", "d.b"]), IDS, TEXT), min_size=1, max_size=6))
REMOVE = st.tuples(st.just("remove"), st.lists(st.tuples(st.sampled_from(["d.a", "d.b"]), IDS), min_size=1, max_size=4))
OTHER = st.sampled_from(
    [("rollback",), ("ddl",), ("split",), ("move",), ("window",), ("window",), ("crash",), ("restart",), ("flush",), ("window",)]
)
STEPS = st.lists(st.one_of(WRITE, WRITE, REMOVE, OTHER), min_size=4, max_size=24)
SETUP = [
    "CREATE DATABASE d",
    "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))",
    "CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40), n BIGINT DEFAULT 7)",
]


class Oracle:
    """What the tables must hold, and how many changes must have been delivered."""

    def __init__(self, path: WholePath) -> None:
        self.path = path
        self.rows: dict[str, dict[int, str | None]] = {"d.a": {}, "d.b": {}}
        self.changes = {"d.a": 0, "d.b": 0}
        self.ddls = 0
        self.split_at = 0

    def write(self, writes: list[tuple[str, int, str | None]]) -> None:
        wanted: dict[str, dict[int, str | None]] = {}
        for name, row_id, value in writes:
            wanted.setdefault(name, {})[row_id] = value
        self.path.write(wanted)
        for name, values in wanted.items():
            self.rows[name] |= values
            self.changes[name] += len(values)

    def remove(self, removals: list[tuple[str, int]]) -> None:
        gone: dict[str, set[int]] = {}
        for name, row_id in removals:
            if row_id in self.rows[name]:
                gone.setdefault(name, set()).add(row_id)
        if not gone:
            return
        self.path.write({}, gone)
        for name, ids in gone.items():
            self.changes[name] += len(ids)
            for row_id in ids:
                del self.rows[name][row_id]

    def step(self, step: tuple) -> None:
        path, kind = self.path, step[0]
        if kind == "write":
            self.write(step[1])
        elif kind == "remove":
            self.remove(step[1])
        elif kind == "rollback":
            txn = path.upstream.txn()
            txn.put(path.table("d.a"), {"id": pa.array([1], pa.int32()), "v": pa.array(["never"])})
            txn.prewrite()
            txn.rollback()
        elif kind == "ddl":
            self.ddls += 1
            path.upstream.execute_ddl(f"ALTER TABLE d.a ADD COLUMN x{self.ddls} INT DEFAULT {self.ddls}")
        elif kind == "split":
            self.split_at += 1
            with contextlib.suppress(PenstockError):
                path.upstream.split(path.full_key("d.a", self.split_at))
        elif kind == "move":
            info = path.upstream.ranges(Span(path.table("d.a").table_id))[0]
            path.upstream.move_leader(info.range_id, 3 - info.store_id)
        elif kind == "window":
            path.feed.run_window()
        elif kind == "crash":
            path.feed.run_window(commit=False)
        elif kind == "flush":
            path.flush_store()
        else:
            path.restart()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(STEPS, st.sampled_from([1, 2]))
def test_the_files_replay_to_the_oracle(steps, spans_per_table):
    splits = {"d.a": [3], "d.b": [3]} if spans_per_table > 1 else {}
    with (
        tempfile.TemporaryDirectory() as root,
        contextlib.closing(WholePath(Path(root), SETUP, splits=splits, spans_per_table=spans_per_table)) as path,
    ):
        oracle = Oracle(path)
        for step in steps:
            oracle.step(step)
        path.drain()
        verdict = path.verify()
        verdict.check()
        for name, rows in oracle.rows.items():
            parts = path.reader().changes(*name.split("."))
            frames = [frame.select(COMMIT_TS, OP, pl.col(table.column("id").field_name).alias("id")) for table, frame in parts]
            delivered = pl.concat(frames) if frames else pl.DataFrame({COMMIT_TS: [], OP: [], "id": []})
            # Windows before the first write deliver an empty snapshot, so every change is its own row, once.
            assert delivered.n_unique() == delivered.height
            late = delivered.filter(pl.col(COMMIT_TS) > path.snapshot_ts)
            assert late.height == oracle.changes[name]
            assert len(rows) == next(t for t in verdict.tables if t.name == name).rows
