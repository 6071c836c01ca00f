"""The contract of windows: recorded first, committed once, by the owner alone."""

from __future__ import annotations

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.records import (
    Counted,
    DispatcherRecord,
    FeedProgress,
    FeedRecord,
    ReachedState,
    TableProgress,
)
from penstock.model.errors import ErrorKind, PenstockError
from testing.checks.meta_feeds import LEASE_MS, POSITION, claimed, make, refused, tables


def test_committed_window_moves_checkpoint_positions_and_totals(meta: MetaDatabase) -> None:
    make(meta)
    epoch = claimed(meta)
    begun = meta.begin_window("orders", epoch, 0, 10, '{"p":1}')
    assert meta.pending_window("orders") == begun
    assert meta.commit_window("orders", epoch, 0, 10, {"100-0": POSITION, "101-0": {}}, rows=7, nbytes=70, files=2)
    assert meta.pending_window("orders") is None
    assert meta.progress("orders") == FeedProgress(10, {"100-0": POSITION, "101-0": {}}, windows=1, rows=7, nbytes=70, files=2)

    meta.begin_window("orders", epoch, 10, 25, "{}")
    assert meta.commit_window("orders", epoch, 10, 25, {"100-0": {"k": 9}, "999-1": {"n": 1}}, rows=1, nbytes=5, files=1)
    expected = {"100-0": {"k": 9}, "101-0": {}, "999-1": {"n": 1}}
    assert meta.progress("orders") == FeedProgress(25, expected, windows=2, rows=8, nbytes=75, files=3)
    assert meta.get_feed("orders").checkpoint_ts == 25


def test_what_was_delivered_of_each_table_adds_up(meta: MetaDatabase) -> None:
    records = [DispatcherRecord(f"{t}-{i}", t, "shop", f"t{t}", "{}") for t, i in ((100, 0), (100, 1), (101, 0))]
    meta.create_feed(FeedRecord("orders", "u", "{}"), tables("orders", "orders", "items"), records)
    meta.create_feed(FeedRecord("other", "u", "{}"), [], records[2:])
    epoch = claimed(meta)
    delivered = [{"100-0": Counted(1, 10, 1), "100-1": Counted(2, 20, 1)}, {"100-1": Counted(4, 40, 2)}, {"101-0": Counted()}]
    for at, counts in enumerate(delivered):
        meta.begin_window("orders", epoch, at, at + 1, "{}")
        meta.commit_window("orders", epoch, at, at + 1, {name: {"n": at} for name in counts}, counts=counts)
    found = [
        TableProgress("orders", 100, "shop", "t100", Counted(7, 70, 4), 2),
        TableProgress("orders", 101, "shop", "t101", Counted(), 3),
    ]
    assert meta.table_progress("orders") == meta.table_progress() == found
    assert meta.table_progress("other") == []


def test_replay_gets_the_recorded_end(meta: MetaDatabase) -> None:
    make(meta)
    first = claimed(meta, "a", 1_000)
    meta.begin_window("orders", first, 0, 10, '{"end":10}')
    second = claimed(meta, "b", 1_000 + LEASE_MS)
    again = meta.begin_window("orders", second, 0, 99, '{"end":99}')
    assert (again.from_ts, again.to_ts, again.plan, again.epoch) == (0, 10, '{"end":10}', second)
    assert meta.commit_window("orders", second, 0, 10, {})
    assert meta.progress("orders").checkpoint_ts == 10


def test_commit_counts_once(meta: MetaDatabase) -> None:
    make(meta)
    epoch = claimed(meta)
    meta.begin_window("orders", epoch, 0, 10, "{}")
    assert meta.commit_window("orders", epoch, 0, 10, {"100-0": POSITION}, rows=5)
    assert not meta.commit_window("orders", epoch, 0, 10, {"100-0": {"k": 1}}, rows=5)
    assert meta.progress("orders") == FeedProgress(10, {"100-0": POSITION}, windows=1, rows=5)


@pytest.mark.parametrize("from_ts", [0, 9, 11])
def test_window_must_start_at_the_checkpoint(meta: MetaDatabase, from_ts: int) -> None:
    make(meta, checkpoint_ts=10)
    with refused("WINDOW_OUT_OF_ORDER"):
        meta.begin_window("orders", claimed(meta), from_ts, 20, "{}")
    assert meta.pending_window("orders") is None


def test_empty_window_is_refused(meta: MetaDatabase) -> None:
    make(meta, checkpoint_ts=10)
    with pytest.raises(PenstockError) as caught:
        meta.begin_window("orders", claimed(meta), 10, 10, "{}")
    assert caught.value.kind is ErrorKind.BUG


@pytest.mark.parametrize("window", [(0, 11), (1, 20)])
def test_only_the_recorded_window_is_committed(meta: MetaDatabase, window: tuple[int, int]) -> None:
    make(meta)
    epoch = claimed(meta)
    meta.begin_window("orders", epoch, 0, 10, "{}")
    with refused("WINDOW_OUT_OF_ORDER"):
        meta.commit_window("orders", epoch, *window, {"100-0": POSITION})
    assert meta.progress("orders") == FeedProgress(0, {})


def test_lost_owner_changes_nothing(meta: MetaDatabase) -> None:
    make(meta)
    old = claimed(meta, "a", 1_000)
    meta.begin_window("orders", old, 0, 10, "{}")
    new = claimed(meta, "b", 1_000 + LEASE_MS)
    before = (meta.get_feed("orders"), meta.progress("orders"), meta.pending_window("orders"))
    calls = [
        lambda: meta.begin_window("orders", old, 0, 10, "{}"),
        lambda: meta.commit_window("orders", old, 0, 10, {"100-0": POSITION}),
        lambda: meta.record_error("orders", old, "INTERNAL", "x"),
        lambda: meta.lives.reach("orders", old, ReachedState.CREATED, ReachedState.RUNNING),
        lambda: meta.lives.rest("orders", old),
    ]
    for call in calls:
        with refused("FENCED"):
            call()
    assert (meta.get_feed("orders"), meta.progress("orders"), meta.pending_window("orders")) == before
    assert meta.commit_window("orders", new, 0, 10, {})


def test_thousand_dispatchers(meta: MetaDatabase) -> None:
    make(meta)
    epoch = claimed(meta)
    expected: dict[str, dict[str, int]] = {}
    for number in (1, 2):
        meta.begin_window("orders", epoch, number - 1, number, "{}")
        changed = {f"{i}-0": {"n": number} for i in range(1_000) if number == 1 or i % 3 == 0}
        assert meta.commit_window("orders", epoch, number - 1, number, changed)
        expected |= changed
    assert meta.progress("orders").positions == expected
