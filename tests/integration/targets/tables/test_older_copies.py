"""A target that goes back, to an older copy or with emptied books: the feed says so, and does not go on as if nothing was missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.feed.settings import FeedSettings
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS, arm
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherResult
from penstock.target.dispatcher import DispatcherId
from penstock.target.kind import SinkRun
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath, read_state
from testing.targets.database_kit import MYSQL, TargetDatabase
from tests.integration.targets.tables.test_table_rows import T0, deliver
from tests.integration.targets.tables.test_table_users import TABLE

pytestmark = pytest.mark.integration
SETUP = [
    "CREATE DATABASE d",
    "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))",
    "CREATE TABLE d.bag (id INT, v VARCHAR(40))",
]


class Lab:
    """A path into a database that can be brought back to what it was."""

    def __init__(self, kind: str, root: Path) -> None:
        self.target = TargetDatabase(kind)
        chosen = FeedSettings(flush_interval_s=0.0)
        self.path = WholePath(root, SETUP, target_uri=self.target.uri, sink_options=self.target.options, settings=chosen)
        self._names = [f"{self.target.home}.penstock_progress", f"{self.target.home}.penstock_progress_tables"]
        self._names += [self.target.name("d", table) for table in ("a", "bag")]

    def save(self) -> None:
        """Make a copy of everything that the feed has in the target."""
        for at, name in enumerate(self._names):
            copy = f"{self.target.home}.copy{at}"
            self.target.run(f"DROP TABLE IF EXISTS {copy}", f"CREATE TABLE {copy} AS SELECT * FROM {name}")

    def restore(self) -> None:
        """Put the copy in its place."""
        for at, name in enumerate(self._names):
            self.target.run(f"DELETE FROM {name}", f"INSERT INTO {name} SELECT * FROM {self.target.home}.copy{at}")

    def change(self, at: int) -> None:
        self.path.write({"d.a": {at: f"at {at}", 0: f"now {at}"}, "d.bag": {at: "x"}})

    def differs(self) -> bool:
        for table in ("a", "bag"):
            wanted = read_state(self.path.upstream, self.path.table(f"d.{table}"), self.path.upstream.current_ts())
            if sorted(self.target.rows("d", table, "id, v"), key=repr) != sorted(wanted.rows(), key=repr):
                return True
        return False

    def reset(self) -> None:
        """Ask for a new snapshot, as `penstock feed reset` does."""
        asked = msgspec.structs.replace(self.path.context, resnapshot_from_ts=self.path.feed.checkpoint_ts())
        self.path.feed = LocalFeed(asked, before_window=self.path._capture)


@pytest.fixture(params=["mariadb", "postgres", MYSQL])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(request.param, tmp_path)
    with contextlib.closing(made.path) as path:
        made.change(1)
        path.drain()
        made.save()
        made.change(2)
        path.drain()
        assert not made.differs()
        yield made
    arm("")


@pytest.mark.parametrize("emptied", [False, True])
def test_a_target_that_went_back_is_doubted_until_it_is_compared(lab: Lab, emptied: bool) -> None:
    if emptied:
        lab.target.run(f"DELETE FROM {lab.target.home}.penstock_progress")
    else:
        lab.restore()
    for at in (3, 4):
        lab.change(at)
        with pytest.raises(PenstockError, match="SINK_BEHIND") as refused:
            lab.path.drain()
        assert "reset" in str(refused.value.hint)
    lab.reset()
    lab.path.drain()
    assert not lab.differs()
    lab.change(5)
    lab.path.drain()
    assert not lab.differs()


@pytest.mark.parametrize("kind", ["mariadb", "postgres", MYSQL])
def test_a_target_that_knows_nothing_of_the_feed_is_not_taken_for_its_own(kind: str) -> None:
    """The database was dropped and made again, or the name leads to a new server."""
    target, run = TargetDatabase(kind), SinkRun("f", 1, "f/1")
    target.kit(run).open_maintainer().claim("f/1")
    window = [DispatcherResult(DispatcherId(TABLE.table_id), {}, 1, 1)]
    deliver(target, TABLE, [[(1, Op.INSERT, 1, "a"), (2, Op.INSERT, 2, "b")]], run=run, window=(TS_ZERO, T0 + 5))
    target.kit(run).open_maintainer().record_window(TS_ZERO, T0 + 5, window)
    target.run(f"DROP TABLE {target.home}.penstock_progress, {target.home}.penstock_progress_tables, {target.name('shop', 'orders')}")
    maintainer = target.kit(run).open_maintainer()
    with pytest.raises(PenstockError, match="SINK_LOST"):
        maintainer.published_ts()
    deliver(target, TABLE, [[(7, Op.INSERT, 3, "c")]], run=run, window=(T0 + 5, T0 + 9))
    with pytest.raises(PenstockError, match="SINK_LOST"):
        maintainer.record_window(T0 + 5, T0 + 9, window)
    target.kit().open_maintainer().claim("other/2")
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        maintainer.record_window(T0 + 5, T0 + 9, window)


def test_rows_of_the_window_under_way_that_a_target_lost_come_again(lab: Lab) -> None:
    """The copy that takes over has everything but the last transactions."""

    def save() -> None:
        lab.save()
        FAILPOINTS.call("data-put:after", lab.restore)

    # One table, so that nobody writes while the copy is made.
    lab.path.write({"d.a": {3: "at 3", 0: "now 3"}}, {"d.a": [1]})
    FAILPOINTS.call("data-put:before", save)
    with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*lacks rows of dispatchers"):
        lab.path.drain()
    arm("")
    assert lab.differs()
    lab.path.drain()
    assert not lab.differs()
