"""What every source does, whatever it is. The sources are in ``conftest.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.source.contract import Capability, PastReader, Upstream
from penstock.source.ranged import RangedUpstream
from penstock.source.single_log import LoggedUpstream

TableOf = Callable[..., TableSchema]
PROTOCOLS = {Capability.RANGES: RangedUpstream, Capability.LOG: LoggedUpstream, Capability.PAST: PastReader}


def members(protocol: type) -> set[str]:
    return {name for base in protocol.__mro__ for name in vars(base) if not name.startswith("_")}


def ids(batches: Iterable[ChangeBatch]) -> list[int]:
    return [i for b in batches for i in b.records.column("c1").to_pylist()]


def keys(batches: Iterable[ChangeBatch]) -> list[bytes]:
    return [k for b in batches for k in b.records.column("_key").to_pylist()]


def test_what_is_declared_is_there_and_nothing_else(source: Any) -> None:
    upstream = source.upstream
    missing = {name for name in members(Upstream) if not hasattr(upstream, name)}
    assert not missing
    assert (Capability.RANGES in upstream.capabilities) != (Capability.LOG in upstream.capabilities)
    for capability, protocol in PROTOCOLS.items():
        added = members(protocol) - members(Upstream)
        there = {name for name in added if hasattr(upstream, name)}
        assert there == (added if capability in upstream.capabilities else set())


def test_the_ts_never_goes_back(source: Any) -> None:
    before = source.upstream.current_ts()
    source.put([1])
    after = source.upstream.current_ts()
    assert before <= after <= source.upstream.current_ts()


def test_tables_and_their_history(source: Any, table_of: TableOf) -> None:
    table, other = table_of(source), table_of(source, "other")
    assert table.table_id != other.table_id
    assert (table.columns[0].name, [c.name for c in table.key_columns]) == ("id", ["id"])
    assert source.upstream.schema_history(table.table_id)[-1] == table
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        source.upstream.schema_history(999_999)


def test_a_table_is_read_as_it_is_now_in_key_order(source: Any, table_of: TableOf) -> None:
    table = table_of(source)
    span = Span(table.table_id)
    assert list(source.upstream.read_now(span)) == []
    source.put([3, 1, -2])
    source.put([7, 5])
    source.put([4], "other")
    source.delete([3])
    batches = list(source.upstream.read_now(span))
    assert ids(batches) == [-2, 1, 5, 7]
    assert keys(batches) == sorted(keys(batches))
    for batch in batches:
        assert (batch.header.kind, batch.header.table_id) == (BatchKind.DATA, table.table_id)
        assert batch.records.schema == table.batch_schema()
        assert set(batch.records.column("_op").to_pylist()) == {int(Op.INSERT)}
        assert 0 < batch.header.min_ts <= batch.header.max_ts <= source.upstream.current_ts()
    part = Span(table.table_id, keys(batches)[1], keys(batches)[3])
    assert ids(source.upstream.read_now(part)) == [1, 5]


@pytest.mark.parametrize("pieces_max", [None, 1, 2, 3])
def test_pieces_are_the_span_together(source: Any, table_of: TableOf, pieces_max: int | None) -> None:
    source.put(range(20))
    table = table_of(source)
    found = keys(source.upstream.read_now(Span(table.table_id)))
    for span in (Span(table.table_id), Span(table.table_id, found[3], found[17])):
        pieces = source.upstream.divide(span, pieces_max)
        assert 1 <= len(pieces) <= (pieces_max or len(pieces))
        assert (pieces[0].start_key, pieces[-1].end_key) == (span.start_key, span.end_key)
        assert [p.start_key for p in pieces[1:]] == [p.end_key for p in pieces[:-1]]
        read = [k for piece in pieces for k in keys(source.upstream.read_now(piece))]
        assert read == [k for k in found if span.contains(k)]


@pytest.mark.parametrize("page_rows", [3, 1000])
def test_a_snapshot_gives_every_row_that_did_not_change_since_its_ticket(source: Any, table_of: TableOf, page_rows: int) -> None:
    source.put(range(20))
    table = table_of(source)
    if Capability.LOG in source.upstream.capabilities:
        source.upstream.first_position()
    ticket = source.upstream.begin_snapshot()
    source.put(range(100, 105))
    source.delete([0, 19])
    pieces = source.upstream.divide(Span(table.table_id))
    parts = [list(source.upstream.read_snapshot(ticket, piece, table, page_rows)) for piece in pieces]
    batches = [b for part in parts for b in part]
    found = ids(batches)
    changed = {0, 19, *range(100, 105)}
    assert [i for i in found if i not in changed] == list(range(1, 19))
    assert set(found) <= {*range(20), *changed}
    assert keys(batches) == sorted(set(keys(batches)))
    if ticket.exact:
        assert found == list(range(20))
    for piece, part in zip(pieces, parts, strict=True):
        assert all(piece.contains(k) for k in keys(part))
        assert all((b.header.min_ts, b.header.max_ts) == (ticket.start.ts, ticket.start.ts) for b in part)
        assert all(set(b.records.column("_op").to_pylist()) == {int(Op.INSERT)} for b in part)
    source.upstream.end_snapshot(ticket)
    source.upstream.end_snapshot(ticket)


def test_an_upstream_that_is_not_there_is_unreachable(source: Any, unreachable: Callable[[Any], None]) -> None:
    with pytest.raises(PenstockError, match="UPSTREAM_UNREACHABLE"):
        unreachable(source)
