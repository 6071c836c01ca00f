"""Random changes of rows: inserts, updates, deletes, changed and swapped keys, in transactions with savepoints. Runs in tests."""

from __future__ import annotations

import random

from testing.checks.lives.kinds import literal, value
from testing.checks.lives.servers import LiveColumn, LiveTable


class RowGrammar:
    """Makes statements for the tables as they are; whether rows meet them is chance."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        self._rng = rng
        self._kind = kind

    def quoted(self, name: str) -> str:
        """Return a name in quotes."""
        return f'"{name}"' if self._kind == "postgres" else f"`{name}`"

    def insert(self, table: LiveTable, rows: int = 0) -> str:
        """Return an insert of some rows."""
        columns = table.stored
        count = rows or self._rng.randrange(1, 6)
        lines = ["(" + ", ".join(self._value(table, c) for c in columns) + ")" for _ in range(count)]
        if not table.key and self._rng.random() < 0.4:
            lines += lines[:2]
        names = ", ".join(self.quoted(c.name) for c in columns)
        ignore, conflict = ("", " ON CONFLICT DO NOTHING") if self._kind == "postgres" else (" IGNORE", "")
        return f"INSERT{ignore} INTO {self.quoted(table.name)} ({names}) VALUES {', '.join(lines)}{conflict}"

    def statements(self, table: LiveTable) -> list[str]:
        """Return one change, which may need several statements."""
        roll = self._rng.random()
        if roll < 0.35 or not table.stored:
            return [self.insert(table)]
        if roll < 0.45 and table.key:
            return [self._upsert(table)]
        if roll < 0.65:
            return [self._update(table)]
        if roll < 0.75 and table.key:
            return self._swap_keys(table) if self._rng.random() < 0.5 else [self._change_key(table)]
        if roll < 0.95:
            return [f"DELETE FROM {self.quoted(table.name)} WHERE {self.predicate(table)}"]
        return ["SAVEPOINT s", *self.statements(table), f"DELETE FROM {self.quoted(table.name)}", "ROLLBACK TO SAVEPOINT s"]

    def _value(self, table: LiveTable, column: LiveColumn) -> str:
        return value(self._rng, self._kind, column, narrow=column.name in table.key)

    def predicate(self, table: LiveTable) -> str:
        """Return a condition that some rows may meet."""
        column = self._rng.choice(table.stored)
        name = self.quoted(column.name)
        if column.family == "number" and column.base not in {"bit", "bool", "year", "numeric"}:
            return f"{name} % 3 = {self._rng.randrange(3)}" if self._rng.random() < 0.5 else f"{name} < {self._rng.randrange(20)}"
        if column.base in {"json", "jsonb"} or self._rng.random() < 0.2:
            return f"{name} IS {self._rng.choice(('', 'NOT '))}NULL"
        return f"{name} = {value(self._rng, self._kind, column, narrow=True)}"

    def _update(self, table: LiveTable) -> str:
        chosen = [c for c in table.stored if c.name not in table.key] or list(table.stored)
        chosen = self._rng.sample(chosen, min(len(chosen), self._rng.randrange(1, 3)))
        changes = ", ".join(f"{self.quoted(c.name)} = {self._value(table, c)}" for c in chosen)
        limit = " LIMIT 2" if self._kind != "postgres" and not table.key and self._rng.random() < 0.5 else ""
        return f"UPDATE {self.quoted(table.name)} SET {changes} WHERE {self.predicate(table)}{limit}"

    def _upsert(self, table: LiveTable) -> str:
        others = [c for c in table.stored if c.name not in table.key]
        text = self.insert(table, 2).replace(" IGNORE", "").removesuffix(" ON CONFLICT DO NOTHING")
        if not others:
            return text
        column = self._rng.choice(others)
        change = f"{self.quoted(column.name)} = {self._value(table, column)}"
        if self._kind == "postgres":
            return f"{text} ON CONFLICT ({', '.join(self.quoted(k) for k in table.key)}) DO UPDATE SET {change}"
        return f"REPLACE{text.removeprefix('INSERT')}" if self._rng.random() < 0.5 else f"{text} ON DUPLICATE KEY UPDATE {change}"

    def _key_column(self, table: LiveTable) -> LiveColumn:
        return next(c for c in table.columns if c.name == table.key[0])

    def _change_key(self, table: LiveTable) -> str:
        column = self._key_column(table)
        name, low = self.quoted(column.name), self._rng.randrange(1, 20)
        if column.family == "number":
            return f"UPDATE {self.quoted(table.name)} SET {name} = {name} + 100 WHERE {name} BETWEEN {low} AND {low + 4}"
        old, new = (value(self._rng, self._kind, column, narrow=True) for _ in range(2))
        return f"UPDATE {self.quoted(table.name)} SET {name} = {new} WHERE {name} = {old}"

    def _swap_keys(self, table: LiveTable) -> list[str]:
        column = self._key_column(table)
        name, target = self.quoted(column.name), self.quoted(table.name)
        spare = "-99" if column.family == "number" else "'1999-09-09'" if column.family == "time" else literal(self._kind, "~")
        if column.family == "bytes" or column.base == "uuid":
            return [self._change_key(table)]
        one, two = (value(self._rng, self._kind, column, narrow=True) for _ in range(2))
        return [f"UPDATE {target} SET {name} = {new} WHERE {name} = {old}" for old, new in ((one, spare), (two, one), (spare, two))]
