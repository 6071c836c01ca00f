from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.tree import SinkConfig
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.server.feeds.creation import FeedCreator, FeedDocument, match_tables
from penstock.server.source_address import SourcePlace
from penstock.server.sources.sources import Sources
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.target.storage import Guard
from testing.twins.captured_sources import ScriptedSources
from testing.twins.change_stream import ScriptedUpstream, named_tables

SOURCE = "dataserver://127.0.0.1:1"


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaDatabase]:
    with MetaDatabase(sqlite_url(tmp_path / "meta.db")) as database:
        yield database


@pytest.fixture
def upstream() -> ScriptedUpstream:
    return ScriptedUpstream(tables=named_tables("shop.orders", "shop.items", "crm.people"))


def sources(upstream: ScriptedUpstream) -> Sources:
    return ScriptedSources([SourcePlace("", SOURCE), SourcePlace("crm", "mysql://u:hunter2@crm")], SystemClock(), upstream).sources


def open_target(sink: SinkConfig, guard: Guard) -> SinkMaintainer:
    return open_maintainer(sink.uri, sink.options, guard)


@pytest.fixture
def creator(meta: MetaDatabase, upstream: ScriptedUpstream) -> FeedCreator:
    return FeedCreator(meta, sources(upstream), open_target)


def tree(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {"name": "orders", "tables": ["shop.*"], "sink": {"uri": (tmp_path / "out").as_uri()}} | changes


def test_created_feed_holds_what_was_decided(creator: FeedCreator, meta: MetaDatabase, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    record = creator.create(tree(tmp_path))
    document = FeedDocument.of(meta.get_feed("orders"))
    assert record.checkpoint_ts == 0
    assert document.snapshot_ts == upstream.current_ts()
    assert [(d.schema, d.table, d.id.table_id) for d in document.dispatchers] == [("shop", "orders", 100), ("shop", "items", 101)]
    assert document.feed_config().target.uri == (tmp_path / "out").as_uri()
    assert {t.table_name: t.table_id for t in meta.feed_tables("orders")} == {"orders": 100, "items": 101}
    assert (tmp_path / "out" / ".penstock" / "feed.json").exists()


def test_feed_that_starts_at_a_ts_has_no_snapshot(creator: FeedCreator, tmp_path: Path) -> None:
    record = creator.create(tree(tmp_path) | {"start-ts": 77})
    assert (record.checkpoint_ts, FeedDocument.of(record).snapshot_ts) == (77, 0)


def test_other_source_is_refused(creator: FeedCreator, tmp_path: Path) -> None:
    creator.create(tree(tmp_path, source=SOURCE + "/"))
    with pytest.raises(PenstockError, match="source: this server captures") as caught:
        creator.create(tree(tmp_path, name="b", source="dataserver://u:hunter2@elsewhere:1"))
    assert "hunter2" not in str(caught.value)
    with pytest.raises(PenstockError, match=f"source: this server captures {SOURCE}, crm, not 'cmr'; did you mean crm"):
        creator.create(tree(tmp_path, name="b", source="cmr"))


def test_a_feed_chooses_its_source_by_name(creator: FeedCreator, tmp_path: Path) -> None:
    document = FeedDocument.of(creator.create(tree(tmp_path, source="crm")))
    assert document.source == "mysql://u:hunter2@crm"
    assert document.config["source"] == "crm", "the configuration names it and holds no secret"


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"name": "b", "sink": {"uri": "OUT/inner"}}, "SINK_OCCUPIED", "lies in the target of feed orders"),
        ({"name": "b", "sink": {"uri": "OUT//shop/orders/"}}, "SINK_OCCUPIED", "lies in the target of feed orders"),
        ({"name": "b", "sink": {"uri": "OUT2"}, "start-ts": 1 << 60}, "CONFIG_INVALID", "start-ts: 1152921504606846976 is still to come"),
        ({"name": "b", "sink": {"uri": "OUT2"}, "until-ts": 1}, "CONFIG_INVALID", "until-ts: must be above"),
    ],
)
def test_what_could_not_be_delivered_is_refused(
    creator: FeedCreator, tmp_path: Path, changes: dict[str, Any], code: str, says: str
) -> None:
    out = (tmp_path / "out").as_uri()
    creator.create(tree(tmp_path))
    changes["sink"] = {"uri": changes["sink"]["uri"].replace("OUT", out)}
    with pytest.raises(PenstockError, match=says) as caught:
        creator.create(tree(tmp_path, **changes))
    assert caught.value.code == code
    # Beside it, though its name begins alike.
    assert creator.create(tree(tmp_path, name="c", sink={"uri": f"{out}2"})).name == "c"


def test_target_of_a_removed_feed_is_not_taken_again(creator: FeedCreator, meta: MetaDatabase, tmp_path: Path) -> None:
    creator.create(tree(tmp_path))
    meta.remove_feed("orders")
    with pytest.raises(PenstockError) as caught:
        creator.create(tree(tmp_path))
    assert caught.value.code == "SINK_OCCUPIED"
    assert meta.list_feeds() == []


class UnclaimableTarget:
    """A target that another feed takes between the check and the claim."""

    def check(self, feed: str) -> None:
        pass

    def claim(self, feed: str) -> None:
        raise PenstockError("SINK_OCCUPIED", "another was faster")


def test_feed_whose_target_cannot_be_claimed_is_removed_again(meta: MetaDatabase, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    creator = FeedCreator(meta, sources(upstream), lambda _sink, _guard: UnclaimableTarget())  # type: ignore[arg-type,return-value]
    with pytest.raises(PenstockError, match="another was faster"):
        creator.create(tree(tmp_path))
    assert meta.list_feeds() == []
    assert meta.feed_tables("orders") == []


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["shop.*"], ["shop.items", "shop.orders"]),
        (["shop.orders", "shop.*"], ["shop.items", "shop.orders"]),
        (["*.*"], ["crm.people", "shop.items", "shop.orders"]),
        (["SHOP.ord?rs"], ["shop.orders"]),
    ],
)
def test_patterns(upstream: ScriptedUpstream, patterns: list[str], expected: list[str]) -> None:
    assert [t.full_name for t in match_tables(patterns, upstream.list_tables())] == expected


def test_star_does_not_cross_the_dot(upstream: ScriptedUpstream) -> None:
    with pytest.raises(PenstockError):
        match_tables(["sh*rs.x"], upstream.list_tables())


def test_every_pattern_without_a_match_is_named(upstream: ScriptedUpstream) -> None:
    with pytest.raises(PenstockError) as caught:
        match_tables(["shop.oders", "crm.*", "zzz.*"], upstream.list_tables())
    assert caught.value.code == "TABLE_UNKNOWN"
    assert "'shop.oders' matches no table (near: shop.orders" in caught.value.detail
    assert "'zzz.*' matches no table (the source has 3 tables)" in caught.value.detail
    assert "crm" not in caught.value.detail
