"""What is posted: a body with the place that it has among all others, and an id that every attempt of the same rows gives it.

A place is a lane and a sequence. A lane carries every change of its keys, one body after the other; sequences of a lane grow, as texts
too, from body to body and from window to window. So a receiver that keeps the last sequence of each lane drops what comes again, whoever
posted it. Invariants: bytes and id depend on rows, feed, place and settings alone, never on the time or on who posts. Runs on executors
and beside the driver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.model.table import Column
from penstock.sink.http.settings import CloudEvents, HttpSettings

JSON_TYPE = "application/json"
_EVENT_TYPE, _BATCH_TYPE = "application/cloudevents+json", "application/cloudevents-batch+json"
DDL_LANE, CHECKPOINT_LANE = "ddl", "checkpoint"
_ID_CHARS = 32


class Message(msgspec.Struct, frozen=True):
    """One body to be posted."""

    id: str
    lane: str
    sequence: str
    content_type: str
    body: bytes
    headers: dict[str, str] = {}
    rows: int = 0


class Place(msgspec.Struct, frozen=True):
    """Where a body stands."""

    feed: str
    lane: str
    sequence: str


def sequence_of(ts: int, number: int) -> str:
    """Return the sequence of a body: the end of its window (or the ts of what it tells), and which of the lane it is."""
    return f"{ts:020d}-{number:08d}"


def rows_message(settings: HttpSettings, place: Place, about: Mapping[str, Any], rows: int, events: bytes) -> Message:
    """Return the message of encoded rows, which a comma and a line break divide; ``about`` is what all of them have in common."""
    if settings.cloudevents is CloudEvents.BATCH:
        return _message(place, _BATCH_TYPE, b"[" + events + b"]", rows=rows)
    head = _head("rows", place) | dict(about) | {"rows": rows}
    return _told(settings, place, "rows", msgspec.json.encode(head)[:-1] + b',"events":[\n' + events + b"\n]}", rows)


def ddl_message(settings: HttpSettings, place: Place, event: DdlEvent) -> Message:
    """Return the message of a DDL: the tables are as it leaves them."""
    tables = [
        {
            "schema": table.schema,
            "table": table.table,
            "version": str(table.version),
            "columns": [_column(column) for column in table.columns],
        }
        for table in event.tables
    ]
    told = {
        "commit_ts": str(event.commit_ts),
        "schema": event.schema,
        "kind": event.type.name.lower(),
        "sql": event.query,
        "tables": tables,
    }
    return _told(settings, place, "ddl", msgspec.json.encode(_head("ddl", place) | told))


def checkpoint_message(settings: HttpSettings, feed: str, checkpoint_ts: int, not_covered: Mapping[str, str]) -> Message:
    """Return the message that says up to where everything was posted."""
    place = Place(feed, CHECKPOINT_LANE, sequence_of(checkpoint_ts, 0))
    told = {"checkpoint_ts": str(checkpoint_ts), "not_covered": dict(not_covered)}
    return _told(settings, place, "checkpoint", msgspec.json.encode(_head("checkpoint", place) | told))


def row_attributes(place: Place, subject: str) -> bytes:
    """Return the beginning of a row's CloudEvent: all that the rows of a table version have in common, still open."""
    head = {"specversion": "1.0", "source": _source(place.feed), "type": "io.penstock.row", "subject": subject}
    return msgspec.json.encode(head | {"datacontenttype": JSON_TYPE})[:-1]


def _column(column: Column) -> dict[str, Any]:
    """Return a column; ``initial`` is what rows from before it show in it."""
    initial = column.default if column.initial_default is msgspec.UNSET else column.initial_default
    return {"name": column.name, "type": column.type.kind.value, "key": column.primary_key, "nullable": column.nullable, "initial": initial}


def _told(settings: HttpSettings, place: Place, kind: str, body: bytes, rows: int = 0) -> Message:
    if settings.cloudevents is CloudEvents.BINARY:
        message = _message(place, JSON_TYPE, body, rows=rows)
        named = {f"ce-{key}": str(value) for key, value in _attributes(place, kind, message.id).items()}
        return msgspec.structs.replace(message, headers=named)
    if settings.cloudevents is CloudEvents.NONE:
        return _message(place, JSON_TYPE, body, rows=rows)
    message_id = _id(place, body)
    head = msgspec.json.encode(_attributes(place, kind, message_id))
    whole = head[:-1] + b',"datacontenttype":"application/json","data":' + body + b"}"
    if settings.cloudevents is CloudEvents.STRUCTURED:
        return Message(message_id, place.lane, place.sequence, _EVENT_TYPE, whole, rows=rows)
    return Message(message_id, place.lane, place.sequence, _BATCH_TYPE, b"[" + whole + b"]", rows=rows)


def _message(place: Place, content_type: str, body: bytes, rows: int) -> Message:
    return Message(_id(place, body), place.lane, place.sequence, content_type, body, rows=rows)


def _id(place: Place, body: bytes) -> str:
    digest = hashlib.sha256("\0".join((place.feed, place.lane, place.sequence, "")).encode())
    digest.update(body)
    return digest.hexdigest()[:_ID_CHARS]


def _head(kind: str, place: Place) -> dict[str, Any]:
    return {"type": kind, "feed": place.feed, "lane": place.lane, "sequence": place.sequence}


def _attributes(place: Place, kind: str, message_id: str) -> dict[str, str]:
    """Return the attributes of a CloudEvent; ``lane`` and ``sequence`` are extensions, the second one as the specification names it."""
    return {
        "specversion": "1.0",
        "id": message_id,
        "source": _source(place.feed),
        "type": f"io.penstock.{kind}",
        "lane": place.lane,
        "sequence": place.sequence,
    }


def _source(feed: str) -> str:
    return f"/penstock/feeds/{quote(feed)}"
