"""Random statements that few tests name, of MariaDB and MySQL: replaced, versioned and scratch tables, XA. Runs in tests."""

from __future__ import annotations

from collections.abc import Sequence

from testing.checks.lives.kinds import CONSTANTS
from testing.checks.lives.odd_structures import Intent, OddGrammar
from testing.checks.lives.servers import LiveTable


class OddMySql(OddGrammar):
    """The grammar for MariaDB and MySQL."""

    def _own(self) -> list[Intent]:
        return [
            *(self._change, self._replaced, self._versioned, self._partition_by, self._prepared, self._temporary, self._xa, self._minimal),
            *(self._instant, self._procedure, self._several_in_one, self._generated_stored),
        ]

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
