"""Rows of transactions as change batches, table by table, with the schema changes that stand between them.

A relation or a truncate holds from where it stands: rows before it belong to the version before it. Names pass from table to table in the
order of transactions, all else of a table is decoded at once. What keeps one table from being decoded is a doubt about that table only.
Not thread safe. Runs in the log service.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from penstock.kernels.jit import I64, U64
from penstock.model.batch import ChangeBatch
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.source.postgres.rows.row_changes import Fetch, build_changes
from penstock.source.postgres.rows.transaction_spool import count_pieces, fold_pieces
from penstock.source.postgres.table_follower import TableFollower
from penstock.source.postgres.tables.observed import KnownRelation
from penstock.source.postgres.tables.schema_book import SchemaBook
from penstock.source.postgres.wire.pgoutput import REL, TXN, XID
from penstock.source.postgres.wire.scan_buffer import Notice, ScanBuffer


class TransactionDecoder:
    """Decodes for one reading."""

    def __init__(self, book: SchemaBook, tables: TableFollower, fetch: Fetch) -> None:
        self._book = book
        self._tables = tables
        self._fetch = fetch
        self._in_pieces = False

    def decode(
        self,
        buffer: ScanBuffer,
        rows: I64,
        ts: U64,
        first_rows: I64,
        complete: int,
        aborted: Sequence[int] = (),
        *,
        in_pieces: bool = False,
    ) -> tuple[list[ChangeBatch], list[DdlEvent]]:
        """Return the changes of rows of so many transactions whose ts are given; also the schema changes among them.

        ``first_rows`` says where each transaction begins, ``aborted`` which of their parts were rolled back. ``in_pieces`` says that these
        are not all rows of their transaction.
        """
        self._in_pieces = in_pieces
        changes: list[ChangeBatch] = []
        ddls: list[DdlEvent] = []
        notices = [n for n in buffer.notices if n.txn < complete]
        relations = rows[:, REL]
        if aborted:
            relations = np.where(np.isin(rows[:, XID], aborted), -1, relations)
        ordinals = np.arange(len(rows)) - first_rows[rows[:, TXN]]
        self._tables.take_notices(notices)
        borders = [0, *self._tables.name_changes(notices), complete]
        for first, last in itertools.pairwise(borders):
            # Names pass from table to table in the order of transactions; all else of a table can be decoded at once.
            low, high = (int(n) for n in np.searchsorted(rows[:, TXN], (first, last)))
            own = [n for n in notices if first <= n.txn < last]
            for oid in sorted(({int(o) for o in np.unique(relations[low:high])} | {n.oid for n in own}) - {-1}):
                mine = low + np.flatnonzero(relations[low:high] == oid)
                changes += self._table_changes(oid, mine, own, buffer, rows, ts, ordinals, ddls)
        self._tables.end_notices()
        return changes, sorted(ddls, key=lambda d: d.commit_ts)

    def _table_changes(
        self, oid: int, mine: I64, notices: list[Notice], buffer: ScanBuffer, rows: I64, ts: U64, ordinals: I64, ddls: list[DdlEvent]
    ) -> list[ChangeBatch]:
        """Decode the rows of one relation, given by their places; what stands between them is applied where it stands."""
        own = self._tables.real_notices(oid, notices)
        pieces: list[tuple[int, bool, ChangeBatch]] = []
        borders = [0, *(int(np.searchsorted(mine, n.row)) for n in own), len(mine)]
        for at, (begin, end) in enumerate(itertools.pairwise(borders)):
            if at:
                self._tables.apply(own[at - 1], int(ts[own[at - 1].txn]), ddls)
            for part in self._by_version(oid, mine[begin:end], ts[rows[mine[begin:end], TXN]]):
                stamps = ts[rows[part, TXN]]
                known = self._tables.resolve(oid, int(stamps[0]), ddls)
                if known is not None:
                    pieces += [(at, known.is_bag, change) for change in self._built(known, buffer, rows[part], stamps, ordinals[part])]
        if len({(at, change.header.table_id) for at, _, change in pieces}) > len({change.header.table_id for _, _, change in pieces}):
            return self._fold_versions(pieces)
        return [change for _, _, change in pieces]

    def _built(self, known: KnownRelation, buffer: ScanBuffer, rows: I64, stamps: U64, ordinals: I64) -> list[ChangeBatch]:
        """Decode rows of one table; what keeps it from being decoded is a doubt about this table only."""

        def doubt(reason: str) -> None:
            self._tables.doubt(known.table, int(stamps[-1]), reason)

        if known.deferrable and self._in_pieces:
            doubt("its key is deferrable, and a transaction was too large to be folded at once")
        try:
            return build_changes(known, buffer.bytes, rows, stamps, ordinals, self._fetch, doubt)
        except PenstockError as error:
            self._tables.doubt_left_out(known.table, int(stamps[-1]), error)
            return []

    def _by_version(self, oid: int, rows: I64, stamps: U64) -> list[I64]:
        """Divide rows where a version begins that no relation tells: the one that a capture began with."""
        if len(rows) == 0:
            return []
        starts = self._book.starts_between(oid, int(stamps[0]), int(stamps[-1]))
        borders = [0, *(int(np.searchsorted(stamps, np.uint64(s), side="right")) for s in starts), len(rows)]
        return [rows[begin:end] for begin, end in itertools.pairwise(borders) if begin < end]

    @staticmethod
    def _fold_versions(pieces: Sequence[tuple[int, bool, ChangeBatch]]) -> list[ChangeBatch]:
        """Fold what stands before and after a change of schema, table by table: one transaction may hold both. Equal rows are counted."""
        found: list[ChangeBatch] = []
        for table_id, is_bag in sorted({(change.header.table_id, is_bag) for _, is_bag, change in pieces}):
            mine = [(at, c) for at, bag, c in pieces if (c.header.table_id, bag) == (table_id, is_bag)]
            found += count_pieces(mine) if is_bag else fold_pieces(mine)
        return found
