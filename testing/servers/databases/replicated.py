"""A MariaDB or PostgreSQL with a replica on loopback, of which one can be killed and the other promoted. Runs in tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

from testing.servers.loopback import as_user, program, unprivileged
from testing.servers.loopback_server import mariadb, postgres
from testing.servers.waiting import wait_until

_WAIT_S = 90.0


class Replicated:
    """A primary and its replica; ``url`` names both."""

    def __init__(self, kind: str, first: str, second: str, directory: Path) -> None:
        self.kind = kind
        self._uris = [first, second]
        self._directory = directory
        parts = urlsplit(first)
        self.url = f"{parts.scheme}://{parts.username}@127.0.0.1:{parts.port},127.0.0.1:{urlsplit(second).port}{parts.path}"

    def asked(self, at: int, *statements: str) -> Any:
        """Run statements at one of the servers; return the first value of the last answer."""
        if self.kind == "postgres":
            with psycopg.connect(self._uris[at], autocommit=True) as connection:
                for statement in statements:
                    cursor = connection.execute(statement)
                row = cursor.fetchone() if cursor.description else None
        else:
            parts = urlsplit(self._uris[at])
            with (
                contextlib.closing(pymysql.connect(host="127.0.0.1", port=parts.port, user="root", autocommit=True)) as server,
                server.cursor() as asking,
            ):
                for statement in statements:
                    asking.execute(statement)
                row = asking.fetchone()
        return row[0] if row else None

    def catch_up(self) -> None:
        """Wait until the replica has every commit."""
        if self.kind == "postgres":
            at = self.asked(0, "SELECT pg_current_wal_lsn()::text")
            wait_until(
                lambda: self.asked(1, f"SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn") is True, "the replica catches up", _WAIT_S
            )
        else:
            at = self.asked(0, "SELECT @@gtid_binlog_pos")
            assert self.asked(1, f"SELECT MASTER_GTID_WAIT('{at}', {_WAIT_S})") == 0, "the replica catches up"

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let nothing be committed at the primary, a MariaDB, while the replica catches up, and until the block ends."""
        parts = urlsplit(self._uris[0])
        holding = pymysql.connect(host="127.0.0.1", port=parts.port, user="root", autocommit=True)
        with holding.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
        self.catch_up()
        yield
        with contextlib.suppress(pymysql.Error):
            holding.close()

    def promote(self) -> None:
        """Let the replica take writes."""
        if self.kind == "postgres":
            assert self.asked(1, "SELECT pg_promote(true, 60)") is True
        else:
            self.asked(1, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")

    def kill(self, at: int) -> None:
        """End one of the servers as a loss of power would."""
        folder = self._directory / str(at)
        file = folder / "data" / "postmaster.pid" if self.kind == "postgres" else folder / "pid"
        os.kill(int(file.read_text(encoding="utf-8").split()[0]), signal.SIGQUIT if self.kind == "postgres" else signal.SIGKILL)
        wait_until(lambda: not self._answers(at), "the server is gone", _WAIT_S)

    def _answers(self, at: int) -> bool:
        try:
            self.asked(at, "SELECT 1")
        except (psycopg.Error, pymysql.Error):
            return False
        return True


@contextlib.contextmanager
def replicated(kind: str, directory: Path) -> Iterator[Replicated]:
    """Run a ``mariadb`` or a ``postgres`` and a replica of it."""
    folders = [directory / "0", directory / "1"]
    with contextlib.ExitStack() as running:
        if kind == "postgres":
            first = running.enter_context(postgres(folders[0]))
            user = unprivileged(folders[1])
            copy = [
                program("pg_basebackup", "postgresql-client"),
                "-d",
                first,
                "-D",
                str(folders[1] / "data"),
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
            ]
            subprocess.run(as_user(user, copy), check=True, capture_output=True, cwd=folders[1], timeout=_WAIT_S)
            yield Replicated(kind, first, running.enter_context(postgres(folders[1])), directory)
            return
        options = ("--log-bin=bin", "--gtid-strict-mode=0", "--innodb-flush-log-at-trx-commit=1")
        uris = [running.enter_context(mariadb(folder, (*options, f"--server-id={1 + at}"))) for at, folder in enumerate(folders)]
        pair = Replicated(kind, uris[0], uris[1], directory)
        port = urlsplit(uris[0]).port
        source = f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='root', MASTER_USE_GTID=slave_pos"
        pair.asked(1, "SET GLOBAL read_only = 1", source, "START SLAVE")
        yield pair
