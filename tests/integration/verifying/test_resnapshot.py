"""A feed whose history is gone goes on: it delivers what differs from a new snapshot, deletes of vanished rows included."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from penstock.feed.settings import FeedSettings
from penstock.feed.window.planner import WindowPlanner
from penstock.model.batch import Op
from penstock.model.clock import SystemClock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, OP
from testing.paths.whole_path import WholePath, lose_history

SETUP = [
    "CREATE DATABASE d",
    "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))",
    "CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40))",
]
ROWS = 40
WAIT_S = 60.0


@contextlib.contextmanager
def lab(root: Path, spans: int = 1, options: dict[str, str] | None = None, settings: FeedSettings | None = None) -> Iterator[WholePath]:
    splits = {"d.a": [ROWS // 2]} if spans > 1 else {}
    path = WholePath(root, SETUP, splits=splits, spans_per_table=spans, sink_options=options, settings=settings)
    with contextlib.closing(path):
        path.write({"d.a": {n: f"first {n}" for n in range(ROWS)}, "d.b": dict.fromkeys(range(5))})
        path.drain()
        path.write({"d.a": {n: f"second {n}" for n in range(ROWS // 2)}}, {"d.b": [4]})
        path.drain()
        yield path


def change_meanwhile(path: WholePath) -> Counter[Op]:
    """Change rows that the feed does not see; return what remains of that in the end, for both tables."""
    path.write({"d.a": {0: "lost", 1: "lost", 2: "lost"}}, {"d.a": [10, 11, 25]})
    path.write({"d.a": {0: "changed", 1: "second 1", 10: "second 10", 100: "new"}}, {"d.a": [2], "d.b": [0, 1, 2, 3]})
    path.write({"d.a": {101: "new and gone"}})
    path.write({}, {"d.a": [101]})
    # Row 1 and row 10 are what they were; 2, 11 and 25 vanished, and so did the four rows of the other table.
    return Counter({Op.DELETE: 3 + 4, Op.UPDATE: 1, Op.INSERT: 1})


def crash_in_a_window(path: WholePath) -> None:
    """Write a window and do not commit it."""
    clock, never = SystemClock(), threading.Event()
    deadline_s = clock.monotonic_s() + WAIT_S
    while not path.feed.run_window(commit=False):
        assert clock.monotonic_s() < deadline_s, "no window came"
        clock.wait(never, 0.02)


def delivered(path: WholePath, since_ts: int) -> Counter[Op]:
    """Count what the files hold beyond a ts."""
    found: Counter[Op] = Counter()
    for name in path.reader().tables():
        for _, frame in path.reader().changes(*name):
            found.update(Op(op) for op in frame.filter(pl.col(COMMIT_TS) > since_ts)[OP].to_list())
    return +Counter({op: count for op, count in found.items() if op is not Op.BEFORE})


def files(path: WholePath) -> dict[str, bytes]:
    root = path.root / "files"
    return {
        str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*.*") if f.is_file() and f.suffix in {".csv", ".json", ".parquet"}
    }


@pytest.mark.parametrize(
    ("spans", "options"),
    [(1, {}), (2, {}), (1, {"protocol": "canal-json"}), (1, {"protocol": "parquet"}), (1, {"csv.output-old-value": "true"})],
)
def test_a_feed_paused_beyond_gc_ttl_resnapshots_with_deletes(tmp_path: Path, spans: int, options: dict[str, str]) -> None:
    with lab(tmp_path, spans, options) as path:
        checkpoint_ts = path.feed.checkpoint_ts()
        expected = change_meanwhile(path)
        lose_history(path)
        path.write({"d.b": {7: "after"}})
        crash_in_a_window(path)
        written = files(path)
        path.restart()
        path.drain()
        verdict = path.verify()
        verdict.check()
        assert verdict.rows == ROWS - 3 + 1 + 1
        assert path.meta.resnapshots("f") == 1
        again = files(path)
        assert {name: again[name] for name in written} == written
        expected[Op.INSERT] += 1
        if not options.get("protocol"):
            assert delivered(path, checkpoint_ts) == expected


def test_versions_that_were_made_meanwhile_are_told_first(tmp_path: Path) -> None:
    with lab(tmp_path) as path:
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT DEFAULT 7")
        path.upstream.execute_ddl("ALTER TABLE d.b CHANGE COLUMN v w VARCHAR(40)")
        path.write({"d.a": {3: "under the new version"}}, {"d.a": [4]})
        path.upstream.execute_ddl("ALTER TABLE d.a DROP COLUMN v")
        lose_history(path)
        path.drain()
        path.verify().check()
        assert [len(path.reader().ddls("d", name)) for name in "ab"] == [2, 1]


def test_who_lost_the_lease_tells_the_target_of_no_version(tmp_path: Path) -> None:
    with lab(tmp_path, settings=FeedSettings(flush_interval_s=0.0)) as path:
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT DEFAULT 7")
        lose_history(path)
        before = files(path)
        with contextlib.closing(WindowPlanner.open(path.context)) as planner:
            from_ts = planner.checkpoint_ts()
            to_ts = planner.next_window_end(from_ts)
            assert to_ts > from_ts
            path.take_over()
            with pytest.raises(PenstockError, match="FENCED"):
                planner.partitions(from_ts, to_ts)
        assert files(path) == before
        path.drain()
        path.verify().check()
        assert len(path.reader().ddls("d", "a")) == 1


def test_a_window_that_was_begun_and_cannot_be_delivered_gives_way(tmp_path: Path) -> None:
    with lab(tmp_path) as path:
        path.write({"d.a": {1: "published, never committed", 50: "too"}}, {"d.a": [5]})
        path.wait_resolved(path.upstream.current_ts())
        crash_in_a_window(path)
        written = files(path)
        change_meanwhile(path)
        path.write({"d.a": {5: "back"}}, {"d.a": [50]})
        lose_history(path)
        path.drain()
        path.verify().check()
        again = files(path)
        assert {name: again[name] for name in written} == written


def test_history_that_is_lost_again_during_a_resnapshot(tmp_path: Path) -> None:
    with lab(tmp_path) as path:
        change_meanwhile(path)
        lose_history(path)
        crash_in_a_window(path)
        path.write({"d.a": {0: "once more"}}, {"d.a": [30]})
        lose_history(path)
        path.drain()
        path.verify().check()
        assert path.meta.resnapshots("f") == 2


def test_the_first_snapshot_is_lost_with_the_store(tmp_path: Path) -> None:
    """The window of the first snapshot was begun, and the state at its ts is gone."""
    path = WholePath(tmp_path, SETUP)
    with contextlib.closing(path):
        path.write({"d.a": dict.fromkeys(range(ROWS), "x")})
        path.snapshot_ts = path.upstream.current_ts()
        path.restart()
        crash_in_a_window(path)
        path.write({"d.a": {1: "changed"}}, {"d.a": [2]})
        lose_history(path)
        path.drain()
        path.verify().check()


def test_a_feed_that_shall_fail_fails(tmp_path: Path) -> None:
    with lab(tmp_path, settings=FeedSettings(on_stale_read="fail")) as path:
        change_meanwhile(path)
        lose_history(path)
        with pytest.raises(PenstockError, match="history starts at") as raised:
            path.drain()
        assert raised.value.code == "STALE_READ"
        assert path.meta.resnapshots("f") == 0


def test_tables_that_came_and_went_in_the_lost_history(tmp_path: Path) -> None:
    with lab(tmp_path) as path:
        path.upstream.execute_ddl("TRUNCATE TABLE d.a")
        path.write({"d.a": {1: "after the truncation", 2: "too"}})
        path.upstream.execute_ddl("CREATE TABLE d.fresh (id INT PRIMARY KEY, v VARCHAR(40))")
        path.write({"d.fresh": {5: "in a new table"}})
        path.upstream.execute_ddl("CREATE TABLE d.short (id INT PRIMARY KEY, v VARCHAR(40))")
        path.upstream.execute_ddl("DROP TABLE d.short")
        path.upstream.execute_ddl("RENAME TABLE d.b TO d.c")
        path.write({"d.c": {9: "under the new name"}}, {"d.c": [0]})
        lose_history(path)
        crash_in_a_window(path)
        written = files(path)
        path.drain()
        verdict = path.verify()
        verdict.check()
        assert {t.name: t.rows for t in verdict.tables} == {"d.a": 2, "d.fresh": 1, "d.c": 4}
        assert path.meta.resnapshots("f") == 1
        again = files(path)
        assert {name: again[name] for name in written} == written
        path.write({"d.a": {3: "goes on"}, "d.fresh": {6: "goes on"}, "d.c": {10: "goes on"}})
        path.drain()
        path.verify().check()


def test_partitions_that_moved_in_the_lost_history_stop_the_feed(tmp_path: Path) -> None:
    with lab(tmp_path) as path:
        ddl = DdlEvent(
            path.upstream.current_ts(), DdlType.TRUNCATE_PARTITION, "ALTER TABLE d.b TRUNCATE PARTITION p0", "d", (path.table("d.b"),)
        )
        told = threading.Event()
        path.store.append_ddl(ddl, told.set)
        assert told.wait(WAIT_S)
        lose_history(path)
        with pytest.raises(PenstockError, match="TRUNCATE_PARTITION") as raised:
            path.drain()
        assert raised.value.code == "DDL_UNSUPPORTED"
