"""Verbs on a feed from a database to files, without Spark: what is skipped, where it ends, which tables come and go, and at which ts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from penstock.config.tree import load_feed_config
from penstock.meta.records import ReachedState
from penstock.model.batch import COMMIT_TS
from penstock.model.errors import PenstockError
from penstock.server.feeds.creation import FeedDocument
from testing.checks.lives.files import read_target
from testing.checks.target_audit import checkpoint_of, digests, numbering_problems
from testing.paths.controlled_path import ControlledPath

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "abc")]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[ControlledPath]:
    with contextlib.closing(ControlledPath(tmp_path, SETUP, tables=("d.a", "d.b", "d.new*"))) as opened:
        opened.drain()
        yield opened


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


def delivered(path: ControlledPath, name: str) -> set[int]:
    """The commit ts of every change of a table in the target."""
    frames = [frame.select(pl.col(COMMIT_TS)) for _, frame in path.reader().changes(*name.split("."))]
    return set(pl.concat(frames).to_series().to_list()) if frames else set()


def what(path: ControlledPath) -> list[str]:
    return [entry.what for entry in path.meta.lives.history("f") if entry.what != "state"]


class TestReset:
    def test_what_was_not_delivered_is_left_out_and_ddls_are_followed(self, path: ControlledPath) -> None:
        path.write({"d.a": {1: "in"}})
        path.drain()
        left_out = [path.write({"d.a": {2: "out"}, "d.b": {2: "out"}})]
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT DEFAULT 5")
        path.upstream.execute_ddl("CREATE TABLE d.new1 (id INT PRIMARY KEY, v VARCHAR(40))")
        left_out.append(path.write({"d.a": {3: "out"}, "d.new1": {3: "out"}}))
        checkpoint_ts = path.meta.checkpoint_ts("f")
        answer = path.do("reset", to="now", reason="too far behind")
        assert (answer["changed"], answer["effective_ts"]) == (True, checkpoint_ts)
        kept = path.write({"d.a": {4: "in"}, "d.b": {4: "in"}, "d.new1": {4: "in"}})
        path.drain()
        for name in ("d.a", "d.b", "d.new1"):
            found = delivered(path, name)
            assert kept in found
            assert found.isdisjoint(left_out)
        assert path.live_tables().keys() == {"d.a", "d.b", "d.new1"}
        assert [v.table.columns[-1].name for v in path.reader().versions("d", "a")][-1] == "n"
        assert numbering_problems(path.target) == []
        entry = next(e for e in path.meta.lives.history("f") if e.what == "reset")
        assert (entry.by, entry.why, entry.old) == ("operator", "too far behind", f"checkpoint {checkpoint_ts}")

    def test_the_snapshot_brings_what_was_left_out_with_its_deletes(self, path: ControlledPath) -> None:
        path.write({"d.a": {1: "stays", 2: "goes"}, "d.b": {1: "x"}})
        path.drain()
        path.write({"d.a": {1: "changed", 3: "new"}}, {"d.a": [2]})
        path.do("reset", to="now")
        path.drain()
        assert not path.verify().identical
        path.do("reset", to="snapshot")
        path.write({"d.b": {2: "y"}})
        path.drain()
        path.verify().check()
        assert path.meta.resnapshots("f") == 1
        path.begin_run()
        path.write({"d.b": {3: "z"}})
        path.drain()
        assert path.meta.resnapshots("f") == 1, "one is enough"
        path.verify().check()

    @pytest.mark.parametrize("crash", [False, True])
    def test_a_window_on_record_is_finished_first(self, path: ControlledPath, crash: bool) -> None:
        first = path.write({"d.a": {1: "x"}})
        path.wait_resolved(first)
        path.run_window(commit=False)
        left = path.meta.pending_window("f")
        assert left is not None
        second = path.write({"d.a": {2: "y"}})
        now = path.upstream.current_ts()
        assert path.do("reset", to=str(now))["effective_ts"] == left.to_ts
        third = path.write({"d.a": {3: "z"}})
        if crash:
            path.run_window(commit=False)
            path.restart(lose_store=True)
        path.drain()
        assert delivered(path, "d.a") & {first, second, third} == {ts for ts in (first, second, third) if ts == first or ts > now}

    @pytest.mark.parametrize("crash", ["", "window", "store"])
    def test_what_was_delivered_comes_once_more_and_the_target_ends_right(self, path: ControlledPath, crash: str) -> None:
        path.write({"d.a": {1: "first", 2: "goes"}, "d.b": {1: "x"}})
        path.drain()
        back_ts = path.meta.checkpoint_ts("f")
        again = path.write({"d.a": {1: "second", 3: "new"}, "d.b": {2: "y"}}, {"d.a": [2]})
        path.drain()
        left = path.write({"d.a": {4: "in the window"}})
        path.wait_resolved(left)
        published = digests(path.target)
        stood_ts = checkpoint_of(path.target)
        if crash == "window":
            path.run_window(commit=False)
            assert path.meta.pending_window("f") is not None
        assert path.do("reset", to=str(back_ts), reason="the lake lost a day")["effective_ts"] >= stood_ts
        if crash:
            path.restart(lose_store=crash == "store")
        path.begin_run()
        while path.meta.pending_window("f") is not None:
            path.run_window()
        path.begin_run()
        assert path.meta.checkpoint_ts("f") == back_ts
        assert checkpoint_of(path.target) >= stood_ts, "what is published never goes back"
        path.drain()
        path.verify().check()
        after = digests(path.target)
        assert {name: after.get(name) for name in published} == published
        assert numbering_problems(path.target) == []
        rows = sum(frame.filter(pl.col(COMMIT_TS) == again).height for _, frame in path.reader().changes("d", "a"))
        assert rows == 6, "three changes, each twice"
        found = read_target(path.target, "d", strict=False)
        assert {(r["#1" if "#1" in r else "id"], r["#2" if "#2" in r else "v"]) for r in found["a"].all_rows()} == {
            ("1", "second"),
            ("3", "new"),
            ("4", "in the window"),
        }

    @pytest.mark.parametrize("ddl", ["TRUNCATE TABLE d.b", "ALTER TABLE d.a ADD COLUMN n INT DEFAULT 5"])
    def test_nothing_goes_back_beyond_other_tables(self, path: ControlledPath, ddl: str) -> None:
        path.write({"d.a": {1: "x"}})
        path.drain()
        back_ts = path.meta.checkpoint_ts("f")
        path.upstream.execute_ddl(ddl)
        path.write({"d.a": {2: "y"}, "d.b": {2: "y"}})
        path.drain()
        with refused("CONFIG_INVALID"):
            path.do("reset", to=str(back_ts))
        path.do("reset", to=str(path.meta.checkpoint_ts("f") - 1))
        path.drain()
        path.verify().check()

    def test_what_cannot_be(self, path: ControlledPath) -> None:
        before = path.meta.get_feed("f")
        for to in ("", "yesterday", "-1", "9" * 30, "1", str(path.upstream.current_ts() + (1 << 40))):
            with refused("CONFIG_INVALID"):
                path.do("reset", to=to)
        assert path.meta.get_feed("f") == before
        assert what(path) == ["create", "create"]


class TestTables:
    """Verbs on one table of a source that gives every state itself."""

    def test_an_excluded_table_rests_while_the_others_go_on_and_comes_back_as_it_is(self, path: ControlledPath) -> None:
        path.write({"d.a": {1: "stays", 2: "goes"}, "d.b": {1: "x"}})
        path.drain()
        assert path.do_table("exclude", "d.A")["state"] == "excluded"
        missed = path.write({"d.a": {1: "changed", 3: "new"}, "d.b": {2: "y"}}, {"d.a": [2]})
        path.drain()
        assert path.live_tables().keys() == {"d.b"}
        assert missed not in delivered(path, "d.a")
        assert missed in delivered(path, "d.b")
        path.verify().check()
        assert path.do_table("exclude", "d.a")["state"] == "excluded", "once more changes nothing"
        assert path.do_table("include", "d.a")["state"] == "ok"
        path.write({"d.a": {4: "after"}})
        path.drain()
        assert path.live_tables().keys() == {"d.a", "d.b"}
        path.verify().check()
        assert numbering_problems(path.target) == []
        done = [entry.what for entry in path.meta.lives.history("f") if entry.by == "operator"]
        assert done == ["alter", "table exclude", "table exclude", "alter", "table include"]

    def test_a_table_is_delivered_again_where_it_differs(self, path: ControlledPath) -> None:
        path.write({"d.a": {1: "stays", 2: "goes"}, "d.b": {1: "x"}})
        path.drain()
        path.write({"d.a": {1: "changed"}, "d.b": {2: "y"}}, {"d.a": [2]})
        path.do("reset", to="now")
        path.drain()
        assert {t.name for t in path.verify().tables if t.differs} == {"d.a", "d.b"}
        published = digests(path.target)
        path.do_table("resnapshot", "d.a")
        path.do_table("resnapshot", "d.a")
        path.drain()
        assert {t.name for t in path.verify().tables if t.differs} == {"d.b"}
        path.do_table("resnapshot", "d.b")
        path.restart(lose_store=True)
        path.drain()
        path.verify().check()
        after = digests(path.target)
        assert {name: after.get(name) for name in published} == published
        assert numbering_problems(path.target) == []
        assert [e.what for e in path.meta.lives.history("f") if e.what.startswith("table")] == ["table resnapshot"] * 2

    def test_a_table_that_does_not_wait_has_nothing_to_retry(self, path: ControlledPath) -> None:
        before = path.meta.get_feed("f").config
        assert path.do_table("retry", "d.a")["state"] == "ok"
        assert path.meta.get_feed("f").config == before
        with refused("TABLE_UNKNOWN"):
            path.do_table("exclude", "d.none")


class TestEnd:
    def test_a_feed_is_finished_at_its_end_and_goes_on_with_a_later_one(self, path: ControlledPath) -> None:
        inside = path.write({"d.a": {1: "in"}})
        end_ts = path.upstream.current_ts()
        outside = path.write({"d.a": {2: "out"}})
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT DEFAULT 5")
        path.do("alter", changes={"until-ts": end_ts})
        with refused("FEED_FINISHED"):
            path.drain()
        assert path.meta.checkpoint_ts("f") == checkpoint_of(path.target) == end_ts
        assert delivered(path, "d.a") == {inside}
        assert len(path.reader().versions("d", "a")) == 1
        assert path.meta.lives.rest("f", path.epoch, finished=True) is ReachedState.FINISHED
        assert path.meta.get_feed("f").is_over
        with refused("FEED_ENDED"):
            path.do("pause")
        path.do("alter", changes={"until-ts": 0})
        assert path.meta.get_feed("f").reached_state is ReachedState.STOPPED
        path.begin_run()
        path.drain()
        assert delivered(path, "d.a") == {inside, outside}
        path.verify().check()


class TestAlter:
    def test_tables_come_and_go_at_the_ts_that_is_told(self, path: ControlledPath) -> None:
        path.write({"d.a": {1: "x"}, "d.b": {1: "gone while out", 2: "stays", 3: "changes"}, "d.c": {1: "before"}})
        path.drain()
        out_ts = path.do("alter", changes={"tables": ["d.a", "d.c"]})["effective_ts"]
        assert out_ts == path.meta.checkpoint_ts("f")
        while_out = path.write({"d.a": {2: "y"}, "d.b": {3: "changed", 4: "new"}, "d.c": {2: "later"}}, {"d.b": [1]})
        path.drain()
        assert path.live_tables().keys() == {"d.a", "d.c"}
        path.verify().check()
        assert while_out not in delivered(path, "d.b")
        in_ts = path.do("alter", changes={"tables": ["d.*"]})["effective_ts"]
        assert in_ts > out_ts
        path.write({"d.b": {5: "after"}})
        path.drain()
        assert path.live_tables().keys() == {"d.a", "d.b", "d.c"}
        path.verify().check()
        assert numbering_problems(path.target) == []
        assert {t.table_name for t in path.meta.feed_tables("f")} <= {"a", "b", "c"}

    @pytest.mark.parametrize(
        "ddls",
        [
            ["ALTER TABLE d.b ADD COLUMN n INT DEFAULT 5"],
            ["TRUNCATE TABLE d.b"],
            ["DROP TABLE d.b", "CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40))"],
        ],
    )
    def test_a_table_that_changed_while_it_was_out_comes_back_as_it_is(self, path: ControlledPath, ddls: list[str]) -> None:
        path.write({"d.b": {1: "old", 2: "goes"}})
        path.drain()
        path.do("alter", changes={"tables": ["d.a"]})
        path.drain()
        path.write({}, {"d.b": [2]})
        for ddl in ddls:
            path.upstream.execute_ddl(ddl)
        path.write({"d.b": {7: "while out"}})
        path.do("alter", changes={"tables": ["d.a", "d.b"]})
        path.write({"d.b": {8: "after"}})
        path.drain()
        path.verify().check()
        assert numbering_problems(path.target) == []

    def test_a_window_on_record_keeps_its_configuration(self, path: ControlledPath) -> None:
        rows = dict.fromkeys(range(200), "x" * 40)
        path.wait_resolved(path.write({"d.a": rows, "d.b": rows}))
        path.run_window(commit=False)
        published, left = digests(path.target), path.meta.pending_window("f")
        assert left is not None
        answer = path.do("alter", changes={"tables": ["d.a"], "sink": {"file-size": "1KiB"}})
        assert answer["effective_ts"] == left.to_ts
        path.restart()
        path.drain()
        after = digests(path.target)
        assert {name: after.get(name) for name in published} == published
        assert {name for name in after.keys() - published.keys() if "/b/" in name} == set()
        path.write({"d.a": rows})
        path.drain()
        grown = digests(path.target).keys() - after.keys()
        assert len(grown) > 5, "files are cut by the new size"
        path.verify().check()
        assert [e.new for e in path.meta.lives.history("f") if e.what == "altered"] == [f"holds from ts {left.to_ts} on"]

    def test_what_changes_no_file_holds_for_the_window_on_record_too(self, path: ControlledPath) -> None:
        path.wait_resolved(path.write({"d.a": {1: "x"}}))
        path.run_window(commit=False)
        published, checkpoint_ts = digests(path.target), path.meta.checkpoint_ts("f")
        assert path.do("alter", changes={"flush-interval": "2s", "sink": {"flush-concurrency": 3}})["effective_ts"] == checkpoint_ts
        path.begin_run()
        assert (path.context.settings.flush_interval_s, path.context.sink_options["flush-concurrency"]) == (2.0, "3")
        assert path.meta.pending_window("f") is not None
        path.drain()
        assert digests(path.target) == published
        path.verify().check()

    def test_a_feed_that_has_not_begun_begins_with_other_tables(self, tmp_path: Path) -> None:
        with contextlib.closing(ControlledPath(tmp_path, SETUP, tables=("d.a",))) as path:
            path.write({"d.a": {1: "x"}, "d.b": {1: "gone"}, "d.c": {1: "x"}})
            path.upstream.execute_ddl("TRUNCATE TABLE d.b")
            path.write({"d.b": {2: "x"}})
            path.do("alter", changes={"tables": ["d.b", "d.c"]})
            path.drain()
            assert path.live_tables().keys() == {"d.b", "d.c"}
            path.verify().check()
            assert delivered(path, "d.a") == set()

    def test_what_several_ask_for_at_once_is_all_done(self, path: ControlledPath) -> None:
        # Each that comes too late for its turn lost it to one of the others, so none loses more than three.
        asked = [{"flush-interval": "300ms"}, {"tables": ["d.a"]}, {"window-bytes-max": "1MiB"}, {"sink": {"file-size": "2MiB"}}]
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = [pool.submit(path.do, "alter", changes=changes) for changes in asked]
        assert all(answer.result()["changed"] for answer in answers)
        wanted = load_feed_config(FeedDocument.of(path.meta.get_feed("f")).next or {})
        assert (wanted.settings.flush_interval_s, wanted.settings.window_bytes_max, wanted.tables) == (0.3, 1 << 20, ("d.a",))
        assert wanted.sink["file-size"] == "2MiB"

    def test_what_must_stay_is_refused(self, path: ControlledPath) -> None:
        before = path.meta.get_feed("f")
        for changes in (
            {"name": "g"},
            {"start-ts": 5},
            {"spans-per-table": 3},
            {"sink": {"protocol": "canal-json"}},
            {"sink": {"csv": {"delimiter": ";"}}},
            {"flush-interval": "1h"},
            {"until-ts": 7},
            {"tables": []},
            {"tabels": ["d.a"]},
        ):
            with refused("CONFIG_INVALID"):
                path.do("alter", changes=changes)
        with refused("TABLE_UNKNOWN"):
            path.do("alter", changes={"tables": ["d.a", "nowhere.*"]})
        assert path.do("alter", changes={"tables": ["d.a", "d.b", "d.new*"]})["changed"] is False, "that is what it has"
        assert path.meta.get_feed("f") == before
