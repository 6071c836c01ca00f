"""The settings of targets that are tables of a database. Runs anywhere.

``schema-name`` and ``table-name`` are patterns in which ``{schema}`` and ``{table}`` stand for the upstream's names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import msgspec

from penstock.model.table import TableSchema
from penstock.sink.choices import Keyless, UnfitValues

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_PLACES = re.compile(r"\{(schema|table)\}")


class Atomicity(StrEnum):
    """What a reader of the target sees at once."""

    TABLE = "table"
    TRANSACTION = "transaction"


class ExistingRows(StrEnum):
    """What becomes of rows that a table has which this feed did not make."""

    REFUSE = "refuse"
    REPLACE = "replace"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class TableSinkSettings:
    """What tunes a target that is tables.

    Attributes:
        schema_name, table_name: patterns of the names in the target.
        progress_schema, progress_table: where the feed keeps its books; no schema is the kind's own choice.
        transaction_rows: how many changes one transaction has, unless a transaction of the source has more.
        connections: how many dispatchers of a task are written at once.
        lanes: how many transactions one dispatcher has under way at once, each with keys of its own.
        unique_keys: whether tables that are made get the upstream's unique keys besides the primary one.
        bulk_load: whether first states come by LOAD DATA LOCAL where the server allows it.
    """

    free_options: ClassVar[frozenset[str]] = frozenset(
        {"flush_interval_ms", "atomicity", "keyless", "unfit_values", "transaction_rows", "connections", "lanes", "bulk_load"}
    )
    cut_options: ClassVar[frozenset[str]] = frozenset({"atomicity", "lanes"})

    flush_interval_ms: int = field(default=5_000, metadata={"range": (100, 600_000)})
    schema_name: str = "{schema}"
    table_name: str = "{table}"
    progress_schema: str = ""
    progress_table: str = "penstock_progress"
    atomicity: Atomicity = Atomicity.TABLE
    keyless: Keyless = Keyless.COUNT
    unfit_values: UnfitValues = UnfitValues.REFUSE
    existing_rows: ExistingRows = ExistingRows.REFUSE
    unique_keys: bool = False
    transaction_rows: int = field(default=50_000, metadata={"range": (1, 10_000_000)})
    connections: int = field(default=4, metadata={"range": (1, 64)})
    lanes: int = field(default=1, metadata={"range": (1, 64)})
    bulk_load: bool = True

    format_name: ClassVar[str] = "tables"
    holds_tables: ClassVar[bool] = True

    @property
    def indexes_transactions(self) -> bool:
        """Return whether transactions over all tables are applied whole."""
        return self.atomicity is Atomicity.TRANSACTION

    @property
    def numbers_events(self) -> bool:
        """Return whether all rows of a window go through one task: only there are transactions over all tables whole."""
        return self.indexes_transactions

    @property
    def applies_transactions(self) -> bool:
        """Return whether a window must have no DDL inside, because its rows are applied in the order of all tables' commits."""
        return self.indexes_transactions

    def needs_before(self, table: TableSchema) -> bool:
        """Return whether old values must travel: where no primary key names a row, an update tells by them which one it was."""
        return not table.key_columns

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong) of settings that cannot be used."""
        for key, text in (("schema-name", self.schema_name), ("table-name", self.table_name)):
            if not text or "{" in _PLACES.sub("", text) or "\0" in text:
                yield key, "is a name with {schema} and {table} as the only places"
        if not _NAME.fullmatch(self.progress_table):
            yield "progress-table", "must be a name of at most 48 letters, digits and _"
        if self.progress_schema and not _NAME.fullmatch(self.progress_schema):
            yield "progress-schema", "must be a name of at most 48 letters, digits and _"

    def name_of(self, schema: str, table: str) -> tuple[str, str]:
        """Return schema and name of an upstream table in the target."""
        names = {"schema": schema, "table": table}
        return _placed(self.schema_name, names), _placed(self.table_name, names)

    def renamed(self, table: TableSchema) -> TableSchema:
        """Return a table version under its names in the target."""
        schema, name = self.name_of(table.schema, table.table)
        return msgspec.structs.replace(table, schema=schema, table=name)


def _placed(pattern: str, names: dict[str, str]) -> str:
    return _PLACES.sub(lambda found: names[found[1]], pattern)
