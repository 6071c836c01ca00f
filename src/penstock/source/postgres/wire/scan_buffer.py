"""The bytes of the stream that are not decoded yet, and what the scan found in them.

Rows, transactions and notices (relations, truncates) are known by their place in the buffer. What is decoded is dropped from the front;
the rest of an open transaction moves there. Not thread safe. Runs in the log service.
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.kernels.jit import I64, U8
from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.connection import server_error
from penstock.source.postgres.wire.pgoutput import (
    BAD,
    END,
    FIRST_ROW,
    FRAME_BYTES,
    NEW_AT,
    OLD_AT,
    OPEN,
    ROW_SLOTS,
    ROWS,
    STATE_SLOTS,
    STATUS,
    TXN,
    TXN_SLOTS,
    TXNS,
    XLOG_BYTES,
    Relation,
    read_relation,
    read_truncate,
    scan,
)

_XID_BYTES = 4


class Notice(msgspec.Struct, frozen=True):
    """A relation or a truncate (then ``relation`` is None), at the place where it stands between rows."""

    row: int
    txn: int
    oid: int
    relation: Relation | None


class ScanBuffer:
    """Undecoded bytes and what is in them. ``in_stream`` where they are those of a transaction that was sent before it committed."""

    def __init__(self, bytes_expected: int, rows_expected: int, shown: str, in_stream: bool = False) -> None:
        self.bytes: U8 = np.zeros(bytes_expected, dtype=np.uint8)
        self.size = 0
        self.at = 0
        self.state = np.zeros(STATE_SLOTS, dtype=np.int64)
        self.rows = np.zeros((rows_expected, ROW_SLOTS), dtype=np.int64)
        self.txns = np.zeros((rows_expected, TXN_SLOTS), dtype=np.int64)
        self.notices: list[Notice] = []
        self._shown = shown
        self._in_stream = in_stream

    @property
    def complete(self) -> int:
        """Return how many transactions are complete."""
        return int(self.state[TXNS] - self.state[OPEN])

    @property
    def is_open(self) -> bool:
        """Return whether a transaction has begun whose end has not arrived."""
        return bool(self.state[OPEN])

    @property
    def is_empty(self) -> bool:
        """Return whether no transaction is here."""
        return int(self.state[TXNS]) == 0

    def rows_of(self, transactions: int) -> int:
        """Return how many rows so many transactions from the front have."""
        return int(self.txns[transactions, FIRST_ROW]) if transactions < int(self.state[TXNS]) else int(self.state[ROWS])

    def append(self, piece: bytes | bytearray) -> None:
        """Take bytes in."""
        need = self.size + len(piece)
        if need > len(self.bytes):
            bigger = np.zeros(max(need, 2 * len(self.bytes)), dtype=np.uint8)
            bigger[: self.size] = self.bytes[: self.size]
            self.bytes = bigger
        self.bytes[self.size : need] = np.frombuffer(piece, dtype=np.uint8)
        self.size = need

    def scan(self) -> int:
        """Go on with the scan; return why it ended: MORE, FULL or SPECIAL."""
        self.at = int(scan(self.bytes, self.at, self.size, self._in_stream, self.state, self.rows, self.txns))
        status = int(self.state[STATUS])
        if status == BAD:
            raise PenstockError("DECODE_FAILED", f"{self._shown}: bytes of the replication stream make no sense")
        return status

    def special(self) -> tuple[str, bytes]:
        """Return the letter and the body of the rare message at which the scan stopped; errors of the server are raised."""
        after = self._after()
        outer = chr(self.bytes[self.at])
        if outer == "E":
            raise server_error(self._shown, self.bytes[self.at + FRAME_BYTES : after].tobytes())
        if outer in "NS":
            return "", b""
        if outer != "d":
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._shown}: the server ended the replication stream")
        message = self.at + FRAME_BYTES + XLOG_BYTES
        return chr(self.bytes[message]), self.bytes[message + 1 : after].tobytes()

    def pass_special(self) -> None:
        """Go on behind the message at which the scan stopped."""
        self.at = self._after()

    def note(self, kind: str, body: bytes) -> bool:
        """Note a relation or a truncate, pass over what says nothing; return False for any other message."""
        if self._in_stream and kind in "RTYM":
            body = body[_XID_BYTES:]
        row, txn = int(self.state[ROWS]), int(self.state[TXNS]) - 1
        if kind == "R":
            relation = read_relation(body)
            self.notices.append(Notice(row, txn, relation.oid, relation))
        elif kind == "T":
            self.notices.extend(Notice(row, txn, oid, None) for oid in read_truncate(body))
        elif kind and kind not in "YOM":
            return False
        self.pass_special()
        return True

    def grow(self) -> None:
        """Make room for more rows and transactions."""
        self.rows = np.vstack([self.rows, np.zeros_like(self.rows)])
        self.txns = np.vstack([self.txns, np.zeros_like(self.txns)])

    def drop(self, transactions: int) -> None:
        """Forget transactions from the front."""
        gone = self.rows_of(transactions)
        left = int(self.state[ROWS]) - gone
        cut = self.at
        if left:
            kept = self.rows[gone : gone + left].copy()
            cut = int(min(p for p in (kept[0, OLD_AT], kept[0, NEW_AT]) if p >= 0))
            kept[:, TXN] -= transactions
            self.rows[:left] = _shifted(kept, cut)
        count = int(self.state[TXNS]) - transactions
        self.txns[:count] = self.txns[transactions : transactions + count].copy()
        self.txns[:count, FIRST_ROW] -= gone
        self.notices = [Notice(n.row - gone, n.txn - transactions, n.oid, n.relation) for n in self.notices if n.txn >= transactions]
        self.state[ROWS] = left
        self.state[TXNS] = count
        self.forget(cut)

    def drop_rows(self) -> None:
        """Forget all rows so far of the only transaction, which stays open."""
        self.state[ROWS] = 0
        self.txns[0, FIRST_ROW] = 0
        self.notices = []
        self.forget(self.at)

    def forget(self, cut: int) -> None:
        """Forget the bytes before a place."""
        rest = self.size - cut
        if cut:
            self.bytes[:rest] = self.bytes[cut : self.size].copy()
        self.at -= cut
        self.size = rest

    def _after(self) -> int:
        return self.at + 1 + int.from_bytes(self.bytes[self.at + 1 : self.at + FRAME_BYTES].tobytes(), "big")


def _shifted(rows: I64, cut: int) -> I64:
    for slot in (OLD_AT, NEW_AT):
        rows[:, slot] = np.where(rows[:, slot] >= 0, rows[:, slot] - cut, -1)
    rows[:, END] -= cut
    return rows
