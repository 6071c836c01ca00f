"""Which range of which table is compared when, by a simulated clock."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from penstock.meta.table_states import TableCondition, TableState
from penstock.model.errors import PenstockError
from penstock.model.span import Span, cut
from penstock.server.metrics import VerifyMetrics, render
from penstock.server.verify.scheduled_verification import PROBLEMS_MAX, ScheduledVerification, VerifyWish
from penstock.server.verify.table_comparison import TableVerdict
from testing.twins.clock import SimulatedClock

INTERVAL_S = 60.0
CUTS = {7: [bytes([n]) for n in range(32, 256, 32)], 8: []}


class ScriptedCheck:
    """Says what a test wrote down; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Span] = []
        self.wrong: set[int] = set()
        """The first byte of keys at which rows differ."""
        self.errors: dict[int, PenstockError] = {}

    def pieces(self, span: Span) -> list[Span]:
        return list(cut(span, CUTS[span.table_id]))

    def check(self, span: Span, piece: Span, stop: threading.Event) -> TableVerdict:
        assert not stop.is_set()
        self.asked.append(piece)
        if span.table_id in self.errors:
            raise self.errors[span.table_id]
        wrong = [key for key in self.wrong if piece.contains(bytes([key]))] if span.table_id == 7 else []
        return TableVerdict("shop.t", 10, different=len(wrong), sample_keys=tuple(f"({key},)" for key in wrong))


class Lab:
    """A schedule that a test drives by hand."""

    def __init__(self, seed: int = 1, *, repair: bool = False) -> None:
        self.clock = SimulatedClock()
        self.check = ScriptedCheck()
        self.wishes = [VerifyWish("f", INTERVAL_S, repair, ((Span(7), "shop", "t"), (Span(8), "shop", "u")))]
        self.states: list[TableState] = []
        self.repaired: list[tuple[int, str, str]] = []
        self.registry = CollectorRegistry()
        self.schedule = ScheduledVerification(
            self.check,
            lambda: self.wishes,
            lambda: self.states,
            lambda *table: self.repaired.append(table),
            self.clock,
            random.Random(seed),
            VerifyMetrics(self.registry),
        )
        assert not self.schedule.scan(), "the first round comes after an interval"

    def round(self) -> dict[str, dict[str, Any]]:
        self.clock.advance(INTERVAL_S)
        assert self.schedule.scan()
        assert not self.schedule.scan(), "one round an interval"
        found = self.schedule.view("f")
        assert found is not None
        return {table["name"]: table for table in found["tables"]}

    def metric(self, line: str) -> bool:
        return line in render([self.registry]).decode().splitlines()


def test_every_range_has_its_turn_wherever_the_turns_begin() -> None:
    firsts = set()
    for seed in range(20):
        lab = Lab(seed)
        for _ in range(8):
            shown = lab.round()
        mine = [piece for piece in lab.check.asked if piece.table_id == 7]
        assert sorted(mine) == lab.check.pieces(Span(7)), "all, each once"
        firsts.add(mine[0])
        assert (shown["shop.t"]["ranges"], shown["shop.t"]["ranges_checked"], shown["shop.t"]["state"]) == (8, 8, "identical")
        assert (shown["shop.u"]["ranges"], shown["shop.u"]["ranges_checked"]) == (1, 8)
    assert len(firsts) > 3


def test_a_difference_is_shown_until_it_is_gone_while_the_others_have_their_turn() -> None:
    lab = Lab()
    lab.check.wrong = {100}
    rounds = 0
    while lab.round()["shop.t"]["state"] != "differs":
        rounds += 1
        assert rounds < 8
    assert lab.metric('penstock_table_differences{feed="f",table="shop.t"} 1.0')
    before = len(lab.check.asked)
    for _ in range(7):
        shown = lab.round()["shop.t"]
        assert (shown["state"], shown["different"], shown["sample_keys"]) == ("differs", 1, ["(100,)"])
    asked = [piece for piece in lab.check.asked[before:] if piece.table_id == 7]
    assert len(set(asked)) == 8, "the one that differs in each round, beside it all the others"
    assert lab.repaired == []
    lab.check.wrong = set()
    assert lab.round()["shop.t"]["state"] == "identical"
    assert lab.metric('penstock_table_differences{feed="f",table="shop.t"} 0.0')


def test_with_repair_the_table_is_doubted_and_named_as_such_until_it_is_settled() -> None:
    lab = Lab(repair=True)
    lab.check.wrong = set(range(256))
    assert lab.round()["shop.t"]["state"] == "differs"
    assert lab.repaired == [(7, "shop", "t")]
    lab.states = [TableState(7, "shop", "t", TableCondition.REREADING, "found to differ")]
    asked = len(lab.check.asked)
    shown = lab.round()
    assert shown["shop.t"]["unchecked"] == "it is rereading: found to differ"
    assert [piece.table_id for piece in lab.check.asked[asked:]] == [8], "a table in doubt is not compared"
    lab.states, lab.check.wrong = [], set()
    lab.round()
    assert lab.round()["shop.t"]["state"] == "identical"


@pytest.mark.parametrize("closed", [False, True])
def test_a_difference_of_a_table_that_the_log_doubted_meanwhile_says_nothing(closed: bool) -> None:
    """It is being corrected, or it was while it was looked at."""
    lab = Lab(repair=True)

    def look(span: Span, piece: Span, stop: threading.Event) -> TableVerdict:
        condition = TableCondition.OK if closed else TableCondition.DOUBTFUL
        lab.states = [TableState(7, "shop", "t", condition, "" if closed else "a statement", settled_ts=9)]
        return TableVerdict("shop.t", 10, different=1)

    lab.check.check = look  # type: ignore[method-assign]
    lab.wishes = [VerifyWish("f", INTERVAL_S, repair=True, spans=((Span(7), "shop", "t"),))]
    shown = lab.round()["shop.t"]
    assert shown["unchecked"] == ("it was read again meanwhile" if closed else "it is doubtful: a statement")
    assert (shown["different"], lab.repaired) == (0, [])


def test_a_table_that_cannot_be_looked_at_is_named_and_hinders_no_other() -> None:
    lab = Lab()
    lab.check.errors[7] = PenstockError("UPSTREAM_REFUSED", "policies hide rows from mysql://cdc:secret@db/", "Grant BYPASSRLS.")
    shown = lab.round()
    assert shown["shop.t"]["state"] == "unchecked"
    assert shown["shop.t"]["unchecked"] == "[UPSTREAM_REFUSED] policies hide rows from mysql://cdc:***@db/. Grant BYPASSRLS."
    assert shown["shop.u"]["state"] == "identical"
    assert lab.metric('penstock_verified_ranges_total{outcome="unchecked"} 1.0')
    del lab.check.errors[7]
    assert lab.round()["shop.t"]["state"] == "identical"


def test_what_is_remembered_of_a_table_that_differs_everywhere_is_bounded() -> None:
    CUTS[9] = [bytes([n]) for n in range(1, 200)]
    lab = Lab()
    lab.wishes = [VerifyWish("f", INTERVAL_S, repair=False, spans=((Span(9), "shop", "t"),))]
    lab.check.check = lambda span, piece, stop: TableVerdict("shop.t", 0, missing=1)  # type: ignore[method-assign]
    for _ in range(60):
        shown = lab.round()["shop.t"]
    assert shown["missing"] == PROBLEMS_MAX


def test_a_feed_that_wishes_it_no_more_is_forgotten() -> None:
    lab = Lab()
    lab.check.wrong = set(range(256))
    lab.round()
    lab.wishes = []
    lab.clock.advance(INTERVAL_S)
    assert not lab.schedule.scan()
    assert lab.schedule.view("f") is None
    assert not any("penstock_table_differences{" in line for line in render([lab.registry]).decode().splitlines())
