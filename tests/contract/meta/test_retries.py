"""The contract of retries: since when a feed is tried again, and when next."""

from __future__ import annotations

from penstock.meta.database import MetaDatabase
from penstock.meta.records import (
    NOBODY,
    ReachedState,
    RequestedState,
    RetryRecord,
)
from testing.checks.meta_feeds import claimed, make


def test_a_feed_that_is_tried_again_says_since_when_and_when_next(meta: MetaDatabase) -> None:
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
