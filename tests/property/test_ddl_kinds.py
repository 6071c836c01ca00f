"""A running feed follows every kind of DDL: random DDLs and writes end in the state of an oracle, by verification and by replay.

Databases that begin with d belong to the feed, x does not: tables are renamed into the feed and out of it.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.readback.consumer import StorageConsumer
from penstock.readback.inspection import check_target
from penstock.readback.replay_opening import open_database
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget
from testing.paths.whole_path import WholePath, read_state

SETUP = [
    "CREATE DATABASE d",
    "CREATE DATABASE x",
    *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in ("d.a", "d.b", "x.c")),
]
NAMES = st.sampled_from(["d.a", "d.b", "d.e", "x.c", "d2.g"])
IDS = st.integers(0, 9)
STEP = st.one_of(
    st.tuples(st.just("write"), NAMES, st.dictionaries(IDS, st.text(max_size=4), min_size=1, max_size=4)),
    st.tuples(st.just("write"), NAMES, st.dictionaries(IDS, st.text(max_size=4), min_size=1, max_size=4)),
    st.tuples(st.just("remove"), NAMES, st.sets(IDS, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["create", "drop", "truncate", "add", "widen", "recall", "lose"]), NAMES),
    st.tuples(st.sampled_from(["rename", "swap", "chain", "create two", "drop two"]), NAMES, NAMES),
    st.sampled_from([("window",), ("window",), ("crash",), ("restart",), ("lose store",), ("make d2",), ("drop d2",)]),
)


class Oracle:
    """What every table must hold, inside the feed and outside, by its present name."""

    def __init__(self, path: WholePath) -> None:
        self.path = path
        self.rows: dict[str, dict[int, str]] = {"d.a": {}, "d.b": {}, "x.c": {}}
        self.numbers = iter(range(1000))

    def run(self, query: str) -> bool:
        """Execute a DDL; one that the server refuses changes nothing."""
        try:
            self.path.upstream.execute_ddl(query)
        except PenstockError as error:
            if error.code not in {"UPSTREAM_REFUSED", "TABLE_UNKNOWN"}:
                raise
            return False
        return True

    def write(self, name: str, values: dict[int, str]) -> None:
        if name in self.rows:
            self.path.write({name: values})
            self.rows[name] |= values

    def remove(self, name: str, ids: set[int]) -> None:
        gone = ids & self.rows.get(name, {}).keys()
        if gone:
            self.path.write({}, {name: gone})
            self.rows[name] = {i: v for i, v in self.rows[name].items() if i not in gone}

    def rename(self, *steps: tuple[str, str]) -> None:
        if self.run("RENAME TABLE " + ", ".join(f"{old} TO {new}" for old, new in steps)):
            for old, new in steps:
                self.rows[new] = self.rows.pop(old)

    def step(self, step: tuple) -> None:  # noqa: C901, PLR0912 - one branch per kind
        kind, *given_ = step
        if kind == "write":
            self.write(*given_)
        elif kind == "remove":
            self.remove(*given_)
        elif kind in {"window", "crash"}:
            self.path.feed.run_window(commit=kind == "window")
        elif kind in {"restart", "lose store"}:
            self.path.restart(lose_store=kind == "lose store")
        elif kind == "make d2":
            self.run("CREATE DATABASE d2")
        elif kind == "drop d2":
            if self.run("DROP DATABASE d2"):
                self.rows = {name: rows for name, rows in self.rows.items() if not name.startswith("d2.")}
        elif kind == "create" and self.run(f"CREATE TABLE {given_[0]} (id INT PRIMARY KEY, v VARCHAR(40))"):
            self.rows[given_[0]] = {}
        elif kind == "drop" and self.run(f"DROP TABLE {given_[0]}"):
            del self.rows[given_[0]]
        elif kind == "truncate" and self.run(f"TRUNCATE TABLE {given_[0]}"):
            self.rows[given_[0]] = {}
        elif kind == "add":
            self.run(f"ALTER TABLE {given_[0]} ADD COLUMN n{next(self.numbers)} INT DEFAULT 5")
        elif kind == "widen":
            self.run(f"ALTER TABLE {given_[0]} MODIFY COLUMN v VARCHAR({50 + next(self.numbers)})")
        elif kind in {"recall", "lose"}:
            self.change_last_column(kind, given_[0])
        elif kind == "rename":
            self.rename((given_[0], given_[1]))
        elif kind == "swap":
            self.rename((given_[0], "d.tmp"), (given_[1], given_[0]), ("d.tmp", given_[1]))
        elif kind == "chain":
            self.rename((given_[0], "x.last" if "x.last" not in self.rows else "d.last"), (given_[1], given_[0]))
        elif kind == "create two" and self.run("; ".join(f"CREATE TABLE {n} (id INT PRIMARY KEY, v VARCHAR(40))" for n in given_)):
            self.rows |= {n: {} for n in given_}
        elif kind == "drop two" and self.run(f"DROP TABLE {', '.join(given_)}"):
            self.rows = {name: rows for name, rows in self.rows.items() if name not in given_}

    def change_last_column(self, kind: str, name: str) -> None:
        if name not in self.rows:
            return
        last = self.path.table(name).columns[-1].name
        if last != "v" and kind == "lose":
            self.run(f"ALTER TABLE {name} DROP COLUMN {last}")
        elif last != "v":
            self.run(f"ALTER TABLE {name} RENAME COLUMN {last} TO r{next(self.numbers)}")

    def check(self) -> None:
        self.path.drain()
        mine = {name: rows for name, rows in self.rows.items() if name.startswith("d")}
        verdict = self.path.verify()
        verdict.check()
        assert {t.name: t.rows for t in verdict.tables} == {name: len(rows) for name, rows in mine.items()}
        target_uri, sink = from_uri(self.path.target_uri)
        assert list(check_target(ObjectTarget.open(target_uri), sink)) == []
        for name, rows in mine.items():
            table = self.path.table(name)
            state = read_state(self.path.upstream, table, self.path.upstream.current_ts())
            assert dict(state.select("id", "v").rows()) == rows
        self.check_replay(mine)

    def check_replay(self, mine: dict[str, dict[int, str]]) -> None:
        database = open_database(f"sqlite:///{self.path.root / 'replayed.db'}")
        with contextlib.closing(database):
            StorageConsumer(self.path.reader(), database).run_round()
            for name, rows in mine.items():
                table = self.path.table(name)
                columns = ", ".join(database.dialect.identifier(c.name) for c in table.columns)
                found = database._fetch(f"SELECT {columns} FROM {database.dialect.table(table.schema, table.table)}", ())
                state = read_state(self.path.upstream, table, self.path.upstream.current_ts()).select([c.name for c in table.columns])
                assert sorted(found) == sorted(state.rows()), name
                assert {row[0]: row[1] for row in pl.DataFrame(found, orient="row").rows()} == rows if rows else not found


def run(steps: list[tuple], spans_per_table: int) -> None:
    splits = {"d.a": [4], "d.b": [4]} if spans_per_table > 1 else {}
    with (
        tempfile.TemporaryDirectory() as root,
        contextlib.closing(WholePath(Path(root), SETUP, tables=["d*.*"], splits=splits, spans_per_table=spans_per_table)) as path,
    ):
        oracle = Oracle(path)
        for step in steps:
            oracle.step(step)
        oracle.check()


SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(max_examples=12, deadline=None, suppress_health_check=SLOW)
@given(st.lists(STEP, min_size=4, max_size=18), st.sampled_from([1, 2]))
def test_random_ddls_are_followed(steps, spans_per_table):
    run(steps, spans_per_table)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(st.lists(STEP, min_size=10, max_size=40), st.sampled_from([1, 2]))
def test_many_random_ddls_are_followed(steps, spans_per_table):
    run(steps, spans_per_table)


def test_every_kind_in_one_life(tmp_path):
    with contextlib.closing(WholePath(tmp_path, SETUP, tables=["d*.*"])) as path:
        oracle = Oracle(path)
        oracle.write("x.c", {1: "before it came into the feed", 2: "as well"})
        life = [
            ("create", "d.e"), ("truncate", "d.a"), ("add", "d.b"), ("recall", "d.b"), ("widen", "d.b"), ("lose", "d.b"),
            ("swap", "d.a", "d.b"),
            ("rename", "x.c", "d.h"), ("remove", "d.h", {2}), ("rename", "d.e", "x.e"), ("drop", "d.b"), ("create", "d.b"), ("make d2",),
            ("create", "d2.g"), ("chain", "d.a", "d.b"), ("create two", "d.k", "d.l"), ("drop two", "d.k", "d.h"), ("drop d2",),
            ("rename", "x.e", "d.k"),
        ]  # fmt: skip
        for at, step in enumerate(life):
            oracle.step(step)
            for name in list(oracle.rows):
                oracle.write(name, {at: f"{at} {name}", 100: f"changes {at}"})
            if at % 4 == 1:
                path.feed.run_window(commit=False)
            if at % 3 == 0:
                path.drain()
        oracle.check()
        assert sorted(path.live_tables()) == sorted(n for n in oracle.rows if n.startswith("d"))


def test_a_ddl_of_one_unsplit_table_ends_no_window(tmp_path):
    with contextlib.closing(WholePath(tmp_path, SETUP)) as path:
        path.drain()
        path.feed.drain(path.upstream.current_ts(), 30)
        path.write({"d.a": {1: "before"}, "d.b": {1: "before"}})
        altered_ts = path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT DEFAULT 5")
        last_ts = path.write({"d.a": {2: "after"}, "d.b": {2: "after"}})
        path.wait_resolved(last_ts)
        assert path.feed.run_window()
        assert path.feed.checkpoint_ts() >= last_ts
        verdict = path.verify()
        verdict.check()
        versions = [v.table.version for v in path.reader().versions("d", "a")]
        assert versions[-1] == altered_ts
        assert [frame.height for _, frame in path.reader().changes("d", "a")] == [1, 1]
        assert [frame.height for _, frame in path.reader().changes("d", "b")] == [2]


def test_tables_that_come_and_go_before_the_first_state_is_read(tmp_path):
    with contextlib.closing(WholePath(tmp_path, SETUP, tables=["d*.*"], late_snapshot=True)) as path:
        oracle = Oracle(path)
        oracle.write("d.a", {1: "goes with the table"})
        oracle.write("x.c", {1: "comes with the table"})
        for step in [("truncate", "d.a"), ("create", "d.e"), ("rename", "x.c", "d.c"), ("drop", "d.b"), ("create", "d.b")]:
            oracle.step(step)
        for name in oracle.rows:
            oracle.write(name, {2: name})
        oracle.check()
        assert sorted(path.live_tables()) == ["d.a", "d.b", "d.c", "d.e"]


def test_a_table_that_came_and_is_renamed_at_once_joins_under_its_last_name(tmp_path):
    with contextlib.closing(WholePath(tmp_path, SETUP, tables=["d*.*"])) as path:
        oracle = Oracle(path)
        oracle.write("x.c", {1: "comes with it"})
        oracle.write("d.b", {1: "of the table that leaves the name", 2: "as well"})
        path.drain()
        for step in [("chain", "d.a", "x.c"), ("chain", "d.b", "d.a"), ("write", "d.b", {5: "after"}), ("add", "d.b")]:
            oracle.step(step)
        oracle.check()
