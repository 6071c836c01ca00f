"""The workload: seeded transactions on the shop's tables at a chosen rate.

Inserts, updates and deletes over several tables and ranges in one transaction, some rollbacks, a few DDLs on the way. Works on a
``Writer``: the engine in the server's process, or the client. A conflict (another writer, a DDL in between) reloads the schemas and goes
on with the next transaction; which rows live is updated only after a commit. Runs in the data server, the demo and benchmarks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec
import numpy as np

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys, table_end, table_prefix
from penstock.model.table import TableSchema
from penstock.source.dataserver.shop import DDLS, I64, LINES_PER_ORDER, TABLES, key_columns, row_columns
from penstock.source.dataserver.transaction import Txn, Writer

_FIRST_NUMBER = LINES_PER_ORDER
_SHARES = {"orders": 0.4, "order_items": 0.4, "products": 0.12, "assets": 0.08}
_EXPECTED_ROWS = 100_000


@dataclass(frozen=True)
class WorkloadSettings:
    """What to write. A limit of 0 means none; a rate of 0 means as fast as it goes."""

    rate: int = 0
    rows: int = 0
    seconds: float = 0.0
    seed: int = 1
    database: str = "shop"
    txn_rows: int = 0
    """Rows per transaction on average; 0 chooses by the rate."""
    update_share: float = 0.25
    delete_share: float = 0.05
    rollback_share: float = 0.02
    ddls: bool = True
    ranges_per_table: int = 4

    def __post_init__(self) -> None:
        for name in ("rate", "rows", "seconds", "txn_rows"):
            if getattr(self, name) < 0:
                raise PenstockError("CONFIG_INVALID", f"workload.{name}: must not be negative")
        if self.update_share + self.delete_share >= 1 or not 0 <= self.rollback_share < 1:
            raise PenstockError("CONFIG_INVALID", "workload: the shares of updates and deletes must leave room for inserts")


class WorkloadReport(msgspec.Struct, frozen=True):
    """What was written so far. ``rows`` counts committed row changes."""

    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    transactions: int = 0
    rollbacks: int = 0
    conflicts: int = 0
    ddls: int = 0
    seconds: float = 0.0
    last_commit_ts: int = 0


class _Change(msgspec.Struct, frozen=True):
    """What a transaction does to one table, by row number."""

    name: str
    inserted: I64
    updated: I64
    deleted_at: I64


class Workload:
    """A generator that one thread runs. ``report`` may be read from any thread."""

    def __init__(self, writer: Writer, settings: WorkloadSettings | None = None, clock: Clock | None = None) -> None:
        self.settings = settings or WorkloadSettings()
        self._writer = writer
        self._clock = clock or SystemClock()
        self._rng = np.random.default_rng(self.settings.seed)
        self._tables: dict[str, TableSchema] = {}
        self._live: dict[str, I64] = {name: np.zeros(0, dtype=np.int64) for name in TABLES}
        self._next: dict[str, int] = dict.fromkeys(TABLES, _FIRST_NUMBER)
        self._report = WorkloadReport()
        self._rows_before = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._pending_ddls = [d.format(db=self.settings.database) for d in DDLS] if self.settings.ddls else []

    @property
    def report(self) -> WorkloadReport:
        """Return the counters as of the last transaction."""
        return self._report

    def go_on_with(self, settings: WorkloadSettings) -> None:
        """Write what other settings say from the next ``run`` or ``start`` on, among the rows that are there; the report goes on."""
        self.settings = settings
        self._pending_ddls = [d.format(db=settings.database) for d in DDLS] if settings.ddls else []

    def setup(self) -> None:
        """Create the database and its tables where they do not exist, split them, and spread them over the stores."""
        self._writer.execute_ddl(f"CREATE DATABASE IF NOT EXISTS {self.settings.database}")
        for query in TABLES.values():
            self._writer.execute_ddl(query.format(db=self.settings.database))
        self._reload()
        stores = sorted({r.store_id for r in self._writer.list_ranges(b"", b"")})
        for name, table in self._tables.items():
            self._spread(name, table, stores)

    def run(self) -> WorkloadReport:
        """Write until a limit is reached or ``stop`` is called; limits count from here."""
        if not self._tables:
            self.setup()
        started_s, self._rows_before = self._clock.monotonic_s(), self._report.rows
        ddl_every = max(1, self.settings.rows // (len(DDLS) + 1)) if self.settings.rows else 20_000
        while not self._stop.is_set():
            elapsed_s = self._clock.monotonic_s() - started_s
            if self._finished(elapsed_s):
                break
            if self._pending_ddls and self._rows_written >= ddl_every * (self._report.ddls + 1):
                self._execute_ddl(self._pending_ddls.pop(0))
            self._transact()
            elapsed_s = self._clock.monotonic_s() - started_s
            self._report = msgspec.structs.replace(self._report, seconds=elapsed_s)
            if self.settings.rate:
                self._clock.wait(self._stop, max(0.0, self._rows_written / self.settings.rate - elapsed_s))
        return self._report

    def start(self) -> Workload:
        """Run in a thread of its own, set-up included before this returns."""
        self.setup()
        self._thread = threading.Thread(target=self._run_caught, name="workload", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> WorkloadReport:
        """Stop after the current transaction, and return the final report. An error of the thread is raised here."""
        self._stop.set()
        return self.join()

    def join(self, timeout_s: float | None = None) -> WorkloadReport:
        """Wait until the workload ends by itself."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._failure is not None:
            raise self._failure
        return self._report

    @property
    def running(self) -> bool:
        """Return whether the thread still writes."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def _rows_written(self) -> int:
        """Return the row changes of this run."""
        return self._report.rows - self._rows_before

    def _run_caught(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - handed to whoever stops or joins
            self._failure = error

    def _finished(self, elapsed_s: float) -> bool:
        limits = self.settings
        return bool((limits.rows and self._rows_written >= limits.rows) or (limits.seconds and elapsed_s >= limits.seconds))

    def _reload(self) -> None:
        found = {t.table: t for t in self._writer.list_tables() if t.schema == self.settings.database}
        self._tables = {name: found[name] for name in TABLES if name in found}
        if not self._tables:
            raise PenstockError("TABLE_UNKNOWN", f"no table of the workload exists in {self.settings.database}")

    def _spread(self, name: str, table: TableSchema, stores: list[int]) -> None:
        wanted = self.settings.ranges_per_table
        present = self._writer.list_ranges(table_prefix(table.table_id), table_end(table.table_id))
        if len(present) >= wanted:
            return
        rows = (self.settings.rows or _EXPECTED_ROWS) * _SHARES[name] * (1 - self.settings.update_share - self.settings.delete_share)
        cuts = np.unique(np.linspace(_FIRST_NUMBER, _FIRST_NUMBER + rows, wanted + 1)[1:-1].astype(np.int64))
        for key in encode_row_keys(table, key_columns(table, cuts), table_prefix(table.table_id)).to_pylist():
            self._writer.split(key)
        for at, info in enumerate(self._writer.list_ranges(table_prefix(table.table_id), table_end(table.table_id))):
            self._writer.move_leader(info.range_id, stores[at % len(stores)])

    def _execute_ddl(self, query: str) -> None:
        try:
            self._writer.execute_ddl(query)
        except PenstockError as error:
            # Somebody else changed the table meanwhile, or the server has run this workload before: the workload goes on without this DDL.
            if error.code not in ("UPSTREAM_REFUSED", "TABLE_UNKNOWN", "TYPE_UNSUPPORTED"):
                raise
        self._report = msgspec.structs.replace(self._report, ddls=self._report.ddls + 1)
        self._reload()

    def _transact(self) -> None:
        changes = self._plan()
        txn = Txn(self._writer)
        try:
            for change in changes:
                self._fill(txn, change)
            if self._rng.random() < self.settings.rollback_share:
                txn.prewrite()
                txn.rollback()
                self._report = msgspec.structs.replace(self._report, rollbacks=self._report.rollbacks + 1)
                return
            commit_ts = txn.commit()
        except PenstockError as error:
            txn.rollback()
            if error.code not in ("TXN_CONFLICT", "TABLE_UNKNOWN"):
                raise
            self._report = msgspec.structs.replace(self._report, conflicts=self._report.conflicts + 1)
            self._reload()
            return
        self._accept(changes, commit_ts)

    def _plan(self) -> list[_Change]:
        mean = self.settings.txn_rows or min(2_000, max(10, (self.settings.rate or 100_000) // 50))
        rows = int(self._rng.integers(max(1, mean // 2), mean + mean // 2 + 1))
        if self.settings.rows:
            rows = min(rows, max(1, self.settings.rows - self._rows_written))
        names = list(self._tables)
        weights = np.array([_SHARES[n] for n in names])
        counts = self._rng.multinomial(rows, weights / weights.sum())
        return [self._plan_table(name, int(count)) for name, count in zip(names, counts, strict=True) if count]

    def _plan_table(self, name: str, rows: int) -> _Change:
        live = self._live[name]
        updates = min(len(live) // 2, int(self._rng.binomial(rows, self.settings.update_share)))
        # Both are drawn apart: together they must leave no less than nothing for inserts, whose numbers would go back otherwise.
        deletes = min(len(live) // 4, rows - updates, int(self._rng.binomial(rows, self.settings.delete_share)))
        chosen = (
            np.unique(self._rng.integers(0, max(1, len(live)), updates + deletes)) if updates + deletes else np.zeros(0, dtype=np.int64)
        )
        self._rng.shuffle(chosen)
        deleted_at, updated_at = chosen[:deletes], chosen[deletes:]
        first = self._next[name]
        self._next[name] = first + rows - len(chosen)
        return _Change(name, np.arange(first, self._next[name], dtype=np.int64), live[updated_at], deleted_at)

    def _fill(self, txn: Txn, change: _Change) -> None:
        table = self._tables[change.name]
        written = np.concatenate([change.inserted, change.updated])
        if len(written):
            txn.put(table, row_columns(table, written, self._rng))
        if len(change.deleted_at):
            numbers = self._live[change.name][change.deleted_at]
            txn.delete(table, encode_row_keys(table, key_columns(table, numbers)))

    def _accept(self, changes: list[_Change], commit_ts: int) -> None:
        inserts = updates = deletes = 0
        for change in changes:
            kept = np.delete(self._live[change.name], change.deleted_at) if len(change.deleted_at) else self._live[change.name]
            self._live[change.name] = np.concatenate([kept, change.inserted])
            inserts += len(change.inserted)
            updates += len(change.updated)
            deletes += len(change.deleted_at)
        r = self._report
        self._report = msgspec.structs.replace(
            r,
            rows=r.rows + inserts + updates + deletes,
            inserts=r.inserts + inserts,
            updates=r.updates + updates,
            deletes=r.deletes + deletes,
            transactions=r.transactions + 1,
            last_commit_ts=commit_ts,
        )
