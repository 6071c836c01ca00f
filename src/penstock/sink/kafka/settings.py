"""What tunes a Kafka target, and the names of its topics.

A topic's name comes from a template with ``{prefix}``, ``{schema}`` and ``{table}``. Invariants: two tables never share a topic unless the
template leaves out what tells them apart; a name is one that Kafka takes: dots of schemas and tables, and characters that it does not
take, stand as ``_x2e_`` with their code, and a name that is too long ends in a hash. Runs anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import xxhash

from penstock.format.key_updates import KeyUpdates
from penstock.format.protocols import CanalSettings, DataFormat, DebeziumSettings
from penstock.format.protocols import Protocol as DataProtocol
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema

TOPIC_CHARS_MAX = 249
_PLACES = re.compile(r"\{([^{}]*)\}")
_NOT_TAKEN = re.compile(r"[^A-Za-z0-9_-]|_(?=x[0-9a-f]+_)")
_FIXED = re.compile(r"[A-Za-z0-9._-]*")
_HASHED_CHARS = 16
_CUT = re.compile(rf"-[0-9a-f]{{{_HASHED_CHARS}}}\Z")


class Format(StrEnum):
    """How a change stands in a message."""

    CANAL_JSON = "canal-json"
    DEBEZIUM = "debezium"
    AVRO = "avro"


class PartitionBy(StrEnum):
    """What decides on the partition of a row's message."""

    KEY = "key"
    TABLE = "table"
    COLUMNS = "columns"


class Delivery(StrEnum):
    """What is promised where something fails."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Announce(StrEnum):
    """Where DDLs or watermarks go."""

    CONTROL = "control"
    PARTITIONS = "partitions"
    NONE = "none"


class OnDoubt(StrEnum):
    """What happens where a cluster is not as it was: a topic has other partitions, or what brokers knew of progress is gone."""

    STOP = "stop"
    GO_ON = "go-on"


class Compression(StrEnum):
    """How batches of messages are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The options of a Kafka target."""

    free_options: ClassVar[frozenset[str]] = frozenset(
        {
            *("flush_interval_ms", "headers", "compression", "linger_ms", "request_timeout_ms", "transaction_timeout_ms"),
            *("create_topics", "partitions", "replication_factor", "max_message_bytes", "claim_check", "tombstones"),
            *("new_partitions", "lost_progress", "partition_by", "partition_columns"),
        }
    )
    cut_options: ClassVar[frozenset[str]] = frozenset()

    protocol: Format = Format.CANAL_JSON
    schemas: bool = False
    output_old_value: bool = True
    topic: str = "{prefix}.{schema}.{table}"
    control_topic: str = "{prefix}.control"
    create_topics: bool = False
    partitions: int = field(default=0, metadata={"range": (0, 10_000)})
    replication_factor: int = field(default=0, metadata={"range": (0, 100)})
    partition_by: PartitionBy = PartitionBy.KEY
    partition_columns: tuple[str, ...] = ()
    new_partitions: OnDoubt = OnDoubt.STOP
    lost_progress: OnDoubt = OnDoubt.STOP
    delivery: Delivery = Delivery.EXACTLY_ONCE
    ddls: Announce = Announce.CONTROL
    watermarks: Announce = Announce.CONTROL
    tombstones: bool = False
    headers: bool = True
    max_message_bytes: int = field(default=1_000_000, metadata={"range": (1 << 10, 512 << 20)})
    claim_check: str = ""
    compression: Compression = Compression.NONE
    linger_ms: int = field(default=5, metadata={"range": (0, 10_000)})
    request_timeout_ms: int = field(default=30_000, metadata={"range": (1_000, 600_000)})
    transaction_timeout_ms: int = field(default=60_000, metadata={"range": (5_000, 900_000)})
    flush_interval_ms: int = field(default=5_000, metadata={"range": (100, 600_000)})

    indexes_transactions: ClassVar[bool] = False
    numbers_events: ClassVar[bool] = False

    @property
    def format_name(self) -> str:
        """Return how changes stand in messages."""
        return self.protocol.value

    @property
    def doubts_progress(self) -> bool:
        """Return whether a feed stops where brokers no longer know how far it has come."""
        return self.delivery is Delivery.EXACTLY_ONCE and self.lost_progress is OnDoubt.STOP

    @property
    def partition_rule(self) -> str:
        """Return what decides on partitions, as progress keeps it."""
        return " ".join((self.partition_by.value, *self.partition_columns))

    @property
    def topic_places(self) -> frozenset[str]:
        """Return what of a table its topic's name tells."""
        return frozenset(_PLACES.findall(self.topic))

    @property
    def data_format(self) -> DataFormat:
        """Return in what shape rows are encoded; each message ends with a line feed, by which they are told apart."""
        if self.protocol is Format.CANAL_JSON:
            return DataFormat(DataProtocol.CANAL_JSON, canal_json=CanalSettings(terminator="\n"))
        return DataFormat(DataProtocol.DEBEZIUM, debezium=DebeziumSettings(output_old_value=self.output_old_value, terminator="\n"))

    def needs_before(self, table: TableSchema) -> bool:
        """Return whether events of a table must carry ``_key`` and BEFORE rows: for old values, or to take updates of unique keys apart."""
        return (self.output_old_value and self.protocol is not Format.AVRO) or KeyUpdates.concern(table)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong) of options that do not go together."""
        yield from (("topic", text) for text in _template_problems(self.topic, ("prefix", "schema", "table")))
        yield from (("control-topic", text) for text in _template_problems(self.control_topic, ("prefix",)))
        if self.topic == self.control_topic:
            yield "control-topic", "must not be a topic of rows"
        if self.schemas and self.protocol is not Format.DEBEZIUM:
            yield "schemas", "is for protocol debezium; Canal-JSON has none and Avro always has"
        if self.partition_by is PartitionBy.COLUMNS and not self.partition_columns:
            yield "partition-columns", "must name columns for partition-by columns"
        if self.partition_columns and self.partition_by is not PartitionBy.COLUMNS:
            yield "partition-columns", "needs partition-by columns"
        if self.protocol is Format.AVRO and self.claim_check:
            yield "claim-check", "is for JSON: a topic of Avro takes nothing else"
        if self.protocol is Format.AVRO and Announce.PARTITIONS in {self.ddls, self.watermarks}:
            yield "watermarks", "a topic of Avro takes nothing else: control or none, and so for ddls"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The topics of one target."""

    prefix: str
    settings: KafkaSettings

    @property
    def control(self) -> str:
        """Return the topic of DDLs and watermarks, beside which progress is kept."""
        return _shortened(self.settings.control_topic.format(prefix=self.prefix))

    def of(self, schema: str, table: str) -> str:
        """Return the topic of a table; raise where it is the control topic, whose readers know no rows."""
        topic = _shortened(self.settings.topic.format(prefix=self.prefix, schema=escaped(schema), table=escaped(table)))
        if topic == self.control:
            text = f"rows of table {schema}.{table} would go to {topic}, the topic of DDLs and watermarks"
            raise PenstockError("SINK_UNWRITABLE", text, "Leave the table out, or use another sink.topic or sink.control-topic.")
        return topic

    def holds(self, topic: str) -> bool:
        """Return whether a topic may be one of this target's tables: their names have no dots, unlike longer prefixes of others."""
        pattern = "".join(
            re.escape(part) if at % 2 == 0 else re.escape(self.prefix) if part == "prefix" else "[^.]+"
            for at, part in enumerate(_PLACES.split(self.settings.topic))
        )
        lead = self.settings.topic.partition("{schema}")[0].partition("{table}")[0].format(prefix=self.prefix)
        is_cut = len(topic) == TOPIC_CHARS_MAX and topic.startswith(lead) and _CUT.search(topic) is not None
        return topic != self.control and (is_cut or re.fullmatch(pattern, topic) is not None)


def escaped(name: str) -> str:
    """Return a name of a schema or table in the characters of topics; two names never become one."""
    return _NOT_TAKEN.sub(lambda found: f"_x{ord(found[0]):x}_", name)


def prefix_problems(prefix: str) -> Iterator[str]:
    """Yield what is wrong with the prefix of a target's topics."""
    if not prefix:
        yield "names no prefix: kafka://host:9092/prefix"
    elif not _FIXED.fullmatch(prefix) or len(prefix) > TOPIC_CHARS_MAX // 2 or prefix.startswith("__"):
        yield f"prefix {prefix!r} must be of letters, digits, '.', '_' and '-', at most {TOPIC_CHARS_MAX // 2}, and not begin with '__'"


def _template_problems(template: str, known: tuple[str, ...]) -> Iterator[str]:
    rest = _PLACES.sub("", template)
    if unknown := sorted(set(_PLACES.findall(template)) - set(known)):
        yield f"has {{{unknown[0]}}}, which is none of {', '.join(f'{{{name}}}' for name in known)}"
    if "{" in rest or "}" in rest or not _FIXED.fullmatch(rest):
        yield "must be of letters, digits, '.', '_', '-' and places in braces"
    if "{prefix}" not in template:
        yield "must have {prefix}, by which the target's topics are told from others"


def _shortened(topic: str) -> str:
    if len(topic) <= TOPIC_CHARS_MAX:
        return topic
    return f"{topic[: TOPIC_CHARS_MAX - _HASHED_CHARS - 1]}-{xxhash.xxh3_64_hexdigest(topic.encode())}"
