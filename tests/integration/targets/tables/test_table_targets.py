"""The whole path without Spark into MariaDB and PostgreSQL: content equals the upstream's, whatever happens on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS, arm
from penstock.server.verify.tables_verification import TablesVerifier
from penstock.sink.catalog import open_tables
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath, read_state
from testing.targets.database_kit import MYSQL, TargetDatabase

pytestmark = pytest.mark.integration
SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]


class Rig:
    """A path into a database."""

    def __init__(self, kind: str, root: Path, **options: str) -> None:
        self.target = TargetDatabase(kind)
        self.path = WholePath(root, SETUP, target_uri=self.target.uri, sink_options=self.target.options | options)

    def check(self) -> int:
        """Compare every live table with the upstream's rows now; return how many rows are equal."""
        total = 0
        for name, table_id in self.path.live_tables().items():
            schema, _, table = name.partition(".")
            wanted = read_state(self.path.upstream, self.path.table(name), self.path.upstream.current_ts())
            assert self.path.table(name).table_id == table_id
            quote = '"' if self.target.kind == "postgres" else "`"
            got = self.target.rows(schema, table, ", ".join(f"{quote}{c}{quote}" for c in wanted.columns))
            assert sorted(got, key=repr) == sorted(wanted.rows(), key=repr), name
            total += len(got)
        return total


@pytest.fixture(params=["mariadb", "postgres", MYSQL])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(request.param, tmp_path)
    with contextlib.closing(made.path):
        yield made
    arm("")


def rows(start: int, count: int, text: str = "v") -> dict[int, str | None]:
    return {i: f"{text}{i}" for i in range(start, start + count)}


def test_state_changes_and_ddls_arrive(rig: Rig) -> None:
    path = rig.path
    path.write({"d.a": rows(0, 700), "d.b": rows(0, 3)})
    path.drain()
    assert rig.check() == 703
    path.write({"d.a": rows(100, 700, "new")}, {"d.a": range(10), "d.b": [1]})
    path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT DEFAULT 7")
    path.write({"d.a": {5000: "after"}})
    path.upstream.execute_ddl("CREATE TABLE d.c (id INT PRIMARY KEY, v VARCHAR(40))")
    path.write({"d.c": rows(0, 5)})
    path.upstream.execute_ddl("RENAME TABLE d.b TO d.b2")
    path.write({"d.b2": {77: "renamed"}})
    path.drain()
    rig.check()
    path.upstream.execute_ddl("TRUNCATE TABLE d.c")
    path.upstream.execute_ddl("DROP TABLE d.b2")
    path.upstream.execute_ddl("ALTER TABLE d.a DROP COLUMN v")
    path.drain()
    assert rig.check() == 791
    ids = sorted(path.live_tables().values())
    with contextlib.closing(open_tables(path.target_uri, path.sink_options)) as tables:
        assert TablesVerifier(tables, path.upstream).verify(ids).summary() == "verified: 2 tables, 791 rows identical"
        rig.target.run(
            f"UPDATE {rig.target.name('d', 'a')} SET n = 8 WHERE id = 100", f"DELETE FROM {rig.target.name('d', 'a')} WHERE id = 101"
        )
        wrong = next(t for t in TablesVerifier(tables, path.upstream).verify(ids).tables if t.name == "d.a")
        assert (wrong.rows, wrong.missing, wrong.different, wrong.unexpected) == (789, 1, 1, 0)
    assert not rig.target.run(f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{rig.target.prefix}d' AND table_name = 'b2'")


def test_windows_that_are_not_committed_come_again(rig: Rig) -> None:
    path = rig.path
    path.write({"d.a": rows(0, 50)})
    path.drain()
    path.write({"d.a": rows(20, 50, "x")}, {"d.b": [1]})
    path.upstream.execute_ddl("TRUNCATE TABLE d.b")
    path.write({"d.b": {9: "kept"}})
    path.wait_resolved(path.upstream.current_ts())
    for _ in range(3):
        path.feed.run_window(commit=False)
    path.drain()
    assert rig.check() == 71


def test_a_feed_that_dies_at_any_step_goes_on(rig: Rig) -> None:
    path = rig.path
    path.write({"d.a": rows(0, 20), "d.b": rows(0, 4)})
    path.drain()
    for at, point in enumerate(("data-put:before", "data-put:after", "schema-file:before", "schema-file:after", "metadata:after")):
        path.write({"d.a": rows(at, 5, point), "d.b": rows(at, 4)}, {"d.a": [at + 10]})
        path.upstream.execute_ddl(f"ALTER TABLE d.a ADD COLUMN n{at} INT")
        path.write({"d.a": {30 + at: "y"}}, {"d.a": [at + 6]})
        path.upstream.execute_ddl("TRUNCATE TABLE d.b")
        path.write({"d.b": {at: "x"}})
        arm(f"{point}=raise@1")
        with pytest.raises(PenstockError, match="FAILPOINT"):
            path.drain()
        arm("")
        path.drain()
        assert rig.check() == len(rig.target.rows("d", "a", "id")) + 1


def test_who_lost_the_feed_writes_nothing(rig: Rig) -> None:
    path = rig.path
    path.write({"d.a": rows(0, 20)})
    path.drain()
    old = path.take_over()
    path.write({"d.a": {1: "by the new owner"}})
    path.drain()
    path.write({"d.a": {1: "later"}})
    path.wait_resolved(path.upstream.current_ts())
    with pytest.raises(PenstockError, match="FENCED"):
        LocalFeed(old).run_window()
    assert rig.target.rows("d", "a", "id, v")[1] == (1, "by the new owner")
    path.drain()
    assert rig.check() == 20


@pytest.mark.parametrize("kind", ["mariadb", "postgres", MYSQL])
def test_transactions_are_whole_in_the_target(kind: str, tmp_path: Path) -> None:
    made = Rig(kind, tmp_path, atomicity="transaction", **{"transaction-rows": "3"})
    seen: list[int] = []
    with contextlib.closing(made.path) as path:
        path.write({"d.a": {0: "0"}, "d.b": {0: "0"}})
        path.drain()
        for at in range(1, 8):
            path.write({"d.a": {at: "x", 0: f"{at}"}, "d.b": {at: "x", 0: f"{at}"}}, {"d.a": [at - 1] if at > 1 else []})
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT")
        path.write({"d.a": {9: "last"}, "d.b": {9: "last"}})

        def look() -> None:
            a, b = (dict(made.target.rows("d", name, "id, v")) for name in "ab")
            assert a[0] == b[0], "half of a transaction"
            seen.append(int(a[0]))
            if seen[-1] < 7:
                FAILPOINTS.call("data-put:after", look)

        FAILPOINTS.call("data-put:after", look)
        path.wait_resolved(path.upstream.current_ts())
        path.feed.run_window(commit=False)
        arm("")
        path.drain()
        assert made.check() == 12
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
