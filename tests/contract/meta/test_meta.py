"""The contract of the meta database: all-or-nothing creation, ownership, exactly-once windows, several processes at once."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import (
    NOBODY,
    Actor,
    FeedProgress,
    FeedRecord,
    ReachedState,
    RequestedState,
    RetryRecord,
)
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from testing.checks.meta_feeds import LEASE_MS, POSITION, claimed, make, refused, tables
from testing.twins.clock import SimulatedClock


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
        assert meta.find_feeds([*(feed.name for feed in created[1:]), "none"]) == created[1:]
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

    def test_a_failed_feed_is_resumed_once(self, meta: MetaDatabase) -> None:
        make(meta)
        meta.record_error("orders", claimed(meta), "SINK_UNWRITABLE", "no")
        assert meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
        found = meta.get_feed("orders")
        assert (found.reached_state, found.error_code, found.error_text) == (ReachedState.STOPPED, "", "")
        assert not meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
        with refused("FEED_UNKNOWN"):
            meta.lives.request("nothing", RequestedState.RUNNING, NOBODY)


class TestOwnership:
    def test_live_lease_is_not_taken(self, meta: MetaDatabase) -> None:
        make(meta)
        assert meta.claim("orders", "a", LEASE_MS, 1_000) == 1
        assert meta.claim("orders", "b", LEASE_MS, 1_000 + LEASE_MS - 1) is None
        assert meta.claim("orders", "a", LEASE_MS, 2_000) == 1
        assert {t.owner for t in meta.feed_tables("orders")} == {"a"}

    def test_a_server_that_stands_still_keeps_no_lock_for_long(self, url: str) -> None:
        """The database itself ends a transaction in which nothing is said. SQLite is for one server."""
        asked = {"mysql": "SELECT @@idle_transaction_timeout", "postgresql": "SHOW idle_in_transaction_session_timeout"}
        question = next((text for kind, text in asked.items() if url.startswith(kind)), None)
        if question is not None:
            with MetaDatabase(url) as meta, meta._engine.read() as connection:
                assert connection.execute(sa.text(question)).scalar() in {60, "1min"}

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
