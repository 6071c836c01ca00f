"""The scanning kernel against protobuf objects, and against bytes that no store sends."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.puller.ranged.matching.wire_scan import (
    KEY_OFF,
    KIND,
    KIND_ENTRIES,
    KIND_ERROR,
    KIND_NONE,
    KIND_RESOLVED,
    OLD_OFF,
    OP,
    TYPE,
    VALUE_OFF,
    ScannedMessage,
    scan_message,
)
from penstock.source.proto import cdc_pb2 as pb

u64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
blob = st.binary(max_size=40)
rows = st.builds(
    pb.Event.Row,
    start_ts=u64,
    commit_ts=u64,
    type=st.integers(1, 5),
    op_type=st.integers(0, 2),
    key=blob,
    value=blob,
    old_value=blob,
    expire_ts_unix_secs=u64,
    txn_source=u64,
    generation=u64,
)
errors = st.one_of(
    st.just(pb.Error(not_leader=pb.NotLeader(region_id=4, leader=pb.Peer(id=1, store_id=2)))),
    st.just(pb.Error(epoch_not_match=pb.EpochNotMatch(current_regions=[pb.Region(id=3, start_key=b"a")]))),
    st.just(pb.Error(server_is_busy=pb.ServerIsBusy(reason="slow", backoff_ms=7))),
)
bodies = st.one_of(
    st.builds(lambda r: {"entries": pb.Event.Entries(entries=r)}, st.lists(rows, max_size=6)),
    st.builds(lambda e: {"error": e}, errors),
    st.builds(lambda t: {"resolved_ts": t}, u64),
    st.just({}),
)
events = st.builds(lambda region, request, body: pb.Event(region_id=region, index=9, request_id=request, **body), u64, u64, bodies)
messages = st.builds(
    lambda e, r: pb.ChangeDataEvent(events=e, resolved_ts=r),
    st.lists(events, max_size=5),
    st.one_of(st.none(), st.builds(pb.ResolvedTs, regions=st.lists(u64, max_size=6), ts=u64, request_id=u64)),
)


def scan_or_none(payload: bytes) -> ScannedMessage | None:
    """Scan, and let only the one error pass that bad bytes may give."""
    try:
        return scan_message(payload)
    except PenstockError as error:
        if error.code != "DECODE_FAILED":
            raise
        return None


def as_objects(message: pb.ChangeDataEvent) -> list[object]:
    """The oracle: the same facts from protobuf objects."""
    out: list[object] = []
    for event in message.events:
        kind = event.WhichOneof("event")
        body: object = None
        if kind == "entries":
            body = [(r.start_ts, r.commit_ts, r.type, r.op_type, r.key, r.value, r.old_value) for r in event.entries.entries]
        elif kind == "error":
            body = event.error
        elif kind == "resolved_ts":
            body = event.resolved_ts
        out.append((event.region_id, event.request_id, kind, body))
    out.append((list(message.resolved_ts.regions), message.resolved_ts.ts, message.resolved_ts.request_id))
    return out


def as_scanned(scan: ScannedMessage) -> list[object]:
    def cut(row: int, part: int) -> bytes:
        at = int(scan.rows[row, part])
        return scan.payload[at : at + int(scan.rows[row, part + 1])]

    def ts(row: int, column: int) -> int:
        return int(scan.rows[row, column]) & (2**64 - 1)

    names = {KIND_NONE: None, KIND_ENTRIES: "entries", KIND_ERROR: "error", KIND_RESOLVED: "resolved_ts"}
    out: list[object] = []
    for i, (region, request, number, resolved, _, _, low, high) in enumerate(scan.events.tolist()):
        kind = names[number]
        body: object = None
        if kind == "entries":
            body = [
                (ts(r, 0), ts(r, 1), int(scan.rows[r, TYPE]), int(scan.rows[r, OP]), cut(r, KEY_OFF), cut(r, VALUE_OFF), cut(r, OLD_OFF))
                for r in range(low, high)
            ]
        elif kind == "error":
            body = pb.Error.FromString(scan.error_bytes(i))
        elif kind == "resolved_ts":
            body = resolved
        out.append((region, request, kind, body))
    out.append((scan.batch_regions.tolist(), scan.batch_ts, scan.batch_request_id))
    return out


@settings(max_examples=200, deadline=None)
@given(messages)
def test_scan_equals_protobuf(message: pb.ChangeDataEvent) -> None:
    assert as_scanned(scan_message(message.SerializeToString())) == as_objects(message)


@settings(max_examples=300, deadline=None)
@given(messages, st.data())
def test_mutated_bytes_are_refused_or_mean_what_protobuf_says(message: pb.ChangeDataEvent, data: st.DataObject) -> None:
    payload = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if payload:
            what = data.draw(st.sampled_from(["flip", "cut", "insert"]))
            at = data.draw(st.integers(0, len(payload) - 1))
            if what == "flip":
                payload[at] = data.draw(st.integers(0, 255))
            elif what == "cut":
                del payload[at:]
            else:
                payload[at:at] = data.draw(st.binary(min_size=1, max_size=12))
    scan = scan_or_none(bytes(payload))
    if scan is None:
        return
    try:
        oracle = pb.ChangeDataEvent.FromString(bytes(payload))
    except DecodeError:
        # Protobuf also looks into error messages, which we decode only when we meet one.
        assert KIND_ERROR in scan.events[:, KIND]
        return
    assert as_scanned(scan) == as_objects(oracle)


def test_every_truncation_is_refused_or_a_shorter_message() -> None:
    event = pb.Event(region_id=300, request_id=2**40)
    event.entries.entries.extend(
        pb.Event.Row(start_ts=2**50, commit_ts=i, type=4, op_type=1, key=b"key", value=b"v" * 200) for i in range(3)
    )
    payload = pb.ChangeDataEvent(events=[event], resolved_ts=pb.ResolvedTs(regions=[1, 2], ts=5)).SerializeToString()
    refused = 0
    for size in range(len(payload)):
        scan = scan_or_none(payload[:size])
        if scan is None:
            refused += 1
        else:
            assert as_scanned(scan) == as_objects(pb.ChangeDataEvent.FromString(payload[:size]))
    assert refused > len(payload) - 5


@pytest.mark.parametrize(
    "payload", [b"\x00", b"\x0b", b"\xff" * 12, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0a\x80\x80\x80\x80\x08"]
)
def test_hostile_lengths(payload: bytes) -> None:
    with pytest.raises(PenstockError, match="DECODE_FAILED"):
        scan_message(payload)
