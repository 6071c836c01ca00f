"""What was made at a PostgreSQL server for capture is given back with the last feed, and made anew by the next one."""

import threading

import msgspec
import pytest

from penstock.feed.window.following import to_record
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.server.feeds.runs import SparkFeedRunFactory
from penstock.sink.contract import DispatcherId
from penstock.store.contract import EndOfRange
from penstock.store.flight.address import FlightAddress
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.postgres_lab import PostgresLab

pytestmark = pytest.mark.integration


@pytest.fixture
def lab(tmp_path):
    lab = PostgresLab(tmp_path / "server")
    lab.sql("CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t VALUES (1, 'a')")
    yield lab
    lab.stop()


def left(lab):
    return (lab.sql("SELECT slot_name FROM pg_replication_slots WHERE NOT temporary"), lab.sql("SELECT pubname FROM pg_publication"))


def test_the_last_feed_takes_slot_and_publication_with_it_and_a_new_one_begins_again(lab, tmp_path):
    (tmp_path / "feed").mkdir()
    path = OneLogPath(tmp_path / "feed", lab.uri, ["shop.*"])
    path.begin()
    path.drain()
    assert left(lab) == ([("penstock",)], [("penstock",)])
    address = FlightAddress("", "")
    factory = SparkFeedRunFactory(None, path.meta, path.meta_url, path.upstream, lab.uri, path.log, path.store, address, lambda _: None)
    # Another feed of this source is still there.
    other = FeedRecord("other", "u2", f'{{"source": "{lab.uri}", "dispatchers": [], "config": {{}}, "snapshot_ts": 0}}')
    elsewhere = msgspec.structs.replace(path.dispatchers[0], id=DispatcherId(7, 0, 1), span=Span(7), table="elsewhere")
    path.meta.create_feed(other, [], [to_record(elsewhere)])
    for table_id in (7, 8):
        path.log.doubt_table(table_id, "shop", f"t{table_id}", "a rewrite")
    path.meta.remove_feed("f")
    factory.forget(FeedRecord("f", "u", "{}"))
    assert left(lab) == ([("penstock",)], [("penstock",)])
    assert [s.table_id for s in path.log.table_states()] == [7], "a table that another server captures for the other feed"
    path.meta.remove_feed("other")
    factory.forget(other)
    assert (left(lab), path.log.table_states()) == (([], []), [])
    path.upstream.release()
    # Whoever captures again finds the log gone, begins at its end, and misses nothing from there on.
    path.meta.create_feed(FeedRecord("f", "u", "{}"), [], [])
    path.wait_until("the slot is missed", path.capture.purged)
    lab.sql("INSERT INTO shop.t VALUES (2, 'b')")
    path.capture.begin(path.dispatchers)
    assert left(lab) == ([("penstock",)], [("penstock",)])
    lab.sql("INSERT INTO shop.t VALUES (3, 'c')")
    span = path.dispatchers[0].span
    settled_ts = path.log.settled_ts()
    path.wait_until("the span is captured", lambda: path.store.resolved_ts(span.span_id) >= settled_ts)
    handle, rows = path.store.collect_changes(span.span_id, 0, settled_ts), []
    while not isinstance(step := handle.next(), EndOfRange):
        rows += [number for batch in step.data for number in batch.records.column("c1").to_pylist()]
    handle.close()
    assert sorted(rows) == [1, 2, 3]
    path.close()


def test_a_publication_that_was_given_stays(lab):
    lab.sql("CREATE PUBLICATION given FOR TABLE shop.t")
    upstream = lab.upstream("?slot=mine&publication=given")
    start = upstream.first_position()
    reading = upstream.read_log(start, [], lambda _: True, threading.Event())
    next(reading)
    releasing = threading.Thread(target=upstream.release)
    releasing.start()
    with pytest.raises(PenstockError, match="LOG_PURGED"):
        for _ in reading:
            pass
    releasing.join()
    assert left(lab) == ([], [("given",)])
    upstream.close()
