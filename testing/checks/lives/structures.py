"""Random statements about tables: made, renamed, swapped, rewritten, partitioned, truncated and dropped, for each dialect.

A choice gives the statements of one intent, as an application would run them, in one transaction where the server can. Nothing here asks
whether the product understands them. Runs in tests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from testing.checks.lives.kinds import COMPUTED, CONSTANTS, KEY_TYPES, dialect, some_type
from testing.checks.lives.rows import RowGrammar
from testing.checks.lives.servers import LiveColumn, LiveTable

_NAMES = tuple("abcdefgh")
_TABLES = ("t1", "t2", "t3", "t4", "Odd Name")
TABLES_MAX = 5
_TEXT = {"char", "varchar", "text", "mediumtext", "bpchar"}


class StructureGrammar:
    """Makes statements for the tables as they are."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        self._rng = rng
        self._kind = kind
        self._words = dialect(kind)
        self._rows = RowGrammar(rng, kind)
        self._q = self._rows.quoted
        self._postgres = kind == "postgres"

    def create(self, tables: Sequence[LiveTable], name: str = "") -> list[str]:
        """Return statements that make a table under a name that is free."""
        free = [n for n in _TABLES if n not in {t.name for t in tables}]
        if not name and not free:
            return []
        return self._create(name or self._rng.choice(free))

    def statements(self, tables: Sequence[LiveTable]) -> list[str]:
        """Return the statements of one intent."""
        if not tables or (len(tables) < TABLES_MAX and self._rng.random() < 0.15):
            return self.create(tables)
        table = self._rng.choice(tables)
        choices = [
            *(self._add_column, self._add_column, self._drop_column, self._rename_column, self._swap_columns, self._drop_and_add),
            *(self._change_type, self._change_type, self._change_default, self._key, self._truncate, self._rename, self._rename),
            *(self._swap, self._reload, self._drop, self._again, self._copy, self._like, self._partitions, self._storage),
        ]
        if self._postgres:
            choices += [self._identity, self._deferrable, self._generated, self._inherit, self._together, self._behind_a_view]
        return self._rng.choice(choices)(table, tables)

    def _create(self, name: str) -> list[str]:
        keys = self._rng.choice((0, 1, 1, 1, 2))
        columns = [f"{self._q(f'k{n}')} {self._rng.choice(KEY_TYPES[self._words])} NOT NULL" for n in range(keys)]
        columns += [f"{self._q(n)} {some_type(self._rng, self._kind)}" for n in _NAMES[: self._rng.randrange(1, 6)]]
        if keys:
            columns.append(f"PRIMARY KEY ({', '.join(self._q(f'k{n}') for n in range(keys))})")
        if self._rng.random() < 0.15:
            return self._create_partitioned(name)
        made = [f"CREATE TABLE {self._q(name)} ({', '.join(columns)})"]
        if self._postgres and (not keys or self._rng.random() < 0.2):
            made.append(f"ALTER TABLE {self._q(name)} REPLICA IDENTITY FULL")
        return made

    def _create_partitioned(self, name: str) -> list[str]:
        columns = f"k0 int NOT NULL, a {some_type(self._rng, self._kind)}, b {some_type(self._rng, self._kind)}, PRIMARY KEY (k0)"
        if self._postgres:
            bounds = ((0, "MINVALUE", "10"), (1, "10", "20"), (2, "20", "MAXVALUE"))
            return [
                f"CREATE TABLE {self._q(name)} ({columns}) PARTITION BY RANGE (k0)",
                *(
                    f'CREATE TABLE "{name}_p{n}" PARTITION OF {self._q(name)} FOR VALUES FROM ({low}) TO ({high})'
                    for n, low, high in bounds
                ),
            ]
        parts = "PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE"
        return [f"CREATE TABLE {self._q(name)} ({columns}) PARTITION BY RANGE (k0) ({parts})"]

    def _alter(self, table: LiveTable, *actions: str) -> str:
        return f"ALTER TABLE {self._q(table.name)} {', '.join(actions)}"

    def _free_column(self, table: LiveTable) -> str:
        return next(n for n in (*_NAMES, "y", "z", "x1", "x2", "x3", "x4", "x5") if n not in {c.name for c in table.columns})

    def _plain(self, table: LiveTable) -> LiveColumn | None:
        columns = [c for c in table.stored if c.name not in table.key]
        return self._rng.choice(columns) if columns else None

    def _add_column(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        name = self._q(self._free_column(table))
        place = "" if self._postgres else self._rng.choice(("", "", " FIRST", f" after {self._q(table.columns[0].name)}"))
        roll = self._rng.random()
        if roll < 0.25:
            return [self._alter(table, f"ADD COLUMN {name} {some_type(self._rng, self._kind)}{place}")]
        if roll < 0.45:
            kind, text = self._rng.choice(COMPUTED[self._words])
            return [self._alter(table, f"ADD COLUMN {name} {kind} DEFAULT {text}{place}")]
        kind, text = self._rng.choice(CONSTANTS[self._words])
        null = self._rng.choice(("", " NOT NULL"))
        added = [self._alter(table, f"ADD COLUMN {name} {kind}{null} DEFAULT {text}{place}")]
        if roll < 0.6:
            added.append(self._alter(table, f"ALTER {name} DROP DEFAULT"))
        elif roll < 0.75:
            other = next((t for k, t in self._rng.sample(CONSTANTS[self._words], len(CONSTANTS[self._words])) if k == kind), text)
            added.append(self._alter(table, f"ALTER {name} SET DEFAULT {other}"))
        elif roll < 0.85 and not self._postgres:
            return [self._alter(table, f"ADD COLUMN {name} {kind} NOT NULL{place}")]
        elif roll < 0.9:
            always = "bigserial" if self._postgres else "BIGINT AS (2 + 3) VIRTUAL"
            return [self._alter(table, f"ADD COLUMN {name} {always}")]
        return added

    def _drop_column(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        column = self._plain(table)
        return [self._alter(table, f"DROP COLUMN {self._q(column.name)}")] if column and len(table.columns) > 1 else []

    def _rename_column(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        column = self._rng.choice(table.columns)
        return [self._alter(table, f"RENAME COLUMN {self._q(column.name)} TO {self._q(self._free_column(table))}")]

    def _swap_columns(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        names = [c.name for c in table.stored if c.name not in table.key]
        if len(names) < 2:
            return []
        one, two = (self._q(n) for n in self._rng.sample(names, 2))
        spare = self._q(self._free_column(table))
        if not self._postgres and self._rng.random() < 0.5:
            return [self._alter(table, f"RENAME COLUMN {one} TO {two}", f"RENAME COLUMN {two} TO {one}")]
        return [self._alter(table, f"RENAME COLUMN {old} TO {new}") for old, new in ((one, spare), (two, one), (spare, two))]

    def _drop_and_add(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        column = self._plain(table)
        if column is None or len(table.columns) < 2:
            return []
        name = self._q(column.name)
        kind = column.type if self._rng.random() < 0.6 else some_type(self._rng, self._kind)
        parts = (f"DROP COLUMN {name}", f"ADD COLUMN {name} {kind}")
        return [self._alter(table, *parts)] if self._rng.random() < 0.4 else [self._alter(table, p) for p in parts]

    def _change_type(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        column = self._plain(table)
        if column is None:
            return []
        name = self._q(column.name)
        if self._postgres:
            return [self._alter(table, f"ALTER {name} TYPE {self._other_postgres_type(column, name)}")]
        if column.base in _TEXT and self._rng.random() < 0.4:
            charset = self._rng.choice(("latin1", "utf8mb4", "koi8r", "utf16", "binary"))
            if self._rng.random() < 0.5:
                return [self._alter(table, f"CONVERT TO CHARACTER SET {charset}")]
            return [self._alter(table, f"MODIFY {name} VARCHAR(40) CHARACTER SET {charset}")]
        return (
            [f"ALTER IGNORE TABLE {self._q(table.name)} MODIFY {name} {self._other_mysql_type(column)}"]
            if (self._kind == "mariadb" and self._rng.random() < 0.3)
            else [self._alter(table, f"MODIFY {name} {self._other_mysql_type(column)}")]
        )

    def _other_mysql_type(self, column: LiveColumn) -> str:
        likely = {
            "number": ("BIGINT", "INT", "TINYINT", "DECIMAL(12,4)", "DECIMAL(6,0)", "VARCHAR(30)", "DOUBLE"),
            "time": ("DATETIME(6)", "DATETIME", "DATE", "VARCHAR(40)"),
            "bytes": ("BLOB", "VARBINARY(20)", "VARBINARY(2)"),
            "text": ("TEXT", "VARCHAR(40)", "VARCHAR(3)", "CHAR(12)", "VARBINARY(40)"),
        }
        return self._rng.choice(likely.get(column.family, ("DOUBLE", "VARCHAR(40)")))

    def _other_postgres_type(self, column: LiveColumn, name: str) -> str:
        if column.base == "bool":
            return f"int USING {name}::int"
        likely = {
            "number": ("bigint", f"int USING ({name} * 100)::int", "numeric(12,4)", "text", "double precision", "varchar(30)"),
            "time": (f"text USING {name}::text", "date USING '2020-01-01'::date", f"varchar(40) USING {name}::text"),
            "bytes": (f"text USING encode({name}, 'hex')", f"bytea USING {name} || '\\x01'"),
            "text": (f"text USING left({name}::text, 3)", "varchar(60)", f"varchar(3) USING left({name}::text, 3)", "text"),
        }
        return self._rng.choice(likely.get(column.family, ("double precision", "text")))

    def _change_default(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        column = self._plain(table)
        if column is None:
            return []
        name = self._q(column.name)
        action = self._rng.choice((f"ALTER {name} DROP DEFAULT", f"ALTER {name} SET DEFAULT NULL", f"ALTER {name} SET DEFAULT '1'"))
        return [self._alter(table, action)]

    def _key(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        name = self._q(self._free_column(table))
        if table.key:
            if self._postgres:
                return [self._alter(table, f'DROP CONSTRAINT "{table.name}_pkey"'), self._alter(table, "REPLICA IDENTITY FULL")]
            other = self._plain(table)
            add = [f"ADD PRIMARY KEY ({self._q(other.name)})"] if other and self._rng.random() < 0.4 else []
            return [self._alter(table, "DROP PRIMARY KEY", *add)]
        if self._postgres:
            return [self._alter(table, f"ADD COLUMN {name} bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")]
        return [self._alter(table, f"ADD COLUMN {name} BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY")]

    def _truncate(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        return [f"TRUNCATE TABLE {self._q(table.name)}"]

    def _rename(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        free = [n for n in _TABLES if n not in {t.name for t in tables}]
        if not free:
            return []
        new = self._rng.choice(free)
        renamed = [self._moved(table.name, new)]
        return renamed + self._create(table.name) if self._rng.random() < 0.4 else renamed

    def _moved(self, old: str, new: str) -> str:
        if self._postgres or self._rng.random() < 0.3:
            return f"ALTER TABLE {self._q(old)} RENAME TO {self._q(new)}"
        return f"RENAME TABLE {self._q(old)} TO {self._q(new)}"

    def _swap(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        other = self._rng.choice(tables)
        if other.name == table.name:
            return []
        steps = ((table.name, "tmp"), (other.name, table.name), ("tmp", other.name))
        if not self._postgres and self._rng.random() < 0.7:
            return ["RENAME TABLE " + ", ".join(f"{self._q(a)} TO {self._q(b)}" for a, b in steps)]
        return [self._moved(a, b) for a, b in steps]

    def _reload(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        if table.partitions:
            return []
        new, target = self._q("loading"), self._q(table.name)
        like = f"(LIKE {target} INCLUDING ALL)" if self._postgres else f"LIKE {target}"
        made = [f"CREATE TABLE {new} {like}"]
        made += [f"ALTER TABLE {new} REPLICA IDENTITY FULL"] if self._postgres and not table.key else []
        made += [self._rows.insert(table).replace(f"INTO {target}", f"INTO {new}")]
        return [*made, f"DROP TABLE {target}", self._moved("loading", table.name)]

    def _drop(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        return [f"DROP TABLE {self._q(table.name)}"] if len(tables) > 1 else []

    def _again(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        return [f"DROP TABLE {self._q(table.name)}", *self._create(table.name)]

    def _copy(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        free = [n for n in _TABLES if n not in {t.name for t in tables}]
        if not free or len(tables) >= TABLES_MAX:
            return []
        new = self._q(self._rng.choice(free))
        made = [f"CREATE TABLE {new} AS SELECT * FROM {self._q(table.name)}"]
        return [*made, f"ALTER TABLE {new} REPLICA IDENTITY FULL"] if self._postgres else made

    def _like(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        free = [n for n in _TABLES if n not in {t.name for t in tables}]
        if not free or len(tables) >= TABLES_MAX or table.partitions:
            return []
        new, target = self._q(self._rng.choice(free)), self._q(table.name)
        like = f"(LIKE {target} INCLUDING ALL)" if self._postgres else f"LIKE {target}"
        made = [f"CREATE TABLE {new} {like}"]
        return [*made, f"ALTER TABLE {new} REPLICA IDENTITY FULL"] if self._postgres and not table.key else made

    def _storage(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        """Statements that rewrite a table and may change no row, or rows that the log does not tell."""
        if not self._postgres:
            action = self._rng.choice(("ENGINE=InnoDB", "FORCE", "COMMENT 'x'", "ADD INDEX (" + self._q(table.columns[0].name) + ")"))
            return [self._alter(table, action)]
        if table.partitions or self._rng.random() < 0.3:
            return [f"VACUUM FULL {self._q(table.name)}"]
        return [self._alter(table, "SET UNLOGGED"), self._rows.insert(table), self._alter(table, "SET LOGGED")]

    def _partitions(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        if not table.partitions:
            return []
        part, target = self._rng.choice(table.partitions), self._q(table.name)
        if self._postgres:
            low = self._rng.randrange(200, 90_000)
            attach = f"ALTER TABLE {target} ATTACH PARTITION {self._q(part)} FOR VALUES FROM ({low}) TO ({low + 1})"
            return self._rng.choice(
                (
                    [f"DROP TABLE {self._q(part)}"],
                    [f"TRUNCATE {self._q(part)}"],
                    [f"ALTER TABLE {target} DETACH PARTITION {self._q(part)}"],
                    [f"ALTER TABLE {target} DETACH PARTITION {self._q(part)}", f"DELETE FROM {self._q(part)}", attach],
                )
            )
        other = self._q("swapped")
        exchange = [f"CREATE TABLE {other} LIKE {target}", f"ALTER TABLE {other} REMOVE PARTITIONING"]
        exchange += [self._rows.insert(table, 3).replace(f"INTO {target}", f"INTO {other}")]
        inside = {"p0": "k0 < 10", "p1": "k0 BETWEEN 10 AND 19"}.get(part, "k0 >= 20")
        exchange += [f"DELETE FROM {other} WHERE NOT ({inside})"]
        return self._rng.choice(
            (
                [f"ALTER TABLE {target} DROP PARTITION {part}"],
                [f"ALTER TABLE {target} TRUNCATE PARTITION {part}"],
                [*exchange, f"ALTER TABLE {target} EXCHANGE PARTITION {part} WITH TABLE {other}", f"DROP TABLE {other}"],
                [f"ALTER TABLE {target} REBUILD PARTITION {part}"],
                [f"ALTER TABLE {target} REMOVE PARTITIONING"],
            )
        )

    def _identity(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        """Let rows be named otherwise: by another index, by nothing but their values, by the key; or lie in another order."""
        column = self._plain(table)
        index = f"{table.name}_named"
        by_index = [] if column is None else [self._alter(table, f"ALTER {self._q(column.name)} SET NOT NULL")]
        by_index += [] if column is None else [f"CREATE UNIQUE INDEX {self._q(index)} ON {self._q(table.name)} ({self._q(column.name)})"]
        by_index += [self._alter(table, f"REPLICA IDENTITY USING INDEX {self._q(index)}")]
        default = "DEFAULT" if table.key else "FULL"
        return self._rng.choice(
            (
                by_index,
                [self._alter(table, "REPLICA IDENTITY FULL")],
                [self._alter(table, f"REPLICA IDENTITY {default}"), f"DROP INDEX IF EXISTS {self._q(index)}"],
                [f"CLUSTER {self._q(table.name)} USING {self._q(f'{table.name}_pkey')}"],
            )
        )

    def _deferrable(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        if not table.key or table.partitions:
            return []
        key = ", ".join(self._q(k) for k in table.key)
        drop = self._alter(table, f"DROP CONSTRAINT {self._q(f'{table.name}_pkey')}")
        when = self._rng.choice(("DEFERRABLE INITIALLY DEFERRED", "DEFERRABLE", "NOT DEFERRABLE"))
        return [self._alter(table, "REPLICA IDENTITY FULL"), drop, self._alter(table, f"ADD PRIMARY KEY ({key}) {when}")]

    def _generated(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        made = [c for c in table.columns if c.generated]
        if made:
            return [self._alter(table, f"ALTER {self._q(self._rng.choice(made).name)} DROP EXPRESSION")]
        numbers = [c for c in table.stored if c.base in {"int2", "int4", "int8"}]
        if not numbers:
            return []
        name, source = self._q(self._free_column(table)), self._q(self._rng.choice(numbers).name)
        return [self._alter(table, f"ADD COLUMN {name} bigint GENERATED ALWAYS AS ({source}::bigint * 2) STORED")]

    def _inherit(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        free = [n for n in _TABLES if n not in {t.name for t in tables}]
        if not free or len(tables) >= TABLES_MAX or table.partitions:
            return []
        new = self._q(self._rng.choice(free))
        key = f"PRIMARY KEY ({', '.join(self._q(k) for k in table.key)})" if table.key else ""
        made = [f"CREATE TABLE {new} ({key}) INHERITS ({self._q(table.name)})"]
        return made if table.key else [*made, f"ALTER TABLE {new} REPLICA IDENTITY FULL"]

    def _together(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Empty tables together, fill one before and one behind it."""
        other = self._rng.choice(tables)
        names = ", ".join(self._q(n) for n in dict.fromkeys((table.name, other.name)))
        return [self._rows.insert(other), f"TRUNCATE {names} RESTART IDENTITY CASCADE", self._rows.insert(table)]

    def _behind_a_view(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Let a view take the name of a table for a while, as a migration without downtime does."""
        free = [n for n in _TABLES if n not in {t.name for t in tables}]
        if not free:
            return []
        old, new = self._q(table.name), self._q(self._rng.choice(free))
        away = [f"ALTER TABLE {old} RENAME TO {new}", f"CREATE VIEW {old} AS SELECT * FROM {new}", self._rows.insert(table)]
        return (
            [*away, f"DROP VIEW {old}", f"ALTER TABLE {new} RENAME TO {old}"] if self._rng.random() < 0.5 else [*away, f"DROP VIEW {old}"]
        )
