"""The doubts of one log while it is read: opened in the book, watched while a table is read again, settled by corrections.

A watch holds hashes of the keys that the log changed in a table above the ts where a re-read began, as sorted numbers; it is bounded, and
one that grows beyond is given up with its round. Two keys with one hash leave out a correction too many, which the next round finds. Only
the reader's thread opens doubts and feeds watches; states are read by any. Runs in the log service.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.meta.table_states import TableCondition, TableState
from penstock.model.batch import COMMIT_TS, KEY, ChangeBatch, commit_ts_array
from penstock.model.clock import Clock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import ErrorKind, InvariantError, PenstockError
from penstock.model.rows.bag_key import CONTENT_BYTES
from penstock.model.table import TableSchema
from penstock.puller.doubts import Corrections, DoubtBook, Watch, state_of
from penstock.source.single_log import GoneName, TableDoubt

_log = logging.getLogger(__name__)
_Hashes = npt.NDArray[np.uint64]


class KeyWatch:
    """The keys that the log changed in one table above a ts. Of a bag it is the contents, because no two changes share a key."""

    def __init__(self, begun: Watch, keys_max: int) -> None:
        self.begun = begun
        self.overflowed = False
        self._keys_max = keys_max
        self._sorted: _Hashes = np.empty(0, dtype=np.uint64)
        self._new: list[_Hashes] = []
        self._new_count = 0
        self._ended = False
        self.quiet_at = begun.text
        """The last place of the reader before which the log changed nothing."""

    def end(self) -> None:
        """Remember nothing more: corrections stand here, and what the log changes from now on comes behind them."""
        self._ended = True
        self._gather()

    def add(self, change: ChangeBatch) -> None:
        """Remember the keys of a change, as far as they changed behind the beginning of the watch."""
        if self.overflowed or self._ended or change.header.max_ts <= self.begun.ts:
            return
        keys = change.records.column(KEY)
        if change.header.min_ts <= self.begun.ts:
            keys = keys.filter(pa.array(commit_ts_array(change.records) > np.uint64(self.begun.ts)))
        self._new += [_hashes(keys), _content_hashes(keys)]
        self._new_count += len(keys)
        if self._new_count > len(self._sorted) + 65_536:
            self._gather()

    def passed(self, place: str) -> None:
        """Note where the reader is, behind everything that was added."""
        if not self.has_changes and not self._ended:
            self.quiet_at = place

    @property
    def has_changes(self) -> bool:
        """Return whether the log changed anything."""
        return self.overflowed or bool(self._new) or len(self._sorted) > 0

    def unchanged(self, keys: pa.Array, bag: bool = False) -> npt.NDArray[np.bool_]:
        """Return which of some keys the log did not change; of a bag, whose contents."""
        self._gather()
        found: npt.NDArray[np.bool_] = np.isin(_content_hashes(keys) if bag else _hashes(keys), self._sorted, invert=True)
        return found

    def _gather(self) -> None:
        if self._new:
            self._sorted = np.unique(np.concatenate([self._sorted, *self._new]))
            self._new, self._new_count = [], 0
        if len(self._sorted) > self._keys_max:
            self.overflowed = True
            self._sorted = np.empty(0, dtype=np.uint64)


class DoubtedTables:
    """Doubts and watches of one source. Thread safe."""

    def __init__(self, book: DoubtBook | None, clock: Clock, keys_max: int) -> None:
        self._book = book
        self._clock = clock
        self._keys_max = keys_max
        self._lock = threading.Lock()
        self._states: dict[tuple[int, str, str], TableState] = {}
        self._paused: frozenset[int] = frozenset()
        self._raised: dict[tuple[int, str, str], TableState] = {}
        """Newer doubts about tables that are open in the book already. They need not be durable: a re-read does not outlive its process,
        and the next one begins behind them."""
        self._watches: dict[int, KeyWatch] = {}
        self._load()

    @property
    def has_book(self) -> bool:
        """Return whether doubts are kept at all."""
        return self._book is not None

    def states(self) -> list[TableState]:
        """Return every table that was ever in doubt."""
        return self._book.states() if self._book is not None else []

    def note(self, doubts: Sequence[TableDoubt]) -> None:
        """Open the doubts of a step; durable when this returns."""
        for doubt in doubts:
            self._open(state_of(doubt))

    def created(self, tables: Sequence[TableSchema]) -> None:
        """Take the first versions of tables: a doubt of which only the name was known is about the table that has it from there on."""
        with self._lock:
            named = {(s.schema, s.table): s for s in self._states.values() if s.table_id == 0 and s.is_open}
        for table in tables if named and self._book is not None else ():
            doubt = named.get((table.schema, table.table))
            if doubt is not None and table.version >= doubt.doubt_ts and self._book is not None:
                self._book.identify(doubt.schema, doubt.table, table.table_id)
                _log.info("doubted table has its first version", extra={"table": table.full_name, "table_id": table.table_id})
                self._load()

    def renamed(self, ddls: Sequence[DdlEvent]) -> None:
        """Take the names that tables got: by its name a doubt is shown, has its rule, and is known to be of a feed or of none."""
        named = {t.table_id: t for ddl in ddls for t in ddl.tables}
        with self._lock:
            others = [s for s in self._states.values() if s.table_id in named and _name(s) != _name(named[s.table_id])]
            self._raised = {k: _called(s, named[s.table_id]) if s.table_id in named else s for k, s in self._raised.items()}
        if self._book is not None and others:
            for state in others:
                self._book.rename(state.table_id, *_name(named[state.table_id]))
            self._load()

    def gone(self, names: Sequence[GoneName]) -> None:
        """Forget doubts of which only the name was known, where no table has it any more."""
        for schema, table, ts in names:
            with self._lock:
                mine = [s for s in self._states.values() if s.table_id == 0 and s.schema == schema and table in {"", s.table}]
            for state in mine:
                if state.doubt_ts < ts:
                    _log.info("doubted table is gone", extra={"table": f"{state.schema}.{state.table}"})
                    self.forget(0, state.schema, state.table)

    def request(self, table_id: int, schema: str, table: str, reason: str, at_ts: int) -> None:
        """Doubt a table because somebody asks for it, above whatever the log said up to a ts."""
        watch = self._watches.get(table_id)
        # A round that is under way may have read the table already, also where the log has not moved since.
        begun_ts = watch.begun.ts + 1 if watch is not None else 0
        doubt_ts = max(at_ts, begun_ts, self._newest_ts(_key(table_id, schema, table)) + 1)
        self._open(TableState(table_id, schema, table, TableCondition.DOUBTFUL, reason, doubt_ts=doubt_ts))

    def joined(self, table_id: int, start_ts: int) -> None:
        """Doubt a table again if a span begins below its last corrections: they were not made for it, or are there and cost one re-read."""
        with self._lock:
            known = self._states.get(_key(table_id, "", ""))
        if known is not None and not known.is_open and start_ts < known.settled_ts:
            reason = "a span goes on from before the last corrections"
            self.request(table_id, known.schema, known.table, reason, known.settled_ts)

    @property
    def wants_changes(self) -> bool:
        """Return whether a table is paused or watched; most of the time none is."""
        return bool(self._paused or self._watches)

    def followed(self, changes: tuple[ChangeBatch, ...]) -> tuple[ChangeBatch, ...]:
        """Return changes without those of tables that are paused: a re-read brings what they would have."""
        paused = self._paused
        return tuple(c for c in changes if c.header.table_id not in paused) if paused else changes

    def watch(self, changes: Sequence[ChangeBatch]) -> None:
        """Show the watches what the log changes."""
        if self._watches:
            for change in changes:
                found = self._watches.get(change.header.table_id)
                if found is not None:
                    found.add(change)

    def passed(self, place: str) -> None:
        """Tell the watches where the reader is."""
        for found in list(self._watches.values()):
            found.passed(place)

    def begin_watch(self, begun: Watch) -> None:
        """Watch a table from a place on; an older watch of it ends."""
        if self._book is None:
            raise InvariantError("a watch without a book of doubts")
        self._book.begin(begun.table_id)
        self._watches[begun.table_id] = KeyWatch(begun, self._keys_max)
        self._load()

    def watch_of(self, table_id: int) -> KeyWatch:
        """Return the watch of a table; raises ``CONGESTED`` where it was given up."""
        found = self._watches.get(table_id)
        if found is None or found.overflowed:
            raise PenstockError("CONGESTED", f"table {table_id}: the watch of its changes was given up; it must be read again")
        return found

    def close(self, table_id: int, settled_ts: int, again: str) -> bool:
        """Note that corrections are durable; ``again`` says why another round is due all the same. Returns whether the table is ok."""
        found = self._watches.pop(table_id, None)
        if found is None or self._book is None:
            return False
        with self._lock:
            raised = self._raised.pop(_key(table_id, "", ""), None)
        if raised is not None and raised.doubt_ts > found.begun.ts:
            self._book.open(raised)
        closed = self._book.close_doubt(table_id, found.begun.ts if not again else 0, settled_ts)
        if again:
            self._book.fail(table_id, again, "", "", self._clock.now_ms())
        self._load()
        _log.info("doubted table settled", extra={"table_id": table_id, "ts": settled_ts, "closed": closed})
        return closed

    def fail(self, table_id: int, error: PenstockError, retry_s: float) -> None:
        """End a round without corrections."""
        self._watches.pop(table_id, None)
        if self._book is not None:
            code = "" if error.kind is ErrorKind.TRANSIENT else error.code
            due_ms = self._clock.now_ms() + int(retry_s * 1000)
            self._book.fail(table_id, error.detail, code, error.hint if code else "", due_ms)
            self._load()

    def forget(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Forget a table that is gone; its watch ends. One without an id goes by its name."""
        self._watches.pop(table_id, None)
        with self._lock:
            self._raised.pop(_key(table_id, schema, table), None)
        if self._book is not None:
            self._book.forget(table_id, schema, table)
            self._load()

    def _open(self, state: TableState) -> None:
        key = _key(state.table_id, state.schema, state.table)
        with self._lock:
            known = self._states.get(key)
            is_open = known is not None and known.is_open
            harder = is_open and bool(state.code) and not (known and known.code)
            if state.doubt_ts <= self._newest_ts_of(key) and not harder:
                return
            if is_open and not harder:
                self._raised[key] = state
                return
        if self._book is None:
            raise InvariantError(f"a doubt about {state.schema}.{state.table}, and nobody keeps it")
        if self._book.open(state):
            extra = {"table": f"{state.schema}.{state.table}", "ts": state.doubt_ts, "code": state.code, "reason": state.reason}
            _log.warning("table in doubt, it will be read again", extra=extra)
        self._load()

    def _newest_ts(self, key: tuple[int, str, str]) -> int:
        with self._lock:
            return self._newest_ts_of(key)

    def _newest_ts_of(self, key: tuple[int, str, str]) -> int:
        return max((s.doubt_ts for s in (self._states.get(key), self._raised.get(key)) if s is not None), default=-1)

    def _load(self) -> None:
        states = {_key(s.table_id, s.schema, s.table): s for s in self.states()}
        with self._lock:
            self._states = states
            # While it is read again, and after that, the log counts again.
            self._paused = frozenset(
                s.table_id for s in states.values() if s.code == "TABLE_PAUSED" and s.state is TableCondition.QUARANTINED
            )


def _key(table_id: int, schema: str, table: str) -> tuple[int, str, str]:
    """Return what tells a table from others: its id, or its name where that is unknown."""
    return (table_id, "", "") if table_id else (0, schema, table)


def _name(of: TableState | TableSchema) -> tuple[str, str]:
    return of.schema, of.table


def _called(state: TableState, table: TableSchema) -> TableState:
    return msgspec.structs.replace(state, schema=table.schema, table=table.table)


def created_in(ddls: Sequence[DdlEvent]) -> list[TableSchema]:
    """Return the first versions of tables among DDLs."""
    return [table for ddl in ddls if ddl.type is DdlType.CREATE_TABLE for table in ddl.tables]


def corrected(piece: Corrections, watch: KeyWatch, ts: int, bag: bool = False) -> tuple[tuple[ChangeBatch, ...], int]:
    """Return the corrections of a piece that the log did not overtake, at a ts; and how many rows were left out."""
    kept, left_out = [], 0
    for batch in (*piece.tombstones, *piece.data):
        right = watch.unchanged(batch.records.column(KEY), bag)
        records = batch.records if right.all() else batch.records.filter(pa.array(right))
        left_out += batch.header.rows - records.num_rows
        if records.num_rows:
            at = records.schema.get_field_index(COMMIT_TS)
            stamped = records.set_column(at, records.schema.field(at), pa.array(np.full(records.num_rows, ts, dtype=np.uint64)))
            header = msgspec.structs.replace(
                batch.header, span_id=piece.span_id, min_ts=ts, max_ts=ts, rows=records.num_rows, nbytes=max(1, stamped.nbytes)
            )
            kept.append(ChangeBatch(header, stamped.sort_by(KEY)))
    return tuple(kept), left_out


def _hashes(keys: pa.Array) -> _Hashes:
    found: _Hashes = pl.Series(pl.from_arrow(keys)).hash().to_numpy()
    return found


def _content_hashes(keys: pa.Array) -> _Hashes:
    """Return hashes of the contents of a bag's keys; of other keys that are as long it is a part, which nobody asks for."""
    return _hashes(pc.binary_slice(keys, 0, CONTENT_BYTES))
