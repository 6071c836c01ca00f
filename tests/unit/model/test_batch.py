import pickle

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.batch import BatchHeader, BatchKind, ChangeBatch, Op, commit_ts_array, read_ipc, write_ipc
from penstock.model.errors import InvariantError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.model.types import ColumnType, TypeKind

TABLE = TableSchema(
    7,
    "shop",
    "orders",
    20,
    (
        Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True),
        Column(4, "note", ColumnType(TypeKind.TEXT)),
        Column(5, "raw", ColumnType(TypeKind.BLOB)),
    ),
)

Row = tuple[int, bytes, str | None]


def records(rows: list[Row], op: Op = Op.INSERT) -> pa.RecordBatch:
    columns = [
        [ts for ts, _, _ in rows],
        [op] * len(rows),
        [key for _, key, _ in rows],
        list(range(len(rows))),
        [note for _, _, note in rows],
        [None if note is None else note.encode() for _, _, note in rows],
    ]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, TABLE.batch_schema(), strict=True)], TABLE.batch_schema())


def content(batch: pa.RecordBatch) -> list[Row]:
    return list(zip(*(batch.column(name).to_pylist() for name in ("_ts", "_key", "c4")), strict=True))


ROWS: list[Row] = [(30, b"b", "x"), (10, b"c", None), (30, b"a", ""), (TS_MAX, b"", "\u00fc\n")]


def test_the_header_says_what_is_inside() -> None:
    batch = records(ROWS, Op.BEFORE)
    change = ChangeBatch.of(99, TABLE, BatchKind.TOMBSTONE, batch)
    assert change.header == BatchHeader(
        span_id=99, table_id=7, schema_version=20, kind=BatchKind.TOMBSTONE, min_ts=10, max_ts=TS_MAX, rows=4, nbytes=batch.nbytes
    )
    assert change.records is batch


def test_the_header_of_a_slice_is_that_of_its_rows() -> None:
    header = ChangeBatch.of(1, TABLE, BatchKind.DATA, records(ROWS).slice(1, 2)).header
    assert (header.min_ts, header.max_ts, header.rows) == (10, 30, 2)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvariantError, match="empty change batch"):
        ChangeBatch.of(1, TABLE, BatchKind.DATA, records([]))


def test_a_header_survives_the_wire() -> None:
    header = ChangeBatch.of(99, TABLE, BatchKind.TOMBSTONE, records(ROWS)).header
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(header), type=BatchHeader) == header
    assert msgspec.json.decode(msgspec.json.encode(header), type=BatchHeader) == header


def test_a_change_batch_survives_pickling() -> None:
    change = ChangeBatch.of(99, TABLE, BatchKind.DATA, records(ROWS))
    copy = pickle.loads(pickle.dumps(change))
    assert copy.header == change.header
    assert copy.records.equals(change.records)


def test_kinds_and_ops_keep_their_numbers() -> None:
    assert [(k.name, int(k)) for k in BatchKind] == [("DATA", 0), ("TOMBSTONE", 1)]
    assert [(o.name, int(o)) for o in Op] == [("INSERT", 0), ("UPDATE", 1), ("DELETE", 2), ("BEFORE", 3)]


def test_commit_ts_is_not_copied() -> None:
    batch = records(ROWS).slice(1)
    ts = commit_ts_array(batch)
    assert ts.tolist() == [10, 30, TS_MAX]
    assert ts.dtype == np.uint64
    assert ts.__array_interface__["data"][0] == batch.column("_ts").buffers()[1].address + 8


@given(st.lists(st.tuples(st.integers(0, TS_MAX), st.binary(max_size=9), st.none() | st.text(max_size=9)), max_size=20), st.integers(0, 5))
def test_ipc_round_trip(rows: list[Row], start: int) -> None:
    batch = records(rows).slice(start)
    payload = write_ipc(batch)
    for form in (payload, payload.to_pybytes()):
        again = read_ipc(form)
        assert again.equals(batch)
        assert again.schema == TABLE.batch_schema()


def test_reading_does_not_copy_the_columns() -> None:
    payload = write_ipc(records(ROWS))
    column = read_ipc(payload).column("_ts").buffers()[1]
    assert payload.address <= column.address < payload.address + payload.size


def test_equal_batches_give_equal_bytes() -> None:
    whole = records([(1, b"", None), *ROWS])
    assert write_ipc(whole.slice(1)).to_pybytes() == write_ipc(records([(0, b"", None), *ROWS]).slice(1)).to_pybytes()


@pytest.mark.parametrize("payload", [b"", b"not arrow", b"\xff\xff\xff\xff\x00\x00\x00\x00"])
def test_foreign_bytes_are_an_error(payload: bytes) -> None:
    with pytest.raises((pa.ArrowInvalid, StopIteration, EOFError)):
        read_ipc(payload)
