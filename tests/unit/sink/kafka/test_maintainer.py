"""Whose a target is, DDLs at the end of windows, watermarks, and what a doctor finds."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import check_target
from penstock.sink.kafka.clients import KafkaAddress
from penstock.sink.kafka.kind import KIND
from penstock.sink.kafka.maintainer import KafkaMaintainer
from penstock.sink.kafka.transactions import KEPT
from penstock.target.kind import SinkRun
from testing.servers.kafka.broker import APIS, KafkaBroker, kafka_broker
from testing.servers.kafka.consumer import read_topics

T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(7, "shop", "orders", T0, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),))
DROP = DdlEvent(T0 + 5, DdlType.DROP_TABLE, "DROP TABLE orders", "shop", (), (7,))
CREATE = DdlEvent(T0 + 5, DdlType.CREATE_TABLE, "CREATE TABLE orders (id BIGINT)", "shop", (TABLE,))


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with kafka_broker() as broker:
        yield broker
    KEPT.close()
    FAILPOINTS.arm("")


def maintainer_of(broker: KafkaBroker, query: str = "", epoch: int = 1, feed: str = "mine") -> KafkaMaintainer:
    address = KafkaAddress(*KIND.settings(f"kafka://{broker.address}/lake?{query}", {}))
    return KafkaMaintainer(address, SinkRun(feed, epoch), lambda: None)


def test_of_two_feeds_that_claim_at_once_one_has_it(broker: KafkaBroker) -> None:
    refused: list[str] = []

    def claim(feed: str) -> None:
        try:
            maintainer_of(broker, feed=feed).claim(feed)
        except PenstockError as error:
            refused.append(f"{feed} {error.code}")

    threads = [threading.Thread(target=claim, args=(feed,)) for feed in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner = maintainer_of(broker).owner()
    assert refused == [f"{'two' if owner == 'one' else 'one'} SINK_OCCUPIED"]
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        maintainer_of(broker).check("third")
    assert [f.ok for f in check_target(f"kafka://{broker.address}/lake", {}, owner)] == [True, True, True]
    assert [f.ok for f in check_target(f"kafka://{broker.address}/lake", {}, "third")] == [True, False, True]
    assert [f.ok for f in check_target(f"kafka://{broker.address}/lake?delivery=at-least-once", {}, owner)] == [True, True, False]


def test_ddls_and_watermarks_stand_once_and_in_order(broker: KafkaBroker) -> None:
    FAILPOINTS.arm("kafka-commit:after=raise@3")
    for _ in range(3):
        with contextlib.suppress(PenstockError):
            maintainer = maintainer_of(broker)
            maintainer.publish_checkpoint(T0 + 1)
            assert maintainer.write_block_event(DROP) == maintainer.write_block_event(CREATE) == ("lake.control",)
            maintainer.publish_checkpoint(T0 + 5, {"shop.lost": "doubted"})
            maintainer.publish_checkpoint(T0 + 4)
    said = [(m.headers["penstock.type"], m.body["_tidb"], m.body["sql"], m.body.get("notCovered")) for m in read_topics(broker.address)]
    assert said == [
        (b"watermark", {"watermarkTs": T0 + 1}, "", None),
        (b"ddl", {"commitTs": T0 + 5}, DROP.query, None),
        (b"ddl", {"commitTs": T0 + 5}, CREATE.query, None),
        (b"watermark", {"watermarkTs": T0 + 5}, "", {"shop.lost": "doubted"}),
    ]
    assert maintainer_of(broker).published_ts() == T0 + 5


def test_a_lower_epoch_writes_nothing(broker: KafkaBroker) -> None:
    maintainer_of(broker, epoch=5).publish_checkpoint(T0 + 1)
    for act in (lambda m: m.publish_checkpoint(T0 + 9), lambda m: m.write_block_event(DROP)):
        with pytest.raises(PenstockError, match="FENCED"):
            act(maintainer_of(broker, epoch=4))
    assert len(read_topics(broker.address)) == 1


def test_watermarks_go_to_every_partition_if_that_is_asked_for(broker: KafkaBroker) -> None:
    for topic in ("lake.shop.orders", "lake.shop.items", "lakes.other.table"):
        broker.kept.make(topic, 2)
    maintainer_of(broker, "watermarks=partitions&protocol=debezium").publish_checkpoint(T0 + 1)
    found = [(m.topic, m.partition, m.body["op"], m.body["watermark"]) for m in read_topics(broker.address)]
    wanted = [("lake.control", 0), *((f"lake.shop.{name}", at) for name in ("items", "orders") for at in range(2))]
    assert found == [(*place, "m", T0 + 1) for place in wanted]


def test_nothing_is_said_where_nothing_is_asked_for(broker: KafkaBroker) -> None:
    maintainer = maintainer_of(broker, "watermarks=none&ddls=none")
    maintainer.publish_checkpoint(T0 + 3)
    assert maintainer.write_block_event(DROP) == ()
    assert (maintainer.published_ts(), read_topics(broker.address)) == (T0 + 3, [])


def test_brokers_without_transactions_are_told_aloud(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for api in (22, 24, 25, 26, 28):
        monkeypatch.delitem(APIS, api)
    found = check_target(f"kafka://{broker.address}/lake", {}, "mine")
    assert [(f.name, f.ok) for f in found][-1] == ("target: transactions", False)
    assert "SINK_NO_TRANSACTIONS" in found[-1].found


def test_a_wrong_password_is_told_without_it(broker: KafkaBroker) -> None:
    broker.users["me"] = "right"
    good = KafkaAddress(*KIND.settings(f"kafka://me:right@{broker.address}/lake?request-timeout=5s", {}))
    KafkaMaintainer(good, SinkRun("mine", 1), lambda: None).claim("mine")
    found = check_target(f"kafka://me:wr0ng-pass@{broker.address}/lake?request-timeout=2s", {}, "mine")
    assert [f.ok for f in found] == [False]
    assert "wr0ng-pass" not in found[0].found
