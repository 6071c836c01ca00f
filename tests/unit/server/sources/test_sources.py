"""When sources begin and end, what one that cannot be opened does to the others, and which one a feed means."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from penstock.config.server_tree import ServerConfig, SourceConfig, SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.records import NOBODY, FeedRecord, ReachedState, RequestedState, ServerRecord
from penstock.model.errors import PenstockError
from penstock.server.feeds.creation import FeedDocument
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.metrics import SourceCollector
from penstock.server.source_address import SourcePlace
from penstock.server.sources.sources import SourcedRuns, captured_elsewhere, needed_sources, places_of
from testing.servers.waiting import wait_until
from testing.twins.captured_sources import ScriptedSources, unreachable
from testing.twins.clock import SimulatedClock

DEFAULT, SHOP, CRM = (
    SourcePlace("", "dataserver://own:1"),
    SourcePlace("shop", "mysql://u:hunter2@shop"),
    SourcePlace("crm", "postgres://crm/crm"),
)
SETTINGS = SupervisorSettings(lease_s=9, scan_interval_s=1, backoff_s=1, backoff_max_s=4)


@pytest.fixture
def scripted(clock: SimulatedClock) -> ScriptedSources:
    return ScriptedSources([DEFAULT, SHOP, CRM], clock)


class Server:
    """A supervisor over scripted sources, driven by ``scan``."""

    def __init__(self, owner: str, meta: MetaDatabase, scripted: ScriptedSources, clock: SimulatedClock) -> None:
        self.meta, self.sources = meta, scripted.sources
        one_log = {place.uri for place in self.sources.places if place.has_one_log}
        self.supervisor = Supervisor(
            owner,
            meta,
            SourcedRuns(self.sources),
            SETTINGS,
            clock,
            random.Random(0),
            source_of=self.sources.uri_of,
            together=one_log.__contains__,
        )
        self.sources.follow(
            lambda: needed_sources(self.sources, meta.list_feeds(), owner, self.supervisor.keeps),
            lambda uri: captured_elsewhere(self.sources, meta.list_feeds(), self.supervisor.servers, owner, uri),
        )

    def scan(self) -> None:
        """Look at the feeds, then at the sources."""
        self.supervisor.scan()
        self.sources.end_unneeded()


@pytest.fixture
def server(meta: MetaDatabase, scripted: ScriptedSources, clock: SimulatedClock) -> Iterator[Server]:
    made = Server("a", meta, scripted, clock)
    yield made
    made.supervisor.stop()


def eventually(what: str, condition: Callable[[], bool]) -> None:
    wait_until(condition, what, 120)


def feed_of(name: str, place: SourcePlace) -> FeedRecord:
    return FeedRecord(name, name, FeedDocument(config={}, source=place.uri, dispatchers=(), snapshot_ts=0).to_json())


def create(meta: MetaDatabase, name: str, place: SourcePlace) -> None:
    meta.create_feed(feed_of(name, place), [])


def remove(server: Server, name: str) -> None:
    server.meta.lives.request(name, RequestedState.REMOVED, NOBODY)

    def gone() -> bool:
        server.scan()
        return name not in {feed.name for feed in server.meta.list_feeds()}

    eventually("the feed is gone", gone)


def test_a_source_begins_with_its_first_feed_and_ends_with_its_last(meta: MetaDatabase, scripted: ScriptedSources, server: Server) -> None:
    server.scan()
    assert scripted.attempts == []
    for name in ("one", "two"):
        create(meta, name, SHOP)
        server.scan()
        eventually("it runs", lambda name=name: meta.get_feed(name).reached_state is ReachedState.RUNNING)
    assert scripted.attempts == ["shop"]
    (shop,) = scripted.opened
    remove(server, "one")
    server.scan()
    assert (shop.closed, shop.runs.forgotten) == (0, ["one"])
    remove(server, "two")
    server.scan()
    assert (shop.closed, shop.runs.forgotten) == (1, ["one", "two"])
    create(meta, "three", SHOP)
    server.scan()
    eventually("it runs", lambda: meta.get_feed("three").reached_state is ReachedState.RUNNING)
    assert scripted.attempts == ["shop", "shop"]


def test_a_feed_that_moves_takes_its_source_with_it(
    meta: MetaDatabase, scripted: ScriptedSources, server: Server, clock: SimulatedClock
) -> None:
    create(meta, "one", SHOP)
    server.scan()
    eventually("it runs", lambda: meta.get_feed("one").reached_state is ReachedState.RUNNING)
    server.supervisor.drain(True)

    def released() -> bool:
        server.scan()
        return not meta.get_feed("one").owner

    eventually("it is released", released)
    server.scan()
    assert scripted.opened[0].closed == 0, "nobody has it yet, and this server may be the next"
    assert meta.claim("one", "b", 60_000) is not None
    server.scan()
    assert scripted.opened[0].closed == 0
    server.scan()
    assert (scripted.opened[0].closed, scripted.opened[0].runs.forgotten) == (1, [])


def test_a_log_that_another_server_reads_is_not_read_here_for_a_new_feed(
    meta: MetaDatabase, scripted: ScriptedSources, server: Server, clock: SimulatedClock
) -> None:
    meta.announce(ServerRecord("b", "https://b:8300"), 60_000)
    for name, place in (("one", SHOP), ("two", DEFAULT)):
        create(meta, name, place)
        assert meta.claim(name, "b", 60_000) is not None
    server.scan()
    with pytest.raises(PenstockError, match="source: shop is captured by the server https://b:8300"), scripted.sources.using(SHOP.uri):
        pass
    assert scripted.attempts == []
    # Ranges are shared, and nobody reads the other log.
    for place in (DEFAULT, CRM):
        with scripted.sources.using(place.uri):
            pass
    assert scripted.attempts == ["", "crm"]
    # One that is open here and stands by is the other server's as well; what is read here is used.
    scripted.sources.begin(SHOP.uri)
    with scripted.sources.using(SHOP.uri):
        scripted.opened[-1].stands_by = True
    with pytest.raises(PenstockError, match="source: shop is captured by the server https://b:8300"), scripted.sources.using(SHOP.uri):
        pass


def test_a_source_that_cannot_be_opened_stops_its_own_feeds_only(
    meta: MetaDatabase, scripted: ScriptedSources, server: Server, clock: SimulatedClock
) -> None:
    scripted.fail("shop", [unreachable("shop"), RuntimeError("a driver's own error")])
    create(meta, "bad", SHOP)
    create(meta, "good", CRM)
    server.scan()
    eventually("the other runs", lambda: meta.get_feed("good").reached_state is ReachedState.RUNNING)
    eventually("it is tried again", lambda: meta.get_feed("bad").error_code == "UPSTREAM_UNREACHABLE")
    assert meta.get_feed("bad").reached_state is ReachedState.RETRYING
    looks = scripted.sources.looks()
    assert sorted(looks) == ["store", "store:crm", "store:shop", "upstream", "upstream:crm", "upstream:shop"]
    assert [looks[f"upstream:{name}"]().ok for name in ("shop", "crm")] == [False, True]
    assert "shop does not answer" in looks["upstream:shop"]().detail

    def runs() -> bool:
        clock.advance(1)
        return meta.get_feed("bad").reached_state is ReachedState.RUNNING

    eventually("its source is there", runs)
    assert scripted.attempts.count("shop") == 3
    assert looks["upstream:shop"]().ok
    assert [source.closed for source in scripted.opened] == [0, 0]


def test_many_feeds_of_a_source_that_is_away_try_it_once(scripted: ScriptedSources, clock: SimulatedClock) -> None:
    scripted.fail("shop", [unreachable("shop"), unreachable("shop")])
    for _ in range(10):
        with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
            scripted.sources.begin(SHOP.uri)
    assert scripted.attempts == ["shop"]
    clock.advance(5)
    with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
        scripted.sources.begin(SHOP.uri)
    clock.advance(5)
    assert scripted.sources.begin(SHOP.uri) is scripted.opened[0]
    assert scripted.sources.failure(SHOP.uri) is None


def test_what_the_source_without_a_name_meets_reaches_who_starts_the_server(scripted: ScriptedSources) -> None:
    scripted.fail("", [RuntimeError("as it is")])
    with pytest.raises(RuntimeError, match="as it is"):
        scripted.sources.begin(DEFAULT.uri)


def test_a_failure_is_forgotten_with_the_feeds_that_it_met(scripted: ScriptedSources) -> None:
    scripted.fail("shop", [unreachable("shop")])
    with pytest.raises(PenstockError):
        scripted.sources.begin(SHOP.uri)
    scripted.sources.end_unneeded()
    assert not scripted.sources.looks()["upstream:shop"]().ok
    scripted.sources.follow(set, lambda _: "")
    scripted.sources.end_unneeded()
    assert scripted.sources.looks()["upstream:shop"]().ok


def test_who_uses_a_source_keeps_it_and_the_one_without_a_name_stays(scripted: ScriptedSources) -> None:
    scripted.sources.follow(set, lambda _: "")
    scripted.sources.begin(DEFAULT.uri)
    with scripted.sources.using(SHOP.uri) as shop:
        scripted.sources.end_unneeded()
        assert scripted.sources.opened(SHOP.uri) is shop
    for _ in range(2):
        scripted.sources.end_unneeded()
    assert [(s.place.name, s.closed) for s in scripted.opened] == [("", 0), ("shop", 1)]
    assert not scripted.opened[0].stands_by, "ranges are shared"


def test_the_log_of_a_source_without_a_name_is_left_to_other_servers_where_no_feed_is_here(clock: SimulatedClock) -> None:
    place = SourcePlace("", SHOP.uri)
    scripted = ScriptedSources([place], clock)
    source = scripted.sources.begin(place.uri)
    for needed, stands_by in (({place.uri}, False), (set(), True)):
        scripted.sources.follow(lambda needed=needed: needed, lambda _: "")
        for _ in range(2):
            scripted.sources.end_unneeded()
        assert source.stands_by == stands_by
    source.begin()
    scripted.sources.follow(lambda: {place.uri}, lambda _: "")
    scripted.sources.end_unneeded()
    assert (source.stands_by, scripted.opened[0].closed) == (False, 0)


def test_all_end_in_the_reverse_order_and_none_begins_afterwards(scripted: ScriptedSources) -> None:
    ended: list[str] = []
    for place in (CRM, DEFAULT, SHOP):
        source = scripted.sources.begin(place.uri)
        source.close = lambda name=place.name: ended.append(name)  # type: ignore[attr-defined,method-assign,misc]
    scripted.sources.close()
    assert ended == ["shop", "", "crm"]
    with pytest.raises(PenstockError, match="CANCELLED"):
        scripted.sources.begin(CRM.uri)


def test_a_feed_of_an_unreachable_source_can_be_removed(meta: MetaDatabase, scripted: ScriptedSources, server: Server) -> None:
    scripted.fail("shop", [unreachable("shop")] * 9)
    create(meta, "bad", SHOP)
    server.scan()
    eventually("it failed", lambda: bool(meta.get_feed("bad").error_code))
    remove(server, "bad")
    server.scan()
    assert scripted.sources.failure(SHOP.uri) is None


def test_which_source_a_feed_means(scripted: ScriptedSources, clock: SimulatedClock) -> None:
    choose = scripted.sources.choose
    assert [choose(given) for given in (None, "shop", "postgres://crm/crm/", "dataserver://own:1")] == [
        DEFAULT.uri,
        SHOP.uri,
        CRM.uri,
        DEFAULT.uri,
    ]
    with pytest.raises(PenstockError, match=r"source: this server captures dataserver://own:1, shop, crm, not 'shap'; did you mean shop\?"):
        choose("shap")
    with pytest.raises(PenstockError, match=r"source: is required, because this server captures shop, crm"):
        ScriptedSources([SHOP, CRM], clock).sources.choose(None)


def test_a_source_is_named_once() -> None:
    sources = {"shop": SourceConfig("mysql://u@shop", 8302), "crm": SourceConfig("postgres://crm/crm")}
    places = places_of(ServerConfig("dataserver://own:1", flight_port=8301, sources=sources))
    assert [(p.name, p.flight_port, p.has_one_log) for p in places] == [("", 8301, False), ("shop", 8302, True), ("crm", 0, True)]
    assert "mysql" not in repr(places)
    with pytest.raises(PenstockError, match=r"sources.shop: is the same as source"):
        places_of(ServerConfig("mariadb://other@shop:3306", sources=sources))


def test_metrics_of_several_sources_are_one_family(scripted: ScriptedSources) -> None:
    for place in (DEFAULT, SHOP):
        scripted.sources.begin(place.uri)
    (family,) = SourceCollector(scripted.sources.registries).collect()
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples] == [
        ("opened", {}, 1),
        ("opened", {"source": "shop"}, 1),
    ]


def test_a_log_whose_server_another_one_shadows_is_read_all_the_same(meta: MetaDatabase, clock: SimulatedClock) -> None:
    """Whoever is first by name shall have the feeds of a log; where it has no such source, nobody had them."""
    first = Server("a", meta, ScriptedSources([CRM], clock), clock)
    second = Server("b", meta, ScriptedSources([SHOP], clock), clock)
    create(meta, "one", SHOP)
    for _ in range(2 * round(SETTINGS.lease_s)):
        for server in (first, second):
            server.scan()
        clock.advance(1)
    assert meta.get_feed("one").owner == "b"
    for server in (first, second):
        server.supervisor.stop()
