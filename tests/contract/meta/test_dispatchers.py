"""The contract of dispatchers: which there are moves with progress, and is known as of any checkpoint."""

from __future__ import annotations

import msgspec

from penstock.meta.database import MetaDatabase
from penstock.meta.records import (
    DispatcherRecord,
    FeedRecord,
)
from testing.checks.meta_feeds import LEASE_MS, POSITION, claimed, make, refused, tables


def dispatcher(table_id: int, name: str, begin_ts: int = 0, end_ts: int = 0) -> DispatcherRecord:
    return DispatcherRecord(f"{table_id}-0", table_id, "shop", name, f'{{"of": "{name}"}}', begin_ts, end_ts)


FIRST = (dispatcher(100, "orders"), dispatcher(101, "items"))


def committed(meta: MetaDatabase, epoch: int, from_ts: int, to_ts: int, after: list[DispatcherRecord] | None) -> None:
    meta.begin_window("orders", epoch, from_ts, to_ts, "{}")
    meta.commit_window("orders", epoch, from_ts, to_ts, {"100-0": POSITION, "101-0": POSITION}, followers=after)


def test_they_follow_a_commit_and_stay_as_they_were_before(meta: MetaDatabase) -> None:
    meta.create_feed(FeedRecord("orders", "u", "{}", checkpoint_ts=5), tables("orders", "orders", "items"), FIRST)
    epoch = claimed(meta)
    assert meta.dispatchers("orders") == list(FIRST)
    committed(meta, epoch, 5, 10, None)
    assert set(meta.progress("orders").positions) == {"100-0", "101-0"}
    truncated = [dispatcher(101, "items"), dispatcher(200, "orders", 20)]
    committed(meta, epoch, 10, 20, truncated)
    assert meta.dispatchers("orders") == truncated
    assert meta.dispatchers("orders", 19) == [dispatcher(100, "orders", 0, 20), dispatcher(101, "items")]
    # Where an ended one stood is forgotten, or one that begins again under its id would go on there.
    assert set(meta.progress("orders").positions) == {"101-0"}
    assert {(t.table_name, t.table_id) for t in meta.feed_tables("orders")} == {("items", 101), ("orders", 200)}
    renamed = [dispatcher(101, "things"), dispatcher(200, "orders", 20)]
    committed(meta, epoch, 20, 30, renamed)
    assert meta.dispatchers("orders") == renamed
    committed(meta, epoch, 30, 40, [])
    assert meta.dispatchers("orders") == []
    assert meta.dispatchers("orders", 39) == [msgspec.structs.replace(d, end_ts=40) for d in renamed]


def test_a_fenced_owner_changes_none(meta: MetaDatabase) -> None:
    meta.create_feed(FeedRecord("orders", "u", "{}", checkpoint_ts=5), [], FIRST)
    old = claimed(meta)
    meta.begin_window("orders", old, 5, 10, "{}")
    meta.check_owner("orders", old)
    new = meta.claim("orders", "b", LEASE_MS, 1_000 + 2 * LEASE_MS)
    with refused("FENCED"):
        meta.commit_window("orders", old, 5, 10, {}, followers=[])
    with refused("FENCED"):
        meta.check_owner("orders", old)
    assert meta.dispatchers("orders") == list(FIRST)
    meta.check_owner("orders", new or 0)


def test_a_feed_from_before_has_none_on_record_until_they_change(meta: MetaDatabase) -> None:
    make(meta, checkpoint_ts=5)
    epoch = claimed(meta)
    assert meta.dispatchers("orders") is None
    committed(meta, epoch, 5, 10, [dispatcher(101, "items"), dispatcher(100, "orders", 0, 10)])
    assert meta.dispatchers("orders") == [dispatcher(101, "items")]
    assert meta.dispatchers("orders", 9) == [dispatcher(100, "orders", 0, 10), dispatcher(101, "items")]
    meta.remove_feed("orders")
    assert meta.dispatchers("orders") is None
