"""An independent reader of Kafka topics: a plain client that reads what is committed, and rebuilds tables from messages with json alone.

Nothing of Penstock is in here. Runs in tests.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

_READ_S_MAX = 60.0


class Read(NamedTuple):
    """One message as it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]

    @property
    def body(self) -> Any:
        """Return the value as JSON."""
        return json.loads(self.value or b"null")


def read_topics(
    bootstrap: str, topics: list[str] | None = None, committed: bool = True, config: dict[str, Any] | None = None
) -> list[Read]:
    """Return the messages of topics, all if none are named, up to their ends as they are now; partition by partition."""
    base = {"bootstrap.servers": bootstrap} | (config or {})
    known = AdminClient(base).list_topics(timeout=120).topics
    level = "read_committed" if committed else "read_uncommitted"
    reader = Consumer(
        base
        | {
            "group.id": "reader",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    found: list[Read] = []
    try:
        places = [
            TopicPartition(name, at, 0) for name in sorted(known) if topics is None or name in topics for at in known[name].partitions
        ]
        reader.assign(places)
        open_ = len(places)
        while open_:
            message = reader.poll(_READ_S_MAX)
            if message is None:
                raise TimeoutError(f"{bootstrap}: nothing came")
            if message.error() is not None:
                if message.error().code() != KafkaError._PARTITION_EOF:
                    raise RuntimeError(str(message.error()))
                open_ -= 1
                reader.incremental_unassign([TopicPartition(message.topic(), message.partition())])
                continue
            headers = dict(message.headers() or [])
            found.append(Read(message.topic(), message.partition(), message.offset(), message.key(), message.value(), headers))
    finally:
        reader.close()
    return sorted(found, key=lambda r: (r.topic, r.partition, r.offset))


def canal_changes(messages: list[Read]) -> list[tuple[int, str, dict[str, Any]]]:
    """Return (commit ts, type, row) of the rows among Canal-JSON messages, as they come."""
    bodies = [m.body for m in messages if m.value is not None]
    return [(body["_tidb"]["commitTs"], body["type"], body["data"][0]) for body in bodies if body["type"] in {"INSERT", "UPDATE", "DELETE"}]


def debezium_changes(messages: list[Read]) -> list[tuple[int, str, dict[str, Any]]]:
    """Return (commit ts, type, row) of the rows among Debezium messages, with schemas or without, as they come."""
    kinds = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}
    bodies = [m.body for m in messages if m.value is not None]
    events = [body.get("payload", body) for body in bodies]
    return [
        (event["source"]["commit_ts"], kinds[event["op"]], event["before" if event["op"] == "d" else "after"])
        for event in events
        if event.get("op") in kinds
    ]


def rebuilt(changes: list[tuple[int, str, dict[str, Any]]], key: str) -> dict[str, dict[str, Any]]:
    """Return a table as its changes make it, by the text of its key; each change must fit: no row comes twice or goes twice."""
    rows: dict[str, dict[str, Any]] = {}
    for ts, kind, row in changes:
        name = str(row[key])
        if (kind == "INSERT") == (name in rows):
            raise AssertionError(f"{kind} of {name} at {ts}")
        if kind == "DELETE":
            del rows[name]
        else:
            rows[name] = row
    return rows
