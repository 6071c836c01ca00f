"""The contract of the life of a feed: what is asked of it, what it reached, who did it."""

from __future__ import annotations

import itertools
import threading

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.records import (
    NOBODY,
    Actor,
    FeedRecord,
    ReachedState,
    RequestedState,
)
from penstock.model.errors import PenstockError
from testing.checks.meta_feeds import POSITION, claimed, make, refused, tables


def test_what_is_asked_and_what_is_reached_have_their_entries(meta: MetaDatabase) -> None:
    meta.create_feed(FeedRecord("orders", "u", "{}"), tables("orders", "orders"), actor=Actor("ada"))
    epoch = claimed(meta)
    meta.lives.reach("orders", epoch, ReachedState.CREATED, ReachedState.RUNNING)
    assert meta.lives.request("orders", RequestedState.PAUSED, Actor("ada", "the lake moves"))
    assert not meta.lives.request("orders", RequestedState.PAUSED, Actor("bob"))
    assert meta.get_feed("orders").reached_state is ReachedState.RUNNING, "its run may still be under way"
    assert meta.lives.rest("orders", epoch) is ReachedState.PAUSED
    assert meta.lives.rest("orders", epoch) is ReachedState.PAUSED
    assert meta.release("orders", "a", epoch)
    assert meta.lives.request("orders", RequestedState.RUNNING, Actor("bob"))
    assert meta.lives.request("orders", RequestedState.PAUSED, Actor("bob"))
    assert meta.get_feed("orders").reached_state is ReachedState.PAUSED, "nobody has it, so nothing runs"
    meta.lives.request("orders", RequestedState.REMOVED, Actor("bob", "not needed"))
    meta.remove_feed("orders")
    entries = meta.lives.history("orders")
    assert [(e.by, e.what, e.why, e.old, e.new) for e in entries] == [
        ("ada", "create", "", "", "running"),
        ("a", "state", "", "running, created", "running, running"),
        ("ada", "pause", "the lake moves", "running, running", "paused, running"),
        ("a", "state", "", "paused, running", "paused, paused"),
        ("bob", "resume", "", "paused, paused", "running, stopped"),
        ("bob", "pause", "", "running, stopped", "paused, paused"),
        ("bob", "remove", "not needed", "paused, paused", "removed, paused"),
        ("", "state", "", "paused", "gone"),
    ]
    assert [e.seq for e in entries] == list(range(1, 9))
    assert all(0 < first.at_ms <= second.at_ms for first, second in itertools.pairwise(entries))
    make(meta)
    assert [e.what for e in meta.lives.history("orders")][-1] == "create", "who had the name before is still known"
    with refused("FEED_UNKNOWN"):
        meta.lives.history("nothing")


@pytest.mark.parametrize(
    ("asked", "refuses"),
    [
        (RequestedState.RUNNING, ()),
        (RequestedState.PAUSED, ()),
        (RequestedState.CANCELLED, (RequestedState.RUNNING, RequestedState.PAUSED)),
        (RequestedState.REMOVED, (RequestedState.RUNNING, RequestedState.PAUSED, RequestedState.CANCELLED)),
    ],
)
def test_what_ended_for_good_is_not_asked_for_again(meta: MetaDatabase, asked: RequestedState, refuses: tuple[RequestedState, ...]) -> None:
    make(meta)
    meta.lives.request("orders", asked, NOBODY)
    before = meta.get_feed("orders")
    for wanted in refuses:
        with refused("FEED_ENDED"):
            meta.lives.request("orders", wanted, NOBODY)
    assert meta.get_feed("orders") == before
    assert not meta.lives.request("orders", asked, NOBODY)


@pytest.mark.parametrize("asked", [RequestedState.PAUSED, RequestedState.CANCELLED])
def test_a_feed_that_shall_not_run_moves_no_progress(meta: MetaDatabase, asked: RequestedState) -> None:
    make(meta)
    epoch = claimed(meta)
    meta.begin_window("orders", epoch, 0, 10, "{}")
    meta.commit_window("orders", epoch, 0, 10, {"100-0": POSITION})
    recorded = meta.begin_window("orders", epoch, 10, 20, "{}")
    meta.lives.request("orders", asked, NOBODY)
    before = meta.progress("orders")
    calls = [
        lambda: meta.commit_window("orders", epoch, 10, 20, {"100-0": {"x": 4}}),
        lambda: meta.begin_window("orders", epoch, 10, 20, "{}"),
        lambda: meta.begin_resnapshot("orders", epoch, 10, 30, "{}"),
    ]
    for call in calls:
        with refused("FEED_PAUSED"):
            call()
    assert (meta.progress("orders"), meta.pending_window("orders")) == (before, recorded)
    assert not meta.commit_window("orders", epoch, 0, 10, {}), "what was committed before stays so"
    if asked is RequestedState.PAUSED:
        meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
        assert meta.commit_window("orders", epoch, 10, 20, {})


def test_progress_stands_still_from_the_answer_to_a_pause_on(meta: MetaDatabase) -> None:
    make(meta)
    epoch, moving, ended = claimed(meta), threading.Event(), []

    def deliver() -> None:
        try:
            for ts in range(10_000):
                meta.begin_window("orders", epoch, ts, ts + 1, "{}")
                meta.commit_window("orders", epoch, ts, ts + 1, {})
                moving.set()
        except PenstockError as error:
            ended.append(error.code)

    worker = threading.Thread(target=deliver)
    worker.start()
    assert moving.wait(60)
    meta.lives.request("orders", RequestedState.PAUSED, NOBODY)
    told = meta.progress("orders")
    worker.join(60)
    assert (ended, meta.progress("orders")) == (["FEED_PAUSED"], told)


def test_a_configuration_changes_by_compare_and_set_and_everybody_sees_it(meta: MetaDatabase, url: str) -> None:
    made = make(meta)
    epoch = claimed(meta)
    with MetaDatabase(url) as other:
        assert [f.config for f in other.list_feeds()] == ["{}"]
        held = meta.get_feed("orders")
        assert meta.change_config(held, '{"a": 1}', "alter", Actor("ada"), "old", "new") == 0
        assert meta.change_config(held, '{"a": 2}', "alter", Actor("bob"), "old", "new") is None
        assert [f.config for f in other.list_feeds()] == [meta.get_feed("orders").config] == ['{"a": 1}']
    found = meta.get_feed("orders")
    assert (found.config_version, found.owner, found.uuid) == (held.config_version + 1, "", made.uuid)
    with refused("FENCED"):
        meta.begin_window("orders", epoch, 0, 10, "{}")
    epoch = claimed(meta, "b", 2_000)
    meta.begin_window("orders", epoch, 0, 10, "{}")
    assert meta.change_config(meta.get_feed("orders"), '{"a": 3}', "alter", NOBODY, "", "") == 10, "the window is finished before"
    epoch = claimed(meta, "b", 3_000)
    with refused("WINDOW_OUT_OF_ORDER"):
        meta.adopt_config("orders", epoch, 0, '{"a": 4}', [])
    meta.commit_window("orders", epoch, 0, 10, {})
    meta.adopt_config("orders", epoch, 10, '{"a": 4}', [])
    assert meta.get_feed("orders").config == '{"a": 4}'
    meta.lives.request("orders", RequestedState.CANCELLED, NOBODY)
    with refused("FEED_ENDED"):
        meta.change_config(meta.get_feed("orders"), "{}", "alter", NOBODY, "", "")
    entries = [(e.by, e.what, e.new) for e in meta.lives.history("orders")]
    assert entries[1:4] == [
        ("ada", "alter", "new, from ts 0 on"),
        ("", "alter", ", from ts 10 on"),
        ("b", "altered", "holds from ts 10 on"),
    ]
