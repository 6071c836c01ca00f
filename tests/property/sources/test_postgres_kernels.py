"""Kernels of the PostgreSQL source against plain Python: framing, cells, COPY rows, keys, folding, and mutated bytes."""

import contextlib
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import BatchKind, Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.commit_log import TS_STEP, chain_ts
from penstock.source.postgres.rows.cells import CellForm, copy_grid, tuple_grid
from penstock.source.postgres.rows.row_changes import build_changes
from penstock.source.postgres.rows.transaction_spool import TransactionSpool
from penstock.source.postgres.tables.observed import KnownRelation
from penstock.source.postgres.wire.pgoutput import (
    FIRST_ROW,
    FULL,
    MORE,
    SPECIAL,
    TXN,
    Relation,
    RelationColumn,
    read_relation,
    read_truncate,
)
from penstock.source.postgres.wire.scan_buffer import ScanBuffer

TABLE = TableSchema(
    7,
    "shop",
    "t",
    3,
    (
        Column(1, "id", ColumnType(TypeKind.INT), False, True),
        Column(2, "v", ColumnType(TypeKind.LONGTEXT)),
        Column(3, "n", ColumnType(TypeKind.BIGINT)),
    ),
)
RELATION = Relation(7, "shop", "t", "f", tuple(RelationColumn(n, o, -1, n == "id") for n, o in (("id", 23), ("v", 25), ("n", 20))))
KNOWN = KnownRelation(RELATION, TABLE, (CellForm.INTEGER, CellForm.TEXT, CellForm.INTEGER))


def never(*_):
    raise AssertionError("nothing is read by key here")


def message(body):
    payload = b"w" + struct.pack("!QQQ", 1, 2, 3) + body
    return b"d" + struct.pack("!I", len(payload) + 4) + payload


def row_tuple(values):
    out = struct.pack("!H", len(values))
    for value in values:
        text = None if value is None else str(value).encode()
        out += b"n" if text is None else b"t" + struct.pack("!I", len(text)) + text
    return out


def change(op, old, new):
    body = op + struct.pack("!I", 7)
    if old is not None:
        body += b"O" + row_tuple(old)
    if new is not None:
        body += b"N" + row_tuple(new)
    return message(body)


def begin(number):
    return message(b"B" + struct.pack("!QqI", number * 100 + 90, number * 1000, number))


def commit(number):
    return message(b"C" + struct.pack("!BQQq", 0, number * 100 + 90, number * 100 + 95, number * 1000))


@st.composite
def transactions(draw):
    """Transactions that a server could have written, and what each key was and became in each of them."""
    state, wire, nets = {}, b"", []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        wire += begin(number)
        before, touched = dict(state), {}
        for _ in range(draw(st.integers(0, 6))):
            key = draw(st.integers(-3, 3))
            row = (
                key,
                draw(st.none() | st.text(max_size=4).filter(lambda t: "\0" not in t)),
                draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
            )
            if key not in state:
                wire += change(b"I", None, row)
                state[key] = row
            elif draw(st.booleans()):
                wire += change(b"D", state.pop(key), None)
            else:
                moved = draw(st.integers(-3, 3))
                target = moved if moved not in state else key
                fresh = (target, *row[1:])
                wire += change(b"U", state.pop(key), fresh)
                state[target] = fresh
                touched[target] = True
            touched[key] = True
        wire += commit(number)
        nets.append({k: (before.get(k), state.get(k)) for k in touched})
    return wire, nets


def decode(wire, cuts=(), rows=64):
    """Feed bytes in pieces; return the change rows as (txn, kind, op, id, v, n), and whether it ended between transactions."""
    buffer = ScanBuffer(64, rows, "test")
    found, passed = [], 0
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    for piece in pieces:
        buffer.append(piece)
        while True:
            status = buffer.scan()
            if status == SPECIAL:
                kind, body = buffer.special()
                if not buffer.note(kind, body):
                    raise PenstockError("DECODE_FAILED", f"unknown {kind}")
                continue
            count = buffer.complete
            if count:
                part = buffer.rows[: buffer.rows_of(count)]
                ts = np.arange(passed + 1, passed + count + 1, dtype=np.uint64) * 100
                ordinals = np.arange(len(part)) - buffer.txns[part[:, TXN], FIRST_ROW]
                mine = part[part[:, 0] == 7]
                if len(mine):
                    for batch in build_changes(KNOWN, buffer.bytes, mine, ts[mine[:, TXN]], ordinals[part[:, 0] == 7], never):
                        found += [(batch.header.kind, r) for r in batch.records.to_pylist()]
                buffer.drop(count)
                passed += count
            elif status == FULL:
                buffer.grow()
            if status == MORE:
                break
    return found, buffer.is_empty and buffer.size == 0


def expected(nets):
    rows = []
    for number, net in enumerate(nets, 1):
        for key, (was, now) in net.items():
            if now is not None:
                rows.append((number * 100, BatchKind.DATA, Op.INSERT if was is None else Op.UPDATE, *now))
            if was is not None:
                rows.append((number * 100, BatchKind.TOMBSTONE, Op.DELETE if now is None else Op.BEFORE, *was))
            if was is None and now is None:
                rows.append((number * 100, BatchKind.TOMBSTONE, Op.DELETE, key, ..., ...))
    return rows


def key_of(row):
    return (row[0], row[1], row[2], row[3])


@settings(max_examples=60, deadline=None)
@given(transactions(), st.data())
def test_a_stream_cut_anywhere_folds_to_what_each_transaction_did(drawn, data):
    wire, nets = drawn
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=4)))
    found, whole = decode(wire, cuts, rows=data.draw(st.sampled_from([1, 2, 64])))
    got = sorted(((r["_ts"], kind, r["_op"], r["c1"], r["c2"], r["c3"]) for kind, r in found), key=key_of)
    want = sorted(expected(nets), key=key_of)
    assert whole
    assert [key_of(r) for r in got] == [key_of(r) for r in want]
    assert all(w[4] is ... or g == w for g, w in zip(got, want, strict=True))


@settings(max_examples=150, deadline=None)
@given(transactions(), st.data())
def test_mutated_bytes_are_an_error_or_rows_that_were_there(drawn, data):
    """Bytes with a bit turned end in an error, or in rows that differ only in the value that was hit."""
    wire, _ = drawn
    at = data.draw(st.integers(0, len(wire) - 1))
    broken = bytearray(wire)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    sound, _ = decode(wire)
    try:
        found, _ = decode(bytes(broken))
    except PenstockError:
        return
    shown = [tuple(r[c] for c in ("c1", "c2", "c3")) for _, r in found]
    known = {v for _, r in sound for v in (r["c1"], r["c2"], r["c3"])}
    # What a transaction wrote over comes to light where the flipped bit moves a row to another key.
    strange = {v for row in shown for v in row if v not in known and str(v).encode() not in wire}
    # A flipped bit changes one value, which an update shows before and after, or moves a row to another transaction or key.
    assert len(strange) <= 1, (strange, at)


def test_a_value_left_in_place_is_what_the_same_transaction_wrote():
    left = struct.pack("!H", 3) + b"t" + struct.pack("!I", 1) + b"5" + b"u" + b"t" + struct.pack("!I", 1) + b"9"
    twice = message(b"U" + struct.pack("!I", 7) + b"N" + left)
    wire = begin(1) + change(b"I", None, (5, "large", 1)) + change(b"I", None, (4, "other", 1)) + twice + twice + commit(1)
    found, whole = decode(wire)
    assert whole
    assert [(kind, r["_op"], r["c1"], r["c2"], r["c3"]) for kind, r in found] == [
        (BatchKind.DATA, Op.INSERT, 4, "other", 1),
        (BatchKind.DATA, Op.INSERT, 5, "large", 9),
    ]
    with pytest.raises(AssertionError, match="read by key"):
        decode(begin(1) + twice + commit(1))


@given(st.binary(max_size=200))
def test_any_bytes_as_messages_are_refused_or_understood(body):
    for read in (read_relation, read_truncate):
        with contextlib.suppress(PenstockError):
            read(body)


CELLS = st.lists(st.lists(st.none() | st.text(max_size=6).filter(lambda t: "\0" not in t), min_size=3, max_size=3), max_size=8)
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}


@settings(max_examples=80, deadline=None)
@given(CELLS)
def test_copy_rows_come_back_as_they_were(rows):
    wire = b""
    for row in rows:
        line = "\t".join("\\N" if v is None else "".join(ESCAPES.get(c, c) for c in v) for v in row).encode() + b"\n"
        wire += b"d" + struct.pack("!I", len(line) + 4) + line
    buffer = np.frombuffer(bytearray(wire + b"c\0\0\0\4"), dtype=np.uint8)
    grid, at, ended = copy_grid(buffer, 0, len(buffer), 3, 100)
    assert (at, ended, grid.rows) == (len(wire), True, len(rows))
    columns = [grid.column(i, CellForm.TEXT, pa.string()).to_pylist() for i in range(3)]
    assert [list(r) for r in zip(*columns, strict=True)] == rows
    # A row that has not arrived whole stays for later, untouched.
    for cut in range(0, len(wire), 7):
        short = np.frombuffer(bytearray(wire[:cut]), dtype=np.uint8)
        part, stopped, ended = copy_grid(short, 0, len(short), 3, 100)
        assert not ended
        assert bytes(short[stopped:]) == wire[stopped:cut]
        assert part.rows <= len(rows)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=6),
    st.lists(st.none() | st.floats(), max_size=6),
    st.lists(st.none() | st.binary(max_size=5), max_size=6),
)
def test_values_read_as_they_print(integers, floats, blobs):
    def column(texts, form, arrow):
        wire = b"".join(row_tuple([t]) for t in texts)
        sizes = [len(row_tuple([t])) for t in texts]
        ends = np.cumsum(sizes, dtype=np.int64) if sizes else np.zeros(0, np.int64)
        buffer = np.frombuffer(wire or b"\0", dtype=np.uint8)
        return tuple_grid(buffer, ends - np.array(sizes, dtype=np.int64), ends, 1, "t").column(0, form, arrow).to_pylist()

    assert column(integers, CellForm.INTEGER, pa.int64()) == integers
    assert column([None if b is None else "\\x" + b.hex() for b in blobs], CellForm.BYTES, pa.binary()) == blobs
    names = {math.inf: "Infinity", -math.inf: "-Infinity"}
    shown = [None if f is None else "NaN" if math.isnan(f) else names.get(f, repr(f)) for f in floats]
    read = column(shown, CellForm.FLOAT, pa.float64())
    assert [repr(f) for f in read] == [repr(f) for f in floats]


@pytest.mark.parametrize(
    ("text", "form", "arrow"),
    [
        ("9223372036854775808", CellForm.INTEGER, pa.int64()),
        ("-9223372036854775809", CellForm.INTEGER, pa.int64()),
        ("12345678901234567890123", CellForm.INTEGER, pa.int64()),
        ("40000", CellForm.INTEGER, pa.int16()),
        ("", CellForm.INTEGER, pa.int64()),
        ("-", CellForm.INTEGER, pa.int64()),
        ("1x", CellForm.INTEGER, pa.int64()),
        ("true", CellForm.BOOLEAN, pa.int8()),
        ("x", CellForm.BOOLEAN, pa.int8()),
        ("\\x0", CellForm.BYTES, pa.binary()),
        ("\\xzz", CellForm.BYTES, pa.binary()),
        ("00", CellForm.BYTES, pa.binary()),
        ("1.5.2", CellForm.FLOAT, pa.float64()),
    ],
)
def test_what_does_not_parse_is_refused(text, form, arrow):
    wire = np.frombuffer(row_tuple([text]), dtype=np.uint8)
    grid = tuple_grid(wire, np.array([0]), np.array([len(wire)]), 1, "t")
    with pytest.raises(PenstockError, match="DECODE_FAILED"):
        grid.column(0, form, arrow)


def test_text_that_is_no_utf8_is_refused():
    wire = np.frombuffer(struct.pack("!HcI", 1, b"t", 2) + b"\xff\xfe", dtype=np.uint8)
    with pytest.raises(PenstockError, match="DECODE_FAILED"):
        tuple_grid(wire, np.array([0]), np.array([len(wire)]), 1, "t").column(0, CellForm.TEXT, pa.string())


@given(st.integers(0, 2**50), st.lists(st.integers(-5, 2**30), min_size=1, max_size=12))
def test_the_chain_grows_with_room_for_schema_changes(last_ts, commit_ms):
    stamps = [int(t) for t in chain_ts(last_ts, np.array(commit_ms, dtype=np.int64))]
    at = last_ts
    for ts, ms in zip(stamps, commit_ms, strict=True):
        assert ts == max(at + TS_STEP, compose_ts(max(0, ms)))
        at = ts


@settings(max_examples=40, deadline=None)
@given(transactions(), st.integers(1, 3))
def test_a_transaction_in_pieces_folds_like_one_in_a_piece(drawn, size):
    """All changes as one transaction, decoded whole and decoded in pieces of a few rows."""
    wire, _ = drawn
    bare = b"".join(m for m in split_messages(wire) if m[30:31] not in b"BC")
    whole, _ = decode(begin(1) + bare + commit(1))
    spool = TransactionSpool(100)
    messages = split_messages(bare)
    for at in range(0, len(messages), size):
        buffer = ScanBuffer(64, 64, "test")
        buffer.append(begin(1) + b"".join(messages[at : at + size]))
        buffer.scan()
        rows = buffer.rows[: buffer.rows_of(1)]
        spool.add(build_changes(KNOWN, buffer.bytes, rows, np.full(len(rows), 100, np.uint64), np.arange(len(rows)), never), [], len(rows))
    pieces = [(b.header.kind, r) for b in spool.batches() for r in b.records.to_pylist()]
    spool.close()

    def alive(found):
        return sorted((kind, r["_key"], r["c2"], r["c3"]) for kind, r in found if kind is BatchKind.DATA)

    def gone(found):
        return sorted({r["_key"] for _, r in found if r["_op"] == Op.DELETE})

    assert alive(pieces) == alive(whole)
    assert gone(pieces) == gone(whole)
    places = [(kind, r["_key"]) for kind, r in pieces]
    assert len(places) == len(set(places)), "each key once on each side"
    befores = {r["_key"]: (r["c2"], r["c3"]) for _, r in whole if r["_op"] == Op.BEFORE}
    assert {r["_key"]: (r["c2"], r["c3"]) for _, r in pieces if r["_op"] == Op.BEFORE}.items() <= befores.items()


def split_messages(wire):
    messages, at = [], 0
    while at < len(wire):
        size = 1 + struct.unpack_from("!I", wire, at + 1)[0]
        messages.append(wire[at : at + size])
        at += size
    return messages
