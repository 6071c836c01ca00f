"""A feed whose history is gone goes on into a database: its tables become the upstream's state by what differs, deletes included."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.feed.settings import FeedSettings
from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS, arm
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath, lose_history, read_state
from testing.targets.database_kit import MYSQL, TargetDatabase

pytestmark = pytest.mark.integration
SETUP = [
    "CREATE DATABASE d",
    "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))",
    "CREATE TABLE d.bag (id INT, v VARCHAR(40))",
]
ROWS = 40
KINDS = ["mariadb", "postgres", MYSQL]


class Lab:
    """A path into a database with rows in it."""

    def __init__(self, kind: str, root: Path, spans: int = 1, **options: str) -> None:
        self.target = TargetDatabase(kind)
        splits = {"d.a": [ROWS // 2]} if spans > 1 else {}
        chosen = self.target.options | {name.replace("_", "-"): value for name, value in options.items()}
        self.path = WholePath(
            root,
            SETUP,
            splits=splits,
            spans_per_table=spans,
            target_uri=self.target.uri,
            sink_options=chosen,
            settings=FeedSettings(flush_interval_s=0.0),
        )

    def check(self) -> None:
        """Compare content and count of both tables with the upstream."""
        for table in ("a", "bag"):
            wanted = read_state(self.path.upstream, self.path.table(f"d.{table}"), self.path.upstream.current_ts())
            got = self.target.rows("d", table, ", ".join(wanted.columns))
            assert sorted(got, key=repr) == sorted(wanted.rows(), key=repr), table

    def touch(self, *statements: str) -> None:
        """Change the target behind the feed's back."""
        names = {"a": self.target.name("d", "a"), "bag": self.target.name("d", "bag")}
        self.target.run(*(s.format(**names) for s in statements))


@contextlib.contextmanager
def lab(kind: str, root: Path, spans: int = 1, **options: str) -> Iterator[Lab]:
    made = Lab(kind, root, spans, **options)
    with contextlib.closing(made.path) as path:
        path.write({"d.a": {n: f"first {n}" for n in range(ROWS)}, "d.bag": dict.fromkeys(range(3), "x")})
        path.drain()
        yield made
    arm("")


def change_meanwhile(made: Lab) -> None:
    """Change rows that the feed does not see, and lose what tells of it."""
    path = made.path
    path.write({"d.a": {0: "lost", 1: "lost"}, "d.bag": {7: "new"}}, {"d.a": [10, 25], "d.bag": [1]})
    path.write({"d.a": {0: "changed", 1: "first 1", 100: "new"}}, {"d.a": [11]})
    lose_history(path)


@pytest.mark.parametrize(("kind", "spans"), [("mariadb", 1), ("postgres", 2), pytest.param("mysql", 2, marks=pytest.mark.mysql)])
def test_what_differs_is_delivered(kind: str, spans: int, tmp_path: Path) -> None:
    with lab(kind, tmp_path, spans) as made:
        change_meanwhile(made)
        # What somebody did to the target is put right by the same comparison.
        made.touch(
            "DELETE FROM {a} WHERE id = 3", "INSERT INTO {a} (id, v) VALUES (999, 'foreign')", "UPDATE {bag} SET v = 'odd' WHERE id = 0"
        )
        made.path.drain()
        made.check()
        assert made.path.meta.resnapshots("f") == 1
        made.path.write({"d.a": {5: "after"}}, {"d.a": [6]})
        made.path.drain()
        made.check()


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_that_died_goes_on(kind: str, tmp_path: Path) -> None:
    with lab(kind, tmp_path, transaction_rows="1") as made:
        change_meanwhile(made)
        for point in ("data-put:before@1", "data-put:after@1", "data-put:after@2", "metadata:before@1"):
            name, _, count = point.partition("@")
            arm(f"{name}=raise@{count}")
            with pytest.raises(PenstockError, match="FAILPOINT"):
                made.path.drain()
            arm("")
        made.path.drain()
        made.check()


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_attempts_at_once_one_writes(kind: str, tmp_path: Path) -> None:
    """Rows that nothing names are counted once, although both attempts found them missing."""
    with lab(kind, tmp_path) as made:
        change_meanwhile(made)
        overtaken: list[str] = []

        def overtake() -> None:
            LocalFeed(made.path.context).run_window(commit=False)
            overtaken.append("done")

        FAILPOINTS.call("data-put:before", overtake)
        with pytest.raises(PenstockError, match="TXN_CONFLICT"):
            made.path.drain()
        assert overtaken
        arm("")
        made.path.drain()
        made.check()


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_earlier_window_still_writes_is_nothing(kind: str, tmp_path: Path) -> None:
    """An attempt of a window that gave way wakes up while the target is compared."""
    with lab(kind, tmp_path) as made:
        path = made.path
        path.write({"d.a": {1: "of the window that gave way", 200: "too"}, "d.bag": {9: "once"}})
        late: list[object] = []
        FAILPOINTS.call("data-put:before", lambda: late.append(change_meanwhile(made)))
        path.wait_resolved(path.upstream.current_ts())
        path.feed.run_window(commit=False)
        assert late
        path.write({}, {"d.a": [200]})
        lose_history(path)
        path.drain()
        made.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_was_dropped_in_the_target_comes_back(kind: str, tmp_path: Path) -> None:
    with lab(kind, tmp_path) as made:
        made.touch("DROP TABLE {a}")
        made.path.write({"d.a": {5: "into nothing"}})
        with pytest.raises(PenstockError, match="SINK_UNWRITABLE"):
            made.path.drain()
        lose_history(made.path)
        made.path.drain()
        made.check()


@pytest.mark.parametrize("kind", ["mariadb"])
def test_columns_that_were_made_meanwhile_are_there_first(kind: str, tmp_path: Path) -> None:
    with lab(kind, tmp_path, atomicity="transaction") as made:
        made.path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT DEFAULT 7")
        change_meanwhile(made)
        made.path.drain()
        made.check()
        assert 7 in {n for (n,) in made.target.rows("d", "a", "n")}


def test_rows_of_others_are_never_taken_for_the_feeds(tmp_path: Path) -> None:
    with lab("mariadb", tmp_path, existing_rows="keep") as made:
        change_meanwhile(made)
        with pytest.raises(PenstockError, match="SINK_NOT_READABLE"):
            made.path.drain()
        assert len(made.target.rows("d", "a", "id")) == ROWS
