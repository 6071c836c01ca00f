import pytest

from penstock.source.dataserver.engine.ranges import LogKind, make_record
from penstock.source.dataserver.service.wire import INITIALIZED_ROW, encode_event, encode_rows, pieces, varint
from penstock.source.proto import cdc_pb2

BIG = 470478276257906688


def record(kind=LogKind.PREWRITE, rows=3, start_ts=BIG, commit_ts=0, size=3):
    keys = [b"k%04d" % n for n in range(rows)]
    values = [None if n % 3 == 2 else b"v" * size for n in range(rows)]
    olds = [b"o" * 200 if n % 2 else None for n in range(rows)]
    return make_record(kind, 9, start_ts, commit_ts, keys, values, olds)


def by_protobuf(records, start_key, end_key, with_old, scanned):
    """The same rows, written the slow way."""
    rows = []
    for r in records:
        kind = cdc_pb2.Event.COMMITTED if scanned and r.kind == LogKind.COMMIT else int(r.kind)
        full = kind in (cdc_pb2.Event.PREWRITE, cdc_pb2.Event.COMMITTED)
        for k, v, o in zip(r.keys, r.values, r.olds, strict=True):
            if start_key <= k < end_key:
                row = cdc_pb2.Event.Row(start_ts=r.start_ts, commit_ts=r.commit_ts, type=kind, op_type=2 if v is None else 1, key=k)
                if full:
                    row.value = v or b""
                    row.old_value = (o or b"") if with_old else b""
                rows.append(row)
    return cdc_pb2.Event.Entries(entries=rows)


@pytest.mark.parametrize("with_old", [True, False])
@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize(
    ("start_key", "end_key"), [(b"", b"z"), (b"k0001", b"k0004"), (b"k", b"k0003"), (b"x", b"z"), (b"k0001\x00", b"k0002")]
)
def test_the_bytes_are_those_of_a_protobuf_library(with_old, scanned, start_key, end_key):
    records = [
        record(rows=5),
        record(LogKind.COMMIT, commit_ts=BIG + 5, size=0),
        record(LogKind.COMMIT, rows=1, start_ts=1, commit_ts=127, size=200_000),
        record(LogKind.ROLLBACK, start_ts=(1 << 64) - 1),
    ]
    entries, rows = encode_rows(records, start_key, end_key, with_old, scanned)
    expected = by_protobuf(records, start_key, end_key, with_old, scanned)
    assert entries == expected.SerializeToString(deterministic=True)
    assert rows == len(expected.entries)


def test_a_message_reads_as_one_event():
    entries, _ = encode_rows([record()], b"", b"z", True, False)
    message = cdc_pb2.ChangeDataEvent.FromString(encode_event(300, 1 << 40, 7, entries))
    event = message.events[0]
    assert (len(message.events), event.region_id, event.request_id, event.index, len(event.entries.entries)) == (1, 300, 1 << 40, 7, 3)
    assert message.SerializeToString(deterministic=True) == encode_event(300, 1 << 40, 7, entries)
    ready = cdc_pb2.ChangeDataEvent.FromString(encode_event(1, 1, 0, INITIALIZED_ROW)).events[0].entries.entries
    assert [r.type for r in ready] == [cdc_pb2.Event.INITIALIZED]


def test_large_records_come_in_pieces_that_together_are_the_record():
    whole = record(rows=1000, size=50)
    assert list(pieces(whole, 5000, 1 << 20)) == [whole]
    parts = list(pieces(whole, 64, 1 << 20))
    assert max(len(p.keys) for p in parts) == 64
    assert [k for p in parts for k in p.keys] == whole.keys
    assert [v for p in parts for v in p.values] == whole.values
    assert [o for p in parts for o in p.olds] == whole.olds
    assert all(p.nbytes <= 2000 for p in pieces(whole, 5000, 2000))
    assert len(list(pieces(record(rows=3, size=1000), 10, 1))) == 3


@pytest.mark.parametrize(("number", "data"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")])
def test_varints(number, data):
    assert varint(number) == data
