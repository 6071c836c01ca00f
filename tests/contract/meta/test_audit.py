"""The contract of the audit: so many entries of a feed are kept, and those of one that is gone for a while."""

from __future__ import annotations

from pathlib import Path

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import (
    NOBODY,
    RequestedState,
)
from penstock.meta.tables import feed_audit
from penstock.meta.transactions.audit import ENTRIES_MAX, GONE_MS_MAX
from testing.checks.meta_feeds import make, refused
from testing.twins.clock import SimulatedClock


def test_so_many_entries_are_kept(tmp_path: Path) -> None:
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
