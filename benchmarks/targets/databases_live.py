"""Databases as targets of ``penstock run``: how soon a commit is visible, and changes per second beside a script that a user would write.

Latency: MariaDB into MariaDB with ``flush-interval = "100ms"``; a watcher asks the target for its newest row. The bar is the interval plus
four times the wall time of a bare Spark job. The script: one with python-mysql-replication and SQLAlchemy, where the interpreter named
by ``PENSTOCK_PEER_PYTHON`` has both. Penstock and the script are connected and have delivered rows before; what they are sent of the log is
held while changes are written, and then let through to one after the other, in turns: the same changes from the same place of a log that is
complete, to the last row visible in a table of the same PostgreSQL. Nobody's start counts. Runs in the benchmark's process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.report import Bar, say
from benchmarks.rigs.live_feed import (
    TABLE,
    TRANSACTION_ROWS,
    begin_table,
    half_load,
    insert_text,
    numbered_server,
    running_feed,
    until,
    visible_bar,
    writing,
)
from benchmarks.rigs.log_gate import LogGate, log_gate
from benchmarks.rigs.source_peers import Watched
from benchmarks.rigs.source_servers import DATABASE, Server
from penstock.model.errors import PenstockError
from testing.targets.database_kit import TargetDatabase

PEER_VARIABLE = "PENSTOCK_PEER_PYTHON"
INTERVAL_S, JOBS = 0.1, 4
BURST_ROWS, BURST_ROWS_QUICK = 200_000, 30_000
PACED_S, PACED_QUICK_S = 30.0, 5.0
ROUNDS, ROUNDS_QUICK = 4, 2
WARM_ROUNDS = 2
ROUND_TRANSACTIONS, ROUND_TRANSACTIONS_QUICK = 200, 20
"""Of each 1,000 rows that are inserted, 250 are updated and 250 deleted."""
_LOOK_S = 0.005
_PEER = """
import sys
import sqlalchemy as sa
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent
from sqlalchemy.dialects.postgresql import insert
port, file, position, uri, schema, table = sys.argv[1:]
engine = sa.create_engine(uri.replace("postgresql://", "postgresql+psycopg://"))
made = sa.Table(table, sa.MetaData(), schema=schema, autoload_with=engine)
wanted = {c.name: sa.bindparam(c.name) for c in made.columns}
stream = BinLogStreamReader(
    connection_settings={"host": "127.0.0.1", "port": int(port), "user": "penstock"}, server_id=4711, log_file=file, log_pos=int(position),
    resume_stream=True, blocking=True, only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent], only_tables=[table])
for event in stream:
    with engine.begin() as connection:
        if isinstance(event, WriteRowsEvent):
            connection.execute(insert(made), [row["values"] for row in event.rows])
        elif isinstance(event, UpdateRowsEvent):
            values = [{"key": row["before_values"]["id"], **row["after_values"]} for row in event.rows]
            connection.execute(made.update().where(made.c.id == sa.bindparam("key")).values(wanted), values)
        else:
            connection.execute(made.delete().where(made.c.id == sa.bindparam("key")), [{"key": row["values"]["id"]} for row in event.rows])
"""


def part(quick: bool) -> tuple[list[Bar], dict[str, float | int | str]]:
    """Return the bars and figures."""
    burst, paced_s = (BURST_ROWS_QUICK, PACED_QUICK_S) if quick else (BURST_ROWS, PACED_S)
    rounds, transactions = (ROUNDS_QUICK, ROUND_TRANSACTIONS_QUICK) if quick else (ROUNDS, ROUND_TRANSACTIONS)
    figures: dict[str, float | int | str] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-live-") as folder, numbered_server(Path(folder)) as server:
        bar, more = visible_bar("MySQL", INTERVAL_S, JOBS, *visible(Path(folder) / "mysql", server, burst, paced_s))
        figures |= more
        ours, theirs = beside_peer(Path(folder) / "postgres", server, rounds, transactions)
        figures["mysql_to_postgres_changes_per_s"] = round(ours.changes_per_s)
        figures["mysql_to_postgres_peer_changes_per_s"] = (
            round(theirs.changes_per_s) if theirs is not None else f"skipped: {PEER_VARIABLE} names no interpreter"
        )
        for name, side in (("Penstock", ours), ("the script", theirs)):
            if side is not None:
                say(f"  MySQL to PostgreSQL, {name}: {side.changes_per_s:,.0f} changes/s, {side.cpu_per_million:.1f} CPU s per million")
    ratio = ours.changes_per_s / theirs.changes_per_s if theirs is not None else None
    return [bar, Bar("MySQL to PostgreSQL, changes/s to a script with SQLAlchemy", ratio, 5.0)], figures


def visible(root: Path, server: Server, burst: int, paced_s: float) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the rows per second of a burst into MariaDB, and how long the rows of the time at half load took."""
    target = TargetDatabase("mariadb")
    begin_table(server)
    with _feed(root, server.uri, target), contextlib.closing(Newest(target)) as seen:
        return half_load(server, seen, burst, paced_s)


class Newest:
    """Notes when rows are visible: the newest number, and when it was there."""

    def __init__(self, target: TargetDatabase) -> None:
        self.last_s = 0.0
        self._target, self._looks = target, [(0, 0.0)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="newest", daemon=True)
        self._thread.start()

    def rows(self) -> int:
        """Return the newest number."""
        return self._looks[-1][0]

    def latencies(self, from_s: float) -> npt.NDArray[np.float64]:
        """Return how long rows took: each was visible with the first number from its own on."""
        sql = f"SELECT id, UNIX_TIMESTAMP(stamped) FROM {self._target.name(DATABASE, TABLE)} ORDER BY id"
        found = np.array(self._target.run("SET time_zone = '+00:00'", sql), dtype=np.float64)
        found = found[found[:, 1] >= from_s]
        ids, times = (np.array(one) for one in zip(*self._looks, strict=True))
        return np.asarray(times[np.searchsorted(ids, found[:, 0])] - found[:, 1])

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        sql = f"SELECT coalesce(max(id), 0) FROM {self._target.name(DATABASE, TABLE)}"
        with contextlib.closing(self._target.connect()) as connection, connection.cursor() as cursor:
            while not self._stop.wait(_LOOK_S):
                cursor.execute(sql)
                found = int(cursor.fetchone()[0])
                if found > self._looks[-1][0]:
                    self.last_s = time.time()
                    self._looks.append((found, self.last_s))


class Side(msgspec.Struct):
    """One of those that are compared: how it gets the log, where its rows are, and what it took."""

    gate: LogGate
    target: TargetDatabase
    watched: Watched
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    changes: int = 0

    @property
    def changes_per_s(self) -> float:
        """Return the changes per second."""
        return self.changes / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """Return the CPU seconds of its own processes per million changes."""
        return self.cpu_seconds * 1e6 / self.changes

    def go(self, changes: int, last: int) -> None:
        """Let the log through until its last row is visible."""
        before, began_s = self.watched.cpu_seconds(), time.perf_counter()
        self.gate.release()
        self.until_visible(last)
        self.seconds += time.perf_counter() - began_s
        self.cpu_seconds += self.watched.cpu_seconds() - before
        self.changes += changes

    def until_visible(self, number: int) -> None:
        """Wait for a row."""
        sql = f"SELECT 1 FROM {self.target.name(DATABASE, TABLE)} WHERE id = {number}"
        with contextlib.closing(self.target.connect()) as connection, connection.cursor() as cursor:
            until(lambda: cursor.execute(sql).fetchone() is not None, lambda: f"{self.target.prefix}: row {number} did not come")


def beside_peer(root: Path, server: Server, rounds: int, transactions: int) -> tuple[Side, Side | None]:
    """Return what Penstock and the script took for the same changes; None where there is no interpreter for the script."""
    peer, own, other = os.environ.get(PEER_VARIABLE, ""), TargetDatabase("postgres"), TargetDatabase("postgres")
    begin_table(server)
    with contextlib.ExitStack() as stack:
        cursor = stack.enter_context(writing(server))
        gates = [stack.enter_context(log_gate(server.port)) for _ in range(2)]
        through = server.uri.replace(f":{server.port}", f":{gates[0].port}")
        process = stack.enter_context(_feed(root, through, own))
        sides = [Side(gates[0], own, stack.enter_context(_watching(process)))]
        if peer:
            script = stack.enter_context(_script(peer, server, gates[1], other, own, cursor))
            sides.append(Side(gates[1], other, stack.enter_context(_watching(script))))
        number = 0
        for at in range(-WARM_ROUNDS, rounds):
            for side in sides:
                side.gate.hold()
            written = transactions if at >= 0 else 1
            count = _changes(cursor, number, written)
            number += written * TRANSACTION_ROWS
            cursor.execute(insert_text(number, 1))
            for side in sides if at % 2 else sides[::-1]:
                side.go(count + 1, number + 1)
                if at < 0:
                    side.seconds, side.cpu_seconds, side.changes = 0.0, 0.0, 0
            number += 1
        cursor.execute(f"SELECT count(*), sum(customer) FROM {TABLE}")
        wanted = [tuple(int(v) for v in cursor.fetchone() or ())]
        for side in sides:
            state = side.target.run(f"SELECT count(*), sum(customer) FROM {side.target.name(DATABASE, TABLE)}")
            if [tuple(int(v) for v in row) for row in state] != wanted:
                raise PenstockError("VERIFY_MISMATCH", f"{side.target.prefix}: the table is not the upstream's")
    return sides[0], sides[1] if peer else None


def _changes(cursor: Any, after: int, transactions: int) -> int:
    """Write changes; return how many."""
    for at in range(transactions):
        first = after + at * TRANSACTION_ROWS
        quarter, half = first + TRANSACTION_ROWS // 4, first + TRANSACTION_ROWS // 2
        cursor.execute(insert_text(first))
        cursor.execute(f"UPDATE {TABLE} SET customer = customer + 1 WHERE id > {first} AND id <= {quarter}")
        cursor.execute(f"DELETE FROM {TABLE} WHERE id > {quarter} AND id <= {half}")
    return transactions * (TRANSACTION_ROWS + TRANSACTION_ROWS // 2)


@contextlib.contextmanager
def _script(
    peer: str, server: Server, gate: LogGate, target: TargetDatabase, like: TargetDatabase, cursor: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the script from the end of the log on, into a table like Penstock's."""
    cursor.execute("FLUSH BINARY LOGS")
    cursor.execute("SHOW MASTER STATUS")
    file, position = cursor.fetchone()[:2]
    made = f"CREATE TABLE {target.name(DATABASE, TABLE)} (LIKE {like.name(DATABASE, TABLE)} INCLUDING ALL)"
    target.run(f"CREATE SCHEMA {target.prefix}{DATABASE}", made)
    told = [str(gate.port), str(file), str(position), target.server, f"{target.prefix}{DATABASE}", TABLE]
    with subprocess.Popen([peer, "-c", _PEER, *told]) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def _watching(process: subprocess.Popen[bytes]) -> Iterator[Watched]:
    watched = Watched(process.pid)
    try:
        yield watched
    finally:
        watched.close()


def _feed(root: Path, source: str, target: TargetDatabase) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run ``penstock run`` from when its target has the table."""
    options = {**target.options, "flush-interval": f"{INTERVAL_S * 1000:.0f}ms"}
    sink = target.uri + "?" + "&".join(f"{name}={value}" for name, value in options.items())
    known = f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{target.prefix}{DATABASE}' AND table_name = '{TABLE}'"
    is_there: Callable[[str], bool] = lambda _: bool(target.run(known))  # noqa: E731
    return running_feed(root, source, sink, is_there, {})
