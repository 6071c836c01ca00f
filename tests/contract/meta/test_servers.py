"""The contract of servers: which of them live, by the clock of the database."""

from __future__ import annotations

from penstock.meta.database import MetaDatabase
from penstock.meta.records import (
    ServerRecord,
    ServerState,
)
from testing.checks.meta_feeds import LEASE_MS


def test_servers_that_were_seen_within_a_lease_are_live(meta: MetaDatabase) -> None:
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
