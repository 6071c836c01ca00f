"""When files are cut: any rows, however divided and whatever the clock does, against the rules written row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sink.storage.cut_records import CutRecord
from penstock.sink.storage.encode.cut_policy import Answer, CutPolicy
from penstock.sink.storage.encode.flush_policy import FlushReason
from penstock.target.settings import Atomicity

FILE_SIZE, INTERVAL_S = 10, 5.0


@dataclass(frozen=True)
class Row:
    ts: int
    version: int
    date: str
    weight: int
    may_cut: bool


@dataclass
class Encoder:
    """Drives a policy as the encoder does, with rows that are chunks of their own."""

    policy: CutPolicy
    files: list[tuple[list[Row], FlushReason]] = field(default_factory=list)
    records: list[CutRecord] = field(default_factory=list)
    filling: list[Row] = field(default_factory=list)

    def add(self, rows: list[Row], now_s: float) -> None:
        while rows:
            ts = np.array([row.ts for row in rows], np.uint64)
            count = self.policy.rows_until_cut(ts)
            assert 0 <= count <= len(rows)
            if count == 0:
                self.cut_by_clock()
                continue
            self.policy.take(ts[:count])
            for row in rows[:count]:
                if (reason := self.policy.enter(row.version, row.date)) is not None:
                    self.cut(reason)
                self.filling.append(row)
                if self.policy.fills(row.weight, may_cut=row.may_cut):
                    self.cut(FlushReason.SIZE)
            rows = rows[count:]
            while self.policy.at_recorded_cut():
                self.cut_by_clock()
        if self.filling:
            self.policy.wait(now_s)

    def tick(self, now_s: float) -> Answer:
        answer = self.policy.ask(now_s)
        if answer is Answer.CUT:
            self.cut_by_clock()
        return answer

    def cut_by_clock(self) -> None:
        record = self.policy.cut_by_clock()
        if self.filling:
            self.records.append(record)
        self.cut(FlushReason.INTERVAL)

    def cut(self, reason: FlushReason) -> None:
        if self.filling:
            assert self.policy.cut() == len(self.files)
            self.files.append((self.filling, reason))
            self.filling = []


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    ts, version, day = 100, 1, 1
    for _ in range(draw(st.integers(1, 8))):
        ts += draw(st.integers(1, 3))
        version += draw(st.sampled_from([0, 0, 0, 1]))
        day += draw(st.sampled_from([0, 0, 0, 1]))
        weights = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
        rows += [Row(ts, version, f"{day}", weight, at == len(weights) - 1) for at, weight in enumerate(weights)]
    return rows


def divided(draw: st.DrawFn, rows: list[Row]) -> list[list[Row]]:
    ends = sorted(draw(st.sets(st.integers(0, len(rows)), max_size=6)) | {0, len(rows)})
    return [rows[start:end] for start, end in pairwise(ends)]


def policy(atomicity: Atomicity, recorded: tuple[CutRecord, ...] = ()) -> CutPolicy:
    return CutPolicy("7-0", INTERVAL_S, FILE_SIZE, atomicity, recorded)


def by_the_rules(rows: list[Row]) -> list[tuple[list[Row], FlushReason]]:
    """Cut where rows say so, one by one; what is left at the end stays out."""
    files: list[tuple[list[Row], FlushReason]] = []
    filling: list[Row] = []
    for row in rows:
        if filling and filling[-1].version != row.version:
            files.append((filling, FlushReason.DDL))
            filling = []
        elif filling and filling[-1].date != row.date:
            files.append((filling, FlushReason.DATE))
            filling = []
        filling = [*filling, row]
        if row.may_cut and sum(r.weight for r in filling) >= FILE_SIZE:
            files.append((filling, FlushReason.SIZE))
            filling = []
    return files


@settings(max_examples=300, deadline=None)
@given(st.data(), histories(), st.sampled_from(Atomicity))
def test_rows_alone_decide_while_the_clock_rests(data: st.DataObject, rows: list[Row], atomicity: Atomicity) -> None:
    encoder = Encoder(policy(atomicity))
    for part in divided(data.draw, rows):
        encoder.add(part, 0.0)
        assert encoder.tick(INTERVAL_S - 0.1) in {Answer.NOTHING, Answer.LATER}
    assert encoder.files == by_the_rules(rows)
    assert encoder.records == []


def run(draw: st.DrawFn, rows: list[Row], atomicity: Atomicity) -> Encoder:
    """Let a first attempt meet a clock that goes as it likes."""
    encoder, now_s = Encoder(policy(atomicity)), 0.0
    for part in divided(draw, rows):
        encoder.add(part, now_s)
        now_s += draw(st.sampled_from([0.0, 1.0, 7.0]))
        encoder.tick(now_s)
    encoder.cut(FlushReason.CLOSE)
    return encoder


@settings(max_examples=300, deadline=None)
@given(st.data(), histories(), st.sampled_from(Atomicity))
def test_a_replay_cuts_where_the_records_say_however_rows_are_divided(data: st.DataObject, rows: list[Row], atomicity: Atomicity) -> None:
    first = run(data.draw, rows, atomicity)
    assert [row for file, _ in first.files for row in file] == rows
    again, now_s, taken = Encoder(policy(atomicity, tuple(first.records))), 0.0, 0
    last = max((record.rows for record in first.records), default=0)
    for part in divided(data.draw, rows):
        again.add(part, now_s)
        taken += len(part)
        now_s += data.draw(st.sampled_from([0.0, 7.0]))
        if taken < last:
            # Records are still to come, so its own clock rests.
            assert again.tick(now_s) is not Answer.CUT
    again.cut(FlushReason.CLOSE)
    assert again.files == first.files
    assert again.records == first.records


@settings(max_examples=300, deadline=None)
@given(st.data(), histories())
def test_a_transaction_that_stays_whole_is_in_one_file(data: st.DataObject, rows: list[Row]) -> None:
    encoder = run(data.draw, rows, Atomicity.TABLE)
    for ts in {row.ts for row in rows}:
        assert sum(any(row.ts == ts for row in file) for file, _ in encoder.files) == 1


@pytest.mark.parametrize("atomicity", Atomicity)
def test_rows_wait_for_the_interval_and_no_longer(atomicity: Atomicity) -> None:
    encoder = Encoder(policy(atomicity))
    one = Row(1, 1, "", 1, True)
    encoder.add([one], 2.0)
    encoder.add([one], 6.0)
    assert encoder.tick(6.9) is Answer.LATER
    if atomicity is not Atomicity.TABLE:
        assert encoder.tick(7.0) is Answer.CUT
    else:
        assert encoder.tick(7.0) is Answer.MORE_ROWS
        encoder.add([one, Row(2, 1, "", 1, True)], 7.0)
    assert [len(file) for file, _ in encoder.files] == [3 if atomicity is Atomicity.TABLE else 2]
    assert encoder.records == [CutRecord(len(encoder.files[0][0]), 0)]


def test_after_its_first_cut_a_dispatcher_has_a_time_of_its_own() -> None:
    encoder, waited = Encoder(policy(Atomicity.NONE)), []
    for now_s in (0.0, 100.0, 200.0):
        encoder.add([Row(int(now_s), 1, "", 1, True)], now_s)
        waited.append(now_s - encoder.policy.since_s)
        assert encoder.tick(now_s + INTERVAL_S) is Answer.CUT
    assert waited[0] == waited[2] == 0.0
    assert 0.0 < waited[1] < INTERVAL_S


def test_a_file_that_was_cut_by_its_rows_is_not_cut_by_the_clock() -> None:
    encoder = Encoder(policy(Atomicity.NONE, (CutRecord(0, 0),)))
    encoder.add([Row(1, 1, "", 1, True)], 0.0)
    assert encoder.tick(50.0) is Answer.MORE_ROWS
    encoder.add([Row(1, 1, "", 9, True), Row(1, 1, "", 1, True)], 50.0)
    assert [reason for _, reason in encoder.files] == [FlushReason.SIZE]
    assert encoder.tick(60.0) is Answer.CUT
