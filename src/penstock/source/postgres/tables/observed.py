"""What is known of a table where rows of it are met: how they are read, what is told before them, and whether older ones are in doubt.

Values, made by the schema book and used by whoever decodes rows. Runs in the log service.
"""

from __future__ import annotations

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.model.table import TableSchema
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.wire.pgoutput import Relation


class KnownRelation(msgspec.Struct, frozen=True):
    """A relation that rows refer to: its message, its table version, and how each of its columns is stored."""

    relation: Relation
    table: TableSchema
    forms: tuple[CellForm, ...]
    deferrable: bool = False
    """Whether two rows may have one key until their transaction ends."""

    @property
    def is_bag(self) -> bool:
        """Return whether its rows are counted: nothing names them, but updates and deletes show them whole."""
        return not self.table.key_columns and self.relation.identity == "f"


class Observed(msgspec.Struct, frozen=True):
    """What a relation told: how its rows are read, the DDLs before them, and why older rows are in doubt, if they are."""

    known: KnownRelation
    ddls: tuple[DdlEvent, ...] = ()
    doubt: str = ""


class Created(msgspec.Struct, frozen=True):
    """A table that the log told of for the first time."""

    commit_ts: int
    ddls: tuple[DdlEvent, ...]
    doubt: str
