"""Bodies depend on rows and settings alone; a key has one lane, and its rows stay in their order there."""

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId, DispatcherWork
from penstock.sink.http.batches import LaneBatches
from penstock.sink.http.messages import Message
from penstock.sink.http.settings import read_settings

COLUMNS = (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=90)))
TABLE = TableSchema(7, "shop", "orders", 5, COLUMNS)
LATER = TableSchema(7, "shop", "orders", 500, COLUMNS)
WORK = DispatcherWork(DispatcherId(7), TABLE, 10, 1_000)


def rows(first: int, last: int, op: Op = Op.INSERT, keys: int = 40) -> pa.RecordBatch:
    """Rows at the ts from ``first`` on, each of the key ts % keys; notes of many lengths, with what JSON escapes."""
    ts = np.arange(first, last, dtype=np.uint64)
    ids = ts % keys
    notes = [f'"{t}"\n' + "ä" * int(t % 37) for t in ts]
    columns = [
        pa.array(ts),
        pa.array(np.full(len(ts), op, np.uint8)),
        pa.array([b"k%d" % i for i in ids], pa.binary()),
        pa.array(ids.astype(np.int64)),
        pa.array(notes, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, ["_ts", "_op", "_key", "c1", "c2"])


def messages(events: list[tuple[TableSchema, pa.RecordBatch]], work: DispatcherWork = WORK, **options: str) -> list[tuple[int, Message]]:
    batches = LaneBatches(work, read_settings("http+json://h/x", options)[1], "f")
    found = [one for table, records in events for one in batches.add(table, records)]
    return found + list(batches.finish())


def by_lane(found: list[tuple[int, Message]]) -> dict[int, list[Message]]:
    lanes: dict[int, list[Message]] = {}
    for lane, message in found:
        lanes.setdefault(lane, []).append(message)
    return lanes


def events_of(found: list[tuple[int, Message]]) -> list[dict[str, Any]]:
    return [event for _, message in found for event in json.loads(message.body)["events"]]


@pytest.mark.parametrize("cuts", [[100], [11, 12, 13, 57], [*range(11, 100)], [64, 64]])
@pytest.mark.parametrize("options", [{}, {"batch-size": "1KiB"}, {"cloudevents": "batch", "batch-rows": "3"}])
def test_bodies_do_not_depend_on_how_events_are_cut(cuts: list[int], options: dict[str, str]) -> None:
    whole = rows(10, 200)
    chosen = {"batch-rows": "7"} | options
    ends = [0, *(cut - 10 for cut in cuts), 190]
    parts = [(TABLE, whole.slice(start, end - start)) for start, end in itertools.pairwise(ends)]
    assert by_lane(messages(parts, **chosen)) == by_lane(messages([(TABLE, whole)], **chosen))


def test_a_key_has_one_lane_and_its_changes_their_order() -> None:
    found = messages([(TABLE, rows(10, 110)), (TABLE, rows(110, 400, Op.UPDATE))], **{"batch-rows": "9"})
    lanes = by_lane(found)
    assert len(lanes) == 4
    keys: dict[int, set[int]] = {}
    for lane, posted in lanes.items():
        assert [m.sequence for m in posted] == [f"{1000:020d}-{n:08d}" for n in range(1, len(posted) + 1)]
        assert {m.lane for m in posted} == {f"7-0/{lane}"}
        events = events_of([(lane, m) for m in posted])
        keys[lane] = {e["after"]["id"] for e in events}
        ts = [e["source"]["commit_ts"] for e in events]
        assert ts == sorted(ts)
    assert sum(map(len, keys.values())) == 40 == len(set().union(*keys.values()))
    assert sorted(e["source"]["commit_ts"] for e in events_of(found)) == list(range(10, 400))
    assert {e["after"]["id"]: e["after"]["note"] for e in events_of(found)}[5] == '"365"\n' + "ä" * (365 % 37)
    assert len({m.id for _, m in found}) == len(found), "each has an id of its own"


def test_a_table_without_a_key_has_one_lane() -> None:
    """Each change of such a table has a key of its own, so a row that goes could come before it came."""
    bag = TableSchema(6, "shop", "bag", 5, (Column(1, "id", ColumnType(TypeKind.BIGINT)), COLUMNS[1]))
    found = messages([(bag, rows(10, 60)), (bag, rows(60, 110, Op.DELETE))], **{"batch-rows": "9"})
    assert {lane for lane, _ in found} == {6 % 4}
    assert [e["source"]["commit_ts"] for e in events_of(found)] == list(range(10, 110))


def test_a_lane_is_the_same_for_ever() -> None:
    # The lane of a key is kept by receivers: this must not change.
    found = messages([(TABLE, rows(0, 8, keys=8))], lanes="4")
    lanes = {e["after"]["id"]: lane for lane, m in found for e in json.loads(m.body)["events"]}
    assert lanes == {key: 3 - key % 4 for key in range(8)}


def test_no_body_is_larger_than_asked_but_for_one_row() -> None:
    found = messages([(TABLE, rows(10, 200))], **{"batch-size": "1KiB", "lanes": "1"})
    counts = [json.loads(m.body)["rows"] for _, m in found]
    assert sum(counts) == 190
    for (_, message), count in zip(found, counts, strict=True):
        assert len(json.loads(message.body)["events"]) == count == message.rows
        assert message.body.index(b"[\n") + 1_024 + 8 > len(message.body) or count == 1
    assert max(counts) > 1


def test_a_body_has_rows_of_one_table_version_and_tells_about_them() -> None:
    found = messages([(TABLE, rows(10, 20)), (LATER, rows(500, 510))], lanes="1")
    heads = [{key: value for key, value in json.loads(m.body).items() if key != "events"} for _, m in found]
    assert heads == [
        {
            "type": "rows",
            "feed": "f",
            "lane": "7-0/0",
            "sequence": f"{1000:020d}-{number:08d}",
            "schema": "shop",
            "table": "orders",
            "version": version,
            "snapshot": False,
            "window": ["10", "1000"],
            "rows": 10,
        }
        for number, version in ((1, "5"), (2, "500"))
    ]
    first = messages([(TABLE, rows(10, 20))], DispatcherWork(DispatcherId(7), TABLE, 0, 1_000), lanes="1")
    assert json.loads(first[0][1].body)["snapshot"]


def test_every_row_as_a_cloud_event() -> None:
    found = messages([(TABLE, rows(10, 60)), (TABLE, rows(60, 100))], **{"cloudevents": "batch", "batch-rows": "7", "lanes": "3"})
    assert {m.content_type for _, m in found} == {"application/cloudevents-batch+json"}
    for lane, posted in by_lane(found).items():
        events = [event for m in posted for event in json.loads(m.body)]
        numbers = [f"{1000:020d}-{10**9 + n}" for n in range(len(events))]
        assert [e["sequence"] for e in events] == numbers
        assert [e["id"] for e in events] == [f"7-0/{lane}/{n}" for n in numbers]
        assert {(e["specversion"], e["source"], e["type"], e["subject"], e["lane"]) for e in events} == {
            ("1.0", "/penstock/feeds/f", "io.penstock.row", "shop.orders", f"7-0/{lane}")
        }
        ts = [e["data"]["source"]["commit_ts"] for e in events]
        assert ts == sorted(ts)
    assert sorted(e["data"]["source"]["commit_ts"] for _, m in found for e in json.loads(m.body)) == list(range(10, 100))


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_every_batch_as_a_cloud_event(mode: str) -> None:
    ((_, message),) = messages([(TABLE, rows(10, 20))], cloudevents=mode, lanes="1")
    ((_, plain),) = messages([(TABLE, rows(10, 20))], lanes="1")
    if mode == "structured":
        event = json.loads(message.body)
        assert event.pop("data") == json.loads(plain.body)
        assert (message.content_type, event.pop("datacontenttype")) == ("application/cloudevents+json", "application/json")
    else:
        assert (message.content_type, message.body) == ("application/json", plain.body)
        event = {key.removeprefix("ce-"): value for key, value in message.headers.items()}
    assert event == {
        "specversion": "1.0",
        "id": message.id,
        "source": "/penstock/feeds/f",
        "type": "io.penstock.rows",
        "lane": "7-0/0",
        "sequence": f"{1000:020d}-00000001",
    }


def test_canal_json_is_another_form_of_the_same() -> None:
    ((_, message),) = messages([(TABLE, rows(10, 13))], format="canal-json", lanes="1")
    assert [e["data"][0]["id"] for e in json.loads(message.body)["events"]] == ["10", "11", "12"]
