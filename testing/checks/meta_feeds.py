"""Feeds in a meta database, as its contract suites make and claim them. For tests only."""

from __future__ import annotations

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord, SubscribeRecord
from penstock.model.errors import PenstockError

LEASE_MS = 10_000
POSITION = {"100/2026-11-15": 3}


def tables(feed: str, *names: str) -> list[SubscribeRecord]:
    """Return subscriptions to tables, with ids from 100 on."""
    return [SubscribeRecord("shop", name, feed, table_id=100 + i, sink="s3://bucket/x") for i, name in enumerate(names)]


def make(meta: MetaDatabase, name: str = "orders", checkpoint_ts: int = 0) -> FeedRecord:
    """Create a feed of two tables."""
    return meta.create_feed(FeedRecord(name, f"uuid-{name}", "{}", checkpoint_ts=checkpoint_ts), tables(name, "orders", "items"))


def claimed(meta: MetaDatabase, owner: str = "a", now_ms: int = 1_000, name: str = "orders") -> int:
    """Take the lease of a feed; return its epoch."""
    epoch = meta.claim(name, owner, LEASE_MS, now_ms)
    assert epoch is not None
    return epoch


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    """Expect an error with a code."""
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)
