"""A PostgreSQL server under test as an upstream: started with a logical log, restarted at will, and a replica that applies what was read.

``Replica`` is the oracle's other half: it applies snapshot and log by key exactly as a consumer would, so its rows can be compared with
what the server answers. Runs in tests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.clock import SystemClock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.rows.bag_key import BAG_KEY_BYTES, CONTENT_BYTES
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from penstock.source.postgres.wire.address import parse_address
from penstock.source.postgres.wire.connection import Connection, Row
from penstock.source.single_log import LogPosition, LogStep
from testing.servers.loopback import free_port
from testing.servers.loopback_server import postgres

SERVER_OPTIONS = ("-c", "wal_level=logical", "-c", "max_prepared_transactions=10", "-c", "logical_decoding_work_mem=64kB")
_READ_S_MAX = 60.0


class PostgresLab:
    """One server in a directory."""

    def __init__(self, directory: Path, options: Sequence[str] = SERVER_OPTIONS) -> None:
        self.directory = directory
        self._options = options
        self._port = free_port()
        self._running = contextlib.ExitStack()
        self.uri = self._running.enter_context(postgres(directory, options, self._port))
        self._connection = Connection(parse_address(self.uri))

    def sql(self, text: str) -> list[Row]:
        """Run statements; return the last rows as the server prints them."""
        return self._connection.query(text)

    def session(self) -> Connection:
        """Return a connection of its own."""
        return Connection(parse_address(self.uri))

    def restart(self, options: Sequence[str] | None = None) -> None:
        """Stop the server and start it again at the same address."""
        self.stop()
        self._running.enter_context(postgres(self.directory, self._options if options is None else options, self._port))
        self._connection = Connection(parse_address(self.uri))

    def stop(self) -> None:
        """Stop the server without waiting for its clients."""
        self._connection.close()
        self._running.close()

    def upstream(self, options: str = "") -> PostgresUpstream:
        """Return a new upstream on the server."""
        return PostgresUpstream(f"{self.uri}{options}", PostgresSettings(reader_wait_s=0.0))


class Replica:
    """Tables by id, rows by key, as a consumer of snapshot and log would have them."""

    def __init__(self) -> None:
        self.tables: dict[int, dict[bytes, dict[str, Any]]] = {}
        self.ddls: list[DdlEvent] = []
        self.last_ts = 0

    def rows(self, table_id: int) -> list[dict[str, Any]]:
        """Return the rows of a table by key, without ``_ts`` and ``_op``."""
        return [self.tables[table_id][key] for key in sorted(self.tables.get(table_id, {}))]

    def apply_snapshot(self, batches: Iterator[ChangeBatch]) -> None:
        """Put a snapshot's rows in; they come in key order and once each."""
        last: dict[int, bytes] = {}
        for batch in batches:
            table = self.tables.setdefault(batch.header.table_id, {})
            for row in batch.records.to_pylist():
                key = row["_key"]
                assert last.get(batch.header.table_id, b"") < key or not last
                assert row["_op"] == Op.INSERT
                last[batch.header.table_id] = key
                table[key] = _bare(row)

    def apply(self, step: LogStep) -> None:
        """Apply a step; every batch is in order, and no row is at or below a position that was given before."""
        for ddl in step.ddls:
            self.ddls.append(ddl)
            if ddl.type is DdlType.TRUNCATE_TABLE:
                self.tables[ddl.tables[0].table_id] = {}
        ordered = sorted(step.changes, key=lambda c: c.header.kind is BatchKind.DATA)
        for change in ordered:
            rows = change.records.to_pylist()
            places = [(r["_ts"], r["_key"]) for r in rows]
            assert places == sorted(set(places)), "a batch is ordered by (ts, key), each once"
            assert all(r["_ts"] > self.last_ts for r in rows)
            assert change.header.rows == len(rows)
        for ts in sorted({r for c in ordered for r in c.records.column("_ts").to_pylist()}):
            for change in ordered:
                self._apply_ts(change, ts)
        if step.position is not None:
            assert step.position.ts >= self.last_ts
            self.last_ts = step.position.ts

    @staticmethod
    def _place(table: dict[bytes, dict[str, Any]], key: bytes) -> bytes:
        """Return where the row stands that a tombstone ends: of a bag, any copy of it."""
        if key in table or len(key) != BAG_KEY_BYTES:
            return key
        return next((k for k in table if k[:CONTENT_BYTES] == key[:CONTENT_BYTES]), key)

    def _apply_ts(self, change: ChangeBatch, ts: int) -> None:
        table = self.tables.setdefault(change.header.table_id, {})
        for row in change.records.to_pylist():
            if row["_ts"] != ts:
                continue
            if change.header.kind is BatchKind.TOMBSTONE:
                gone = table.pop(self._place(table, row["_key"]), None)
                if row["_op"] == Op.BEFORE and gone is not None:
                    assert gone == _bare(row), "a before-image is what was there"
            else:
                table[row["_key"]] = _bare(row)


def read_until(
    upstream: PostgresUpstream,
    start: LogPosition,
    end: str,
    marks: Sequence[LogPosition] = (),
    wanted: Callable[[int], bool] = lambda _table_id: True,
) -> list[LogStep]:
    """Return the steps of the log from a position until everything before ``end`` has been read."""
    steps: list[LogStep] = []
    stop = threading.Event()
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + _READ_S_MAX
    reading = upstream.read_log(start, marks, wanted, stop)
    with contextlib.closing(reading):  # type: ignore[type-var]
        for step in reading:
            steps.append(step)
            if step.position is not None and upstream.reached(step.position.text, end):
                return steps
            assert clock.monotonic_s() < deadline_s, "the end of the log was not reached in time"
    raise AssertionError("the log ended")


def _bare(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in {"_ts", "_op", "_key"}}
