"""What a source with ranges adds, run against the data server and against the twin that says what a test tells it to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import pyarrow as pa
import pytest

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import table_prefix
from penstock.model.span import DDL_SPAN, Span
from penstock.source.catalog import open_upstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.proto import dataserver_pb2 as pb
from penstock.source.proto import dataserver_pb2_grpc
from penstock.source.raw import RAW_DELETE, RAW_PUT, RAW_SCHEMA, RawBatch
from testing.twins.change_stream import TABLE, ScriptedStore, ScriptedUpstream, range_info

CUTS = (5, 12)


def raw_batch(region_id: int, rows: Sequence[tuple[Any, ...]]) -> RawBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(RAW_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RAW_SCHEMA, strict=True)]
    return RawBatch(region_id, pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA))


class DataServerRanges:
    """A data server's table in three ranges, and its log through the pull protocol."""

    def __init__(self, uri: str) -> None:
        self.upstream: Any = open_upstream(uri)
        self.upstream.execute_ddl("CREATE DATABASE d")
        self.upstream.execute_ddl("CREATE TABLE d.t (id BIGINT PRIMARY KEY, v VARCHAR(50))")
        self.table = self.upstream.table("d", "t")
        for number in CUTS:
            self.upstream.split(table_prefix(self.table.table_id) + self.key(number))

    def key(self, number: int) -> bytes:
        return (number + (1 << 63)).to_bytes(8, "big")

    def change(self) -> tuple[RawBatch, set[tuple[Any, ...]]]:
        """Insert two rows of the first range, update one and delete the other; return its entries and what they must decode to."""
        info = self.upstream.ranges(Span(self.table.table_id))[0]
        stamps = []
        for ids, values in (([1, 2], ["a", "b"]), ([1], ["A"])):
            with self.upstream.txn() as txn:
                txn.put(self.table, {"id": pa.array(ids, pa.int64()), "v": pa.array(values)})
            stamps.append(txn.commit_ts)
        with self.upstream.txn() as txn:
            txn.delete(self.table, pa.array([self.key(2)], pa.binary()))
        first, second, third = *stamps, txn.commit_ts
        expected = {
            (BatchKind.DATA, first, Op.INSERT, self.key(1)),
            (BatchKind.DATA, first, Op.INSERT, self.key(2)),
            (BatchKind.DATA, second, Op.UPDATE, self.key(1)),
            (BatchKind.TOMBSTONE, second, Op.BEFORE, self.key(1)),
            (BatchKind.TOMBSTONE, third, Op.DELETE, self.key(2)),
        }
        return self._log(info), expected

    def _log(self, info: Any) -> RawBatch:
        """Register first; then everything since the table's birth is after index 1."""
        epoch = {"conf_ver": info.epoch.conf_ver, "version": info.epoch.version}
        name = {"range_id": info.range_id, "range_epoch": epoch, "subscriber_name": "t"}
        with grpc.insecure_channel(info.store_addr) as channel:
            stub = dataserver_pb2_grpc.DataServerStub(channel)
            assert not stub.CdcRegister(pb.CdcRegisterRequest(**name), timeout=120).error.code
            data = stub.CdcPullLog(pb.CdcPullLogRequest(**name, last_log_index=1), timeout=120).log_data
        op = {0: RAW_PUT, 1: RAW_DELETE}
        return raw_batch(info.range_id, [(d.commit_ts, 0, op[d.type], d.key, d.value or None, d.old_value or None) for d in data])


class ScriptedRanges:
    """The twin with three ranges; entries are what the test makes up."""

    def __init__(self, store: ScriptedStore) -> None:
        borders = [b"", *(self.key(n) for n in CUTS), b""]
        self.upstream = ScriptedUpstream([range_info(n + 1, store, borders[n], borders[n + 1]) for n in range(3)])
        self.table = TABLE

    def key(self, number: int) -> bytes:
        return b"k%03d" % number

    def change(self) -> tuple[RawBatch, set[tuple[Any, ...]]]:
        rows = [(9, 8, RAW_PUT, self.key(1), b"a", None), (11, 8, RAW_DELETE, self.key(2), None, b"b")]
        return raw_batch(1, rows), {(BatchKind.DATA, 9, Op.INSERT, self.key(1)), (BatchKind.TOMBSTONE, 11, Op.DELETE, self.key(2))}


@contextlib.contextmanager
def data_server() -> Iterator[DataServerRanges]:
    with DataServer(DataServerSettings(resolved_interval_ms=20)) as server:
        rig = DataServerRanges(server.uri)
        with contextlib.closing(rig.upstream):
            yield rig


@contextlib.contextmanager
def scripted() -> Iterator[ScriptedRanges]:
    with ScriptedStore() as store:
        yield ScriptedRanges(store)


@pytest.fixture(params=[data_server, scripted], ids=["dataserver", "scripted"])
def ranged(request: pytest.FixtureRequest) -> Iterator[Any]:
    with request.param() as rig:
        yield rig


def test_ranges_cover_a_span_in_order_without_holes(ranged: Any) -> None:
    whole = Span(ranged.table.table_id)
    start, end = ranged.upstream.key_span(whole)
    found = ranged.upstream.ranges(whole)
    assert len(found) == len(CUTS) + 1
    assert (found[0].start_key, found[-1].end_key) == (start, end)
    assert [r.start_key for r in found[1:]] == [r.end_key for r in found[:-1]]
    assert len({r.range_id for r in found}) == len(found)
    assert all(r.store_addr and r.table_id == ranged.table.table_id for r in found)
    part = Span(ranged.table.table_id, ranged.key(CUTS[0] + 1), ranged.key(CUTS[1] - 1))
    assert [r.range_id for r in ranged.upstream.ranges(part)] == [found[1].range_id]
    assert ranged.upstream.ranges(DDL_SPAN)


def test_a_span_is_divided_at_the_borders_of_ranges(ranged: Any) -> None:
    whole = Span(ranged.table.table_id)
    assert [p.start_key for p in ranged.upstream.divide(whole)] == [b"", *(ranged.key(n) for n in CUTS)]
    for piece, info in zip(ranged.upstream.divide(whole), ranged.upstream.ranges(whole), strict=True):
        assert ranged.upstream.key_span(piece) == (info.start_key, info.end_key)


def test_the_decoder_turns_entries_into_ordered_batches_of_one_kind(ranged: Any) -> None:
    raw, expected = ranged.change()
    decoded = ranged.upstream.decoder().decode(5, raw)
    assert decoded.ddls == ()

    def rows(change: ChangeBatch) -> list[tuple[Any, ...]]:
        return [(change.header.kind, r["_ts"], Op(r["_op"]), r["_key"]) for r in change.records.to_pylist()]

    found = [row for change in decoded.changes for row in rows(change)]
    assert len(found) == len(expected)
    assert set(found) == expected
    for change in decoded.changes:
        assert change.header.span_id == 5
        places = [(ts, key) for _, ts, _, key in rows(change)]
        assert places == sorted(places)


def test_no_entries_decode_to_nothing(ranged: Any) -> None:
    decoded = ranged.upstream.decoder().decode(5, raw_batch(1, []))
    assert (decoded.changes, decoded.ddls) == ((), ())


def test_ranges_of_an_upstream_that_is_gone(ranged: Any) -> None:
    ranged.upstream.close()
    asked: list[Callable[[], Any]] = [lambda: ranged.upstream.ranges(Span(ranged.table.table_id)), ranged.upstream.list_tables]
    for ask in asked:
        with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
            ask()
