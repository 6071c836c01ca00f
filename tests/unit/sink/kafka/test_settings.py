"""Settings, names of topics and addresses."""

import pytest

from penstock.config.sink_policy import SinkPolicy
from penstock.config.tree import SinkConfig
from penstock.model.errors import PenstockError
from penstock.sink.kafka.clients import KafkaAddress
from penstock.sink.kafka.kind import KIND
from penstock.sink.kafka.settings import KafkaSettings, TopicNames, escaped


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("kafka:///lake", "names no broker"),
        ("kafka://h:9092/", "names no prefix"),
        ("kafka://h:9092/a b", "prefix 'a b' must be"),
        ("kafka://h:9092/__x", "not begin with '__'"),
        ("kafka://h:9092/x?topic={schema}", r"topic: must have \{prefix\}"),
        ("kafka://h:9092/x?topic={prefix}.{row}", r"has \{row\}, which is none of"),
        ("kafka://h:9092/x?topic={prefix}-é", "topic: must be of letters"),
        ("kafka://h:9092/x?control-topic={prefix}.{table}", r"control-topic: has \{table\}"),
        ("kafka://h:9092/x?schemas=true", "schemas: is for protocol debezium"),
        ("kafka://h:9092/x?partition-by=columns", "partition-columns: must name columns"),
        ("kafka://h:9092/x?partition-columns=a", "partition-columns: needs partition-by columns"),
        ("kafka://h:9092/x?protocol=avro", "protocol avro needs schema-registry"),
        ("kafka://h:9092/x?protocol=avro&watermarks=partitions&schema-registry=http://r", "takes nothing else"),
        ("kafka://h:9092/x?security-protocol=tls", "security-protocol must be one of"),
        ("kafka://h:9092/x?sasl-mechanism=PLAIN", "SASL needs a user"),
        ("kafka://u:p@h:9092/x?sasl-mechanism=GSSAPI", "sasl-mechanism must be one of"),
        ("kafka://h:9092/x?topics=a", "unknown key; did you mean topic"),
        ("kafka://h:9092/x?max-message-bytes=10", "max-message-bytes: must be between"),
    ],
)
def test_what_is_wrong_is_told(uri: str, text: str) -> None:
    with pytest.raises(PenstockError, match=text):
        KIND.settings(uri, {})


def test_an_address_becomes_a_configuration() -> None:
    uri = "kafka://me:p%40ss@a:1,b/lake?security-protocol=sasl_ssl&sasl-mechanism=scram-sha-512&ssl-ca=/ca.pem"
    address = KafkaAddress(*KIND.settings(uri, {"topic": "{prefix}-{table}"}))
    made = address.configuration()
    assert {key: made[key] for key in ("bootstrap.servers", "security.protocol", "sasl.username", "sasl.password", "sasl.mechanism")} == {
        "bootstrap.servers": "a:1,b:9092",
        "security.protocol": "sasl_ssl",
        "sasl.username": "me",
        "sasl.password": "p@ss",
        "sasl.mechanism": "SCRAM-SHA-512",
    }
    assert made["ssl.ca.location"] == "/ca.pem"
    assert "p%40ss" not in address.name
    assert "p@ss" not in repr(address).replace(uri, "")
    assert list(KIND.hosts(uri + "&schema-registry=https://u:p@reg.example:8081/x")) == ["a", "b", "reg.example"]


def test_a_caller_sends_the_server_only_where_it_may() -> None:
    policy = SinkPolicy()
    policy.check(SinkConfig("kafka://me:pw@broker.example:9092/x?protocol=avro&schema-registry=https://registry.example"))
    for uri, text in (
        ("kafka://h/x?ssl-ca=/etc/shadow", "ssl-ca"),
        ("kafka://h/x?ssl-key=/etc/key", "ssl-key"),
        ("kafka://169.254.169.254/x", "no host that a caller may"),
        ("kafka://h/x?schema-registry=http://169.254.169.254", "no host that a caller may"),
        ("kafka://h/x?claim-check=gs://b/p%3Fservice-account=/etc/key", "service-account"),
    ):
        with pytest.raises(PenstockError, match=rf"SINK_FORBIDDEN.*{text}"):
            policy.check(SinkConfig(uri))


def test_two_tables_never_share_a_topic() -> None:
    names = TopicNames("lake", KafkaSettings())
    awkward = ["a", "a.b", "b", "a_b", "a_x2e_b", "a_x5f_x2e_b", "é", "a b", "A", "x" * 300, "x" * 301, "a-b"]
    topics = {names.of(schema, table) for schema in awkward for table in awkward}
    assert len(topics) == len(awkward) ** 2
    assert all(len(topic) <= 249 and topic.replace(".", "").replace("_", "").replace("-", "").isalnum() for topic in topics)
    assert all(topic.isascii() for topic in topics)
    assert names.of("shop", "order_items") == "lake.shop.order_items"
    assert escaped("a.b") == "a_x2e_b"


def test_which_topics_are_of_a_target() -> None:
    names = TopicNames("lake", KafkaSettings())
    assert names.holds("lake.shop.orders")
    assert not names.holds("lake.control")
    assert not names.holds("lakes.shop.orders")
    assert not names.holds("other.shop.orders")
    assert not names.holds("lake.eu.shop.orders"), "of a target with a longer prefix"
    for schema, table in (("a.b", "c.d"), ("数" * 64, "表"), ("s", "é" * 64), ("x" * 300, "y")):
        assert names.holds(names.of(schema, table))
    assert not names.holds("lake.shop")
    named = TopicNames("lake", KafkaSettings(topic="{prefix}.{table}"))
    with pytest.raises(PenstockError, match="SINK_UNWRITABLE"):
        named.of("shop", "control")
