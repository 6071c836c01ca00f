"""Which doubted table is read again when, by a simulated clock."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from penstock.config.server_tree import RereadSettings
from penstock.feed.settings import OnRewrite
from penstock.meta.table_states import TableCondition
from penstock.model.errors import PenstockError
from penstock.puller.doubts import Settlement
from penstock.server.doubts.doubt_rules import Recheck
from penstock.server.doubts.doubted_tables import ASKED, DoubtedTables
from penstock.server.metrics import DoubtMetrics, TableStateCollector, render
from testing.twins.clock import SimulatedClock
from testing.twins.doubted_log import ScriptedDoubts

SETTINGS = RereadSettings(delay_s=2.0, backoff_s=10.0, backoff_max_s=40.0)
LOST = PenstockError("UPSTREAM_REFUSED", "SELECT command denied")


class Rules:
    """Wishes by table name."""

    def __init__(self) -> None:
        self.rules: dict[str, OnRewrite] = {}
        self.scheduled: list[Recheck] = []
        self.tables: set[int] = set()

    def rule(self, schema: str, table: str) -> OnRewrite:
        return self.rules.get(f"{schema}.{table}", "resnapshot")

    def rechecks(self) -> list[Recheck]:
        return self.scheduled

    def has_table(self, table_id: int) -> bool:
        return table_id in self.tables

    def concerns(self, table_id: int, schema: str, table: str) -> bool:
        return schema == "shop" or self.has_table(table_id)


class Lab:
    """A loop that a test drives by hand."""

    def __init__(self, directory: Path) -> None:
        self.clock = SimulatedClock()
        self.log = ScriptedDoubts(directory, self.clock)
        self.rules = Rules()
        self.registry = CollectorRegistry()
        self.registry.register(TableStateCollector(self.log.table_states, self.clock))
        self.metrics = DoubtMetrics(self.registry)
        self.loop = self.new_loop()

    def new_loop(self) -> DoubtedTables:
        """As a process that starts."""
        # No jitter above: pauses are at least three quarters of what they are called.
        return DoubtedTables(self.log, self.log.job, self.rules, SETTINGS, self.clock, random.Random(1), self.metrics)

    def after(self, seconds: float) -> list[int]:
        """Let time pass, scan until nothing is due, and return which tables were read."""
        self.clock.advance(seconds)
        begun = len(self.log.read)
        for _ in range(10):
            if not self.loop.scan():
                return self.log.read[begun:]
        raise AssertionError("the loop does not come to rest")

    def metric(self, line: str) -> bool:
        return line in render([self.registry]).decode().splitlines()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.log.close()


def test_doubts_of_one_table_are_settled_together_after_a_little_while(lab: Lab) -> None:
    lab.log.doubt_table(7, "shop", "t", "a rewrite")
    assert lab.after(1.0) == []
    lab.log.doubt_table(7, "shop", "t", "another")
    assert lab.metric('penstock_tables_in_doubt{state="doubtful"} 1.0')
    assert lab.metric('penstock_table_state{code="",state="doubtful",table="shop.t"} 1.0')
    lab.log.endings[7] = [Settlement(ts=500, rows=3, left_out=1, closed=True)]
    assert lab.after(1.1) == [7]
    assert lab.log.state(7).state is TableCondition.OK
    assert lab.log.state(7).settled_ts == 500
    assert lab.metric('penstock_rereads_total{outcome="settled"} 1.0')
    assert lab.metric("penstock_corrections_total 3.0")
    assert lab.metric('penstock_tables_in_doubt{state="doubtful"} 0.0')
    assert lab.after(1000) == []


def test_a_doubt_about_a_table_of_no_feed_is_forgotten(lab: Lab) -> None:
    """Nobody would ever settle it: a table that a statement made and filled, and that no pattern matches."""
    lab.rules.rules["elsewhere.t"] = lab.rules.rules["elsewhere.moved"] = "keep"
    lab.rules.tables = {8}
    lab.log.doubt_table(7, "elsewhere", "t", "it was filled by the statement that made it")
    lab.log.doubt_table(8, "elsewhere", "moved", "a rewrite")
    # Of these only the names are known.
    lab.log.doubt_table(0, "elsewhere", "u", "no version of it is known")
    lab.log.doubt_table(0, "shop", "u", "no version of it is known")
    assert lab.after(2.1) == []
    assert [(s.table_id, s.schema) for s in lab.log.table_states()] == [(0, "shop"), (8, "elsewhere")], "a feed has it under a former name"


def test_doubts_are_settled_where_the_log_is_read(lab: Lab) -> None:
    follows = [False]
    lab.loop = DoubtedTables(
        lab.log, lab.log.job, lab.rules, SETTINGS, lab.clock, random.Random(1), lab.metrics, follows=lambda: follows[0]
    )
    lab.log.doubt_table(7, "shop", "t", "a rewrite")
    lab.log.endings[7] = [Settlement(ts=500, rows=3, left_out=1, closed=True)]
    assert lab.after(1000) == []
    follows[0] = True
    assert lab.after(0) == [7]


def test_a_table_that_cannot_be_read_is_quarantined_and_tried_again_ever_more_rarely(lab: Lab) -> None:
    lab.log.endings[7] = [LOST] * 4
    lab.log.doubt_table(7, "shop", "t", "a rewrite")
    assert lab.after(2.1) == [7]
    state = lab.log.state(7)
    assert (state.state, state.code, state.reason, state.attempts) == (
        TableCondition.QUARANTINED,
        "UPSTREAM_REFUSED",
        "SELECT command denied",
        1,
    )
    assert state.hint
    pauses = []
    for _ in range(3):
        pauses.append((lab.log.state(7).next_attempt_ms - lab.clock.now_ms()) / 1000)
        assert lab.after(pauses[-1] - 0.5) == []
        assert lab.after(0.5) == [7]
    assert [7.5 <= pauses[0] <= 10, 15 <= pauses[1] <= 20, 30 <= pauses[2] <= 40] == [True] * 3
    assert 30 <= (lab.log.state(7).next_attempt_ms - lab.clock.now_ms()) / 1000 <= 40, "no longer than backoff-max"
    assert lab.after(40) == [7]
    assert lab.log.state(7).state is TableCondition.OK
    assert lab.metric('penstock_rereads_total{outcome="failed"} 4.0')


def test_a_failing_table_does_not_hold_up_others_and_an_operator_does_not_wait(lab: Lab) -> None:
    lab.log.endings[1] = [LOST]
    lab.log.doubt_table(1, "shop", "a", "a rewrite")
    lab.log.doubt_table(2, "shop", "b", "a rewrite")
    assert sorted(lab.after(2.1)) == [1, 2]
    assert [lab.log.state(n).state for n in (1, 2)] == [TableCondition.QUARANTINED, TableCondition.OK]
    with pytest.raises(PenstockError, match="not in doubt"):
        lab.loop.retry([2])
    lab.loop.retry([1])
    assert lab.after(0) == [1]
    lab.loop.resnapshot(2, "shop", "b")
    assert lab.after(0) == [2]
    assert lab.log.state(2).state is TableCondition.OK


def test_a_transient_failure_leaves_the_table_doubtful(lab: Lab) -> None:
    lab.log.endings[7] = [PenstockError("UPSTREAM_CHANGING", "a DDL came"), PenstockError("CONGESTED", "behind")]
    lab.log.doubt_table(7, "shop", "t", "a rewrite")
    assert lab.after(2.1) == [7]
    assert (lab.log.state(7).state, lab.log.state(7).code) == (TableCondition.DOUBTFUL, "")
    assert lab.after(2.1) == [7], "a schema that changed is no reason to wait for long"
    assert lab.after(2.1) == []
    assert lab.after(40) == [7]


def test_another_round_waits_as_well(lab: Lab) -> None:
    lab.log.endings[7] = [Settlement(ts=500, rows=1, left_out=1, closed=False)]
    lab.log.doubt_table(7, "shop", "t", "a rewrite")
    assert lab.after(2.1) == [7]
    assert lab.after(5) == []
    assert lab.after(5.1) == [7]
    assert lab.log.state(7).state is TableCondition.OK


def test_what_feeds_wish_holds_for_the_log_s_doubts_only(lab: Lab) -> None:
    lab.rules.rules = {"shop.kept": "keep", "shop.paused": "pause-table", "shop.lost": "keep"}
    lab.log.doubt_table(1, "shop", "kept", "a rewrite")
    lab.log.doubt_table(2, "shop", "paused", "a rewrite")
    lab.log.doubt_table(3, "shop", "lost", "rows cannot be decoded", "DECODE_FAILED")
    assert lab.after(3) == [3], "of a table with a code the log tells nothing at all"
    assert [lab.log.state(n).state.value for n in (1, 2, 3)] == ["doubtful", "quarantined", "ok"]
    assert lab.log.state(2).code == "TABLE_PAUSED"
    assert [lab.loop.will_settle(lab.log.state(n)) for n in (1, 2)] == [False, False]
    assert lab.after(100_000) == []
    lab.loop.resnapshot(1, "shop", "kept")
    lab.loop.resnapshot(2, "shop", "paused")
    assert sorted(lab.after(0)) == [1, 2]
    assert [lab.log.state(n).state.value for n in (1, 2)] == ["ok", "ok"]


def test_what_an_operator_asked_for_is_done_after_a_restart_too(lab: Lab) -> None:
    lab.rules.rules = {"shop.kept": "keep"}
    lab.loop.resnapshot(1, "shop", "kept")
    lab.loop = lab.new_loop()
    assert lab.log.state(1).reason == ASKED
    assert lab.after(2.1) == [1]


def test_a_table_that_is_not_captured_yet_waits_and_keeps_its_reason(lab: Lab) -> None:
    lab.rules.rules = {"shop.kept": "keep"}
    lab.loop.resnapshot(1, "shop", "kept")
    lab.loop = lab.new_loop()
    lab.log.uncaptured = {1}
    for _ in range(5):
        assert lab.after(2.1) == []
    assert (lab.log.state(1).reason, lab.log.state(1).attempts) == (ASKED, 0)
    lab.log.uncaptured = set()
    assert lab.after(2.1) == [1]


def test_a_re_read_that_a_crash_ended_begins_again_at_once(lab: Lab) -> None:
    lab.log.doubt_table(7, "shop", "t", "a rewrite")
    lab.log.begin(7)
    lab.loop = lab.new_loop()
    assert lab.after(0) == [7]
    assert lab.log.state(7).state is TableCondition.OK


def test_a_table_that_is_gone_is_forgotten(lab: Lab) -> None:
    lab.log.endings[7] = [None]
    lab.log.doubt_table(7, "shop", "t", "a rewrite")
    assert lab.after(2.1) == [7]
    assert lab.log.table_states() == []
    assert lab.metric('penstock_rereads_total{outcome="gone"} 1.0')


def test_a_table_that_cannot_be_seen_is_not_forgotten_while_a_feed_has_it(lab: Lab) -> None:
    lab.rules.tables = {7}
    lab.log.endings[7] = [None] * 5
    lab.log.doubt_table(7, "shop", "t", "a rewrite")
    for _ in range(3):
        assert lab.after(2.1) == [7]
        assert lab.log.state(7).state is TableCondition.DOUBTFUL, "a feed takes a moment to pass a drop"
    assert lab.after(2.1) == [7]
    assert (lab.log.state(7).state, lab.log.state(7).code) == (TableCondition.QUARANTINED, "TABLE_UNKNOWN")
    lab.rules.tables = set()
    assert lab.after(100) == [7]
    assert lab.log.table_states() == []


def test_tables_are_read_again_on_a_schedule(lab: Lab) -> None:
    lab.rules.rules = {"shop.child": "keep"}
    lab.rules.scheduled = [Recheck(7, "shop", "child", 60.0)]
    assert lab.after(59) == []
    assert lab.after(1) == []
    assert lab.after(2.1) == [7], "the doubt is opened, and settled a little later"
    assert lab.after(50) == []
    lab.loop = lab.new_loop()
    assert lab.after(10) == []
    assert lab.after(2.1) == [7], "a restart does not begin the interval again"


def test_stopping_ends_a_re_read_and_leaves_the_doubt_open(lab: Lab) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def block(_: int) -> None:
        reading.set()
        go_on.wait(120)

    lab.log.before = block
    lab.log.doubt_table(7, "shop", "t", ASKED)
    lab.loop.retry([7])
    lab.loop.start()
    assert reading.wait(120)
    assert lab.loop.progress(7) is not None
    assert lab.loop.progress(8) is None
    stopper = threading.Thread(target=lab.loop.stop)
    stopper.start()
    while not lab.loop._running[1].cancelled.wait(1):  # type: ignore[index,union-attr]
        pass
    go_on.set()
    stopper.join(120)
    assert lab.log.state(7).state is TableCondition.REREADING


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("asks", ["retry", "resnapshot"])
def test_an_excluded_table_that_is_asked_for_comes_back_whatever_is_in_the_way(lab: Lab, asks: str, restarts: bool) -> None:
    """Whoever includes a table is told that it comes; its feed may not capture it yet, and the server may die."""
    lab.log.doubt_table(7, "shop", "t", ASKED)
    assert lab.after(2.1) == [7]
    lab.loop.exclude(7, "shop", "t")
    assert lab.after(100) == []
    lab.log.uncaptured.add(7)
    if asks == "retry":
        lab.loop.retry([7])
    else:
        lab.loop.resnapshot(7, "shop", "t")
    assert lab.after(1) == []
    lab.log.uncaptured.clear()
    if restarts:
        lab.loop = lab.new_loop()
    assert lab.after(10) == [7]
    assert lab.log.state(7).state is TableCondition.OK
