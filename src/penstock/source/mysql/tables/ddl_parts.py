"""A statement of the log as the DDLs that it amounts to, each with a text that does only that.

Owns what the log says about a statement beside its text: that it is about a temporary table, which only its session sees, that it failed
and has done a part of its work, or that it only begins and is told again where it is done. Runs in the log service, in the thread that
reads the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ddl.statement import Statement, parse_statement
from penstock.ddl.tokens import tokens
from penstock.model.ddl import DdlType
from penstock.source.mysql.tables.alter_actions import parts_of
from penstock.source.mysql.tables.composed import compose_drop
from penstock.source.mysql.tables.harmless import plain_words
from penstock.source.mysql.wire.log_events import QueryEvent

DdlPart = tuple[Statement, str]
"""A DDL and its text."""


def ddl_parts(query: QueryEvent, is_of_session: bool = False, is_undone: bool = False) -> list[DdlPart] | None:
    """Return the DDLs of a statement, none where it leaves every table as it is; None for one that is no DDL of a table."""
    if is_undone:
        return []
    if is_of_session and [w.upper() for w in plain_words(tokens(query.text))[:1]] in (["ALTER"], ["TRUNCATE"]):
        return []
    statement = parse_statement(query.text, query.schema)
    if statement is None:
        return None
    if not query.failed or statement.type is not DdlType.CREATE_TABLE:
        return parts_of(statement, query.text, query.schema)
    # One that was to replace a table and failed has dropped it.
    dropped = Statement(DdlType.DROP_TABLE, statement.schema, statement.tables)
    return [(dropped, compose_drop(statement.tables))] if statement.renamed else []


def makes_table(parts: Sequence[DdlPart]) -> bool:
    """Return whether a statement makes a table that every session sees: such a one says TEMPORARY otherwise, and is no DDL here."""
    return any(statement.type is DdlType.CREATE_TABLE for statement, _ in parts)
