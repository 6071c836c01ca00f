"""Random statements about tables that few tests name: moves to other databases, mixed alterations, keys that change, scratch tables.

A grammar beside ``StructureGrammar``, so that the lives of that one keep their seeds. A choice gives the statements of one intent, as an
application or an operator would run them. Runs in tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from testing.checks.lives.kinds import CONSTANTS, KEY_TYPES
from testing.checks.lives.servers import AWAY, LiveTable
from testing.checks.lives.structures import StructureGrammar

Intent = Callable[[LiveTable, Sequence[LiveTable]], list[str]]
"""Makes the statements of one intent, for one of the tables."""


class OddGrammar(StructureGrammar):
    """Makes statements of both grammars, mostly of its own."""

    def __init__(self, rng: random.Random, kind: str, schema: str) -> None:
        super().__init__(rng, kind)
        self._schema = schema
        self._count = 0

    def statements(self, tables: Sequence[LiveTable]) -> list[str]:
        """Return the statements of one intent."""
        if not tables or self._rng.random() < 0.35:
            return super().statements(tables)
        table = self._rng.choice(tables)
        both = [
            self._mixed,
            self._mixed,
            self._key_type,
            self._key_moves,
            self._unique,
            self._away,
            self._chain,
            self._two_go,
            self._trigger,
        ]
        return self._rng.choice([*both, *self._own()])(table, tables)

    def _own(self) -> list[Intent]:
        """Return what only this kind of server has."""
        raise AssertionError("a grammar is one of a kind of server")

    def _column(self, table: LiveTable) -> str:
        return self._q(self._rng.choice(table.columns).name)

    def _spare(self, tables: Sequence[LiveTable]) -> list[str]:
        return [n for n in ("t1", "t2", "t3", "t4", "Odd Name") if n not in {t.name for t in tables}]

    def _mixed(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Several actions in one statement."""
        actions: list[str] = []
        columns = [c for c in table.stored if c.name not in table.key]
        self._rng.shuffle(columns)
        kinds = ["drop", "add", "type", "rename", "default"]
        self._rng.shuffle(kinds)
        name = self._free_column(table)
        for what in kinds[: self._rng.randrange(2, 5)]:
            if what == "add":
                kind, text = self._rng.choice(CONSTANTS[self._words])
                place = "" if self._postgres else self._rng.choice(("", " FIRST"))
                actions.append(f"ADD COLUMN {self._q(name)} {kind} DEFAULT {text}{place}")
            elif columns and what == "drop" and len(table.columns) > 2:
                actions.append(f"DROP COLUMN {self._q(columns.pop().name)}")
            elif columns and what == "type":
                column = columns.pop()
                quoted = self._q(column.name)
                if self._postgres:
                    actions.append(f"ALTER {quoted} TYPE {self._other_postgres_type(column, quoted)}")
                else:
                    actions.append(f"MODIFY {quoted} {self._other_mysql_type(column)}{self._rng.choice(('', ' FIRST'))}")
            elif columns and what == "rename" and not self._postgres:
                actions.append(f"RENAME COLUMN {self._q(columns.pop().name)} TO {self._q('x' + str(self._rng.randrange(5)))}")
            elif columns and what == "default":
                actions.append(f"ALTER {self._q(columns.pop().name)} DROP DEFAULT")
        free = self._spare(tables)
        if not self._postgres and free and self._rng.random() < 0.3:
            actions.append(f"RENAME TO {self._q(self._rng.choice(free))}")
        return [self._alter(table, *actions)] if actions else []

    def _key_type(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        if not table.key:
            return []
        name = self._q(self._rng.choice(table.key))
        kind = self._rng.choice(KEY_TYPES[self._words])
        if self._postgres:
            return [self._alter(table, f"ALTER {name} TYPE {kind} USING {name}::text::{kind}")]
        return [self._alter(table, f"MODIFY {name} {kind} NOT NULL")]

    def _key_moves(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        """Let a key lose a column, get one, or have its columns in another order."""
        if not table.key or table.partitions:
            return []
        key = list(table.key)
        plain = self._plain(table)
        if plain is not None and self._rng.random() < 0.5:
            key.append(plain.name)
        elif len(key) > 1 and self._rng.random() < 0.5:
            key.pop()
        self._rng.shuffle(key)
        named = ", ".join(self._q(k) for k in key)
        drop = f"DROP CONSTRAINT {self._q(f'{table.name}_pkey')}" if self._postgres else "DROP PRIMARY KEY"
        return [self._alter(table, drop, f"ADD PRIMARY KEY ({named})")]

    def _unique(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        """Give a table another unique key, perhaps in the place of its primary one."""
        plain = self._plain(table)
        if plain is None or table.partitions:
            return []
        self._count += 1
        name, index = self._q(plain.name), self._q(f"u{self._count}_{table.name.replace(' ', '')}")
        if self._postgres:
            made = [self._alter(table, f"ALTER {name} SET NOT NULL"), f"CREATE UNIQUE INDEX {index} ON {self._q(table.name)} ({name})"]
            if table.key and self._rng.random() < 0.5:
                drop = self._alter(table, f"DROP CONSTRAINT {self._q(f'{table.name}_pkey')}")
                made += [drop, self._alter(table, f"REPLICA IDENTITY USING INDEX {index}"), self._rows.insert(table)]
            return made
        made = [
            self._alter(
                table, f"MODIFY {name} {self._rng.choice(('INT', 'VARCHAR(30)', 'BIGINT'))} NOT NULL, ADD UNIQUE KEY {index} ({name})"
            )
        ]
        if table.key and self._rng.random() < 0.5:
            made += [
                self._alter(table, "DROP PRIMARY KEY"),
                self._rows.insert(table),
                f"UPDATE {self._q(table.name)} SET {name} = {name} LIMIT 1",
            ]
        if self._rng.random() < 0.4:
            made.append(self._alter(table, f"DROP KEY {index}"))
        return made

    def _away(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Let a table go where no feed looks, change there, and perhaps come back under another name."""
        if table.partitions and self._postgres:
            return []
        self._count += 1
        home, away = self._q(table.name), f"{AWAY}.{self._q(f'a{self._count}')}"
        back = self._q(self._rng.choice([*self._spare(tables), table.name]))
        change = self._rows.insert(table)
        inside = change.replace(f"INTO {home}", f"INTO {away}")
        if self._postgres:
            name = self._q(f"a{self._count}")
            gone = [self._alter(table, f"RENAME TO {name}"), f"ALTER TABLE {name} SET SCHEMA {AWAY}", inside]
            come = [f"ALTER TABLE {away} SET SCHEMA {self._schema}", f"ALTER TABLE {name} RENAME TO {back}"]
        else:
            gone = [f"RENAME TABLE {home} TO {away}", inside]
            come = [f"RENAME TABLE {away} TO {self._schema}.{back}"]
        roll = self._rng.random()
        if roll < 0.25:
            return gone
        if roll < 0.5:
            return [*gone, *self._create(table.name), f"DROP TABLE {home}", *come]
        return [*gone, *come, change.replace(f"INTO {home}", f"INTO {back}")]

    def _chain(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Let names pass on: each table gets the name of the next one, the first one is made anew."""
        names = [t.name for t in tables if t.name != table.name]
        free = self._spare(tables)
        if not names or not free:
            return []
        other = self._rng.choice(names)
        steps = [(other, free[0]), (table.name, other)]
        if self._postgres or self._rng.random() < 0.5:
            moved = [self._moved(a, b) for a, b in steps]
        else:
            moved = ["RENAME TABLE " + ", ".join(f"{self._q(a)} TO {self._q(b)}" for a, b in steps)]
        return [*moved, *self._create(table.name), *([f"DROP TABLE {self._q(free[0])}"] if self._rng.random() < 0.5 else [])]

    def _two_go(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        other = self._rng.choice(tables)
        if other.name == table.name or len(tables) < 3:
            return []
        drop = f"DROP TABLE IF EXISTS {self._q(table.name)}, {self._q('never_there')}, {self._q(other.name)}"
        return [drop, *self._create(other.name)] if self._rng.random() < 0.6 else [drop]

    def _trigger(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Let a trigger change another table for a while."""
        other = self._rng.choice(tables)
        if other.name == table.name:
            return []
        delete = f"DELETE FROM {self._q(other.name)} WHERE {self._rows.predicate(other)}"
        if self._postgres:
            made = f"CREATE OR REPLACE FUNCTION tf() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {delete}; RETURN NULL; END $$"
            on = f"CREATE TRIGGER tr AFTER INSERT ON {self._q(table.name)} FOR EACH STATEMENT EXECUTE FUNCTION tf()"
            return [made, on, self._rows.insert(table), f"DROP TRIGGER tr ON {self._q(table.name)}"]
        made = f"CREATE TRIGGER tr AFTER INSERT ON {self._q(table.name)} FOR EACH ROW {delete}"
        return [made, self._rows.insert(table), "DROP TRIGGER IF EXISTS tr"]
