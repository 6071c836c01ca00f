"""Random statements about tables that few tests name: moves to other databases, mixed alterations, keys that change, scratch tables.

A grammar beside ``StructureGrammar``, so that the lives of that one keep their seeds. A choice gives the statements of one intent, as an
application or an operator would run them. Runs in tests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from testing.checks.lives.kinds import CONSTANTS, KEY_TYPES
from testing.checks.lives.servers import AWAY, LiveTable
from testing.checks.lives.structures import TABLES_MAX, StructureGrammar


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
        mysql = [
            self._change,
            self._replaced,
            self._versioned,
            self._partition_by,
            self._prepared,
            self._temporary,
            self._xa,
            self._minimal,
        ]
        mysql += [self._instant, self._procedure, self._several_in_one, self._generated_stored]
        postgres = [
            self._undone,
            self._prepared_transaction,
            self._block,
            self._toast,
            self._merge,
            self._reparent,
            self._domain,
            self._cascade,
        ]
        postgres += [self._select_into, self._odd_partition, self._rewrite_rule]
        return self._rng.choice(both + (postgres if self._postgres else mysql))(table, tables)

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

    # MariaDB and MySQL

    def _change(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        plain = self._plain(table)
        if plain is None:
            return []
        place = self._rng.choice(("", " FIRST", f" AFTER {self._column(table)}"))
        new = self._q(self._rng.choice((plain.name, self._free_column(table))))
        return [self._alter(table, f"CHANGE {self._q(plain.name)} {new} {self._other_mysql_type(plain)}{place}")]

    def _replaced(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Replace a table in one statement, where there is one for it."""
        other = self._rng.choice(tables)
        if self._kind != "mariadb":
            return [f"CREATE TABLE IF NOT EXISTS {self._q(table.name)} (zz INT)", f"DROP VIEW IF EXISTS {self._q('v1')}"]
        text = self._create(table.name)[0].removeprefix("CREATE TABLE")
        forms = [f"CREATE OR REPLACE TABLE{text}"]
        if other.name != table.name:
            forms += [f"CREATE OR REPLACE TABLE {self._q(table.name)} LIKE {self._q(other.name)}"]
            forms += [f"CREATE OR REPLACE TABLE {self._q(table.name)} AS SELECT * FROM {self._q(other.name)}"]
        return [self._rng.choice(forms)]

    def _versioned(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        if self._kind != "mariadb" or table.partitions:
            return []
        alter = "SET SESSION system_versioning_alter_history = KEEP"
        step = self._rng.choice(("ADD SYSTEM VERSIONING", "DROP SYSTEM VERSIONING"))
        return [alter, self._alter(table, step), self._rows.insert(table)]

    def _partition_by(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        if not table.key:
            return []
        if table.partitions:
            step = self._rng.choice(("REMOVE PARTITIONING", "COALESCE PARTITION 1", "ADD PARTITION PARTITIONS 2", "REORGANIZE PARTITION"))
            return [self._alter(table, step)]
        return [self._alter(table, f"PARTITION BY KEY ({self._q(table.key[0])}) PARTITIONS 3")]

    def _prepared(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        texts = self._add_column(table, tables)
        quoted = texts[0].replace("\\", "\\\\").replace("'", "\\'")
        return [f"PREPARE st FROM '{quoted}'", "EXECUTE st", "DEALLOCATE PREPARE st", *texts[1:]]

    def _procedure(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        texts = [*self._add_column(table, tables), self._rows.insert(table), *self._truncate(table, tables), self._rows.insert(table)]
        body = "; ".join(texts)
        return [f"CREATE PROCEDURE pr() BEGIN {body}; END", "CALL pr()", "DROP PROCEDURE pr"]

    def _temporary(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        """Let a scratch table of the same name hide the real one for a while."""
        name = self._q(table.name)
        end = self._rng.choice((f"DROP TEMPORARY TABLE {name}", f"DROP TABLE {name}"))
        return [
            f"CREATE TEMPORARY TABLE {name} AS SELECT * FROM {name}",
            self._rows.insert(table),
            f"DELETE FROM {name}",
            end,
            self._rows.insert(table),
        ]

    def _xa(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        self._count += 1
        name = f"'x{self._schema}{self._count}'"
        body = [f"XA START {name}", *self._rows.statements(table), f"XA END {name}"]
        if any("SAVEPOINT" in t for t in body):
            return []
        return [*body, f"XA PREPARE {name}", self._rng.choice((f"XA COMMIT {name}", f"XA ROLLBACK {name}"))]

    def _minimal(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        image = self._rng.choice(("MINIMAL", "NOBLOB"))
        return [
            f"SET SESSION binlog_row_image = {image}",
            *self._rows.statements(table),
            *self._rows.statements(table),
            "SET SESSION binlog_row_image = FULL",
        ]

    def _instant(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        kind, text = self._rng.choice(CONSTANTS[self._words])
        name, plain = self._q(self._free_column(table)), self._plain(table)
        made = [
            self._alter(table, f"ADD COLUMN {name} {kind} NOT NULL DEFAULT {text} FIRST") + ", ALGORITHM=INSTANT",
            self._rows.insert(table),
        ]
        if plain is not None and len(table.columns) > 2:
            made.append(self._alter(table, f"DROP COLUMN {self._q(plain.name)}") + ", ALGORITHM=INSTANT")
        made.append(self._alter(table, "FORCE"))
        return made

    def _several_in_one(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        other = self._rng.choice(tables)
        if other.name == table.name:
            return []
        one, two = self._q(table.name), self._q(other.name)
        return [f"DELETE {one}, {two} FROM {one} JOIN {two} WHERE {self._rows.predicate(other).replace('`', f'{two}.`', 1)}"]

    def _generated_stored(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        made = [c for c in table.columns if c.generated]
        name = self._q(made[0].name) if made else self._q(self._free_column(table))
        if made:
            return [self._alter(table, f"DROP COLUMN {name}"), self._alter(table, f"ADD COLUMN {name} BIGINT DEFAULT 8")]
        return [self._alter(table, f"ADD COLUMN {name} BIGINT AS (3 * 4) VIRTUAL FIRST"), self._rows.insert(table)]

    # PostgreSQL

    def _undone(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Take a DDL back by a savepoint, and go on with the transaction."""
        undone = [t for t in (self._add_column(table, tables), self._truncate(table, tables), self._rename(table, tables)) if t]
        texts = self._rng.choice(undone)
        return [
            "BEGIN",
            self._rows.insert(table),
            "SAVEPOINT q",
            *texts,
            "ROLLBACK TO SAVEPOINT q",
            *self._rows.statements(table),
            "COMMIT",
        ]

    def _prepared_transaction(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        self._count += 1
        name = f"'p{self._schema}{self._count}'"
        body = [t for t in (*self._rows.statements(table), self._rows.insert(table)) if "SAVEPOINT" not in t]
        return ["BEGIN", *body, f"PREPARE TRANSACTION {name}", f"{self._rng.choice(('COMMIT', 'ROLLBACK'))} PREPARED {name}"]

    def _block(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        texts = [*self._add_column(table, tables), self._rows.insert(table), *self._drop_column(table, tables)]
        return [f"DO $do$ BEGIN {'; '.join(texts)}; END $do$"]

    def _toast(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        """Keep a large value outside of its row while the row and the table change."""
        texts = [c for c in table.stored if c.base == "text" and c.name not in table.key]
        if not texts:
            return [self._alter(table, f"ADD COLUMN {self._q(self._free_column(table))} text")]
        name = self._q(texts[0].name)
        large = f"UPDATE {self._q(table.name)} SET {name} = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i)"
        after = self._rng.choice(
            (
                self._alter(table, f"ADD COLUMN {self._q(self._free_column(table))} int DEFAULT 3"),
                self._alter(table, f"ALTER {name} SET STORAGE EXTERNAL"),
            )
        )
        return [large, *self._rows.statements(table), after, *self._rows.statements(table)]

    def _merge(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        plain = self._plain(table)
        if not table.key or plain is None:
            return []
        key = self._q(table.key[0])
        text = f"MERGE INTO {self._q(table.name)} t USING (SELECT {key} AS k FROM {self._q(table.name)} LIMIT 3) s ON t.{key} = s.k "
        return [
            text + f"WHEN MATCHED AND t.{self._q(plain.name)} IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET {self._q(plain.name)} = NULL"
        ]

    def _reparent(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        other = self._rng.choice(tables)
        if other.name == table.name or table.partitions or other.partitions:
            return []
        child, parent = self._q("t_child"), self._q(table.name)
        identity = f"ALTER TABLE {child} REPLICA IDENTITY FULL"
        return [
            f"CREATE TABLE {child} (LIKE {parent})",
            identity,
            f"ALTER TABLE {child} INHERIT {parent}",
            *self._rows.statements(table),
            f"ALTER TABLE {child} NO INHERIT {parent}",
            f"DROP TABLE {child}",
        ]

    def _domain(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        self._count += 1
        name, column = self._q(f"dom{self._count}"), self._q(self._free_column(table))
        return [
            f"CREATE DOMAIN {name} AS int DEFAULT 41",
            self._alter(table, f"ADD COLUMN {column} {name}"),
            f"ALTER DOMAIN {name} SET DEFAULT 42",
            self._rows.insert(table),
        ]

    def _cascade(self, table: LiveTable, _: Sequence[LiveTable]) -> list[str]:
        if not table.key or len(table.key) > 1 or table.partitions:
            return []
        child, key, parent = self._q("t_child"), self._q(table.key[0]), self._q(table.name)
        kind = next(c.type for c in table.columns if c.name == table.key[0])
        made = f"CREATE TABLE {child} (id serial PRIMARY KEY, r {kind} REFERENCES {parent} ({key}) ON DELETE CASCADE ON UPDATE CASCADE)"
        return [
            made,
            f"INSERT INTO {child} (r) SELECT {key} FROM {parent}",
            *self._rows.statements(table),
            f"TRUNCATE {parent} CASCADE",
            self._rows.insert(table),
            f"DROP TABLE {child}",
        ]

    def _select_into(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        free = self._spare(tables)
        if not free or len(tables) >= TABLES_MAX:
            return []
        new = self._q(free[0])
        return [
            "BEGIN",
            f"SELECT * INTO {new} FROM {self._q(table.name)}",
            f"ALTER TABLE {new} REPLICA IDENTITY FULL",
            f"DELETE FROM {new} WHERE {self._rows.predicate(table)}",
            f"ALTER TABLE {new} ADD COLUMN xx int DEFAULT 9",
            "COMMIT",
        ]

    def _odd_partition(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Attach a partition whose columns lie in another order, with one that is gone."""
        if not table.partitions:
            name = self._spare(tables)
            return self._create_partitioned(name[0]) if name and len(tables) < TABLES_MAX else []
        self._count += 1
        part, low = self._q(f"{table.name}_o{self._count}"), self._rng.randrange(200, 90_000)
        columns = [*table.columns]
        self._rng.shuffle(columns)
        shown = ", ".join(f"{self._q(c.name)} {c.type}{'' if c.nullable else ' NOT NULL'}" for c in columns)
        key = ", ".join(self._q(k) for k in table.key)
        made = [f"CREATE TABLE {part} (gone int, {shown}, PRIMARY KEY ({key}))", f"ALTER TABLE {part} DROP COLUMN gone"]
        made += [f"INSERT INTO {part} (k0) VALUES ({low})"]
        attach = f"ALTER TABLE {self._q(table.name)} ATTACH PARTITION {part} FOR VALUES FROM ({low}) TO ({low + 5})"
        split = [f"DROP TABLE IF EXISTS {self._q(f'{table.name}_p2')}"]
        return [
            *split,
            *made,
            attach,
            f"UPDATE {self._q(table.name)} SET k0 = {low + 1} WHERE k0 < 12 AND k0 > 9",
            f"INSERT INTO {self._q(table.name)} (k0) VALUES ({low + 3})",
        ]

    def _rewrite_rule(self, table: LiveTable, tables: Sequence[LiveTable]) -> list[str]:
        """Let a rule send inserts elsewhere for a while."""
        other = self._rng.choice(tables)
        if other.name == table.name:
            return []
        instead = f"DELETE FROM {self._q(other.name)} WHERE {self._rows.predicate(other)}"
        rule = f"CREATE RULE ru AS ON INSERT TO {self._q(table.name)} DO INSTEAD {instead}"
        return [rule, f"INSERT INTO {self._q(table.name)} DEFAULT VALUES", f"DROP RULE ru ON {self._q(table.name)}"]
