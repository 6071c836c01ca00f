from __future__ import annotations

import socket

import pytest

from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.server.feeds.creation import FeedDocument
from penstock.server.source_address import SourceFeeds, SourcePlace, check_reachable, same_source


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


@pytest.mark.parametrize("uri", ["dataserver://", "dataserver://host", "dataserver://host:port", "dataserver://host:99999"])
def test_source_without_an_address(uri: str) -> None:
    with refused("CONFIG_INVALID"):
        check_reachable(uri)


def test_source_where_nothing_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        uri = f"dataserver://user:hunter2@127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(PenstockError) as caught:
            check_reachable(uri)
    assert caught.value.code == "UPSTREAM_UNREACHABLE"
    assert "hunter2" not in str(caught.value)


def feed_of(source: str) -> FeedRecord:
    return FeedRecord(source, "u", FeedDocument(config={}, source=source, dispatchers=(), snapshot_ts=0).to_json())


@pytest.mark.parametrize(
    ("source", "own"),
    [
        ("mysql://cdc:old@db:3306", True),
        ("mariadb://db", True),
        ("mysql://db/?x=y", True),
        ("mysql://db:3307", False),
        ("mysql://other", False),
        ("postgresql://db:3306/x", False),
    ],
)
def test_a_server_runs_the_feeds_of_its_source_only(source: str, own: bool) -> None:
    place = SourcePlace("", "mysql://cdc:new@db/")
    assert SourceFeeds([place]).place_of(feed_of(source)) == (place if own else None)
    assert same_source(source, "mysql://cdc:new@db/") is own, "pins, doubts and verification follow the same rule"


def test_databases_of_one_postgresql_server_are_sources_of_their_own() -> None:
    shop, crm = SourcePlace("", "postgres://db/shop"), SourcePlace("crm", "postgres://db/crm")
    feeds = SourceFeeds([shop, crm])
    assert [feeds.place_of(feed_of(f"postgresql://u@db:5432/{name}")) for name in ("shop", "crm", "other")] == [shop, crm, None]
