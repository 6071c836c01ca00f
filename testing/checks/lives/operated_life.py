"""One life of two feeds under an operator who does at random what operators do, with everything real: MariaDB, a server process, Spark.

While writers write, feeds are paused, resumed and altered, tables excluded, included and read again, and the server is killed and started.
In the end everything is let go on, and every target, read by ``files.py``, must become the server's tables as a plain client sees them; no
published file ever changes. The same seed gives the same steps, not the same interleaving. Runs in tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pymysql

from penstock.cli.server_client import ServerClient
from penstock.model.errors import PenstockError
from testing.checks.lives.files import UnreadableError, read_target
from testing.checks.lives.servers import MySqlServer
from testing.servers.command_process import CommandProcess
from testing.servers.waiting import meanwhile, wait_until

SCHEMA = "operated"
FEEDS = {"left": ("t0", "t1", "t2"), "right": ("t3", "t4", "t5")}
"""Feeds of one log share what is captured of a table, so none may exclude one that the other has."""
START_S, SETTLE_S = 300.0, 600.0
_OPTIONS = ("--http-port", "0", "--spark-master", "local[2]", "--set", "spark.warm-up=false")


class OperatedLife:
    """One life. ``live`` does everything."""

    def __init__(self, database: MySqlServer, root: Path, seed: int) -> None:
        self._database = database
        self._root = root
        self._rng = random.Random(seed)
        self._uri = database.begin(SCHEMA)
        self._process: CommandProcess | None = None
        self._digests: dict[Path, str] = {}
        self._tables: dict[str, tuple[str, ...]] = dict(FEEDS)
        self._columns = 0
        self._never = threading.Event()
        self.script: list[str] = []
        self._client = ServerClient("http://127.0.0.1:1")
        with contextlib.closing(database.session(SCHEMA)) as session, session.cursor() as cursor:
            for table in (table for tables in FEEDS.values() for table in tables):
                cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(40), n INT)")
                cursor.execute(f"INSERT INTO {table} VALUES {', '.join(f'({i}, {i * 7}, {i})' for i in range(50))}")

    def close(self) -> None:
        """End the server, whatever its state."""
        if self._process is not None:
            self._process.stop()
        self._client._client.close()

    def live(self, steps: int) -> None:
        """Live so many steps, then settle and compare."""
        self._start()
        for name, tables in FEEDS.items():
            text = f"CREATE CHANGEFEED {name} FOR TABLE {', '.join(f'{SCHEMA}.{t}' for t in tables)} INTO '{self._folder(name).as_uri()}'"
            self._client.execute(f"{text} WITH (flush-interval = 500ms, sink.output-column-id = true)", reads=False)
        with meanwhile(self._write):
            for _ in range(steps):
                self._step()
                self._check_published()
        self._settle()

    def _step(self) -> None:
        name = self._rng.choice([*FEEDS])
        table = f"{SCHEMA}.{self._rng.choice(FEEDS[name])}"
        steps: list[tuple[int, Callable[[], object]]] = [
            (4, lambda: self._do(f"PAUSE CHANGEFEED {name}")),
            (5, lambda: self._do(f"RESUME CHANGEFEED {name}")),
            (3, lambda: self._do(f"ALTER CHANGEFEED {name} EXCLUDE TABLE {table}")),
            (4, lambda: self._do(f"ALTER CHANGEFEED {name} INCLUDE TABLE {table}")),
            (2, lambda: self._do(f"ALTER CHANGEFEED {name} RESNAPSHOT TABLE {table}")),
            (3, lambda: self._alter(name)),
            (1, lambda: self._do(f"RESET CHANGEFEED {name} TO SNAPSHOT")),
            (2, self._kill),
            (6, lambda: self._wait(self._rng.uniform(0.2, 3.0))),
        ]
        chosen = self._rng.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        chosen()
        self._wait(self._rng.uniform(0.0, 0.5))

    def _alter(self, name: str) -> None:
        tables = self._rng.sample(FEEDS[name], self._rng.randint(1, len(FEEDS[name])))
        if self._do(f"ALTER CHANGEFEED {name} FOR TABLE {', '.join(f'{SCHEMA}.{t}' for t in sorted(tables))}"):
            self._tables[name] = tuple(tables)

    def _do(self, text: str) -> bool:
        """Execute a statement; return whether it was done. What an operator may not do now is refused, and that is all."""
        self.script.append(text)
        try:
            self._client.execute(text, reads=False)
        except PenstockError as error:
            self.script[-1] += f" -- {error.code}"
            if error.code not in {"CONFIG_INVALID", "CONGESTED", "TABLE_UNKNOWN"}:
                raise
            return False
        return True

    def _kill(self) -> None:
        self.script.append("-- kill")
        assert self._process is not None
        killed = self._process
        killed.kill(children=self._rng.random() < 0.5)
        self._check_published()
        self._start()
        killed.stop()

    def _start(self) -> None:
        self._process = CommandProcess("server", "--source", self._uri, "--data-dir", str(self._root / "data"), *_OPTIONS)
        url = self._process.wait_for("penstock server: ", START_S).split()[0]
        self._client._client.close()
        self._client = ServerClient(url)

    def _settle(self) -> None:
        """Let everything go on, and wait until every target is what the server has."""
        for name in FEEDS:
            self._do(f"RESUME CHANGEFEED {name}")
            for table in self._tables[name]:
                self._do(f"ALTER CHANGEFEED {name} INCLUDE TABLE {SCHEMA}.{table}")
        problems: list[str] = []

        def settled() -> bool:
            problems[:] = [problem for name in FEEDS for problem in self._problems(name)]
            return not problems

        try:
            wait_until(settled, "not settled", SETTLE_S)
        except AssertionError:
            shown = {name: self._client.show_feed(name) for name in FEEDS}
            assert self._process is not None
            raise AssertionError("\n".join([*problems, *self.script, str(shown), self._process.output[-20_000:]])) from None
        self._check_published()

    def _problems(self, name: str) -> list[str]:
        """Return which tables of a target are not the server's."""
        try:
            found = read_target(self._folder(name), SCHEMA, strict=False)
        except (FileNotFoundError, UnreadableError) as error:
            return [f"{name}: {error!r}"]
        wrong = []
        for table in self._database.tables(SCHEMA):
            if table.name in self._tables[name]:
                expected = self._database.rows(SCHEMA, table)
                rows = found[table.name].shown() if table.name in found else None
                if rows != expected:
                    wrong.append(
                        f"{name}: {table.name}: {len(expected - (rows or expected))} missing, {len((rows or expected) - expected)} more"
                    )
        return wrong

    def _check_published(self) -> None:
        """No data file that was published goes away or changes."""
        for name in FEEDS:
            for path in self._folder(name).rglob("CDC*.csv"):
                self._digests.setdefault(path, hashlib.sha256(path.read_bytes()).hexdigest())
        for path, digest in self._digests.items():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest, path

    def _write(self, stop: threading.Event) -> None:
        rng = random.Random(self._rng.random())
        with contextlib.closing(self._database.session(SCHEMA)) as session, session.cursor() as cursor:
            while not stop.is_set():
                with contextlib.suppress(pymysql.Error):
                    cursor.execute(self._statement(rng))
                stop.wait(0.02)

    def _statement(self, rng: random.Random) -> str:
        table, row_id = f"t{rng.randrange(6)}", rng.randrange(200)
        kind = rng.random()
        if kind < 0.01:
            self._columns += 1
            return f"ALTER TABLE {table} ADD COLUMN x{self._columns} INT DEFAULT {self._columns}"
        if kind < 0.015:
            return f"TRUNCATE TABLE {table}"
        if kind < 0.2:
            return f"DELETE FROM {table} WHERE id = {row_id}"
        if kind < 0.3:
            return f"UPDATE {table} SET id = id + 1000 WHERE id = {row_id}"
        return f"INSERT INTO {table} (id, v, n) VALUES ({row_id}, '{rng.random()}', 1) ON DUPLICATE KEY UPDATE v = VALUES(v), n = n + 1"

    def _wait(self, wait_s: float) -> None:
        self._never.wait(wait_s)

    def _folder(self, name: str) -> Path:
        return self._root / name
