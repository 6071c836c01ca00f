"""The messages that are not rows: DDLs and watermarks, as readers of each protocol know them.

A watermark at ts *w* says that every row with a commit ts at or below *w* was committed to its topic before it. A DDL stands before every
row of the versions that it made, and after those of the ones before. Runs on executors and beside the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import xxhash

from penstock.model.ddl import DdlEvent
from penstock.model.timestamp import LOGICAL_BITS
from penstock.sink.kafka.encode.messages import COMMIT_TS_HEADER, FEED_HEADER, TYPE_HEADER
from penstock.sink.kafka.settings import Format, KafkaSettings
from penstock.sink.kafka.transactions import Message

DDL, WATERMARK = b"ddl", b"watermark"


def ddl_identity(event: DdlEvent) -> str:
    """Return what tells a DDL from others of its ts."""
    return xxhash.xxh3_64_hexdigest(event.to_json())


def ddl_message(settings: KafkaSettings, feed: str, topic: str, partition: int, event: DdlEvent) -> Message:
    """Return the message of a DDL."""
    moment = event.commit_ts >> LOGICAL_BITS
    table = event.tables[0].table if event.tables else ""
    body: dict[str, object]
    if settings.protocol is Format.CANAL_JSON:
        body = {"id": 0, "database": event.schema, "table": table, "pkNames": None, "isDdl": True, "type": event.type.name}
        body |= {"es": moment, "ts": moment, "sql": event.query, "sqlType": None, "mysqlType": None, "data": None, "old": None}
        body["_tidb"] = {"commitTs": event.commit_ts}
    else:
        source = {"connector": "penstock", "db": event.schema, "table": table, "commit_ts": event.commit_ts, "ts_ms": moment}
        body = {"source": source, "ts_ms": moment, "databaseName": event.schema, "schemaName": None, "ddl": event.query}
        body["tableChanges"] = [
            {"type": event.type.name, "id": f'"{t.schema}"."{t.table}"', "table": {"columns": [c.name for c in t.columns]}}
            for t in event.tables
        ]
    return _message(feed, topic, partition, body, event.commit_ts, DDL, b"ddl-%d-%s" % (event.commit_ts, ddl_identity(event).encode()))


def watermark_message(
    settings: KafkaSettings, feed: str, topic: str, partition: int, checkpoint_ts: int, not_covered: Mapping[str, str]
) -> Message:
    """Return the message of a watermark; ``not_covered`` are tables that it does not speak for, and why."""
    moment = checkpoint_ts >> LOGICAL_BITS
    body: dict[str, object]
    if settings.protocol is Format.CANAL_JSON:
        body = {"id": 0, "database": "", "table": "", "pkNames": None, "isDdl": False, "type": "TIDB_WATERMARK", "es": moment, "ts": moment}
        body |= {"sql": "", "sqlType": None, "mysqlType": None, "data": None, "old": None, "_tidb": {"watermarkTs": checkpoint_ts}}
    else:
        body = {"source": {"connector": "penstock", "commit_ts": checkpoint_ts, "ts_ms": moment}, "op": "m", "ts_ms": moment}
        body["watermark"] = checkpoint_ts
    if not_covered:
        body["notCovered"] = dict(not_covered)
    return _message(feed, topic, partition, body, checkpoint_ts, WATERMARK, b"watermark")


def _message(feed: str, topic: str, partition: int, body: object, ts: int, kind: bytes, key: bytes) -> Message:
    headers = [(TYPE_HEADER, kind), (COMMIT_TS_HEADER, b"%d" % ts), (FEED_HEADER, feed.encode())]
    return topic, msgspec.json.encode(body), key, partition, ts >> LOGICAL_BITS, headers
