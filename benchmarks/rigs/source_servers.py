"""The database servers of ``make bench NAME=sources``, and the workloads that fill their logs.

Workload A: of every 8 changes 5 are inserts, 2 updates and 1 a delete, in transactions of 1,000 rows, multi-row statements. Workload B:
the same mix, one row per statement and transaction. Both write a table of 9 mixed columns, made on the server, so that loading is
quick. Each server runs in a temporary folder on a free loopback port. Runs in the benchmark.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from testing.servers.loopback import answers, as_user, free_port, mysql_command, program, running, unprivileged

TRANSACTION_ROWS = 1000
SHARES = (5, 2, 1)
"""Inserts, updates and deletes among eight changes."""
DATABASE = "shop"
USER = "penstock"


class Workload(msgspec.Struct, frozen=True):
    """How many changes of which form."""

    name: str
    changes: int
    rows_per_transaction: int
    has_key: bool = True

    @property
    def table(self) -> str:
        """Return the table that it writes."""
        return f"orders_{self.name.lower()}"

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return the inserts, updates and deletes, whole transactions each."""
        step = self.rows_per_transaction
        updates, deletes = (self.changes * share // sum(SHARES) // step * step for share in SHARES[1:])
        return self.changes - updates - deletes, updates, deletes


def workload_a(changes: int) -> Workload:
    """Return workload A of a size."""
    return Workload("A", changes // TRANSACTION_ROWS * TRANSACTION_ROWS, TRANSACTION_ROWS)


def workload_without_key(changes: int) -> Workload:
    """Return workload A on a table whose rows nothing names; an index that is not unique finds them."""
    return msgspec.structs.replace(workload_a(changes), name="K", has_key=False)


def workload_b(changes: int) -> Workload:
    """Return workload B of a size."""
    return Workload("B", changes, 1)


class Server(msgspec.Struct, frozen=True):
    """How a running server is reached."""

    uri: str
    port: int


@contextlib.contextmanager
def mariadb(folder: Path) -> Iterator[Server]:
    """Run MariaDB with a row-format log."""
    user, port = unprivileged(folder), free_port()
    made = [program("mariadb-install-db", "mariadb-server-core"), "--no-defaults", f"--datadir={folder}/data", "--skip-test-db"]
    subprocess.run(as_user(user, [*made, "--auth-root-authentication-method=normal"]), check=True, capture_output=True, cwd=folder)
    command = [
        *(program("mariadbd", "mariadb-server-core"), "--no-defaults", f"--datadir={folder}/data", f"--port={port}"),
        *("--bind-address=127.0.0.1", f"--socket={folder}/s.sock", "--skip-name-resolve", f"--pid-file={folder}/pid", f"--tmpdir={folder}"),
        *("--server-id=1", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL"),
        *("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=512M", "--innodb-log-file-size=512M"),
    ]
    with running(command, folder, answers(port), user):
        uri = f"mysql://root@127.0.0.1:{port}/{DATABASE}"
        run_mysql(uri, [f"CREATE DATABASE {DATABASE}", f"CREATE USER {USER}@'%'", f"GRANT ALL ON *.* TO {USER}@'%'"], database="")
        yield Server(f"mysql://{USER}@127.0.0.1:{port}/{DATABASE}", port)


@contextlib.contextmanager
def mysql(folder: Path) -> Iterator[Server]:
    """Run MySQL itself with a row-format log."""
    user, port = unprivileged(folder), free_port()
    statements = (f"CREATE USER {USER}@'%' IDENTIFIED BY ''", f"GRANT ALL ON *.* TO {USER}@'%'", f"CREATE DATABASE {DATABASE}")
    command = mysql_command(folder, port, user, statements)
    command += ["--sync-binlog=0", "--innodb-buffer-pool-size=512M", "--innodb-redo-log-capacity=1G"]
    with running(command, folder, answers(port), user):
        yield Server(f"mysql://{USER}@127.0.0.1:{port}/{DATABASE}", port)


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[Server]:
    """Run PostgreSQL with a logical log."""
    user, port = unprivileged(folder), free_port()
    made = [
        program("initdb", "postgresql"),
        "-D",
        f"{folder}/data",
        "-U",
        USER,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
        "--locale=C.UTF-8",
    ]
    subprocess.run(as_user(user, made), check=True, capture_output=True, cwd=folder)
    settings = {
        "wal_level": "logical",
        "fsync": "off",
        "synchronous_commit": "off",
        "max_wal_size": "8GB",
        "max_replication_slots": "16",
        "max_wal_senders": "16",
        "logical_decoding_work_mem": "256MB",
    }
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    command = [program("postgres", "postgresql"), "-D", f"{folder}/data", "-p", str(port), "-h", "127.0.0.1", "-k", str(folder), *options]
    with running(command, folder, answers(port), user):
        uri = f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        yield Server(uri, port)


def create_mysql_table(server: Server, workload: Workload) -> None:
    """Make the workload's empty table and the numbers from which rows are made."""
    columns = (
        f"id BIGINT NOT NULL{' PRIMARY KEY' if workload.has_key else ', KEY (id)'}, customer INT UNSIGNED NOT NULL, "
        "price DECIMAL(12,2) NOT NULL, quantity SMALLINT NOT NULL, "
        "weight DOUBLE, name VARCHAR(64) NOT NULL, note VARCHAR(200), created DATETIME(6) NOT NULL, flag TINYINT NOT NULL"
    )
    series = f"WITH RECURSIVE s AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM s WHERE n < {TRANSACTION_ROWS - 1}) SELECT n FROM s"
    numbers = f"INSERT INTO numbers {series}"
    statements = ["SET sql_log_bin = 0", "CREATE TABLE IF NOT EXISTS numbers (n INT PRIMARY KEY)", "DELETE FROM numbers", numbers]
    run_mysql(server.uri, [*statements, "SET sql_log_bin = 1", f"CREATE TABLE {workload.table} ({columns})"])


def load_mysql(server: Server, workload: Workload) -> None:
    """Write the workload's changes."""
    run_mysql(server.uri, _statements(workload, _MYSQL_ROW, "INSERT INTO {t} SELECT {row} FROM numbers", _mysql_loop))


def create_postgres_table(server: Server, workload: Workload) -> None:
    """Make the workload's empty table and its publication."""
    columns = (
        "id bigint PRIMARY KEY, customer integer NOT NULL, price numeric(12,2) NOT NULL, quantity smallint NOT NULL, "
        "weight double precision, name varchar(64) NOT NULL, note varchar(200), created timestamp(6) NOT NULL, flag smallint NOT NULL"
    )
    statements = [
        "CREATE TABLE IF NOT EXISTS numbers (n integer PRIMARY KEY)",
        f"INSERT INTO numbers SELECT generate_series(0, {TRANSACTION_ROWS - 1}) ON CONFLICT DO NOTHING",
        f"CREATE TABLE {workload.table} ({columns})",
        f"CREATE PUBLICATION pub_{workload.table} FOR TABLE {workload.table}",
    ]
    _postgres(server.uri, statements)


def load_postgres(server: Server, workload: Workload) -> None:
    """Write the workload's changes."""
    _postgres(server.uri, _statements(workload, _POSTGRES_ROW, "INSERT INTO {t} SELECT {row} FROM numbers", _postgres_loop))


_MYSQL_ROW = (
    "{n}, {n} % 100000, ({n} % 9999) + 0.25, {n} % 100, {n} / 7, CONCAT('item number ', {n}), "
    "IF({n} % 3 = 0, NULL, CONCAT('a note of some length about ', {n})), '2026-01-01' + INTERVAL {n} % 86400000 MICROSECOND, {n} % 2"
)
_POSTGRES_ROW = (
    "{n}, {n} % 100000, ({n} % 9999) + 0.25, {n} % 100, {n} / 7.0, 'item number ' || {n}, "
    "CASE WHEN {n} % 3 = 0 THEN NULL ELSE 'a note of some length about ' || {n} END, "
    "timestamp '2026-01-01' + {n} % 86400000 * interval '1 microsecond', {n} % 2"
)


def _statements(workload: Workload, row: str, insert: str, loop: Callable[[int, str], list[str]]) -> Iterator[str]:
    """Yield statements, each a transaction (A), or one statement that loops over transactions of one row (B)."""
    inserts, updates, deletes = workload.counts
    table, step = workload.table, workload.rows_per_transaction
    changed = "quantity = quantity + 1, price = price + 1, note = 'changed'"
    if step == 1:
        one = row.format(n="i")
        yield from loop(inserts, f"INSERT INTO {table} SELECT {one}")
        yield from loop(updates, f"UPDATE {table} SET {changed} WHERE id = i")
        yield from loop(deletes, f"DELETE FROM {table} WHERE id = i")
        return
    for first in range(0, inserts, step):
        yield insert.format(t=table, row=row.format(n=f"({first} + n)"))
    for first in range(0, updates, step):
        yield f"UPDATE {table} SET {changed} WHERE id >= {first} AND id < {first + step}"
    for first in range(0, deletes, step):
        yield f"DELETE FROM {table} WHERE id >= {first} AND id < {first + step}"


def _mysql_loop(count: int, statement: str) -> list[str]:
    loop = f"BEGIN DECLARE i INT DEFAULT 0; WHILE i < {count} DO {statement}; SET i = i + 1; END WHILE; END"
    return [f"CREATE PROCEDURE fill() {loop}", "CALL fill()", "DROP PROCEDURE fill"]


def _postgres_loop(count: int, statement: str) -> list[str]:
    return [f"DO $$ BEGIN FOR i IN 0..{count - 1} LOOP {statement}; COMMIT; END LOOP; END $$"]


def run_mysql(uri: str, statements: Sequence[str] | Iterator[str], database: str = DATABASE) -> None:
    """Execute statements on MariaDB or MySQL, each committed by itself."""
    import pymysql
    from sqlalchemy.engine import make_url

    url = make_url(uri)
    connection = pymysql.connect(host=url.host, port=url.port or 3306, user=url.username, database=database or None, autocommit=True)
    with contextlib.closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _postgres(uri: str, statements: Sequence[str] | Iterator[str]) -> None:
    import psycopg

    with psycopg.connect(uri, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
