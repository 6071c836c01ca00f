"""Random statements that few tests name, of PostgreSQL: DDLs taken back, prepared transactions, odd partitions, rules. Runs in tests."""

from __future__ import annotations

from collections.abc import Sequence

from testing.checks.lives.odd_structures import Intent, OddGrammar
from testing.checks.lives.servers import LiveTable
from testing.checks.lives.structures import TABLES_MAX


class OddPostgres(OddGrammar):
    """The grammar for PostgreSQL."""

    def _own(self) -> list[Intent]:
        return [
            *(self._undone, self._prepared_transaction, self._block, self._toast, self._merge, self._reparent, self._domain, self._cascade),
            *(self._select_into, self._odd_partition, self._rewrite_rule),
        ]

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
