"""Random lives of a feed under an operator, over the whole path without Spark, against a model.

Rules: load, DDLs, windows, crashes, restarts, pause, resume, alter, reset forwards, back and to a snapshot, exclude, include, resnapshot.
The model knows what is asked of the feed, which tables it shall have with which rows, and where progress must stand. Whenever the feed has
settled, a reader that shares no code with the product reads the target, and must find the model's rows.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.meta.records import ReachedState, RequestedState
from penstock.model.errors import PenstockError
from testing.checks.lives.files import read_target
from testing.checks.target_audit import checkpoint_of, digests, numbering_problems
from testing.paths.controlled_path import ControlledPath

TABLES = ("a", "b", "c")
SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in TABLES)]
SOME = st.sets(st.sampled_from(TABLES), min_size=1)


class FeedLife(RuleBasedStateMachine):
    """One feed."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.path: ControlledPath | None = None
        self.paused = False
        self.tables: set[str] = set()
        self.stood_ts: int | None = None
        self.differs = False
        self.columns = 0
        self.asked: list[str] = []
        self.patterns: list[str] = []
        self.passed: list[int] = []
        self.rows: dict[str, dict[int, str]] = {table: {} for table in TABLES}
        self.published: dict[str, str] = {}

    @initialize(tables=SOME)
    def create(self, tables: set[str]) -> None:
        root = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.tables = set(tables)
        self.patterns = [f"d.{t}" for t in sorted(tables)]
        self.path = ControlledPath(root, SETUP, tables=[f"d.{t}" for t in sorted(tables)])
        self.stack.callback(self.path.close)

    @property
    def its(self) -> ControlledPath:
        assert self.path is not None
        return self.path

    @rule(table=st.sampled_from(TABLES), ids=st.sets(st.integers(0, 9), min_size=1, max_size=4), text=st.text("xyz", max_size=3))
    def write(self, table: str, ids: set[int], text: str) -> None:
        self.its.write({f"d.{table}": dict.fromkeys(ids, text)})
        self.rows[table] |= dict.fromkeys(ids, text)

    @rule(table=st.sampled_from(TABLES), row_id=st.integers(0, 9))
    def delete(self, table: str, row_id: int) -> None:
        if row_id in self.rows[table]:
            self.its.write({}, {f"d.{table}": [row_id]})
            del self.rows[table][row_id]

    @rule(table=st.sampled_from(TABLES), truncates=st.booleans())
    def change_schema(self, table: str, truncates: bool) -> None:
        self.columns += 1
        if truncates:
            self.its.upstream.execute_ddl(f"TRUNCATE TABLE d.{table}")
            self.rows[table].clear()
        else:
            self.its.upstream.execute_ddl(f"ALTER TABLE d.{table} ADD COLUMN x{self.columns} INT DEFAULT {self.columns}")

    @precondition(lambda self: not self.paused)
    @rule(commit=st.booleans())
    def window(self, commit: bool) -> None:
        self.its.run_window(commit=commit)

    @precondition(lambda self: not self.paused)
    @rule()
    def settle(self) -> None:
        self.its.drain()
        self.passed.append(self.its.meta.checkpoint_ts("f"))
        if not self.differs:
            self.check_rows(self.its)

    @rule(lose_store=st.booleans())
    def kill(self, lose_store: bool) -> None:
        self.its.restart(lose_store=lose_store)

    @rule()
    def pause(self) -> None:
        assert self.its.do("pause")["changed"] is not self.paused
        self.note("pause", changed=not self.paused)
        if not self.paused:
            self.stood_ts = self.its.meta.checkpoint_ts("f")
        self.paused = True

    @precondition(lambda self: self.paused)
    @rule()
    def try_a_window_while_it_is_paused(self) -> None:
        assert self.its.run_window() in {"", "FEED_PAUSED", "FENCED", "FEED_ALTERED"}

    @rule()
    def resume(self) -> None:
        assert self.its.do("resume")["resumed"] is self.paused
        self.note("resume", changed=self.paused)
        self.paused, self.stood_ts = False, None

    @rule(tables=SOME)
    def alter(self, tables: set[str]) -> None:
        wanted = [f"d.{t}" for t in sorted(tables)]
        answer = self.its.do("alter", changes={"tables": wanted})
        assert answer["changed"] is (wanted != self.patterns)
        self.note("alter", changed=answer["changed"])
        self.tables, self.patterns = set(tables), wanted

    @rule(table=st.sampled_from(TABLES), verb=st.sampled_from(["exclude", "include", "resnapshot", "retry"]))
    def do_with_a_table(self, table: str, verb: str) -> None:
        left_out = f"!d.{table}" in self.patterns
        if not left_out and f"d.{table}" not in self.its.live_tables():
            # It is not in the feed, or an alteration that brings it does not hold yet.
            with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
                self.its.do_table(verb, f"d.{table}")
            return
        shown = self.its.do_table(verb, f"d.{table}")
        if verb == "exclude":
            self.tables -= {table}
            self.note("alter", changed=not left_out)
            self.patterns += [] if left_out else [f"!d.{table}"]
        elif left_out:
            self.tables |= {table} if f"d.{table}" in self.patterns else set()
            self.note("alter", changed=True)
            self.patterns.remove(f"!d.{table}")
        assert shown["state"] == ("excluded" if verb == "exclude" else "ok")
        if left_out or verb != "resnapshot":
            self.asked.append(f"table {verb}")

    @rule(to=st.sampled_from(["now", "snapshot"]))
    def reset(self, to: str) -> None:
        if not self.its.meta.checkpoint_ts("f"):
            with pytest.raises(PenstockError, match="CONFIG_INVALID"):
                self.its.do("reset", to=to)
            return
        self.its.do("reset", to=to)
        self.note("reset", changed=True)
        # What was left out is in the target only after a snapshot that comes later.
        self.differs = self.differs or to == "now"

    @rule(at=st.integers(0, 3))
    def reset_back(self, at: int) -> None:
        if not self.passed:
            self.passed = [self.its.meta.checkpoint_ts("f")]
        to_ts = self.passed[at % len(self.passed)]
        try:
            self.its.do("reset", to=str(to_ts))
        except PenstockError:
            # Tables came, went or changed since, or nothing was delivered yet.
            return
        self.note("reset", changed=True)

    @invariant()
    def progress_stands_still_while_it_is_paused(self) -> None:
        if self.stood_ts is not None:
            assert self.its.meta.checkpoint_ts("f") == self.stood_ts

    @invariant()
    def what_is_asked_is_on_record(self) -> None:
        if self.path is not None:
            asked = self.path.meta.get_feed("f").requested_state
            assert asked is (RequestedState.PAUSED if self.paused else RequestedState.RUNNING)
            done = [e.what for e in self.path.meta.lives.history("f") if e.by == "operator"]
            # One that was asked for twice before it began is one.
            assert [w for w in done if w != "table resnapshot"] == [w for w in self.asked if w != "table resnapshot"]

    @invariant()
    def what_is_published_never_changes(self) -> None:
        if self.path is not None:
            found = digests(self.path.target)
            assert {name: found.get(name) for name in self.published} == self.published
            self.published = found

    def note(self, verb: str, *, changed: bool) -> None:
        if changed:
            self.asked.append(verb)

    def check_rows(self, path: ControlledPath) -> None:
        found = read_target(path.target, "d", strict=False)
        for table in self.tables:
            rows: dict[str, str] = {}
            if table in found:
                keys = {column.name: column.key for column in found[table].columns}
                rows = {str(row[keys["id"]]): str(row[keys["v"]]) for row in found[table].all_rows()}
            assert rows == {str(row_id): text for row_id, text in self.rows[table].items()}, table

    def teardown(self) -> None:
        with self.stack:
            if self.path is not None:
                self.finish(self.path)

    def finish(self, path: ControlledPath) -> None:
        if self.paused:
            assert path.meta.lives.rest("f", path.meta.claim("f", "test", 3_600_000) or 0) is ReachedState.PAUSED
            path.do("resume")
        if self.differs:
            path.do("reset", to="snapshot")
        path.drain()
        assert path.live_tables().keys() == {f"d.{t}" for t in self.tables}
        path.verify().check()
        self.check_rows(path)
        assert numbering_problems(path.target) == []
        assert checkpoint_of(path.target) == path.meta.checkpoint_ts("f")


class LongFeedLife(FeedLife):
    """The same, for longer."""


_RARELY = [HealthCheck.too_slow, HealthCheck.filter_too_much]
TestFeedLife = FeedLife.TestCase
TestFeedLife.settings = settings(max_examples=5, stateful_step_count=14, deadline=None, derandomize=True, suppress_health_check=_RARELY)
TestLongFeedLife = pytest.mark.chaos(LongFeedLife.TestCase)
TestLongFeedLife.settings = settings(max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=_RARELY)
