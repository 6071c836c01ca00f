"""A transaction that is given in pieces: a key stands once at a ts, and what other tables do plays no part."""

import msgspec

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.table import TableSchema
from penstock.source.mysql.log_line import LogLine
from penstock.source.mysql.transaction_pieces import TransactionPieces, at_ts
from penstock.source.single_log import LogPosition
from testing.checks.change_batches import TABLE, change_batch

OTHER: TableSchema = msgspec.structs.replace(TABLE, table_id=8)


def rows(*keys: int, table: TableSchema = TABLE) -> ChangeBatch:
    return change_batch(0, [(0, Op.INSERT, key, "x") for key in keys], BatchKind.DATA, table)


def given(pieces: TransactionPieces, piece: int, *changes: ChangeBatch) -> list[int]:
    """Return the ts under which changes are given."""
    return [change.header.min_ts for change in pieces.separated(list(changes), piece, lambda _: False)]


def begun() -> tuple[LogLine, TransactionPieces]:
    line = LogLine(LogPosition(5, "bin.000001:4"), [])
    pieces = TransactionPieces(line)
    pieces.ensure_begun(0)
    return line, pieces


def test_a_key_that_changes_again_has_a_ts_of_its_own() -> None:
    line, pieces = begun()
    assert given(pieces, 0, rows(1, 2), rows(1, table=OTHER)) == [6, 6]
    assert given(pieces, 1, rows(3)) == [6], "other keys stay at the first ts"
    assert given(pieces, 2, rows(2), rows(9, table=OTHER)) == [8, 6], "the piece's own, and only for the table that needs it"
    assert given(pieces, 3, rows(4)) == [8], "what follows is not before it"
    assert pieces.table_ids == {TABLE.table_id, OTHER.table_id}
    assert pieces.end(3) == 9
    assert pieces.table_ids == set()
    assert line.next_ts(0) == 10, "the log goes on above all of it"


def test_other_tables_and_pieces_play_no_part() -> None:
    _, alone = begun()
    _, beside = begun()
    found = [given(alone, piece, rows(*keys)) for piece, keys in enumerate([(1,), (2,), (1,), (1,)])]
    both = [given(beside, piece, rows(5, table=OTHER), rows(*keys))[1:] for piece, keys in enumerate([(1,), (2,), (1,), (1,)])]
    assert found == both == [[6], [6], [8], [9]]


def test_a_ts_is_written_into_every_row() -> None:
    moved = at_ts(rows(1, 2), 7)
    assert moved.records.column("_ts").to_pylist() == [7, 7]
    assert at_ts(moved, 7) is moved
