"""A replicated meta database whose primary is lost: who is connected goes on at the other, and lost commits are noticed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import MetaSettings
from penstock.meta.records import FeedRecord, SubscribeRecord
from penstock.model.errors import PenstockError
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from testing.servers.databases.replicated import Replicated, replicated
from testing.servers.sparkless_server import SparklessServer
from testing.servers.waiting import wait_until

pytestmark = pytest.mark.integration
LEASE_MS = 600_000
SETTINGS = MetaSettings(busy_timeout_s=5.0)
WAIT_S = 120


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicated]:
    with replicated(getattr(request, "param", "mariadb"), tmp_path / "servers") as running:
        yield running


def begun(meta: MetaDatabase) -> int:
    """Make a feed, own it, and have its first window committed and the second one on record."""
    meta.create_feed(FeedRecord("f", "u", "{}"), [SubscribeRecord("d", "t", "", 1)])
    epoch = meta.claim("f", "me", LEASE_MS)
    assert epoch is not None
    meta.begin_window("f", epoch, 0, 10, "{}")
    assert meta.commit_window("f", epoch, 0, 10, {"1-0": {"x": 1}})
    meta.begin_window("f", epoch, 10, 20, "{}")
    return epoch


def code_of(meta: MetaDatabase) -> str:
    try:
        meta.checkpoint_ts("f")
    except PenstockError as error:
        return error.code
    return ""


@pytest.mark.parametrize("pair", ["postgres"], indirect=True)
def test_whoever_held_a_lease_goes_on_at_the_promoted_replica(pair: Replicated) -> None:
    with MetaDatabase(pair.url, settings=SETTINGS) as meta:
        epoch = begun(meta)
        before = meta.get_feed("f")
        pair.catch_up()
        pair.kill(0)
        # A replica that nobody promoted takes no part.
        assert code_of(meta) == "META_UNAVAILABLE"
        pair.promote()
        wait_until(lambda: code_of(meta) == "", "the replica is the primary", WAIT_S)
        assert meta.get_feed("f") == before
        assert meta.commit_window("f", epoch, 10, 20, {"1-0": {"x": 2}})
        assert meta.renew("me", {"f": epoch}, LEASE_MS) == set()
        assert meta.claim("f", "other", LEASE_MS) is None


def test_a_primary_that_lost_commits_or_comes_back_is_noticed(pair: Replicated) -> None:
    with MetaDatabase(pair.url, settings=SETTINGS) as meta:
        epoch = begun(meta)
        pair.catch_up()
        # Read-only under open connections: those are not used any more.
        pair.asked(0, "SET GLOBAL read_only = 1")
        assert code_of(meta) == "META_UNAVAILABLE"
        pair.promote()
        assert code_of(meta) == ""
        assert meta.commit_window("f", epoch, 10, 20, {"1-0": {"x": 2}})
        # The former primary takes writes again, and lacks that commit.
        pair.asked(0, "SET GLOBAL read_only = 0")
        with pytest.raises(PenstockError, match="both take writes") as split:
            MetaDatabase(pair.url, settings=SETTINGS)
        assert split.value.code == "META_DIVERGED"
        assert meta.checkpoint_ts("f") == 20, "whoever is connected stays"
        pair.kill(1)
        assert code_of(meta) == "META_DIVERGED"
        with pytest.raises(PenstockError, match="lacks commits"):
            meta.begin_window("f", epoch, 20, 30, "{}")
    # Nothing was written there by who knew more, and whoever knows nothing finds what is there.
    with MetaDatabase(pair.url, settings=SETTINGS) as fresh:
        assert fresh.checkpoint_ts("f") == 10


def test_feeds_go_on_when_the_primary_is_killed(pair: Replicated, tmp_path: Path) -> None:
    with contextlib.ExitStack() as parts:
        lab = parts.enter_context(DataServer(DataServerSettings(resolved_interval_ms=50)))
        upstream = parts.enter_context(DataServerUpstream(lab.uri))
        upstream.execute_ddl("CREATE DATABASE d")
        upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v INT)")
        table = upstream.table("d", "t")

        def put(first: int) -> int:
            with upstream.txn() as txn:
                txn.put(table, {"id": pa.array(range(first, first + 50), pa.int64()), "v": pa.array([first] * 50)})
            return upstream.current_ts()

        (tmp_path / "data").mkdir()
        (tmp_path / "out").mkdir()
        server = parts.enter_context(SparklessServer(tmp_path / "data", "a", {"lab": lab.uri}, meta_url=pair.url))
        sink = {"uri": (tmp_path / "out").as_uri()}
        server.create_feed({"name": "f", "source": "lab", "tables": ["d.*"], "sink": sink, "flush-interval": "200ms"})

        def delivered(ts: int) -> bool:
            try:
                return server.meta.checkpoint_ts("f") >= ts
            except PenstockError as error:
                if error.code != "META_UNAVAILABLE":
                    raise
                return False

        first = put(0)
        wait_until(lambda: delivered(first), "the feed delivers", WAIT_S)
        # What is acknowledged is on the replica, as with semi-synchronous replication.
        with pair.standing_still():
            pair.kill(0)
        meanwhile = put(1_000)
        pair.promote()
        wait_until(lambda: delivered(meanwhile), "the feed goes on", WAIT_S)
        put(2_000)
        last = put(3_000)
        wait_until(lambda: delivered(last), "the feed goes on", WAIT_S)
        verdict = server.verify("f")
        assert verdict.identical
        assert verdict.rows == 200
