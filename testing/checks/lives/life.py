"""One random life of some tables, captured to files with the product's own parts, and compared with the server each time it settles.

A life is a script of steps made from a seed and the server's catalog: the same seed gives the same script. A script can be lived again,
also with steps left out. What must hold after each settle: the files, read by ``files.py``, by the reader that was written from the
document, and replayed into SQLite, are the server's rows; a table that the product says it doubts is left out, and none is in doubt at
the end; a published file never changes. Runs in tests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from penstock.meta.table_states import TableState
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.readback.consumer import StorageConsumer
from penstock.readback.replay_opening import open_database
from testing.checks.lives.comparable import Row, comparable
from testing.checks.lives.documented import document_differences
from testing.checks.lives.files import FileTable, read_target
from testing.checks.lives.odd_mysql import OddMySql
from testing.checks.lives.odd_postgres import OddPostgres
from testing.checks.lives.rows import RowGrammar
from testing.checks.lives.servers import REFUSED, LiveTable, Server
from testing.checks.lives.structures import StructureGrammar
from testing.paths.one_log_path import OneLogPath

SESSIONS = 3
DRAIN_S = 60.0
QUIET_S = 60.0
PATIENCE_S = 10.0
"""PostgreSQL's log has no DDL: what nobody writes to is looked up in the catalog about once a second."""
ROUNDS_MAX = 8


@dataclasses.dataclass(frozen=True)
class Step:
    """``sql`` in a session, or something that happens to the server or to the process: see ``Life._steps``."""

    what: str
    session: int = 0
    text: str = ""

    def __str__(self) -> str:
        return f"{self.session}: {self.text}" if self.what == "sql" else f"-- {self.what}"


class WrongError(AssertionError):
    """The files are not the tables."""


class Life:
    """One life. ``live`` makes it up, ``again`` lives a script."""

    def __init__(self, server: Server, root: Path, schema: str, *, column_ids: bool = True) -> None:
        self._server = server
        self._schema = schema
        self._root = root
        self._options = {"output-column-id": "true"} if column_ids else {}
        self._sessions: dict[int, Any] = {}
        self._open: set[int] = set()
        self._hashes: dict[Path, str] = {}
        self._clock = SystemClock()
        self._down = False
        self._is_lost = False
        """Whether the log since the process ended is lost, and nobody has noticed yet."""
        self._was_doubted = False
        """Whether a table was ever in doubt: until it is read again, the log may change rows that the files do not have."""
        self.script: list[Step] = []
        self.refused = 0
        self.compared = 0
        root.mkdir(parents=True, exist_ok=True)
        self._uri = server.begin(schema)
        self._path: OneLogPath | None = None

    def live(self, rng: random.Random, length: int, *, restarts: bool, odd: bool = False) -> None:
        """Make a life up, step by step, and live it; ``odd`` takes the grammar of what few tests name."""
        kind = self._server.kind
        own = OddPostgres if kind == "postgres" else OddMySql
        structures, rows = own(rng, kind, self._schema) if odd else StructureGrammar(rng, kind), RowGrammar(rng, kind)
        for _ in range(2):
            for text in structures.create(self._tables()):
                self._do(Step("sql", 0, text))
        for table in self._tables():
            self._do(Step("sql", 0, rows.insert(table, 8)))
        self._do(Step("begin"))
        for at in range(length):
            for step in self._next(rng, structures, rows, restarts=restarts):
                self._do(step)
            if at % 12 == 11:
                self._do(Step("settle"))
        self._do(Step("settle"))
        self._do(Step("end"))

    def again(self, script: Iterable[Step]) -> None:
        """Live a script."""
        for step in script:
            self._do(step)

    def close(self) -> None:
        """End everything."""
        for session in self._sessions.values():
            with contextlib.suppress(*REFUSED):
                session.close()
        if self._path is not None:
            self._path.close()
        self._server.end(self._schema)

    def _next(  # noqa: PLR0911 - one for each kind of step
        self, rng: random.Random, structures: StructureGrammar, rows: RowGrammar, *, restarts: bool
    ) -> list[Step]:
        roll, tables = rng.random(), self._tables()
        if roll < 0.45 and tables:
            session = rng.randrange(SESSIONS)
            texts = rows.statements(rng.choice(tables))
            texts += rows.statements(rng.choice(tables)) if rng.random() < 0.4 else []
            return self._transaction(rng, session, texts)
        if roll < 0.85:
            texts = structures.statements(tables)
            steps = [Step("sql", s, "COMMIT") for s in sorted(self._open)]
            if self._server.kind == "postgres" and len(texts) > 1 and rng.random() < 0.6 and not any("VACUUM" in t for t in texts):
                texts = ["BEGIN", *texts, rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))]
            return steps + [Step("sql", 0, t) for t in texts]
        if roll < 0.92:
            return [Step("window")]
        if roll < 0.94 and self._server.kind == "mariadb" and tables:
            texts = ["SET binlog_format = STATEMENT", *rows.statements(rng.choice(tables)), "SET binlog_format = ROW"]
            return [*(Step("sql", s, "COMMIT") for s in sorted(self._open)), *(Step("sql", 0, t) for t in texts)]
        if roll < 0.95:
            return [Step("rotate")]
        if roll < 0.97:
            return [Step("up" if self._down else "down")]
        if roll < 0.99 or not restarts:
            return [Step(rng.choice(("restart", "crash")))]
        return [Step("server")]

    def _transaction(self, rng: random.Random, session: int, texts: list[str]) -> list[Step]:
        if session not in self._open and (rng.random() < 0.4 or any("SAVEPOINT" in t for t in texts)):
            texts = ["BEGIN", *texts]
        elif session not in self._open:
            return [Step("sql", session, t) for t in texts]
        end = ["COMMIT"] if rng.random() < 0.5 else ["ROLLBACK"] if rng.random() < 0.2 else []
        return [Step("sql", session, t) for t in (*texts, *end)]

    def _tables(self) -> list[LiveTable]:
        return [t for t in self._server.tables(self._schema) if t.name not in {"tmp", "loading", "swapped", "t_child"}]

    def _do(self, step: Step) -> None:
        self.script.append(step)
        steps: dict[str, Callable[[], None]] = {
            "begin": self._begin,
            "window": self._window,
            "rotate": self._server.rotate,
            "down": self._go_down,
            "lose": self._lose_log,
            "up": self._come_up,
            "restart": self._restart,
            "crash": self._crash,
            "server": self._restart_server,
            "settle": self._settle,
            "end": self._finish,
        }
        if step.what == "sql":
            self._sql(step)
        else:
            steps[step.what]()

    def _sql(self, step: Step) -> None:
        if step.session not in self._sessions:
            self._sessions[step.session] = self._server.session(self._schema)
        session, text = self._sessions[step.session], step.text
        try:
            with session.cursor() as cursor:
                cursor.execute(text)
        except REFUSED:
            self.refused += 1
            # A transaction that the server gave up is over; where it goes on, it ends here all the same.
            with contextlib.suppress(*REFUSED), session.cursor() as cursor:
                cursor.execute("ROLLBACK")
            self._open.discard(step.session)
            return
        if text == "BEGIN":
            self._open.add(step.session)
        elif text in {"COMMIT", "ROLLBACK"}:
            self._open.discard(step.session)

    @property
    def _feed(self) -> OneLogPath:
        if self._path is None:
            raise AssertionError("the feed has not begun")
        return self._path

    def _begin(self) -> None:
        self._path = OneLogPath(self._root, self._uri, [f"{self._schema}.*"])
        self._path.close_services()
        self._path.sink_options = self._options
        self._path.open()
        self._path.begin()

    def _window(self) -> None:
        if not self._down:
            self._let_snapshots_begin()
            self._feed.feed.run_window()

    def _let_snapshots_begin(self) -> None:
        """Commit what is open where a snapshot is about to begin: PostgreSQL waits for it, and here nobody else would end it."""
        spans = [d.span.span_id for d in self._feed.live()]
        if self._server.kind == "postgres" and any(self._feed.store.base_ts(s) is None for s in spans):
            for number in sorted(self._open):
                self._sql(Step("sql", number, "COMMIT"))

    def _go_down(self) -> None:
        if not self._down:
            self._feed.close_services()
        self._down = True

    def _lose_log(self) -> None:
        """Let the log be purged, or its slot be dropped, while nobody reads it."""
        self._go_down()
        self._server.lose_log(self._schema)
        self._is_lost = True

    def _come_up(self) -> None:
        if self._down:
            self._feed.open()
            self._let_snapshots_begin()
            self._begin_run()
            if self._is_lost:
                # The first run captures what it had and finds out; the second one begins again.
                self._feed.begin_behind_loss(self._begin_run)
                self._is_lost = False
        self._down = False

    def _begin_run(self) -> None:
        """Begin as runs of a feed do: one that finds a table changed since the log told of it ends, and the next one tries again."""
        deadline_s = self._clock.monotonic_s() + QUIET_S
        while True:
            try:
                self._begin_feed()
            except PenstockError as error:
                if error.code != "UPSTREAM_CHANGING" or self._clock.monotonic_s() > deadline_s:
                    raise
                self._clock.wait(threading.Event(), 0.3)
            else:
                return

    def _begin_feed(self) -> None:
        """Begin; where that waits for a transaction that is open, because it found a table to read, that is committed meanwhile."""
        with ThreadPoolExecutor(1) as pool:
            begun = pool.submit(self._feed.begin)
            if not wait([begun], PATIENCE_S).done:
                for number in sorted(self._open):
                    self._sql(Step("sql", number, "COMMIT"))
            begun.result()

    def _restart(self) -> None:
        self._go_down()
        self._come_up()

    def _crash(self) -> None:
        """End in the middle of a window, and without any order: the store is gone before those who write to it."""
        if not self._down:
            self._let_snapshots_begin()
            with contextlib.suppress(PenstockError):
                self._feed.feed.run_window(commit=False)
            with contextlib.suppress(PenstockError):
                self._feed.store.close()
            with contextlib.suppress(PenstockError):
                self._feed.close_services()
        self._down = True
        self._come_up()

    def _restart_server(self) -> None:
        for session in self._sessions.values():
            with contextlib.suppress(*REFUSED):
                session.close()
        self._server.restart()
        self._sessions.clear()
        self._open.clear()

    def _settle(self) -> None:
        for number in sorted(self._open):
            self._sql(Step("sql", number, "COMMIT"))
        self._come_up()
        deadline_s = self._clock.monotonic_s() + (QUIET_S if self._server.kind == "postgres" else 0.0)
        while True:
            doubted = self._settle_doubts()
            try:
                self._compare(doubted)
            except AssertionError:
                if self._clock.monotonic_s() > deadline_s:
                    raise
                self._clock.wait(threading.Event(), 0.3)
            else:
                return

    def _settle_doubts(self) -> list[TableState]:
        """Deliver everything and read doubted tables again; return those that are in doubt all the same."""
        left: list[TableState] = []
        for _ in range(ROUNDS_MAX):
            self._drain()
            left = self._in_doubt()
            if not left:
                break
            self._was_doubted = True
            for state in left:
                self._reread(state)
        self._drain()
        return self._in_doubt() if left else []

    def _in_doubt(self) -> list[TableState]:
        """Return the open doubts about tables of the feed; of others nobody wants to know, as in a server."""
        known = {d.id.table_id for d in self._feed.live()}
        return [s for s in self._feed.log.table_states() if s.is_open and (s.schema == self._schema or s.table_id in known)]

    def _drain(self) -> None:
        try:
            self._feed.feed.drain(self._feed.log.settled_ts(), DRAIN_S)
            while any(d.with_state for d in self._feed.live()):
                # A table whose state is delivered in a later window holds up nobody, the checkpoint neither.
                self._feed.feed.drain(self._feed.log.settled_ts() + 1, DRAIN_S)
        except PenstockError as error:
            raise WrongError(f"nothing is delivered: {error}; {[(s.span_id, s.last_error) for s in self._feed.log.status()]}") from error

    def _reread(self, state: TableState) -> None:
        try:
            if self._feed.reread().run(state.table_id) is None:
                self._feed.log.forget_table(state.table_id, state.schema, state.table)
        except PenstockError as error:
            self._feed.log.fail_round(state.table_id, error, 0.0)

    def _compare(self, doubted: Sequence[TableState]) -> None:
        self._check_hashes()
        live = {t.name: t for t in self._server.tables(self._schema)}
        files = read_target(self._feed.target, self._schema, strict=not self._was_doubted)
        replayed = self._replay()
        left_out = {s.table.lower() for s in doubted}
        problems = document_differences(self._feed.target, self._server, self._schema, left_out)
        for name in sorted(files.keys() | live.keys() | replayed):
            if name.lower() in left_out:
                continue
            problems += self._differences(name, live.get(name), files.get(name), name in replayed)
        if problems:
            raise WrongError("\n".join(problems))

    def _differences(self, name: str, live: LiveTable | None, held: FileTable | None, replayed: bool) -> list[str]:
        if live is None:
            return [f"{name} is not on the server, but {'in the files' if held else 'replayed'}"]
        expected = self._server.rows(self._schema, live)
        if held is None:
            return [f"{name} is in no file: {_some(expected)}"] if expected else []
        self.compared += 1
        stored = [c.name for c in live.stored]
        problems = []
        if [c.name for c in held.columns if not c.virtual] != stored:
            return [f"{name} has columns {stored}, in files {[c.name for c in held.columns]}"]
        families = [c.family for c in live.stored]
        found = Counter(
            {tuple(comparable(f, v) for f, v in zip(families, row, strict=True)): n for row, n in _merged(held.shown(), families)}
        )
        if found != expected:
            problems.append(f"{name}: only on the server {_some(expected - found)}, only in the files {_some(found - expected)}")
        if not replayed:
            return [*problems, f"{name} is not replayed"]
        again = self._replayed_rows(name, live)
        if again != expected:
            problems.append(f"{name}: only on the server {_some(expected - again)}, only replayed {_some(again - expected)}")
        return problems

    def _replay(self) -> set[str]:
        database = open_database(f"sqlite:///{self._root}/replay.db")
        try:
            StorageConsumer(self._feed.reader(), database).run_round()
        finally:
            database.close()
        with contextlib.closing(sqlite3.connect(self._root / "replay.db")) as connection:
            names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {n.removeprefix(f"{self._schema}.") for n in names if n.startswith(f"{self._schema}.")}

    def _replayed_rows(self, name: str, live: LiveTable) -> Counter[Row]:
        columns = ", ".join(f'"{c.name}"' for c in live.stored)
        with contextlib.closing(sqlite3.connect(self._root / "replay.db")) as connection:
            rows = connection.execute(f'SELECT {columns} FROM "{self._schema}.{name}"').fetchall()
        return Counter(tuple(comparable(c.family, v) for c, v in zip(live.stored, row, strict=True)) for row in rows)

    def _check_hashes(self) -> None:
        for path in sorted(self._feed.target.rglob("CDC*.csv")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if self._hashes.setdefault(path, digest) != digest:
                raise WrongError(f"{path} was published and has changed")

    def _finish(self) -> None:
        deadline_s = self._clock.monotonic_s() + QUIET_S
        while left := self._settle_doubts():
            # A look at the catalog may raise a doubt at any moment, and the next round settles it.
            if self._clock.monotonic_s() > deadline_s:
                raise WrongError(f"in doubt at the end: {left}")


def _merged(rows: Counter[Row], families: list[str]) -> list[tuple[Row, int]]:
    """Return rows that are alike once their values are in the server's form, counted together."""
    merged: Counter[Row] = Counter()
    for row, count in rows.items():
        merged[tuple(comparable(f, v) for f, v in zip(families, row, strict=True))] += count
    return list(merged.items())


def _some(rows: Counter[Row]) -> str:
    return f"{sum(rows.values())} rows {[r for r, _ in zip(rows, range(3), strict=False)]}"
