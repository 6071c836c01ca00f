"""XA transactions that are prepared and not decided: what each of them changes, held until somebody decides.

One that was prepared before the log was read is not known here; its commit doubts every table. Runs in the log service; one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.model.batch import ChangeBatch
from penstock.model.table import TableSchema
from penstock.source.mysql.doubt_book import doubts_of
from penstock.source.mysql.transaction_pieces import at_ts
from penstock.source.mysql.wire.log_events import Xid
from penstock.source.single_log import TableDoubt

_UNKNOWN = "an XA transaction was committed that was prepared before the log was read"


class PreparedTransaction(msgspec.Struct, frozen=True):
    """What a transaction changes, at ts 0, and the tables that it doubts."""

    changes: Sequence[ChangeBatch]
    doubts: Sequence[TableDoubt]
    was_given: bool = False
    """Whether pieces of it were given all the same."""

    def decided(self, verb: str, ts: int) -> tuple[list[ChangeBatch], Sequence[TableDoubt]]:
        """Return what COMMIT or ROLLBACK makes of it, at a ts."""
        is_committed = verb == "COMMIT"
        return [at_ts(c, ts) for c in self.changes] if is_committed else [], self.doubts if is_committed or self.was_given else ()


class PreparedTransactions:
    """Those that are prepared now. Not thread safe."""

    def __init__(self) -> None:
        self._held: dict[Xid, PreparedTransaction] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, xid: Xid, transaction: PreparedTransaction) -> None:
        """Keep a transaction until it is decided."""
        self._held[xid] = transaction

    def take(self, xid: Xid, tables: Sequence[TableSchema]) -> PreparedTransaction:
        """Return a transaction that is decided; of one that nobody knows, doubts about all ``tables``."""
        return self._held.pop(xid, None) or PreparedTransaction([], doubts_of(tables, _UNKNOWN))
