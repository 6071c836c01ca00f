"""A server says that it is there when that is due or has changed, and what it is told of the others."""

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.records import ServerState
from penstock.server.feeds.presence import Presence
from testing.twins.clock import SimulatedClock


def test_it_is_announced_when_due_or_changed(meta: MetaDatabase) -> None:
    clock = SimulatedClock()
    presence = Presence("here", meta, clock, lease_s=30.0)
    assert not presence.is_told
    presence.announce_if_due("http://one", lambda: True)
    presence.announce_if_due("http://two", lambda: False)
    assert [(s.owner, s.url, s.state) for s in presence.servers] == [("here", "http://one", ServerState.ACTIVE)]
    presence.changed()
    presence.announce_if_due("http://two", lambda: False)
    assert [(s.url, s.state) for s in presence.servers] == [("http://two", ServerState.DRAINING)]
    clock.advance(10.0)
    presence.announce_if_due("http://three", lambda: True)
    assert [s.url for s in presence.servers] == ["http://three"]


def test_a_copy_of_its_directory_is_told_once(meta: MetaDatabase, caplog: pytest.LogCaptureFixture) -> None:
    mine, copy = (Presence(f"host-1~{process}", meta, SimulatedClock(), lease_s=30.0) for process in "ab")
    for presence in (mine, copy, mine, copy):
        presence.changed()
        presence.announce_if_due("http://x", lambda: True)
    assert caplog.text.count("works in a copy of this data directory") == 2
