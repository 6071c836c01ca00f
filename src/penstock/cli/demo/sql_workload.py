"""The demo's workload on a database that speaks SQL: seeded transactions of inserts, updates and deletes on a small shop, at a rate.

The statements make their rows in the server, from ranges of numbers, and say the same to MariaDB and to PostgreSQL. What counts is what the
server says that it changed. Invariant: an update changes every row that it finds, so each counted row is one change in the log.
Runs in the demo's writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np

from penstock.model.clock import Clock, SystemClock
from penstock.source.dataserver.workload import WorkloadReport, WorkloadSettings

TABLES = (
    """CREATE TABLE shop.orders (id BIGINT NOT NULL PRIMARY KEY, customer_id INT NOT NULL, status VARCHAR(12) NOT NULL,
    amount DECIMAL(12,2) NOT NULL, note VARCHAR(80), changes INT NOT NULL, created_at {moment} NOT NULL)""",
    """CREATE TABLE shop.order_items (order_id BIGINT NOT NULL, line_no INT NOT NULL, sku VARCHAR(16) NOT NULL,
    quantity INT NOT NULL, price DECIMAL(10,2) NOT NULL, PRIMARY KEY (order_id, line_no))""",
    """CREATE TABLE shop.products (sku VARCHAR(16) NOT NULL PRIMARY KEY, name VARCHAR(60) NOT NULL, price DECIMAL(10,2) NOT NULL,
    stock INT NOT NULL)""",
)
INSERTS = {
    "orders": """INSERT INTO shop.orders (id, customer_id, status, amount, note, changes, created_at)
    SELECT seq, MOD(seq, 5000) + 1, 'new', MOD(seq, 90000) / 100.0 + 5, CONCAT('order ', seq, ', "handle with care"'), 0,
    CURRENT_TIMESTAMP(3) FROM {series}""",
    "order_items": """INSERT INTO shop.order_items (order_id, line_no, sku, quantity, price)
    SELECT FLOOR(seq / 4), MOD(seq, 4) + 1, CONCAT('SKU-', MOD(seq, 9000)), MOD(seq, 7) + 1, MOD(seq, 30000) / 100.0 FROM {series}""",
    "products": """INSERT INTO shop.products (sku, name, price, stock)
    SELECT CONCAT('SKU-', seq), CONCAT('Größe ', MOD(seq, 40), ', 上海 ', seq), MOD(seq, 30000) / 100.0, MOD(seq, 500) FROM {series}""",
}
DDLS = ("ALTER TABLE shop.orders ADD COLUMN priority INT", "ALTER TABLE shop.products ADD COLUMN rating DECIMAL(3,1)")
_STATES = ("paid", "packed", "shipped", "returned")
_SHARES = {"orders": 0.4, "order_items": 0.5, "products": 0.1}
_TRANSACTIONS_PER_S = 20


class Dialect(Protocol):
    """How one kind of server is spoken to."""

    name: str

    @property
    def prepare(self) -> tuple[str, ...]:
        """Return what makes the place for the tables."""

    @property
    def moment(self) -> str:
        """Return the type of a time."""

    def series(self, first: int, last: int) -> str:
        """Return a table of the numbers from one to another, in a column ``seq``."""

    def execute(self, statement: str) -> int:
        """Run a statement; return how many rows it changed."""

    def close(self) -> None:
        """End the session."""


class MariaDb:
    """A session on MariaDB."""

    prepare = ("CREATE DATABASE shop CHARACTER SET utf8mb4", "USE shop")
    moment = "DATETIME(3)"

    def __init__(self, uri: str) -> None:
        import pymysql

        from penstock.access.mysql_server import parse_uri

        address = parse_uri(uri)
        self._session: Any = pymysql.connect(host=address.host, port=address.port, user=address.user, charset="utf8mb4")
        version = str(self._session.get_server_info()).removeprefix("5.5.5-")
        self.name = f"MariaDB {version.partition('-')[0]}"

    def series(self, first: int, last: int) -> str:
        """Return a table of the numbers from one to another, in a column ``seq``."""
        return f"seq_{first}_to_{last}"

    def execute(self, statement: str) -> int:
        """Run a statement; return how many rows it changed."""
        with self._session.cursor() as cursor:
            return int(cursor.execute(statement))

    def close(self) -> None:
        """End the session."""
        self._session.close()


class Postgres:
    """A session on PostgreSQL."""

    prepare = ("CREATE SCHEMA shop",)
    moment = "TIMESTAMP(3)"

    def __init__(self, uri: str) -> None:
        from penstock.source.postgres.wire.address import parse_address
        from penstock.source.postgres.wire.connection import Connection

        self._session = Connection(parse_address(uri))
        self.name = f"PostgreSQL {self._session.server_version}"

    def series(self, first: int, last: int) -> str:
        """Return a table of the numbers from one to another, in a column ``seq``."""
        return f"generate_series({first}, {last}) AS numbers(seq)"

    def execute(self, statement: str) -> int:
        """Run a statement; return how many rows it changed."""
        if not statement.startswith(("INSERT", "UPDATE", "DELETE")):
            self._session.query(statement)
            return 0
        return int(self._session.query(f"WITH changed AS ({statement} RETURNING 1) SELECT count(*) FROM changed")[0][0] or 0)

    def close(self) -> None:
        """End the session."""
        self._session.close()


class SqlWorkload:
    """A generator that one thread runs. ``report`` may be read from any thread."""

    def __init__(self, dialect: Dialect, settings: WorkloadSettings, stop: threading.Event, clock: Clock | None = None) -> None:
        self._on = dialect
        self._settings = settings
        self._stop = stop
        self._clock = clock or SystemClock()
        self._rng = np.random.default_rng(settings.seed)
        self._next = dict.fromkeys(INSERTS, 4)
        self._oldest_order = 4
        self.report = WorkloadReport()
        self.last_ddl = ""

    def setup(self, rows: int) -> None:
        """Create the tables, with so many rows."""
        for statement in (*self._on.prepare, *TABLES):
            self._on.execute(statement.format(moment=self._on.moment))
        self._transaction(lambda: self._insert(rows))

    def run(self) -> None:
        """Write until a limit is reached or somebody asks to stop."""
        settings, before, started_s = self._settings, self.report.rows, self._clock.monotonic_s()
        pending, every = list(DDLS), settings.rows // (len(DDLS) + 1)
        each = max(20, settings.rate // _TRANSACTIONS_PER_S)
        while not self._stop.is_set() and (done := self.report.rows - before) < settings.rows:
            if pending and done >= every * (self.report.ddls + 1):
                self.last_ddl = pending.pop(0)
                self._on.execute(self.last_ddl)
                self._count(ddls=1)
            rows = min(each, settings.rows - done)
            if self._rng.random() < settings.rollback_share:
                self._on.execute("BEGIN")
                self._insert(rows)
                self._on.execute("ROLLBACK")
                self._count(rollbacks=1)
            else:
                self._transaction(lambda rows=rows: self._change(rows))  # type: ignore[misc]
            elapsed_s = self._clock.monotonic_s() - started_s
            self.report = msgspec.structs.replace(self.report, seconds=elapsed_s)
            self._clock.wait(self._stop, max(0.0, (self.report.rows - before) / settings.rate - elapsed_s))

    def _transaction(self, change: Callable[[], dict[str, int]]) -> None:
        self._on.execute("BEGIN")
        counts = change()
        self._on.execute("COMMIT")
        self._count(transactions=1, rows=sum(counts.values()), **counts)

    def _count(self, **more: int) -> None:
        self.report = msgspec.structs.replace(self.report, **{name: getattr(self.report, name) + n for name, n in more.items()})

    def _insert(self, rows: int) -> dict[str, int]:
        done = 0
        counts = self._rng.multinomial(rows, list(_SHARES.values()))
        for name, count in zip(_SHARES, counts.tolist(), strict=True):
            if count:
                first, self._next[name] = self._next[name], self._next[name] + count
                done += self._on.execute(INSERTS[name].format(series=self._on.series(first, first + count - 1)))
        return {"inserts": done}

    def _change(self, rows: int) -> dict[str, int]:
        orders = self._next["orders"] - self._oldest_order
        updates = min(orders // 2, round(rows * self._settings.update_share))
        deletes = min(orders // 4, round(rows * self._settings.delete_share))
        counts = {}
        # Before the inserts: a row that a transaction inserts and updates is one change.
        if deletes:
            first, self._oldest_order = self._oldest_order, self._oldest_order + deletes
            counts["deletes"] = self._on.execute(f"DELETE FROM shop.orders WHERE id BETWEEN {first} AND {first + deletes - 1}")
        if updates:
            first = int(self._rng.integers(self._oldest_order, self._next["orders"] - updates + 1))
            state = _STATES[int(self._rng.integers(len(_STATES)))]
            changed = f"UPDATE shop.orders SET status = '{state}', changes = changes + 1 WHERE id BETWEEN {first} AND {first + updates - 1}"
            counts["updates"] = self._on.execute(changed)
        return counts | self._insert(rows - updates - deletes)


DIALECTS: dict[str, Callable[[str], Dialect]] = {"mysql": MariaDb, "postgres": Postgres}
