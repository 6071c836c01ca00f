"""Clusters that change under a feed: topics that grow or go, foreign producers of our names, registries that are none."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS
from penstock.model.table import TableSchema
from penstock.sink.contract import DispatcherWork, DmlEvent
from penstock.sink.kafka.clients import KafkaAddress
from penstock.sink.kafka.kind import KIND
from penstock.sink.kafka.maintainer import KafkaMaintainer
from penstock.sink.kafka.settings import KafkaSettings
from penstock.sink.kafka.sink import KafkaSink
from penstock.sink.kafka.transactions import KEPT
from testing.servers.kafka.broker import CUT, KafkaBroker
from testing.servers.kafka.consumer import read_topics
from testing.servers.kafka.partitions import Partition
from testing.servers.kafka.registry import schema_registry
from testing.servers.loopback import http_server
from testing.twins.clock import SimulatedClock
from tests.unit.sink.kafka.test_sink import RUN, T0, TABLE, TOPIC, WHOLE, Change, address_of, attempt, broker, life, rows_of, shared, told

__all__ = ["broker", "shared"]


def windows(count: int) -> list[tuple[list[Change], tuple[int, int]]]:
    """Return windows that follow each other, with the changes of each."""
    changes = life(40 * count)
    ends = [T0 + 40 * at for at in range(count + 1)]
    return [(changes[40 * at : 40 * at + 40], (ends[at], ends[at + 1])) for at in range(count)]


def test_a_topic_with_more_partitions_stops_the_feed_before_keys_move(broker: KafkaBroker) -> None:
    (first, one), (second, two), (third, three) = windows(3)
    attempt(address_of(broker), first, window=one)
    with broker.kept.lock:
        broker.kept.topics[TOPIC] += [Partition(), Partition()]
    for fresh in (False, True):
        if fresh:
            KEPT.close()
        with pytest.raises(PenstockError, match="5 partitions and had 3") as caught:
            attempt(address_of(broker), second, window=two)
        assert (caught.value.code, told(broker)) == ("SINK_UNWRITABLE", first)
    attempt(address_of(broker, "new-partitions=go-on"), second, window=two)
    # The new number is what counts from now on.
    attempt(address_of(broker), third, window=three)
    read = read_topics(broker.address, [TOPIC])
    assert len(read) == 120
    assert {r.partition for r in read} > {0, 1, 2}


def test_a_column_that_decides_on_partitions_and_goes_has_a_way_out(broker: KafkaBroker) -> None:
    (first, one), (second, two), (third, three) = windows(3)
    with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*shop\.orders has no column gone") as caught:
        attempt(address_of(broker, "partition-by=columns&partition-columns=gone"), first, window=one)
    attempt(address_of(broker, "partition-by=columns&partition-columns=note"), first, window=one)
    assert "sink.partition-by = key" in (caught.value.hint or "")
    assert {"partition_by", "partition_columns"} <= KafkaSettings.free_options
    with pytest.raises(PenstockError, match=rf"SINK_UNWRITABLE.*{TOPIC} are by key, and were by columns note"):
        attempt(address_of(broker), second, window=two)
    attempt(address_of(broker, "new-partitions=go-on"), second, window=two)
    attempt(address_of(broker), third, window=three)
    read = [r for r in read_topics(broker.address, [TOPIC]) if r.body["_tidb"]["commitTs"] > T0 + 40]
    assert len(read) == 80
    assert len({(r.key, r.partition) for r in read}) == len({r.key for r in read})


def test_a_topic_that_was_deleted_is_written_again_when_it_is_there(broker: KafkaBroker) -> None:
    (first, one), (second, two) = windows(2)
    attempt(address_of(broker, "request-timeout=1s"), first, window=one)
    with broker.kept.lock:
        broker.kept.auto_create = False
        del broker.kept.topics[TOPIC]
    try:
        with pytest.raises(PenstockError) as caught:
            attempt(address_of(broker, "request-timeout=1s"), second, window=two)
        assert (caught.value.code, caught.value.hint) == ("SINK_UNWRITABLE", "Make the topic, or set create-topics = true.")
    finally:
        broker.kept.auto_create = True
    with broker.kept.lock:
        broker.kept.make(TOPIC, 3)
    attempt(address_of(broker), second, window=two)
    assert told(broker) == second


def test_a_foreign_producer_of_our_name_cannot_make_us_write_twice(broker: KafkaBroker) -> None:
    """Somebody takes the transactional id between our messages and our commit, and leaves: nobody is there to be waited for."""
    changes, clock, came = life(30), SimulatedClock(), threading.Event()
    name = f"penstock.lake.control.{RUN.feed}.{WHOLE}"

    def fault(api: str, side: str) -> None:
        if (api, side) == ("AddOffsetsToTxn", "before") and not came.is_set():
            came.set()
            broker.fault = lambda api, side: None
            with broker.kept.lock:
                broker.kept.begin(name, 60.0)

    with broker.kept.lock:
        broker.kept.make(TOPIC, 3)
        broker.kept.make("lake.control", 1)
    broker.fault = fault
    sink = KafkaSink(address_of(broker), RUN, clock=clock)
    try:
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0, T0 + 10**6))
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(changes)))
        sink.seal_dispatcher(WHOLE)
        clock.wait_for_waiters(1)
        # It is waited for as long as its transaction may take, and not for ever.
        clock.advance(3600.0)
        with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*taken this over"):
            sink.close_dispatcher(WHOLE)
    finally:
        sink.close()
    assert came.is_set()
    assert told(broker) == []
    attempt(address_of(broker), changes)
    assert told(broker) == changes


def test_a_message_of_a_foreign_producer_stays_what_it_is(broker: KafkaBroker) -> None:
    (first, one), (second, two) = windows(2)
    attempt(address_of(broker), first, window=one)
    foreign = Producer({"bootstrap.servers": broker.address})
    foreign.produce(TOPIC, b'{"type":"NOTE"}', b"foreign", partition=0)
    assert foreign.flush(60) == 0
    attempt(address_of(broker), second, window=two)
    attempt(address_of(broker), second, window=two)
    assert told(broker) == first + second


@pytest.mark.parametrize(
    ("page", "fails", "code"),
    [(b"<html>log in</html>", 0, "SINK_UNWRITABLE"), (b'{"id":"x"}', 0, "SINK_UNWRITABLE"), (b"", 1, "SINK_UNAVAILABLE")],
)
def test_a_registry_that_fails_is_told_and_asked_again(broker: KafkaBroker, page: bytes, fails: int, code: str) -> None:
    with schema_registry() as registry:
        query = f"protocol=avro&schema-registry={registry.url.replace('://', '://me:s3cret@')}"
        registry.page, registry.fails = page, fails
        with pytest.raises(PenstockError) as caught:
            attempt(address_of(broker, query), life(5))
        assert caught.value.code == code
        assert "s3cret" not in str(caught.value)
        registry.page = b""
        attempt(address_of(broker, query), life(5))
        assert len(read_topics(broker.address, [TOPIC])) == 5


def test_a_registry_whose_answer_does_not_end_is_left(broker: KafkaBroker) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"x" * 65536)

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Endless) as url, pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*not that of a registry"):
        attempt(address_of(broker, f"protocol=avro&schema-registry={url}"), life(5))


def test_a_registry_whose_name_leads_to_credentials_is_refused(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("64:ff9b::a9fe:a9fe", 80, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*resolves to an address that gives out the credentials"):
        attempt(address_of(broker, "protocol=avro&schema-registry=http://registry.example"), life(5))


def test_a_file_of_authorities_that_is_missing_is_told(broker: KafkaBroker, tmp_path: Path) -> None:
    query = f"protocol=avro&schema-registry=https://127.0.0.1:1&schema-registry-ca={tmp_path}/none.pem"
    with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*schema-registry-ca cannot be read"):
        attempt(address_of(broker, query), life(5))


def test_objects_of_large_messages_that_went_are_written_again(broker: KafkaBroker, tmp_path: Path) -> None:
    changes = [(T0 + 1, life(1)[0][1], 1, "x" * 3000), (T0 + 2, life(1)[0][1], 2, "small")]
    query = f"max-message-bytes=2000&claim-check={tmp_path.as_uri()}"
    FAILPOINTS.arm("kafka-commit:before=raise@1")
    with contextlib.suppress(PenstockError):
        attempt(address_of(broker, query), changes)
    FAILPOINTS.arm("")
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 1
    kept[0].unlink()
    attempt(address_of(broker, query), changes)
    claims = [m.body["claimCheck"] for m in read_topics(broker.address, [TOPIC]) if "claimCheck" in m.body]
    assert [Path(claim["location"].removeprefix("file://")).stat().st_size for claim in claims] == [claims[0]["bytes"]]


def lose(broker: KafkaBroker, group: str) -> None:
    """Let the brokers forget the offsets of a group, as they do when somebody deletes it, or it rests for too long."""
    with broker.kept.lock:
        assert [broker.kept.offsets.pop(key) for key in list(broker.kept.offsets) if key[0] == group]
    KEPT.close()


def test_progress_that_brokers_forgot_is_doubted_before_rows_come_twice(broker: KafkaBroker) -> None:
    (first, one), (second, two), (third, three) = windows(3)
    name = f"penstock.lake.control.{RUN.feed}.{WHOLE}"
    attempt(address_of(broker), first, window=one)
    # A table that was quiet for long: nothing of the next window is there, so it goes on.
    lose(broker, name)
    attempt(address_of(broker), second, window=two)
    lose(broker, name)
    # What was given up does not hide what was committed.
    FAILPOINTS.arm("kafka-commit:before=raise@1")
    with contextlib.suppress(PenstockError):
        attempt(address_of(broker, "lost-progress=go-on"), life(400), window=two)
    FAILPOINTS.arm("")
    for _ in range(2):
        with pytest.raises(PenstockError, match=rf"SINK_PROGRESS_LOST.*{TOPIC} has rows up to {T0 + 80}, of the window from {T0 + 40}"):
            attempt(address_of(broker), second, window=two)
    assert told(broker) == first + second
    # One who may not read topics cannot be warned, and goes on.
    broker.fault = lambda api, side: 29 if (api, side) == ("Fetch", "before") else None
    attempt(address_of(broker), third, window=three)
    broker.fault = lambda api, side: None
    lose(broker, name)
    attempt(address_of(broker, "lost-progress=go-on"), third, window=three)
    assert len(read_topics(broker.address, [TOPIC])) == 160


def test_a_target_that_no_longer_knows_whose_it_is_is_doubted(broker: KafkaBroker) -> None:
    def maintainer(query: str = "") -> KafkaMaintainer:
        return KafkaMaintainer(address_of(broker, query), RUN, lambda: None)

    maintainer().claim(RUN.feed)
    maintainer().publish_checkpoint(T0 + 1)
    lose(broker, "penstock.lake.control")
    acts: list[Callable[[KafkaMaintainer], object]] = [
        lambda m: m.claim(RUN.feed),
        lambda m: m.check("another"),
        lambda m: m.publish_checkpoint(T0 + 2),
        lambda m: m.published_ts(),
    ]
    for act in acts:
        with pytest.raises(PenstockError, match=r"SINK_PROGRESS_LOST.*lake\.control has messages.*group penstock\.lake\.control"):
            act(maintainer())
    again = maintainer("lost-progress=go-on")
    again.claim(RUN.feed)
    again.publish_checkpoint(T0 + 2)
    assert (maintainer().owner(), maintainer().published_ts()) == (RUN.feed, T0 + 2)


def test_a_table_whose_topic_would_be_that_of_ddls_is_refused(broker: KafkaBroker) -> None:
    table = TableSchema(7, "shop", "control", T0, TABLE.columns)
    sink = KafkaSink(address_of(broker, "topic={prefix}.{table}"), RUN)
    try:
        sink.open_dispatcher(DispatcherWork(WHOLE, table, T0, T0 + 100))
        sink.add_dml_event(DmlEvent(WHOLE, table, rows_of(life(5))))
        with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*shop\.control would go to lake\.control") as caught:
            sink.close_dispatcher(WHOLE)
        assert "sink.control-topic" in (caught.value.hint or "")
    finally:
        sink.close()
    assert read_topics(broker.address, ["lake.control"]) == []


def test_watermarks_stay_out_of_topics_of_other_targets(broker: KafkaBroker) -> None:
    for topic in ("lake.shop.orders", "lake.shop.control", "lake.eu.shop.orders"):
        broker.kept.make(topic, 1)
    inner = KafkaAddress(*KIND.settings(f"kafka://{broker.address}/lake.eu", {}))
    KafkaMaintainer(inner, RUN, lambda: None).claim("another")
    own = KafkaMaintainer(address_of(broker, "watermarks=partitions"), RUN, lambda: None)
    own.claim(RUN.feed)
    own.publish_checkpoint(T0 + 1)
    # A table may be called control: what counts is whether somebody has it for that.
    assert {m.topic for m in read_topics(broker.address)} == {"lake.control", "lake.shop.control", "lake.shop.orders"}


def test_brokers_that_tell_a_wrong_address_of_themselves_are_named(broker: KafkaBroker) -> None:
    address = address_of(broker, "request-timeout=1s")
    reached, broker.address = broker.address, "no-such-host.invalid:9092"
    try:
        with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*no-such-host\.invalid"):
            attempt(address, life(5))
    finally:
        broker.address = reached


def test_a_topic_whose_making_is_not_answered_is_made_later(broker: KafkaBroker) -> None:
    go_on = threading.Event()

    def fault(api: str, side: str) -> None:
        if (api, side) == ("CreateTopics", "before"):
            go_on.wait(60)

    broker.fault = fault
    try:
        with pytest.raises(PenstockError, match=r"SINK_UNAVAILABLE.*making topic lake\.control"):
            attempt(address_of(broker, "create-topics=true&partitions=2&request-timeout=1s"), life(5))
    finally:
        go_on.set()


@pytest.mark.parametrize("api", ["Produce", "AddOffsetsToTxn"])
def test_connections_that_are_lost_at_each_window_leave_nobody_waiting_for_ever(broker: KafkaBroker, api: str) -> None:
    """Where the client began again with its first brokers by itself, the next transaction never ended, whatever time it was given."""
    for number in range(8):
        broker.kept.make(f"lake.shop.t{number}", 3)
    own = KafkaMaintainer(address_of(broker, "watermarks=partitions&request-timeout=5s"), RUN, lambda: None)
    own.claim(RUN.feed)
    cuts: list[str] = []

    def fault(found: str, side: str) -> str | None:
        if (found, side) == (api, "after") and cuts:
            return cuts.pop()
        return None

    def windows_of() -> None:
        for number in range(4):
            cuts[:] = [CUT]
            with contextlib.suppress(PenstockError):
                own.publish_checkpoint(T0 + number)

    broker.fault = fault
    working = threading.Thread(target=windows_of, daemon=True)
    working.start()
    working.join(120)
    assert not working.is_alive()
    broker.fault = lambda found, side: None
    own.publish_checkpoint(T0 + 9)
    assert own.published_ts() == T0 + 9
