"""A feed on MariaDB or MySQL under random work of several sessions, with DDLs, while the server is killed and the process comes and goes.

The files of the feed replay to the tables, row by row; nothing is read again, because the log is never lost.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pymysql
import pytest

from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.mysql_lab import BINLOG, connect, run
from testing.servers.databases.mysql_server import mysql
from testing.servers.loopback import STOP_S_MAX, as_user, unprivileged
from testing.servers.loopback_server import mariadb
from testing.servers.waiting import wait_until

pytestmark = pytest.mark.integration
ROUNDS = 4
# What is acknowledged must be there after a kill, or the log of the server itself would lose it.
DURABLE = ("--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1")


class Restartable:
    """A server that is stopped or killed and started again the same way."""

    def __init__(self, directory: Path, uri: str) -> None:
        self._directory = directory
        self._uri = uri
        self._user = unprivileged(directory)
        self._again: subprocess.Popen[bytes] | None = None

    def restart(self, how: signal.Signals) -> None:
        process = psutil.Process(int((self._directory / "pid").read_text()))
        command = process.cmdline()
        process.send_signal(how)
        process.wait(STOP_S_MAX)
        if self._again is not None:
            self._again.wait(STOP_S_MAX)
        with (self._directory / "again.log").open("ab") as out:
            self._again = subprocess.Popen(
                as_user(self._user, command), stdout=out, stderr=subprocess.STDOUT, cwd=self._directory, start_new_session=True
            )
        wait_until(self._answers, "the server does not answer")

    def close(self) -> None:
        if self._again is not None and self._again.poll() is None:
            os.killpg(self._again.pid, signal.SIGTERM)
            self._again.wait(STOP_S_MAX)

    def __enter__(self) -> Restartable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        with contextlib.suppress(pymysql.Error):
            connect(self._uri).close()
            return True
        return False


def work(uri: str, stop: threading.Event, seed: int) -> None:
    """Write all the time; a server that is away is waited for, and what it refuses is rolled back."""
    rng, never = random.Random(seed), threading.Event()
    session: Any = None
    while not stop.is_set():
        try:
            session = session or connect(uri)
            texts = [part for text in statements(rng) for part in text.split("; ")]
            run(session, "BEGIN", *texts, "COMMIT" if rng.random() < 0.85 else "ROLLBACK")
        except (pymysql.Error, OSError):
            with contextlib.suppress(Exception):
                session.close()
            session = None
            never.wait(0.05)
    if session is not None:
        session.close()


def statements(rng: random.Random) -> Iterator[str]:
    for _ in range(rng.randrange(1, 6)):
        low, name = rng.randrange(1500), rng.choice(("orders", "texts"))
        key = "id" if name == "orders" else "n"
        fresh = ",".join(f"({n}, 'fresh {n}', {n % 9}.5)" for n in range(low, low + 12))
        yield rng.choice(
            [
                f"UPDATE shop.{name} SET amount = amount + 1 WHERE {key} BETWEEN {low} AND {low + 25}",
                f"UPDATE shop.{name} SET amount = -amount WHERE {key} % 17 = {low % 17}",
                f"DELETE FROM shop.{name} WHERE {key} BETWEEN {low} AND {low + 3}",
                f"INSERT IGNORE INTO shop.orders (id, note, amount) VALUES {fresh}",
                f"REPLACE INTO shop.texts (k, n, amount) VALUES ('K{low}', {low}, 0), ('ü{low % 40}', {low}, 1)",
                f"UPDATE IGNORE shop.orders SET id = id + 100000 WHERE id = {low}",
                f"UPDATE IGNORE shop.texts SET k = CONCAT('m', n) WHERE n = {low}",
                f"SAVEPOINT s; DELETE FROM shop.{name} WHERE {key} > {low}; ROLLBACK TO s",
            ]
        )


def check_random_life(uri: str, directory: Path, tmp_path: Path, rounds: int) -> None:
    with Restartable(directory, uri) as server:
        live(server, uri, tmp_path, rounds)


def live(server: Restartable, uri: str, tmp_path: Path, rounds: int) -> None:
    writer = connect(uri)
    run(writer, "CREATE DATABASE shop CHARACTER SET utf8mb4")
    run(writer, "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(40), amount DECIMAL(12,2))")
    run(writer, "CREATE TABLE shop.texts (k VARCHAR(20) PRIMARY KEY, n INT, amount INT, UNIQUE (k, n))")
    values = ",".join(f"({n}, 'first', {n})" for n in range(1200))
    run(writer, f"INSERT INTO shop.orders VALUES {values}", "INSERT INTO shop.texts SELECT CONCAT('k', id), id, 0 FROM shop.orders")
    (tmp_path / "feed").mkdir()
    path = OneLogPath(tmp_path / "feed", uri, ["shop.*"])
    stop = threading.Event()
    writers = [threading.Thread(target=work, args=(uri, stop, seed), daemon=True) for seed in range(2)]
    try:
        for thread in writers:
            thread.start()
        path.begin()
        for number in range(rounds):
            server.restart(signal.SIGTERM if number % 2 else signal.SIGKILL)
            again = connect(uri)
            run(again, f"ALTER TABLE shop.orders ADD COLUMN c{number} INT DEFAULT {number}", "ALTER TABLE shop.texts MODIFY n BIGINT")
            # One table comes in each round, and the one before it goes; every other time under the same name.
            run(
                again,
                f"DROP TABLE IF EXISTS shop.brief{abs(number - 1) // 2}",
                f"CREATE TABLE shop.brief{number // 2} (id INT PRIMARY KEY, n INT)",
            )
            run(again, f"INSERT INTO shop.brief{number // 2} SELECT id, {number} FROM shop.orders WHERE id < 400")
            again.close()
            path.drain()
            path.restart()
            path.drain()
    finally:
        stop.set()
        for thread in writers:
            thread.join()
    writer = connect(uri)
    run(writer, "UPDATE shop.orders SET note = 'last' WHERE id < 100")
    path.drain()
    verdict = path.verify()
    verdict.check()
    assert {t.name for t in verdict.tables} == {"shop.orders", "shop.texts", f"shop.brief{(rounds - 1) // 2}"}
    assert verdict.rows > 100
    assert path.meta.resnapshots("f") == 0
    path.close()


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.chaos)])
def test_random_work_restarts_and_kills_lose_nothing(tmp_path: Path, rounds: int) -> None:
    with mariadb(tmp_path / "server", (*BINLOG, *DURABLE)) as uri:
        check_random_life(uri, tmp_path / "server", tmp_path, rounds)


@pytest.mark.mysql
def test_random_work_restarts_and_kills_lose_nothing_on_mysql(tmp_path: Path) -> None:
    with mysql(tmp_path / "server", DURABLE) as uri:
        check_random_life(uri, tmp_path / "server", tmp_path, ROUNDS)
