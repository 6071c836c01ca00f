"""Debezium's messages about the beginning and end of transactions, against messages written by hand."""

import json

import numpy as np

from penstock.format.json.transaction_messages import boundary_messages
from penstock.format.layout.transaction_index import IndexedFile, TransactionIndex
from penstock.format.transaction_runs import pack_runs
from penstock.model.timestamp import compose_ts

T = compose_ts(1_700_000_000_000)


def runs(*found: tuple[int, int]) -> bytes:
    return pack_runs(np.array([ts for ts, _ in found], np.uint64), np.array([rows for _, rows in found]))


def test_messages_are_as_debezium_has_them() -> None:
    # A table of two files counts as one collection.
    files = [
        (IndexedFile("p1", "s1", 'a"b', 3), runs((T + 1, 1), (T + 2, 2))),
        (IndexedFile("p2", "s1", 'a"b', 4), runs((T + 2, 4))),
        (IndexedFile("p3", "s2", "a", 1), runs((T + 2, 1))),
        (IndexedFile("p4", "s3", "c", 7, state=True), b""),
    ]
    lines = boundary_messages(TransactionIndex.of(T, T + 9, files), b"\n").split(b"\n")
    assert lines[0] == b'{"status":"BEGIN","id":"%d","event_count":null,"data_collections":null,"ts_ms":1700000000000}' % (T + 1)
    assert lines.pop() == b""
    assert [json.loads(line) for line in lines[1:]] == [
        {
            "status": "END",
            "id": str(T + 1),
            "event_count": 1,
            "data_collections": [{"data_collection": 's1.a"b', "event_count": 1}],
            "ts_ms": 1_700_000_000_000,
        },
        {"status": "BEGIN", "id": str(T + 2), "event_count": None, "data_collections": None, "ts_ms": 1_700_000_000_000},
        {
            "status": "END",
            "id": str(T + 2),
            "event_count": 7,
            "data_collections": [{"data_collection": 's1.a"b', "event_count": 6}, {"data_collection": "s2.a", "event_count": 1}],
            "ts_ms": 1_700_000_000_000,
        },
    ]


def test_a_window_without_transactions_has_no_messages() -> None:
    assert boundary_messages(TransactionIndex.of(0, T, [(IndexedFile("p", "s", "t", 7, state=True), b"")]), b"\n") == b""
