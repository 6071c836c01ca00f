"""What the API asks about a feed is answered by the feed's source, and honestly where that is not open here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config.server_tree import ServerConfig
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.meta.table_states import TableCondition, TableState, TableStates
from penstock.model.errors import PenstockError
from penstock.server.feeds.creation import FeedDocument
from penstock.server.source_address import SourcePlace, source_name
from penstock.server.sources.feed_answers import FeedAnswers
from testing.twins.captured_sources import ScriptedSources, unreachable
from testing.twins.clock import SimulatedClock

SHOP, CRM = SourcePlace("shop", "mysql://u:hunter2@shop"), SourcePlace("crm", "postgres://crm/crm")


class Lab:
    """Two sources with a feed each, and a feed of a third one."""

    def __init__(self, directory: Path) -> None:
        self.clock = SimulatedClock()
        self.config = ServerConfig(data_dir=directory)
        self.meta = MetaDatabase(self.config.effective_meta_url, self.clock)
        self.scripted = ScriptedSources([SHOP, CRM], self.clock)
        self.answers = FeedAnswers(self.scripted.sources, self.meta, self.config, self.clock)
        for name, uri in (("orders", SHOP.uri), ("people", CRM.uri), ("foreign", "mysql://elsewhere")):
            document = FeedDocument(config={"tables": ["d.*"]}, source=uri, dispatchers=(), snapshot_ts=0)
            self.meta.create_feed(FeedRecord(name, name, document.to_json()), [])

    def close(self) -> None:
        """Close everything."""
        self.answers.close()
        self.meta.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with closing(Lab(tmp_path)) as opened:
        yield opened


def test_the_source_of_a_feed_answers(lab: Lab) -> None:
    for place, feed in ((SHOP, "orders"), (CRM, "people")):
        lab.scripted.sources.begin(place.uri)
        assert lab.answers.verify(feed).checkpoint_ts == len(feed)
        assert lab.answers.progress(feed) == [f"{place.name}: {feed}"]
        assert lab.answers.verification(feed) == {"source": place.name, "feed": feed}
        assert lab.answers.doubted(lab.meta.get_feed(feed)) is None, "a scripted source has none"


def test_nothing_is_opened_to_answer_and_the_reason_is_told(lab: Lab) -> None:
    with pytest.raises(PenstockError, match="no feed of the source shop runs on this server"):
        lab.answers.verify("orders")
    with pytest.raises(PenstockError, match="this server does not capture the source of feed foreign"):
        lab.answers.verify("foreign")
    assert lab.scripted.attempts == []
    lab.scripted.fail("shop", [unreachable("shop")])
    with pytest.raises(PenstockError):
        lab.scripted.sources.begin(SHOP.uri)
    with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
        lab.answers.verify("orders")
    assert (lab.answers.progress("orders"), lab.answers.verification("orders")) == (None, None)
    assert (lab.answers.progress("foreign"), lab.answers.verification("foreign")) == (None, None)
    foreign = lab.answers.doubted(lab.meta.get_feed("foreign"))
    assert foreign is not None
    assert foreign.states() == []
    with pytest.raises(PenstockError, match="this server does not capture the source of feed foreign"):
        foreign.look_again()


def test_doubts_of_a_source_that_is_not_open_are_shown_and_not_settled(lab: Lab) -> None:
    with closing(TableStates(lab.config.effective_meta_url, source_name(SHOP.uri), lab.clock)) as states:
        states.open(TableState(7, "d", "t", TableCondition.DOUBTFUL, "a rewrite", doubt_ts=1))
    doubted = lab.answers.doubted(lab.meta.get_feed("orders"))
    other = lab.answers.doubted(lab.meta.get_feed("people"))
    assert doubted is not None
    assert other is not None
    assert ([s.table_id for s in doubted.states()], other.states(), doubted.progress(7)) == ([7], [], None)
    for ask in (lambda: doubted.resnapshot(7, "d", "t"), lambda: doubted.exclude(7, "d", "t"), doubted.look_again):
        with pytest.raises(PenstockError, match="no feed of the source shop runs on this server"):
            ask()
    assert doubted.states()[0].state is TableCondition.DOUBTFUL
