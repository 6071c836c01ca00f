"""The engine: ranges over stores, transactions, DDL, splits, merges and leader moves. All in memory: it is gone when its process ends.

One lock orders everything, so commit ts grow in the order in which commits become visible, and a resolved ts computed under the lock
holds: commit ts are taken from the oracle inside ``commit``, hence above every ts handed out before. A DDL rolls back the open
transactions of its tables, and a prewrite must carry rows of the newest version, so no row of an old version commits after a DDL. Per-row
work is a handful of dict operations; rows arrive encoded. Runs in the data server.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.model.clock import Clock, SystemClock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import full_key, table_end, table_id_of, table_prefix
from penstock.model.span import DDL_TABLE_ID
from penstock.model.table import TableSchema
from penstock.model.timestamp import TimestampOracle, physical_ms
from penstock.source.dataserver.engine.ranges import EndReason, LogKind, LogRecord, RangeState, make_record
from penstock.source.dataserver.engine.schemas import Schemas
from penstock.source.dataserver.rowcodec import HEADER_BYTES, value_header
from penstock.source.ranged import RangeEpoch, RangeInfo


@dataclass(frozen=True)
class EngineSettings:
    """How the engine is laid out."""

    stores: int = 2
    lock_ttl_ms: int = 20_000
    """A transaction that neither commits nor rolls back in this time is rolled back, so that it cannot hold the resolved ts for ever."""
    committed_kept: int = 4096
    """How many finished transactions are remembered, for a commit that is sent twice."""

    def __post_init__(self) -> None:
        if self.stores < 1:
            raise PenstockError("CONFIG_INVALID", f"stores: must be at least 1, got {self.stores}")


class Engine:
    """The data server without its network. Every method may be called from any thread."""

    def __init__(self, settings: EngineSettings | None = None, clock: Clock | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.lock = threading.RLock()
        self._clock = clock or SystemClock()
        self._oracle = TimestampOracle(self._clock)
        self.born_ts = self._oracle.next_ts()
        """Nothing was committed here before; whoever goes on from before knows another server, whose data ended with it."""
        self._schemas = Schemas()
        self._ranges: dict[int, RangeState] = {}
        self._ordered: list[RangeState] = []
        self._starts: list[bytes] = []
        self._open: dict[int, list[bytes]] = {}
        self._finished: OrderedDict[int, int] = OrderedDict()
        self._watchers: list[Callable[[], None]] = []
        self._last_index = 0
        self._next_range_id = 1
        self.addresses: dict[int, str] = {}
        with self.lock:
            self._create_range(DDL_TABLE_ID)

    def current_ts(self) -> int:
        """Return a fresh ts, larger than every commit ts so far."""
        return self._oracle.next_ts()

    # -- transactions

    def begin(self) -> int:
        """Start a transaction: return its start ts, which is its name and its snapshot."""
        return self._oracle.next_ts()

    def prewrite(self, start_ts: int, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Lock keys with the values that the commit will write (None: delete). All or nothing; ``TXN_CONFLICT`` on a lock or a newer write.

        May be called several times in one transaction; a later value of a key wins. Deletes of rows that do not exist are dropped.
        """
        with self.lock:
            if start_ts in self._finished:
                raise PenstockError("TXN_CONFLICT", f"transaction {start_ts} has ended")
            headers: dict[int, bytes] = {}
            groups: dict[int, tuple[RangeState, list[bytes], list[bytes | None], list[bytes | None]]] = {}
            at: RangeState | None = None
            for key, value in zip(keys, values, strict=True):
                if at is None or not at.start_key <= key < at.end_key:
                    at = self._locate(key)
                    headers.setdefault(at.table_id, self._writable_header(at.table_id))
                if value is not None and value[:HEADER_BYTES] != headers[at.table_id]:
                    raise PenstockError("TXN_CONFLICT", f"table {at.table_id} changed its schema since the row was encoded")
                old = _check_conflict(at, key, start_ts) if key in at.rows or key in at.locks else None
                if value is None and old is None:
                    if key in at.locks:
                        raise PenstockError("TXN_CONFLICT", "a row that this transaction inserts cannot be deleted by it as well")
                    continue
                group = groups.get(at.range_id)
                if group is None:
                    group = groups[at.range_id] = (at, [], [], [])
                group[1].append(key)
                group[2].append(value)
                group[3].append(old)
            held = self._open.setdefault(start_ts, [])
            for target, its_keys, its_values, its_olds in groups.values():
                held += target.lock_all(start_ts, its_keys, its_values, its_olds)
                target.notify(self._record(LogKind.PREWRITE, start_ts, 0, its_keys, its_values, its_olds))

    def commit(self, start_ts: int) -> int:
        """Make a prewritten transaction visible in all its ranges at one commit ts; return it. Repeating a commit returns the same ts."""
        with self.lock:
            done = self._finished.get(start_ts)
            if done:
                return done
            keys = self._open.pop(start_ts, None)
            if keys is None:
                raise PenstockError("TXN_CONFLICT", f"transaction {start_ts} is not open: it was rolled back, timed out, or met a DDL")
            commit_ts = self._oracle.next_ts()
            for target, its_keys in self._by_range(keys):
                locks = target.unlock(its_keys, start_ts)
                record = self._record(LogKind.COMMIT, start_ts, commit_ts, its_keys, [k[1] for k in locks], [k[2] for k in locks])
                target.append(record)
                target.notify(record)
            self._finish(start_ts, commit_ts)
            return commit_ts

    def rollback(self, start_ts: int) -> None:
        """Give up a transaction. Rolling back one that is not open changes nothing; one that committed is an error."""
        with self.lock:
            if self._finished.get(start_ts):
                raise PenstockError("TXN_CONFLICT", f"transaction {start_ts} is committed")
            self._rollback(start_ts)

    # -- schema

    def execute_ddl(self, query: str) -> int:
        """Execute one DDL; return its commit ts. Open transactions on its tables are rolled back first."""
        with self.lock:
            build = self._schemas.plan(query)
            start_ts, commit_ts = self._oracle.next_ts(), self._oracle.next_ts()
            event = build(commit_ts)
            if event is None:
                return commit_ts
            for txn, keys in list(self._open.items()):
                if not event.table_ids.isdisjoint({table_id_of(k) for k in keys}):
                    self._rollback(txn)
            self._schemas.apply(event)
            for table in event.tables:
                if not any(r.table_id == table.table_id for r in self._ordered):
                    self._create_range(table.table_id)
            if event.type == DdlType.REORGANIZE_PARTITION:
                self._move_rows(event)
            self._log_ddl(event, start_ts)
            return commit_ts

    def list_tables(self, ts: int | None = None) -> list[TableSchema]:
        """Return the newest version of every table, or the one of a ts."""
        with self.lock:
            return self._schemas.tables_at(ts)

    def schema_history(self, table_id: int) -> tuple[tuple[TableSchema, ...], int]:
        """Return all versions of a table and a ts at or below which no further one will come."""
        with self.lock:
            return self._schemas.history(table_id), self._oracle.next_ts()

    def table(self, schema: str, table: str) -> TableSchema:
        """Return a live table by name."""
        with self.lock:
            return self._schemas.table(schema, table)

    def live_table(self, table_id: int) -> TableSchema | None:
        """Return the newest version of a table by id, or None for one that is dropped or never was."""
        with self.lock:
            return self._schemas.live(table_id)

    # -- placement

    def list_ranges(self, start_key: bytes, end_key: bytes) -> list[RangeInfo]:
        """Return the ranges that touch ``[start_key, end_key)`` in key order; an empty end is open."""
        with self.lock:
            return [self.info(r) for r in self._ordered if r.end_key > start_key and (not end_key or r.start_key < end_key)]

    def info(self, state: RangeState) -> RangeInfo:
        """Return where a range is served."""
        address = self.addresses.get(state.store_id, "")
        return RangeInfo(state.range_id, state.table_id, state.start_key, state.end_key, state.epoch, state.store_id, address)

    def find(self, range_id: int) -> RangeState | None:
        """Return a range by id; hold ``lock`` while using it."""
        return self._ranges.get(range_id)

    def split(self, key: bytes) -> list[RangeInfo]:
        """Split the range that holds a full key at that key; return the two halves. At a boundary nothing changes."""
        with self.lock:
            parent = self._locate(key)
            if parent.start_key == key:
                return [self.info(parent)]
            child = parent.split_off(key, self._next_range_id)
            self._next_range_id += 1
            self._ranges[child.range_id] = child
            self._reorder()
            parent.end_listeners(EndReason.EPOCH_NOT_MATCH, [parent, child])
            return [self.info(parent), self.info(child)]

    def merge(self, left_range_id: int) -> list[RangeInfo]:
        """Merge a range with its right neighbour of the same table; return the merged range."""
        with self.lock:
            left = self._require(left_range_id)
            right = next((r for r in self._ordered if r.start_key == left.end_key), None)
            if right is None:
                raise PenstockError("UPSTREAM_REFUSED", f"range {left_range_id} has no right neighbour in its table")
            left.absorb(right)
            del self._ranges[right.range_id]
            self._reorder()
            left.end_listeners(EndReason.EPOCH_NOT_MATCH, [left])
            right.end_listeners(EndReason.EPOCH_NOT_MATCH, [left])
            return [self.info(left)]

    def move_leader(self, range_id: int, store_id: int) -> list[RangeInfo]:
        """Let another store lead a range."""
        with self.lock:
            state = self._require(range_id)
            if not 1 <= store_id <= self.settings.stores:
                raise PenstockError("UPSTREAM_REFUSED", f"store {store_id} does not exist: stores are 1 to {self.settings.stores}")
            if state.store_id != store_id:
                state.move(store_id)
                state.end_listeners(EndReason.NOT_LEADER, [state])
            return [self.info(state)]

    # -- reading

    def read(self, start_key: bytes, end_key: bytes, ts: int, page_rows: int) -> Iterator[tuple[list[bytes], list[bytes], list[int]]]:
        """Yield keys, values and commit ts of ``[start_key, end_key)`` as of a ts, in key order, page by page."""
        if ts > self.current_ts():
            raise PenstockError("UPSTREAM_REFUSED", f"ts {ts} lies in the future")
        at = start_key
        while True:
            with self.lock:
                state = next((r for r in self._ordered if r.end_key > at and (not end_key or r.start_key < end_key)), None)
                if state is None:
                    return
                keys = state.sorted_keys()
                first = bisect.bisect_left(keys, at)
                page = keys[first : first + page_rows]
                if end_key and page and page[-1] >= end_key:
                    page = page[: bisect.bisect_left(page, end_key)]
                rows = state.read(page, ts)
                # A full page may have more behind it in this range; a short one ends it.
                at = page[-1] + b"\x00" if len(page) == page_rows else state.end_key
            if rows[0]:
                yield rows

    # -- resolved ts

    def watch_resolved(self, callback: Callable[[], None]) -> None:
        """Call back after each round of resolved ts, under the lock."""
        with self.lock:
            self._watchers.append(callback)

    def unwatch_resolved(self, callback: Callable[[], None]) -> None:
        """Stop calling back."""
        with self.lock:
            if callback in self._watchers:
                self._watchers.remove(callback)

    def publish_resolved(self) -> int:
        """Advance every range's resolved ts and tell the watchers; roll back transactions that outlived their time. Return the fresh ts."""
        with self.lock:
            now_ms = self._clock.now_ms()
            for start_ts in [t for t in self._open if now_ms - physical_ms(t) > self.settings.lock_ttl_ms]:
                self._rollback(start_ts)
            fresh_ts = self._oracle.next_ts()
            for state in self._ordered:
                state.advance_resolved(fresh_ts)
            for watcher in tuple(self._watchers):
                watcher()
            return fresh_ts

    def resolved_ts(self, state: RangeState) -> int:
        """Return a range's resolved ts as of now."""
        with self.lock:
            return state.advance_resolved(self._oracle.next_ts())

    # -- parts

    def _create_range(self, table_id: int) -> None:
        store_id = (self._next_range_id - 1) % self.settings.stores + 1
        state = RangeState(self._next_range_id, table_id, table_prefix(table_id), table_end(table_id), RangeEpoch(1, 1), store_id)
        self._next_range_id += 1
        self._ranges[state.range_id] = state
        self._reorder()

    def _move_rows(self, event: DdlEvent) -> None:
        """Give the rows of partitions that were put together to the new one, with their past; nobody is told, for nothing changed."""
        target = next(r for t in event.tables for r in self._ordered if r.table_id == t.table_id and not r.log and not r.rows)
        prefix = table_prefix(target.table_id)
        found = [(r, record) for r in self._ordered if r.table_id in event.dropped_table_ids for record in r.log]
        for source, record in sorted(found, key=lambda f: f[1].commit_ts):
            mine = [at for at, key in enumerate(record.keys) if source.contains(key)]
            keys = [prefix + record.keys[at][len(prefix) :] for at in mine]
            values, olds = [record.values[at] for at in mine], [record.olds[at] for at in mine]
            target.append(self._record(LogKind.COMMIT, record.start_ts, record.commit_ts, keys, values, olds))

    def _reorder(self) -> None:
        self._ordered = sorted(self._ranges.values(), key=lambda r: r.start_key)
        self._starts = [r.start_key for r in self._ordered]

    def _locate(self, key: bytes) -> RangeState:
        at = bisect.bisect_right(self._starts, key) - 1
        if at < 0 or not self._ordered[at].contains(key):
            raise PenstockError("TABLE_UNKNOWN", "a key belongs to no table of this server")
        return self._ordered[at]

    def _require(self, range_id: int) -> RangeState:
        state = self._ranges.get(range_id)
        if state is None:
            raise PenstockError("REGION_NOT_FOUND", f"range {range_id} does not exist")
        return state

    def _writable_header(self, table_id: int) -> bytes:
        table = self._schemas.live(table_id)
        if table is None:
            raise PenstockError("TABLE_UNKNOWN", f"table {table_id} does not exist or was dropped")
        return value_header(table.version)

    def _by_range(self, keys: list[bytes]) -> list[tuple[RangeState, list[bytes]]]:
        groups: dict[int, tuple[RangeState, list[bytes]]] = {}
        at: RangeState | None = None
        for key in keys:
            if at is None or not at.start_key <= key < at.end_key:
                at = self._locate(key)
            group = groups.get(at.range_id)
            if group is None:
                group = groups[at.range_id] = (at, [])
            group[1].append(key)
        return list(groups.values())

    def _rollback(self, start_ts: int) -> None:
        for state, keys in self._by_range(self._open.pop(start_ts, [])):
            locks = state.unlock(keys, start_ts)
            state.notify(self._record(LogKind.ROLLBACK, start_ts, 0, keys, [k[1] for k in locks], [k[2] for k in locks]))
        self._finish(start_ts, 0)

    def _finish(self, start_ts: int, commit_ts: int) -> None:
        self._finished[start_ts] = commit_ts
        while len(self._finished) > self.settings.committed_kept:
            self._finished.popitem(last=False)

    def _log_ddl(self, event: DdlEvent, start_ts: int) -> None:
        state = self._locate(table_prefix(DDL_TABLE_ID))
        keys, values = [full_key(DDL_TABLE_ID, event.commit_ts.to_bytes(8, "big"))], [event.to_json()]
        state.notify(self._record(LogKind.PREWRITE, start_ts, 0, keys, list(values), [None]))
        record = self._record(LogKind.COMMIT, start_ts, event.commit_ts, keys, list(values), [None])
        state.append(record)
        state.notify(record)

    def _record(
        self, kind: LogKind, start_ts: int, commit_ts: int, keys: list[bytes], values: list[bytes | None], olds: list[bytes | None]
    ) -> LogRecord:
        self._last_index += 1
        return make_record(kind, self._last_index, start_ts, commit_ts, keys, values, olds)


def _check_conflict(state: RangeState, key: bytes, start_ts: int) -> bytes | None:
    """Return the value that a write of the key would replace, or raise where another transaction is in the way."""
    lock = state.locks.get(key)
    if lock is not None and lock[0] != start_ts:
        raise PenstockError("TXN_CONFLICT", f"a row is locked by transaction {lock[0]}")
    version = state.rows.get(key)
    if version is None:
        return None
    if version[0] > start_ts:
        raise PenstockError("TXN_CONFLICT", f"a row was written at {version[0]}, after transaction {start_ts} began")
    return version[1]
