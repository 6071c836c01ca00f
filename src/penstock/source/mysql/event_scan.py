"""The events of a stream under the framing kernel: where it stands, and what it noted of the transactions that it went over.

Owns the buffer's place, the state of the open transaction and the tables in which the kernel notes rows events and whole transactions. Rows
of the open transaction stand behind those of whole ones. Runs in the log service; one thread.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.jit import I64, U8
from penstock.source.mysql.tables.table_slots import TableSlots
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire import framing
from penstock.source.mysql.wire.dump import EventStream

BEGIN_TEXT: U8 = np.frombuffer(b"BEGIN", dtype=np.uint8)
COMMIT_TEXT: U8 = np.frombuffer(b"COMMIT", dtype=np.uint8)
_EVENTS_MAX = 1 << 16
_THREAD_SPECIFIC = 0x4
_IGNORABLE = 0x80


class EventScan:
    """Goes over the events of one stream. Not thread safe."""

    def __init__(self, stream: EventStream, piece_bytes: int) -> None:
        self.stream = stream
        self.checksum_bytes = stream.checksum_bytes
        self._piece_bytes = piece_bytes
        self._at = 0
        self._plain_end = 0
        """Up to here the buffer holds events of a compressed transaction, which have no checksums."""
        self._state: I64 = np.zeros(framing.SCAN_STATE, dtype=np.int64)
        self._rows: I64 = np.zeros((_EVENTS_MAX, framing.ROW_COLUMNS), dtype=np.int64)
        self._txns: I64 = np.zeros((_EVENTS_MAX, framing.TXN_COLUMNS), dtype=np.int64)
        self._counts: I64 = np.zeros(2, dtype=np.int64)
        self._savepoints: dict[str, int] = {}

    # -- scanning

    def run(self, slots: TableSlots, sid_bytes: U8) -> int:
        """Go on until the kernel stops; return why."""
        while True:
            plain = self._at < self._plain_end
            self._at, why = framing.scan(
                self.stream.events, self._at, self._plain_end if plain else self.stream.end, 0 if plain else self.checksum_bytes,
                self._piece_bytes, framing.ACTIONS, framing.CRC_TABLES, self._state,
                slots.ids, slots.id_slot, slots.maps, slots.map_from, slots.map_to, slots.wanted, sid_bytes, BEGIN_TEXT, COMMIT_TEXT,
                self._rows, self._txns, self._counts,
            )  # fmt: skip
            if why == framing.STOP_FULL and not self.whole:
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._txns = np.concatenate([self._txns, np.zeros_like(self._txns)])
            elif why != framing.STOP_END or not plain or self._at != self._plain_end:
                return int(why)

    def compact(self) -> None:
        """Free the buffer in front of the first rows event that is still needed."""
        kept = int(self._counts[framing.COUNT_ROWS])
        self.stream.consume(int(self._rows[0, framing.ROW_START]) if kept else self._at)
        moved = self.stream.compact()
        if moved:
            self._at -= moved
            self._plain_end -= moved
            self._rows[:kept, [framing.ROW_START, framing.ROW_END]] -= moved

    # -- the event at which the scan stopped

    @property
    def kind(self) -> int:
        """Return its type."""
        return int(self.stream.events[self._at + wire.KIND_AT])

    @property
    def seconds(self) -> int:
        """Return when it was written."""
        return self._number(0, 4)

    @property
    def end_offset(self) -> int:
        """Return where it ends in its file."""
        return self._number(wire.END_AT, 4)

    @property
    def is_ignorable(self) -> bool:
        """Return whether who does not know it may pass it over."""
        return bool(self._number(wire.FLAGS_AT, 2) & _IGNORABLE)

    @property
    def is_of_session(self) -> bool:
        """Return whether it is a statement about a temporary table, which only its session sees."""
        return bool(self._number(wire.FLAGS_AT, 2) & _THREAD_SPECIFIC)

    def body(self) -> bytes:
        """Return its body."""
        checksum = 0 if self._at < self._plain_end else self.checksum_bytes
        return self.stream.events[self._at + wire.HEADER_BYTES : self._at + self._number(wire.SIZE_AT, 4) - checksum].tobytes()

    def skip(self) -> None:
        """Go on behind it."""
        size = self._number(wire.SIZE_AT, 4)
        self._at += size
        self._state[framing.BYTES] += size

    def replace(self, events: bytes) -> None:
        """Put the events of a compressed transaction in its place."""
        self.stream.splice(self._at, self._at + self._number(wire.SIZE_AT, 4), events)
        self._plain_end = self._at + len(events)

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self.stream.events[self._at + at : self._at + at + size].tobytes(), "little")

    # -- transactions

    @property
    def whole(self) -> int:
        """Return how many whole transactions were not taken yet; the open one has this number."""
        return int(self._counts[framing.COUNT_TXNS])

    @property
    def is_open(self) -> bool:
        """Return whether a transaction has begun and not ended."""
        return bool(self._state[framing.OPEN])

    @property
    def is_inside(self) -> bool:
        """Return whether the open transaction is more than one statement."""
        return self.is_open and not self._state[framing.STANDALONE]

    @property
    def is_undone(self) -> bool:
        """Return whether the open transaction is an ALTER of MariaDB that only begins, or that is taken back."""
        return bool(self._state[framing.UNDONE])

    @property
    def is_quiet(self) -> bool:
        """Return whether everything was taken and nothing is open."""
        return not self.is_open and not self._counts.any()

    @property
    def is_cut(self) -> bool:
        """Return whether pieces of the open transaction were taken already."""
        return bool(self._state[framing.CUT])

    @property
    def piece(self) -> int:
        """Return the number of the piece in which the open transaction is, by the bytes of the log alone: 0 for one that is small."""
        return int(self._state[framing.PIECE])

    @property
    def time_ms(self) -> int:
        """Return when the open transaction committed."""
        return int(self._state[framing.TIME_MS])

    def begin_statement(self) -> None:
        """Open a transaction for a statement that stands by itself in a log without GTIDs."""
        if not self.is_open:
            self._state[framing.TIME_MS] = self.seconds * 1000
            self._state[framing.DOMAIN] = -1

    def entry(self) -> I64:
        """Return the open transaction as one that ends with the event at which the scan stopped."""
        entry = np.zeros((1, framing.TXN_COLUMNS), dtype=np.int64)
        entry[0, framing.TXN_TIME_MS] = self._state[framing.TIME_MS]
        entry[0, framing.TXN_DOMAIN] = self._state[framing.DOMAIN]
        entry[0, framing.TXN_SERVER] = self._state[framing.SERVER]
        entry[0, framing.TXN_SEQUENCE] = self._state[framing.SEQUENCE]
        entry[0, framing.TXN_END] = self.end_offset
        entry[0, framing.TXN_PIECE] = self._state[framing.PIECE]
        return entry

    def end_transaction(self, is_noted: bool) -> None:
        """End the open transaction with the event at which the scan stopped; ``is_noted`` among the whole ones."""
        if is_noted:
            self._txns[self.whole] = self.entry()[0]
            self._counts[framing.COUNT_TXNS] += 1
        self._state[framing.OPEN] = 0
        self._savepoints.clear()

    def whole_transactions(self) -> tuple[I64, I64]:
        """Return the whole transactions and their rows events."""
        rows = self._rows[: self._counts[framing.COUNT_ROWS]]
        return self._txns[: self.whole], rows[: int(np.searchsorted(rows[:, framing.ROW_TXN], self.whole))]

    def take_transactions(self, rows: int) -> None:
        """Forget the whole transactions, which have so many rows events."""
        self._take_rows(rows)
        self._rows[: self._counts[framing.COUNT_ROWS], framing.ROW_TXN] = 0
        self._counts[framing.COUNT_TXNS] = 0

    def finished_piece(self) -> I64:
        """Return the rows events of the first piece of the transaction that is open or the only one, none where it is not finished."""
        rows = self._rows[: self._counts[framing.COUNT_ROWS]]
        pieces = rows[:, framing.ROW_PIECE]
        if len(rows) == 0 or pieces[0] == pieces[-1]:
            return rows[:0]
        return rows[: int(np.searchsorted(pieces, pieces[0], side="right"))]

    def take_piece(self, rows: int) -> None:
        """Forget a piece of a transaction."""
        self._state[framing.CUT] = 1
        self._take_rows(rows)

    def open_rows(self) -> I64:
        """Return the rows events of the open transaction."""
        rows = self._rows[: self._counts[framing.COUNT_ROWS]]
        return rows[int(np.searchsorted(rows[:, framing.ROW_TXN], self.whole)) :]

    def save_point(self, name: str) -> None:
        """Remember how far the open transaction has come."""
        self._savepoints[name] = int(self._counts[framing.COUNT_ROWS])

    def roll_back(self, savepoint: str | None) -> None:
        """Forget rows of the open transaction: those since a savepoint, or all."""
        first = int(self._counts[framing.COUNT_ROWS]) - len(self.open_rows())
        self._counts[framing.COUNT_ROWS] = first if savepoint is None else max(first, self._savepoints.get(savepoint, first))

    def _take_rows(self, rows: int) -> None:
        total = int(self._counts[framing.COUNT_ROWS])
        self._rows[: total - rows] = self._rows[rows:total].copy()
        self._counts[framing.COUNT_ROWS] = total - rows
        self._savepoints = {name: max(0, count - rows) for name, count in self._savepoints.items()}
