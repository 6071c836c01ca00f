"""A writer that keeps a book of every change that it committed, and a reader of files that compares: each change once, under one ts.

The tables are ``orders`` with a key and ``lines`` without one. Every transaction changes a row once at the most, so each of its changes is
a line in the files, whatever happens to those who deliver it. Nothing of the product reads here. Runs in tests.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from pathlib import Path

from testing.checks.lives.files import published_lines
from testing.servers.databases.live_database import Database

Change = tuple[str, str, int, int]
"""Table, operation, number of the row, and which state of it; a delete has no state."""
FIRST = 20


class Ledger:
    """A thread that writes to a schema until it is stopped, and what it committed."""

    def __init__(self, database: Database, schema: str, seed: int) -> None:
        self._database, self._schema, self._rng = database, schema, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._rows = dict.fromkeys(range(1, FIRST + 1), 0)
        self._next = FIRST + 1
        self._columns = 0
        self.changes: Counter[Change] = Counter()
        """Every change that was committed, those of before the feed too."""
        database.run(
            f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, state INT)",
            f"CREATE TABLE {schema}.lines (id INT, state INT)",
            f"INSERT INTO {schema}.orders VALUES {', '.join(f'({n}, 0)' for n in self._rows)}",
        )
        self.changes.update(("orders", "I", n, 0) for n in self._rows)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End. May be called twice."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def problems(self, target: Path) -> list[str]:
        """Return what the files lack, what they have twice or too much; up to the checkpoint that they tell."""
        found: dict[Change, list[int]] = {}
        for table, _, line, ts in published_lines(target, self._schema):
            state = 0 if line[0] == "D" else int(str(line[5]))
            found.setdefault((table, str(line[0]), int(str(line[4])), state), []).append(ts)
        missing = sorted(self.changes.keys() - found.keys())
        more = sorted(found.keys() - self.changes.keys())
        twice = {change: stamps for change, stamps in found.items() if len(stamps) > 1}
        return [
            *([f"missing {len(missing)}: {missing[:5]}"] if missing else []),
            *([f"never committed {len(more)}: {more[:5]}"] if more else []),
            *([f"twice {len(twice)}: {sorted(twice.items())[:5]}"] if twice else []),
        ]

    def _write(self) -> None:
        with contextlib.closing(self._database.connect()) as connection, connection.cursor() as cursor:
            while not self._stop.wait(0.01):
                statements, changes = self._transaction()
                for statement in ("BEGIN", *statements, "COMMIT"):
                    cursor.execute(statement)
                self.changes.update(changes)
                # PostgreSQL does not log them: a table whose definition changed twice while nobody looked is read again, and corrected.
                if self._database.kind == "mariadb" and self._rng.random() < 0.005:
                    self._columns += 1
                    cursor.execute(f"ALTER TABLE {self._schema}.orders ADD COLUMN c{self._columns} INT DEFAULT {self._columns}")

    def _transaction(self) -> tuple[list[str], list[Change]]:
        fresh = range(self._next, self._next + self._rng.randint(1, 4))
        self._next = fresh.stop
        changed, gone = self._rng.sample(sorted(self._rows), 2)
        self._rows[changed] += 1
        del self._rows[gone]
        self._rows.update(dict.fromkeys(fresh, 0))
        values = ", ".join(f"({n}, 0)" for n in fresh)
        statements = [
            f"INSERT INTO {self._schema}.orders (id, state) VALUES {values}",
            f"UPDATE {self._schema}.orders SET state = {self._rows[changed]} WHERE id = {changed}",
            f"INSERT INTO {self._schema}.lines VALUES {values}",
            f"DELETE FROM {self._schema}.orders WHERE id = {gone}",
        ]
        changes: list[Change] = [(table, "I", n, 0) for table in ("orders", "lines") for n in fresh]
        return statements, [*changes, ("orders", "U", changed, self._rows[changed]), ("orders", "D", gone, 0)]
