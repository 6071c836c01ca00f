"""The contract of the meta database: all-or-nothing creation, ownership, exactly-once windows, several processes at once."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import (
    NOBODY,
    Actor,
    Counted,
    DispatcherRecord,
    FeedProgress,
    FeedRecord,
    ReachedState,
    RequestedState,
    RetryRecord,
    ServerRecord,
    ServerState,
    SubscribeRecord,
    TableProgress,
)
from penstock.meta.tables import feed_audit
from penstock.meta.transactions.audit import ENTRIES_MAX, GONE_MS_MAX
from penstock.model.clock import SystemClock
from penstock.model.errors import ErrorKind, PenstockError
from testing.twins.clock import SimulatedClock

LEASE_MS = 10_000
POSITION = {"100/2026-11-15": 3}


@pytest.fixture
def meta(url: str) -> Iterator[MetaDatabase]:
    with MetaDatabase(url) as database:
        yield database


def tables(feed: str, *names: str) -> list[SubscribeRecord]:
    return [SubscribeRecord("shop", name, feed, table_id=100 + i, sink="s3://bucket/x") for i, name in enumerate(names)]


def make(meta: MetaDatabase, name: str = "orders", checkpoint_ts: int = 0) -> FeedRecord:
    return meta.create_feed(FeedRecord(name, f"uuid-{name}", "{}", checkpoint_ts=checkpoint_ts), tables(name, "orders", "items"))


def claimed(meta: MetaDatabase, owner: str = "a", now_ms: int = 1_000, name: str = "orders") -> int:
    epoch = meta.claim(name, owner, LEASE_MS, now_ms)
    assert epoch is not None
    return epoch


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


class TestFeeds:
    @pytest.mark.parametrize("name", ["a\0b", "orders\0", "\ud800", "\U0001f600", "x" * 5_000])
    def test_a_name_that_no_feed_has_is_unknown_whatever_it_is_made_of(self, meta: MetaDatabase, name: str) -> None:
        make(meta)
        for ask in (meta.get_feed, lambda n: meta.lives.request(n, RequestedState.PAUSED, NOBODY), meta.lives.history):
            with refused("FEED_UNKNOWN"):
                ask(name)

    def test_whatever_a_reason_or_an_error_is_made_of_it_is_kept(self, meta: MetaDatabase) -> None:
        make(meta)
        meta.lives.request("orders", RequestedState.PAUSED, Actor("me", "a\0b\ud800c"))
        assert [entry.why for entry in meta.lives.history("orders")][-1] == "a\ufffdb?c"

    def test_created_feed_is_read_back(self, meta: MetaDatabase) -> None:
        created = make(meta)
        assert meta.get_feed("orders") == created
        assert created.requested_state is RequestedState.RUNNING
        assert created.reached_state is ReachedState.CREATED
        assert created.created_ms > 0
        assert [(t.db_name, t.table_name, t.table_id) for t in meta.feed_tables("orders")] == [
            ("shop", "items", 101),
            ("shop", "orders", 100),
        ]

    def test_second_feed_of_a_name_changes_nothing(self, meta: MetaDatabase) -> None:
        created = make(meta)
        with refused("FEED_EXISTS"):
            meta.create_feed(FeedRecord("orders", "other", "{}"), tables("orders", "more"))
        assert meta.list_feeds() == [created]
        assert {t.table_name for t in meta.feed_tables("orders")} == {"orders", "items"}

    def test_names_that_differ_in_case_are_different_names(self, meta: MetaDatabase) -> None:
        created = [make(meta, name) for name in ("Orders", "orders")]
        assert meta.list_feeds() == created
        meta.remove_feed("orders")
        assert meta.list_feeds() == created[:1]
        meta.create_feed(FeedRecord("ü😀", "u", '{"of": "ü😀"}'), tables("ü😀", "Items", "items", "ITÉMS"))
        assert meta.get_feed("ü😀").config == '{"of": "ü😀"}'
        assert {t.table_name for t in meta.feed_tables("ü😀")} == {"Items", "items", "ITÉMS"}

    def test_a_read_sees_one_state(self, meta: MetaDatabase) -> None:
        make(meta)
        with meta._engine.read() as connection:
            count = sa.text("SELECT COUNT(*) FROM feed")
            before = connection.execute(count).scalar()
            make(meta, "other")
            assert connection.execute(count).scalar() == before == 1
        assert len(meta.list_feeds()) == 2

    def test_creation_is_all_or_nothing(self, meta: MetaDatabase) -> None:
        with pytest.raises(PenstockError):
            meta.create_feed(FeedRecord("orders", "u", "{}"), tables("orders", "orders", "orders"))
        assert meta.list_feeds() == []
        assert meta.feed_tables("orders") == []

    def test_removed_feed_leaves_nothing(self, meta: MetaDatabase) -> None:
        make(meta)
        make(meta, "other")
        epoch = claimed(meta)
        meta.begin_window("orders", epoch, 0, 10, "{}")
        meta.commit_window("orders", epoch, 0, 10, {"100-0": POSITION})
        meta.begin_window("orders", epoch, 10, 20, "{}")
        meta.remove_feed("orders")
        assert [f.name for f in meta.list_feeds()] == ["other"]
        assert meta.feed_tables("orders") == []
        assert meta.pending_window("orders") is None
        for call in (meta.get_feed, meta.progress, meta.remove_feed):
            with refused("FEED_UNKNOWN"):
                call("orders")
        make(meta)
        assert meta.progress("orders") == FeedProgress(0, {})

    def test_states_change_by_compare_and_set(self, meta: MetaDatabase) -> None:
        make(meta)
        epoch = claimed(meta)
        assert meta.lives.reach("orders", epoch, ReachedState.CREATED, ReachedState.RUNNING)
        assert not meta.lives.reach("orders", epoch, ReachedState.CREATED, ReachedState.STOPPED)
        assert meta.get_feed("orders").reached_state is ReachedState.RUNNING
        assert meta.lives.request("orders", RequestedState.REMOVED, NOBODY)
        assert not meta.lives.request("orders", RequestedState.REMOVED, NOBODY)
        assert all(t.cancel == 1 for t in meta.feed_tables("orders"))

    def test_running_clears_the_error(self, meta: MetaDatabase) -> None:
        make(meta)
        epoch = claimed(meta)
        meta.record_error("orders", epoch, "SINK_UNAVAILABLE", "no answer", RetryRecord(5_000, 6_000, 1))
        found = meta.get_feed("orders")
        assert (found.reached_state, found.error_code, found.error_text) == (ReachedState.RETRYING, "SINK_UNAVAILABLE", "no answer")
        assert meta.lives.reach("orders", epoch, ReachedState.RETRYING, ReachedState.RUNNING)
        assert meta.get_feed("orders").error_code == ""
        assert meta.retries() == {}

    def test_a_feed_that_is_tried_again_says_since_when_and_when_next(self, meta: MetaDatabase) -> None:
        make(meta)
        epoch = claimed(meta)
        meta.record_error("orders", epoch, "SINK_UNAVAILABLE", "no answer", RetryRecord(5_000, 6_000, 1))
        for _ in range(2):
            # Twice the same, which MySQL must not take for a row that is not there.
            meta.record_error("orders", epoch, "SINK_UNAVAILABLE", "no answer", RetryRecord(7_000, 9_000, 2))
        assert meta.retries() == {"orders": RetryRecord(5_000, 9_000, 2)}
        assert not meta.lives.request("orders", RequestedState.RUNNING, NOBODY), "it has not failed for good"
        meta.record_error("orders", epoch, "SINK_UNWRITABLE", "no")
        assert (meta.get_feed("orders").reached_state, meta.retries()) == (ReachedState.FAILED, {})

    def test_a_failed_feed_is_resumed_once(self, meta: MetaDatabase) -> None:
        make(meta)
        meta.record_error("orders", claimed(meta), "SINK_UNWRITABLE", "no")
        assert meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
        found = meta.get_feed("orders")
        assert (found.reached_state, found.error_code, found.error_text) == (ReachedState.STOPPED, "", "")
        assert not meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
        with refused("FEED_UNKNOWN"):
            meta.lives.request("nothing", RequestedState.RUNNING, NOBODY)


class TestLives:
    def test_what_is_asked_and_what_is_reached_have_their_entries(self, meta: MetaDatabase) -> None:
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
    def test_what_ended_for_good_is_not_asked_for_again(
        self, meta: MetaDatabase, asked: RequestedState, refuses: tuple[RequestedState, ...]
    ) -> None:
        make(meta)
        meta.lives.request("orders", asked, NOBODY)
        before = meta.get_feed("orders")
        for wanted in refuses:
            with refused("FEED_ENDED"):
                meta.lives.request("orders", wanted, NOBODY)
        assert meta.get_feed("orders") == before
        assert not meta.lives.request("orders", asked, NOBODY)

    @pytest.mark.parametrize("asked", [RequestedState.PAUSED, RequestedState.CANCELLED])
    def test_a_feed_that_shall_not_run_moves_no_progress(self, meta: MetaDatabase, asked: RequestedState) -> None:
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

    def test_progress_stands_still_from_the_answer_to_a_pause_on(self, meta: MetaDatabase) -> None:
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

    def test_a_configuration_changes_by_compare_and_set_and_everybody_sees_it(self, meta: MetaDatabase, url: str) -> None:
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

    def test_so_many_entries_are_kept(self, tmp_path: Path) -> None:
        clock = SimulatedClock()
        with MetaDatabase(sqlite_url(tmp_path / "meta.db"), clock) as meta:
            make(meta)
            make(meta, "gone")
            make(meta, "other")
            with meta._engine.write() as connection:
                row = {"feed": "orders", "at_ms": 1, "changed_by": "", "what": "state", "why": "", "old": "", "new": ""}
                connection.execute(feed_audit.insert(), [row | {"seq": seq} for seq in range(2, ENTRIES_MAX + 1)])
            for wanted in (RequestedState.PAUSED, RequestedState.RUNNING):
                meta.lives.request("orders", wanted, NOBODY)
            kept = meta.lives.history("orders")
            assert [e.seq for e in kept] == list(range(3, ENTRIES_MAX + 3))
            assert [e.what for e in kept[-2:]] == ["pause", "resume"]
            meta.remove_feed("gone")
            assert meta.lives.history("gone")
            clock.advance(GONE_MS_MAX / 1000 + 1)
            meta.remove_feed("other")
            with refused("FEED_UNKNOWN"):
                meta.lives.history("gone")
            assert len(meta.lives.history("orders")) == ENTRIES_MAX, "old entries of a feed that is there stay"
            assert [e.new for e in meta.lives.history("other")] == ["gone"]

    def test_a_database_of_the_first_version_is_brought_up(self, url: str) -> None:
        with MetaDatabase(url) as meta:
            made = make(meta)
            with meta._engine.write() as connection:
                added = {"feed": ("config_version", "wanted_owner"), "progress": ("rows_total", "nbytes_total", "files_total")}
                for table, column in ((table, column) for table, columns in added.items() for column in columns):
                    connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
                connection.exec_driver_sql("DROP TABLE feed_audit")
                connection.exec_driver_sql("UPDATE meta_version SET version = 1")
        for _ in range(2):
            with MetaDatabase(url) as meta:
                assert meta.get_feed("orders") == made
        with MetaDatabase(url) as meta:
            assert meta.lives.request("orders", RequestedState.PAUSED, Actor("ada"))
            assert [e.what for e in meta.lives.history("orders")] == ["pause"]
            make(meta, "new")


class TestServers:
    def test_servers_that_were_seen_within_a_lease_are_live(self, meta: MetaDatabase) -> None:
        meta.announce(ServerRecord("b", "http://b", ServerState.DRAINING), LEASE_MS)
        for _ in range(2):
            found = meta.announce(ServerRecord("a", "http://a"), LEASE_MS)
        assert [(s.owner, s.url, s.state) for s in found] == [
            ("a", "http://a", ServerState.ACTIVE),
            ("b", "http://b", ServerState.DRAINING),
        ]
        meta.withdraw("b")
        assert [s.owner for s in meta.announce(ServerRecord("a"), LEASE_MS)] == ["a"]
        assert meta.announce(ServerRecord("a"), -1) == [], "not seen since the future"


class TestOwnership:
    def test_live_lease_is_not_taken(self, meta: MetaDatabase) -> None:
        make(meta)
        assert meta.claim("orders", "a", LEASE_MS, 1_000) == 1
        assert meta.claim("orders", "b", LEASE_MS, 1_000 + LEASE_MS - 1) is None
        assert meta.claim("orders", "a", LEASE_MS, 2_000) == 1
        assert {t.owner for t in meta.feed_tables("orders")} == {"a"}

    def test_leases_run_by_the_database_not_by_the_clock_of_a_server(self, url: str) -> None:
        """A server whose clock is an hour ahead takes nothing that is held. SQLite is on one machine, which has one clock."""
        clock = SimulatedClock(SystemClock().now_ms() + (0 if url.startswith("sqlite") else 3_600_000))
        with MetaDatabase(url) as right, MetaDatabase(url, clock) as ahead:
            make(right)
            assert right.claim("orders", "a", 3_000_000) == 1
            assert ahead.claim("orders", "b", LEASE_MS) is None
            assert abs(right.get_feed("orders").lease_until_ms - SystemClock().now_ms() - 3_000_000) < 600_000

    def test_expired_lease_is_taken_with_a_larger_epoch(self, meta: MetaDatabase) -> None:
        make(meta)
        first = claimed(meta, "a", 1_000)
        assert meta.claim("orders", "b", LEASE_MS, 1_000 + LEASE_MS) == first + 1
        before = meta.get_feed("orders")
        assert meta.renew("a", {"orders": first}, LEASE_MS, 1_001 + LEASE_MS) == {"orders"}
        assert meta.get_feed("orders") == before
        assert before.owner == "b"

    def test_leases_are_renewed_together_and_only_those_that_are_held(self, meta: MetaDatabase) -> None:
        for name in ("held", "taken", "released"):
            make(meta, name)
        epochs = {name: claimed(meta, "a", 1_000, name) for name in ("held", "taken", "released")}
        assert meta.claim("taken", "b", LEASE_MS, 1_000 + LEASE_MS) is not None
        assert meta.release("released", "a", epochs["released"])
        wrong = {"held": epochs["held"] - 1}
        assert meta.renew("a", wrong, LEASE_MS, 5_000) == {"held"}
        assert meta.renew("a", epochs | {"unknown": 1}, LEASE_MS, 60_000) == {"taken", "released", "unknown"}
        assert [meta.get_feed(name).lease_until_ms for name in ("held", "taken", "released")] == [
            60_000 + LEASE_MS,
            1_000 + 2 * LEASE_MS,
            0,
        ]
        assert meta.renew("a", {}, LEASE_MS, 60_000) == set()

    def test_expired_but_untaken_lease_can_be_renewed(self, meta: MetaDatabase) -> None:
        make(meta)
        epoch = claimed(meta, "a", 1_000)
        assert meta.renew("a", {"orders": epoch}, LEASE_MS, 50_000) == set()
        assert meta.claim("orders", "b", LEASE_MS, 50_001) is None

    def test_released_lease_is_free_and_fences(self, meta: MetaDatabase) -> None:
        make(meta)
        epoch = claimed(meta, "a", 1_000)
        assert meta.release("orders", "a", epoch)
        assert not meta.release("orders", "a", epoch)
        with refused("FENCED"):
            meta.begin_window("orders", epoch, 0, 10, "{}")
        assert meta.claim("orders", "b", LEASE_MS, 1_001) == epoch + 1

    def test_unknown_feed_cannot_be_claimed(self, meta: MetaDatabase) -> None:
        assert meta.claim("nothing", "a", LEASE_MS, 1_000) is None

    def test_owner_of_a_removed_feed_stays_fenced_when_the_name_comes_back(self, meta: MetaDatabase) -> None:
        make(meta)
        old = claimed(meta, "a")
        meta.remove_feed("orders")
        assert meta.renew("a", {"orders": old}, LEASE_MS, 2_000) == {"orders"}
        make(meta)
        new = claimed(meta, "b")
        assert new > old
        with refused("FENCED"):
            meta.begin_window("orders", old, 0, 10, "{}")


class TestWindows:
    def test_committed_window_moves_checkpoint_positions_and_totals(self, meta: MetaDatabase) -> None:
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

    def test_what_was_delivered_of_each_table_adds_up(self, meta: MetaDatabase) -> None:
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

    def test_replay_gets_the_recorded_end(self, meta: MetaDatabase) -> None:
        make(meta)
        first = claimed(meta, "a", 1_000)
        meta.begin_window("orders", first, 0, 10, '{"end":10}')
        second = claimed(meta, "b", 1_000 + LEASE_MS)
        again = meta.begin_window("orders", second, 0, 99, '{"end":99}')
        assert (again.from_ts, again.to_ts, again.plan, again.epoch) == (0, 10, '{"end":10}', second)
        assert meta.commit_window("orders", second, 0, 10, {})
        assert meta.progress("orders").checkpoint_ts == 10

    def test_commit_counts_once(self, meta: MetaDatabase) -> None:
        make(meta)
        epoch = claimed(meta)
        meta.begin_window("orders", epoch, 0, 10, "{}")
        assert meta.commit_window("orders", epoch, 0, 10, {"100-0": POSITION}, rows=5)
        assert not meta.commit_window("orders", epoch, 0, 10, {"100-0": {"k": 1}}, rows=5)
        assert meta.progress("orders") == FeedProgress(10, {"100-0": POSITION}, windows=1, rows=5)

    @pytest.mark.parametrize("from_ts", [0, 9, 11])
    def test_window_must_start_at_the_checkpoint(self, meta: MetaDatabase, from_ts: int) -> None:
        make(meta, checkpoint_ts=10)
        with refused("WINDOW_OUT_OF_ORDER"):
            meta.begin_window("orders", claimed(meta), from_ts, 20, "{}")
        assert meta.pending_window("orders") is None

    def test_empty_window_is_refused(self, meta: MetaDatabase) -> None:
        make(meta, checkpoint_ts=10)
        with pytest.raises(PenstockError) as caught:
            meta.begin_window("orders", claimed(meta), 10, 10, "{}")
        assert caught.value.kind is ErrorKind.BUG

    @pytest.mark.parametrize("window", [(0, 11), (1, 20)])
    def test_only_the_recorded_window_is_committed(self, meta: MetaDatabase, window: tuple[int, int]) -> None:
        make(meta)
        epoch = claimed(meta)
        meta.begin_window("orders", epoch, 0, 10, "{}")
        with refused("WINDOW_OUT_OF_ORDER"):
            meta.commit_window("orders", epoch, *window, {"100-0": POSITION})
        assert meta.progress("orders") == FeedProgress(0, {})

    def test_lost_owner_changes_nothing(self, meta: MetaDatabase) -> None:
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

    def test_thousand_dispatchers(self, meta: MetaDatabase) -> None:
        make(meta)
        epoch = claimed(meta)
        expected: dict[str, dict[str, int]] = {}
        for number in (1, 2):
            meta.begin_window("orders", epoch, number - 1, number, "{}")
            changed = {f"{i}-0": {"n": number} for i in range(1_000) if number == 1 or i % 3 == 0}
            assert meta.commit_window("orders", epoch, number - 1, number, changed)
            expected |= changed
        assert meta.progress("orders").positions == expected


RACER = """
import json, sys
from penstock.meta.database import MetaDatabase
from penstock.model.errors import PenstockError

owner, url, lease_ms = sys.argv[1], sys.argv[2], 1
committed, fenced = 0, 0
print("ready", flush=True)
sys.stdin.readline()
with MetaDatabase(url) as meta:
    for attempt in range(5_000):
        if committed == 25:
            break
        epoch = meta.claim("orders", owner, lease_ms)
        if epoch is None:
            continue
        try:
            start = meta.progress("orders").checkpoint_ts
            window = meta.begin_window("orders", epoch, start, start + 1 + attempt % 3, owner)
            committed += meta.commit_window("orders", epoch, window.from_ts, window.to_ts, {"100-0": {"end": window.to_ts}}, rows=1)
        except PenstockError as error:
            assert error.code in {"FENCED", "WINDOW_OUT_OF_ORDER"}, error
            fenced += 1
print(json.dumps({"committed": committed, "fenced": fenced}))
"""


class TestProcesses:
    def test_racing_owners_commit_each_window_once(self, meta: MetaDatabase, url: str) -> None:
        make(meta)
        racers = [
            subprocess.Popen([sys.executable, "-c", RACER, name, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for name in ("a", "b")
        ]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        results = []
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for racer in racers:
            out, _ = racer.communicate(timeout=300)
            assert racer.returncode == 0
            results.append(json.loads(out))
        found = meta.progress("orders")
        assert found.rows == found.windows == sum(r["committed"] for r in results)
        assert [r["committed"] for r in results] == [25, 25]
        assert found.positions == {"100-0": {"end": found.checkpoint_ts}}

    def test_a_new_database_is_opened_by_many_threads_at_once(self, url: str) -> None:
        start, errors = threading.Barrier(6), []

        def open_it(number: int) -> None:
            start.wait()
            try:
                with MetaDatabase(url) as database:
                    database.create_feed(FeedRecord(f"f{number}", "u", "{}"), [])
            except PenstockError as error:
                errors.append(error)

        threads = [threading.Thread(target=open_it, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert errors == []
        with MetaDatabase(url) as database:
            assert [f.name for f in database.list_feeds()] == [f"f{n}" for n in range(6)]


def test_a_new_file_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself would refuse to switch the file to its write-ahead log at once."""
    path = tmp_path / "meta.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as plain, pytest.raises(sqlite3.OperationalError):
            plain.execute("PRAGMA journal_mode=WAL")
        letting_go = threading.Timer(0.2, other.execute, ("COMMIT",))
        letting_go.start()
        with MetaDatabase(sqlite_url(path)) as database:
            assert database.list_feeds() == []
        letting_go.join()


def dispatcher(table_id: int, name: str, begin_ts: int = 0, end_ts: int = 0) -> DispatcherRecord:
    return DispatcherRecord(f"{table_id}-0", table_id, "shop", name, f'{{"of": "{name}"}}', begin_ts, end_ts)


class TestDispatchers:
    """Which dispatchers there are moves with progress, and is known as of any checkpoint."""

    FIRST = (dispatcher(100, "orders"), dispatcher(101, "items"))

    def committed(self, meta: MetaDatabase, epoch: int, from_ts: int, to_ts: int, after: list[DispatcherRecord] | None) -> None:
        meta.begin_window("orders", epoch, from_ts, to_ts, "{}")
        meta.commit_window("orders", epoch, from_ts, to_ts, {"100-0": POSITION, "101-0": POSITION}, followers=after)

    def test_they_follow_a_commit_and_stay_as_they_were_before(self, meta: MetaDatabase) -> None:
        meta.create_feed(FeedRecord("orders", "u", "{}", checkpoint_ts=5), tables("orders", "orders", "items"), self.FIRST)
        epoch = claimed(meta)
        assert meta.dispatchers("orders") == list(self.FIRST)
        self.committed(meta, epoch, 5, 10, None)
        assert set(meta.progress("orders").positions) == {"100-0", "101-0"}
        truncated = [dispatcher(101, "items"), dispatcher(200, "orders", 20)]
        self.committed(meta, epoch, 10, 20, truncated)
        assert meta.dispatchers("orders") == truncated
        assert meta.dispatchers("orders", 19) == [dispatcher(100, "orders", 0, 20), dispatcher(101, "items")]
        # Where an ended one stood is forgotten, or one that begins again under its id would go on there.
        assert set(meta.progress("orders").positions) == {"101-0"}
        assert {(t.table_name, t.table_id) for t in meta.feed_tables("orders")} == {("items", 101), ("orders", 200)}
        renamed = [dispatcher(101, "things"), dispatcher(200, "orders", 20)]
        self.committed(meta, epoch, 20, 30, renamed)
        assert meta.dispatchers("orders") == renamed
        self.committed(meta, epoch, 30, 40, [])
        assert meta.dispatchers("orders") == []
        assert meta.dispatchers("orders", 39) == [msgspec.structs.replace(d, end_ts=40) for d in renamed]

    def test_a_fenced_owner_changes_none(self, meta: MetaDatabase) -> None:
        meta.create_feed(FeedRecord("orders", "u", "{}", checkpoint_ts=5), [], self.FIRST)
        old = claimed(meta)
        meta.begin_window("orders", old, 5, 10, "{}")
        meta.check_owner("orders", old)
        new = meta.claim("orders", "b", LEASE_MS, 1_000 + 2 * LEASE_MS)
        with refused("FENCED"):
            meta.commit_window("orders", old, 5, 10, {}, followers=[])
        with refused("FENCED"):
            meta.check_owner("orders", old)
        assert meta.dispatchers("orders") == list(self.FIRST)
        meta.check_owner("orders", new or 0)

    def test_a_feed_from_before_has_none_on_record_until_they_change(self, meta: MetaDatabase) -> None:
        make(meta, checkpoint_ts=5)
        epoch = claimed(meta)
        assert meta.dispatchers("orders") is None
        self.committed(meta, epoch, 5, 10, [dispatcher(101, "items"), dispatcher(100, "orders", 0, 10)])
        assert meta.dispatchers("orders") == [dispatcher(101, "items")]
        assert meta.dispatchers("orders", 9) == [dispatcher(100, "orders", 0, 10), dispatcher(101, "items")]
        meta.remove_feed("orders")
        assert meta.dispatchers("orders") is None
