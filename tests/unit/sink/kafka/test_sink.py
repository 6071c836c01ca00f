"""Exactly once, whatever happens to attempts and brokers; read by a plain client that knows nothing of Penstock."""

import contextlib
import io
import json
import logging
import random
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.clock import SystemClock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.kafka import sink as sink_module
from penstock.sink.kafka.clients import KafkaAddress
from penstock.sink.kafka.kind import KIND
from penstock.sink.kafka.sink import KafkaSink
from penstock.sink.kafka.transactions import KEPT, Stream
from penstock.store.flight.credentials import make_tls
from penstock.target.kind import SinkRun
from testing.servers.kafka.broker import CUT, KafkaBroker, kafka_broker
from testing.servers.kafka.consumer import Read, canal_changes, read_topics, rebuilt
from testing.servers.kafka.registry import Registry, schema_registry

T0 = compose_ts(1_700_000_000_000)
COLUMNS = (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=40)))
TABLE = TableSchema(7, "shop", "orders", T0, COLUMNS)
WHOLE = DispatcherId(7)
RUN = SinkRun("mine", 3)
TOPIC = "lake.shop.orders"
Change = tuple[int, Op, int, str | None]


@pytest.fixture(scope="module")
def shared() -> Iterator[KafkaBroker]:
    with kafka_broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: KafkaBroker) -> Iterator[KafkaBroker]:
    """Yield the broker as it was at first; only connections stay."""
    yield shared
    shared.fault = lambda api, side: None
    KEPT.close()
    with shared.kept.lock:
        for kept in (shared.kept.topics, shared.kept.offsets, shared.kept.transactions, shared.kept.configs):
            kept.clear()
    FAILPOINTS.arm("")


def address_of(broker: KafkaBroker, query: str = "") -> KafkaAddress:
    return KafkaAddress(*KIND.settings(f"kafka://{broker.address}/lake?{query}", {}))


def rows_of(changes: list[Change]) -> pa.RecordBatch:
    ts, ops, ids, notes = zip(*changes, strict=True)
    columns = [pa.array(ts, pa.uint64()), pa.array(ops, pa.uint8()), pa.array(ids, pa.int64()), pa.array(notes, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", "c1", "c2"])


def life(count: int, keys: int = 7, seed: int = 1) -> list[Change]:
    """Return changes that fit each other: no row comes or goes twice."""
    rng, alive, changes = random.Random(seed), set[int](), list[Change]()
    for i in range(count):
        key = rng.randrange(keys)
        op = rng.choice([Op.UPDATE, Op.UPDATE, Op.DELETE]) if key in alive else Op.INSERT
        alive.symmetric_difference_update({key} if op is not Op.UPDATE else set())
        changes.append((T0 + 1 + i, op, key, f"note {i}"))
    return changes


def attempt(
    address: KafkaAddress, changes: list[Change], cuts: int = 1, run: SinkRun = RUN, window: tuple[int, int] = (T0, T0 + 10**6)
) -> DispatcherResult:
    sink = KafkaSink(address, run)
    try:
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, *window))
        size = -(-len(changes) // cuts)
        for at in range(0, len(changes), size):
            sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(changes[at : at + size])))
        return sink.close_dispatcher(WHOLE)
    finally:
        sink.close()


def told(broker: KafkaBroker, topic: str = TOPIC) -> list[Change]:
    """Return the changes of a topic by their commit ts; a partition must have its own in that order."""
    read = read_topics(broker.address, [topic])
    for partition in {r.partition for r in read}:
        order = [ts for ts, _, _ in canal_changes([r for r in read if r.partition == partition])]
        assert order == sorted(order)
    found = [(ts, Op[kind], int(row["id"]), row["note"]) for ts, kind, row in canal_changes(read)]
    keyed = [r for r in read if "penstock.type" not in r.headers]
    assert len({(r.key, r.partition) for r in keyed}) == len({r.key for r in keyed}), "a key is in one partition"
    return sorted(found)


def test_a_window_is_there_once_however_often_it_is_tried(broker: KafkaBroker) -> None:
    changes = life(200)
    address = address_of(broker)
    results = [attempt(address, changes, cuts) for cuts in (1, 3, 50)]
    KEPT.close()
    results.append(attempt(address_of(broker), changes, 7))
    assert all(result == results[0] for result in results)
    assert told(broker) == changes
    rebuilt(canal_changes(read_topics(broker.address, [TOPIC])), "id")


def test_many_attempts_at_once_write_each_step_once_and_in_order(broker: KafkaBroker) -> None:
    changes, address, results = life(300, keys=20), address_of(broker, "transaction-timeout=20s"), []
    errors: list[PenstockError] = []

    def one(cuts: int) -> None:
        try:
            results.append(attempt(address, changes, cuts))
        except PenstockError as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(cuts,)) for cuts in (1, 2, 5, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results, errors
    assert {error.code for error in errors} <= {"SINK_UNAVAILABLE"}
    assert all(result == results[0] for result in results)
    assert told(broker) == changes


def test_an_attempt_that_is_overtaken_waits_for_the_other(broker: KafkaBroker) -> None:
    changes, address = life(60), address_of(broker)
    first = KafkaSink(address, RUN)
    first.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0, T0 + 10**6))
    woken = threading.Event()
    first.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(changes[:40]), woken.set))
    assert woken.wait(60)
    second = attempt(address, changes)
    first.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(changes[40:])))
    assert first.close_dispatcher(WHOLE) == second
    first.close()
    assert told(broker) == changes


def test_a_zombie_of_an_older_epoch_disturbs_nobody(broker: KafkaBroker) -> None:
    changes = life(20)
    attempt(address_of(broker), changes, run=SinkRun("mine", 4))
    epochs = {name: (t.epoch, t.producer) for name, t in broker.kept.transactions.items()}
    with pytest.raises(PenstockError, match="FENCED"):
        attempt(address_of(broker), changes, run=SinkRun("mine", 3))
    KEPT.close()
    with pytest.raises(PenstockError, match="FENCED"):
        attempt(address_of(broker), changes, run=SinkRun("mine", 3))
    assert {name: (t.epoch, t.producer) for name, t in broker.kept.transactions.items()} == epochs, "it fenced nobody"
    assert told(broker) == changes


def test_windows_that_go_back_are_refused_unless_the_feed_was_reset(broker: KafkaBroker) -> None:
    attempt(address_of(broker), life(5), window=(T0, T0 + 100))
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        attempt(address_of(broker), life(5), window=(T0, T0 + 50))
    later = [(ts + 100, op, key, note) for ts, op, key, note in life(5, seed=2)]
    attempt(address_of(broker), later, window=(T0 + 100, T0 + 200))
    assert told(broker) == life(5) + later
    attempt(address_of(broker), life(5), window=(T0, T0 + 50), run=SinkRun("mine", 4))
    again = sorted(ts for ts, _, _ in canal_changes(read_topics(broker.address, [TOPIC])))
    assert again == sorted(ts for ts, _, _, _ in life(5) * 2 + later), "a feed that was reset tells it again"


@pytest.mark.parametrize("point", ["kafka-commit:before", "kafka-commit:after"])
@pytest.mark.parametrize("query", ["", "delivery=at-least-once"])
def test_a_task_that_dies_at_its_commit_is_made_up_for(broker: KafkaBroker, point: str, query: str) -> None:
    changes = life(50)
    FAILPOINTS.arm(f"{point}=raise@1")
    with pytest.raises(PenstockError, match="FAILPOINT"):
        attempt(address_of(broker, query), changes)
    if not query:
        assert told(broker) == ([] if point.endswith("before") else changes)
    FAILPOINTS.arm("")
    result = attempt(address_of(broker, query), changes)
    assert result.rows == 50
    if query and point.endswith("before"):
        # What the first attempt had sent already comes again, and the last one tells everything in order.
        read = read_topics(broker.address, [TOPIC])
        told_ts = [[ts for ts, _, _ in canal_changes([r for r in read if r.partition == p])] for p in {r.partition for r in read}]
        whole = [sorted(set(one)) for one in told_ts]
        assert [one[-len(all_of) :] for one, all_of in zip(told_ts, whole, strict=True)] == whole
        assert sorted(ts for one in whole for ts in one) == [ts for ts, _, _, _ in changes], "at least once"
    else:
        assert told(broker) == changes


def test_a_large_window_is_cut_into_transactions_and_goes_on_where_it_stopped(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "TRANSACTION_BYTES", 2_000)
    changes = life(120)
    FAILPOINTS.arm("kafka-commit:before=raise@3")
    with pytest.raises(PenstockError, match="FAILPOINT"):
        attempt(address_of(broker), changes, cuts=30)
    before = told(broker)
    assert 0 < len(before) < 120
    assert before == changes[: len(before)]
    FAILPOINTS.arm("")
    again = attempt(address_of(broker), changes, cuts=11)
    assert told(broker) == changes
    assert again == attempt(address_of(broker), changes)


@pytest.mark.parametrize("api", ["Produce", "EndTxn", "TxnOffsetCommit", "AddPartitionsToTxn", "InitProducerId"])
def test_an_answer_that_is_lost_changes_nothing(broker: KafkaBroker, api: str) -> None:
    left = [1]

    def fault(found: str, side: str) -> str | None:
        if found == api and side == "after" and left and left.pop():
            return CUT
        return None

    broker.fault = fault
    changes = life(30)
    for _ in range(3):
        with contextlib.suppress(PenstockError):
            attempt(address_of(broker), changes)
            break
    assert not left
    assert told(broker) == changes


@pytest.mark.parametrize(
    ("api", "error", "code", "hint"),
    [
        ("Produce", 29, "SINK_UNWRITABLE", "ACLs"),
        ("Produce", 10, "SINK_MESSAGE_TOO_LARGE", "claim-check"),
        ("Produce", 42, "SINK_UNAVAILABLE", ""),
        ("Produce", 32, "SINK_UNWRITABLE", "message.timestamp"),
        ("Produce", 87, "SINK_UNWRITABLE", "without a key"),
        # May no longer write to this topic alone: it is told when the topic joins the transaction.
        ("AddPartitionsToTxn", 29, "SINK_UNWRITABLE", "ACLs"),
        ("TxnOffsetCommit", 12, "SINK_UNWRITABLE", "offset.metadata.max.bytes"),
        ("CreateTopics", 17, "SINK_UNWRITABLE", "sink.topic"),
        ("InitProducerId", 50, "SINK_UNWRITABLE", "transaction-timeout"),
        ("Produce", 76, "SINK_UNWRITABLE", "compression"),
    ],
)
def test_errors_are_told_apart_by_their_code(broker: KafkaBroker, api: str, error: int, code: str, hint: str) -> None:
    broker.fault = lambda found, side: error if (found, side) == (api, "before") else None
    with pytest.raises(PenstockError) as caught:
        attempt(address_of(broker, "transaction-timeout=5s&request-timeout=5s&create-topics=true&partitions=3"), life(5))
    assert caught.value.code == code, caught.value.detail
    assert hint in (caught.value.hint or "")
    broker.fault = lambda api, side: None
    attempt(address_of(broker), life(5))
    assert told(broker) == life(5)


def test_ddls_between_rows_are_steps_of_their_own(broker: KafkaBroker) -> None:
    added = TableSchema(7, "shop", "orders", T0 + 50, COLUMNS)
    ddl = DdlEvent(T0 + 50, DdlType.TABLE_COMMENT, "ALTER TABLE orders COMMENT 'x'", "shop", (added,))
    early = [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 2, "b")]
    late = [(T0 + 60, Op.UPDATE, 1, "c")]
    for dies in (True, False, False):
        sink = KafkaSink(address_of(broker, "ddls=partitions&tombstones=true"), RUN)
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0, T0 + 1_000))
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(early)))
        sink.pass_block_event(WHOLE, ddl)
        assert len(told(broker)) >= 2
        assert sink.write_block_event(WHOLE, ddl) == ("lake.control",)
        sink.add_dml_event(DmlEvent(WHOLE, added, rows_of(late)))
        if not dies:
            assert sink.close_dispatcher(WHOLE).rows == 3
        sink.close()
    assert told(broker) == early + late
    control = read_topics(broker.address, ["lake.control"])
    assert [(m.body["sql"], m.body["isDdl"], m.body["_tidb"]["commitTs"]) for m in control] == [(ddl.query, True, T0 + 50)]
    for partition in range(3):
        kinds = [m.headers.get("penstock.type", b"row") for m in read_topics(broker.address, [TOPIC]) if m.partition == partition]
        assert kinds.count(b"ddl") == 1


def test_headers_and_tombstones(broker: KafkaBroker) -> None:
    changes = [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.DELETE, 1, None)]
    attempt(address_of(broker, "tombstones=true"), changes)
    read = read_topics(broker.address, [TOPIC])
    assert [(m.key, m.value is None) for m in read] == [(b'{"id":1}', False), (b'{"id":1}', False), (b'{"id":1}', True)]
    wanted = {"penstock.schema-version": b"%d" % T0, "penstock.feed": b"mine"}
    assert [m.headers for m in read] == [wanted | {"penstock.commit-ts": b"%d" % ts} for ts in (T0 + 1, T0 + 2, T0 + 2)]


def test_large_messages_go_to_object_storage(broker: KafkaBroker, tmp_path: Path) -> None:
    changes = [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 2, "x" * 5000)]
    with pytest.raises(PenstockError, match=r"SINK_MESSAGE_TOO_LARGE.*max-message-bytes is 2048"):
        attempt(address_of(broker, "max-message-bytes=2KiB"), changes)
    claims = f"claim-check=file://{tmp_path}/claims"
    for _ in range(2):
        attempt(address_of(broker, f"max-message-bytes=2KiB&{claims}"), changes)
    whole: list[Read] = []
    for message in read_topics(broker.address, [TOPIC]):
        told_at = message.body.get("claimCheck")
        whole.append(message if told_at is None else message._replace(value=Path(told_at["location"].removeprefix("file://")).read_bytes()))
    assert {row["id"]: row["note"] for _, _, row in canal_changes(whole)} == {"1": "a", "2": "x" * 5000}
    assert len(list((tmp_path / "claims").rglob("*"))) == 3


def test_a_table_without_a_key_keeps_its_order(broker: KafkaBroker) -> None:
    bag = TableSchema(7, "shop", "bag", T0, (Column(1, "id", ColumnType(TypeKind.BIGINT)), COLUMNS[1]))
    sink = KafkaSink(address_of(broker, "protocol=debezium&tombstones=true"), RUN)
    sink.open_dispatcher(DispatcherWork(WHOLE, bag, T0, T0 + 1_000))
    sink.add_dml_event(DmlEvent(WHOLE, bag, rows_of(life(30))))
    sink.close_dispatcher(WHOLE)
    sink.close()
    read = read_topics(broker.address, ["lake.shop.bag"])
    assert len({m.partition for m in read}) == 1
    assert {m.key for m in read} == {None}
    assert [m.body["source"]["commit_ts"] for m in read] == [ts for ts, _, _, _ in life(30)]


def test_debezium_messages_have_their_schemas(broker: KafkaBroker) -> None:
    attempt(address_of(broker, "protocol=debezium&schemas=true"), [(T0 + 1, Op.INSERT, 5, "a"), (T0 + 2, Op.DELETE, 5, None)])
    made, gone = read_topics(broker.address, [TOPIC])
    assert json.loads(made.key or b"") == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "int64", "optional": False, "field": "id"}],
            "optional": False,
            "name": "shop.orders.Key",
        },
        "payload": {"id": 5},
    }
    schema, payload = made.body["schema"], made.body["payload"]
    after = next(one for one in schema["fields"] if one["field"] == "after")
    assert [(one["field"], one["type"], one["optional"]) for one in after["fields"]] == [("id", "int64", False), ("note", "string", True)]
    assert sorted(payload) == sorted(one["field"] for one in schema["fields"])
    assert (payload["op"], payload["after"], gone.body["payload"]["op"]) == ("c", {"id": 5, "note": "a"}, "d")


def test_topics_are_made_if_that_is_asked_for(broker: KafkaBroker) -> None:
    broker.kept.auto_create = False
    try:
        with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*lake\.control"):
            attempt(address_of(broker, "request-timeout=1s"), life(3))
        attempt(address_of(broker, "create-topics=true&partitions=5"), life(3))
    finally:
        broker.kept.auto_create = True
    assert (len(broker.kept.topics[TOPIC]), len(broker.kept.topics["lake.control"])) == (5, 1)
    assert broker.kept.configs["lake.control"] == {"cleanup.policy": "compact"}
    assert told(broker) == life(3)


def test_brokers_that_are_gone_for_a_while_are_waited_for(broker: KafkaBroker) -> None:
    changes, address, cuts = life(80), address_of(broker), [0]
    sink = KafkaSink(address, RUN)
    sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0, T0 + 10**6))
    woken = threading.Event()
    sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(changes[:50]), woken.set))
    assert woken.wait(60)
    enough = threading.Event()

    def fault(api: str, side: str) -> str | None:
        cuts[0] += 1
        if cuts[0] >= 6:
            enough.set()
        return None if enough.is_set() else CUT

    broker.fault = fault
    sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(changes[50:])))
    result = sink.close_dispatcher(WHOLE)
    sink.close()
    assert enough.is_set()
    assert told(broker) == changes
    assert attempt(address, changes) == result


def test_a_transaction_that_the_brokers_gave_up_is_written_again(broker: KafkaBroker) -> None:
    changes, address, results = life(20), address_of(broker), list[DispatcherResult]()
    sink = KafkaSink(address, RUN)
    sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0, T0 + 10**6))
    woken = threading.Event()
    sink.add_dml_event(DmlEvent(WHOLE, TABLE, rows_of(changes), woken.set))
    assert woken.wait(60)
    with broker.kept.lock:
        for transaction in broker.kept.transactions.values():
            transaction.timeout_s, transaction.begun_s = 0.0, transaction.begun_s or 1.0
        broker.kept.expire()
    # It is fenced now, and waits for whoever did that; the next attempt is that one.
    closing = threading.Thread(target=lambda: results.append(sink.close_dispatcher(WHOLE)))
    closing.start()
    assert told(broker) == []
    results.append(attempt(address, changes))
    closing.join()
    sink.close()
    assert results[0] == results[1]
    assert told(broker) == changes


def test_avro_rows_are_read_with_the_schemas_of_the_registry(broker: KafkaBroker) -> None:
    with schema_registry() as registry:
        address = address_of(broker, f"protocol=avro&schema-registry={registry.url}")
        changes = life(40)
        assert attempt(address, changes, 3) == attempt(address, changes, 1)
        read = read_topics(broker.address, [TOPIC])
    rows = []
    for message in read:
        value = avro(registry, message.value or b"")
        assert avro(registry, message.key or b"") == {"id": value["id"]}
        rows.append((value["_commit_ts"], Op[["INSERT", "UPDATE", "DELETE"]["cud".index(value["_op"])]], value["id"], value["note"]))
    assert sorted(rows) == changes
    assert {name: len(ids) for name, ids in registry.subjects.items()} == {f"{TOPIC}-value": 1, f"{TOPIC}-key": 1}


def avro(registry: Registry, message: bytes) -> Any:
    assert message[:1] == b"\0"
    schema = fastavro.parse_schema(registry.schema(int.from_bytes(message[1:5], "big")))
    return fastavro.schemaless_reader(io.BytesIO(message[5:]), schema, None)


def test_tls_is_checked(tmp_path: Path) -> None:
    made, other = (make_tls(["127.0.0.1"], SystemClock()) for _ in range(2))
    for name, content in (("server.pem", made.certificate), ("server.key", made.key), ("ca", made.readers_ca), ("other", other.readers_ca)):
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with kafka_broker(context=context) as broker:
        broker.users["me"] = "right"
        uri = f"kafka://me:right@{broker.address}/lake?request-timeout=2s&ssl-ca={tmp_path}"
        assert attempt(KafkaAddress(*KIND.settings(f"{uri}/ca", {})), life(5)).rows == 5
        with pytest.raises(PenstockError) as caught:
            attempt(KafkaAddress(*KIND.settings(f"{uri}/other", {})), life(5))
        assert caught.value.code == "SINK_UNWRITABLE"
        KEPT.close()
        config = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "right"}
        read = read_topics(broker.address, [TOPIC], config=config | {"ssl.ca.location": str(tmp_path / "ca")})
    assert len(canal_changes(read)) == 5


def test_a_dispatcher_goes_from_one_process_to_another_and_back(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    address = address_of(broker)
    here, there = type(KEPT)(), type(KEPT)()
    windows = [[(ts + 100 * n, op, key, note) for ts, op, key, note in life(10, seed=n)] for n in range(5)]
    for n, process in enumerate((here, there, here, here, there)):
        monkeypatch.setattr(sink_module, "KEPT", process)
        attempt(address, windows[n], window=(T0 + 100 * n, T0 + 100 * (n + 1)))
    assert told(broker) == [change for window in windows for change in window]
    fences = {name: found.epoch for name, found in broker.kept.transactions.items()}
    assert list(fences.values()) == [3], "fenced when it moved, and at no other time"
    # Somebody takes the name and dies: the first to notice does not wait for it, and the next one writes.
    dead = Stream(address, next(iter(fences)))
    dead.fence()
    dead.close()
    last = [(ts + 500, op, key, note) for ts, op, key, note in life(10, seed=9)]
    with pytest.raises(PenstockError, match="SINK_UNAVAILABLE"):
        attempt(address, last, window=(T0 + 500, T0 + 600))
    attempt(address, last, window=(T0 + 500, T0 + 600))
    assert told(broker) == [change for window in (*windows, last) for change in window]
    here.close()
    there.close()


def test_who_takes_over_finds_its_transactions_at_the_first_look(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer that is not connected then waits for half a second, at each window that another process had before."""
    readers: list[int] = []
    processes = [type(KEPT)(), type(KEPT)()]
    made = KafkaAddress.producer_configuration
    monkeypatch.setattr(KafkaAddress, "producer_configuration", lambda self, name: made(self, name) | {"debug": "eos"})
    monkeypatch.setattr(logging.getLogger("penstock.sink.kafka"), "propagate", True)
    broker.fault = lambda api, side: readers.append(threading.get_ident()) if api == "OffsetFetch" else None
    with caplog.at_level(logging.DEBUG, "penstock.sink.kafka"):
        for n in range(8):
            monkeypatch.setattr(sink_module, "KEPT", processes[n % 2])
            changes = [(ts + 100 * n, op, key, note) for ts, op, key, note in life(10, seed=n)]
            attempt(address_of(broker), changes, window=(T0 + 100 * n, T0 + 100 * (n + 1)))
    for process in processes:
        process.close()
    assert [found.epoch for found in broker.kept.transactions.values()] == [7], "each has taken over from the other"
    said = [record.getMessage() for record in caplog.records]
    assert any("Transaction coordinator is now up" in text for text in said)
    assert not [text for text in said if "Unable to query for transaction coordinator" in text]
    assert len(set(readers)) == 2, "what reads progress stays connected"
