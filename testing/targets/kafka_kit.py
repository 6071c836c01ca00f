"""Kafka for the contract suite of sinks: a broker with transactions, read by a plain client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.sink.kafka.clients import KafkaAddress
from penstock.sink.kafka.kind import KIND
from penstock.sink.kafka.maintainer import KafkaMaintainer
from penstock.sink.kafka.sink import KafkaSink
from penstock.sink.kafka.transactions import KEPT
from penstock.target.kind import SinkRun
from testing.servers.kafka.broker import kafka_broker
from testing.servers.kafka.consumer import canal_changes, debezium_changes, read_topics
from testing.targets.kit import Kit

RUN = SinkRun("mine", 1)
_OPS = {"INSERT": 0, "UPDATE": 1, "DELETE": 2}


@contextmanager
def kafka_kit(_: Path) -> Iterator[Kit]:
    """Yield topics of Canal-JSON, written in transactions."""
    with _kit("") as kit:
        yield kit


@contextmanager
def kafka_at_least_once_kit(_: Path) -> Iterator[Kit]:
    """Yield topics of Debezium JSON, written without transactions."""
    with _kit("?delivery=at-least-once&protocol=debezium") as kit:
        yield kit


@contextmanager
def _kit(query: str) -> Iterator[Kit]:
    with kafka_broker() as broker:
        address = KafkaAddress(*KIND.settings(f"kafka://{broker.address}/shop{query}", {}))
        read = debezium_changes if query else canal_changes

        def changes(schema: str, table: str) -> list[tuple[int, int, int, str | None]]:
            found = read(read_topics(broker.address, [f"shop.{schema}.{table}"]))
            return sorted((ts, _OPS[kind], int(row["id"]), row["note"]) for ts, kind, row in found)

        def state(schema: str, table: str) -> dict[int, str | None]:
            rows: dict[int, str | None] = {}
            for _, op, key, note in changes(schema, table):
                rows.pop(key, None)
                if op != _OPS["DELETE"]:
                    rows[key] = note
            return rows

        try:
            yield Kit(lambda: KafkaSink(address, RUN), lambda: KafkaMaintainer(address, RUN, lambda: None), state, changes)
        finally:
            KEPT.close(address)
