"""What became of tables in a hole of the log: told behind it, from what was told before and what the server shows now.

A log that was purged or reset says nothing of the tables that were made, changed or dropped in the part that is gone. Whoever follows it is
told as if statements had: a table that went on gets its new columns, one that cannot be told from another one begins again, and rows are
read anew in any case. A table is the same one where it has its name still, and nothing is known of it that was never told. Not thread
safe; ``table_versions`` holds the lock. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.ddl.kept_values import is_made_anew
from penstock.ddl.tokens import TableName
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import TableSchema
from penstock.source.mysql.tables.columns import ServerTable
from penstock.source.mysql.tables.composed import compose_alter, compose_create, compose_drop, compose_replace
from penstock.source.mysql.tables.table_book import FOREVER, TableBook, table_id
from penstock.source.mysql.tables.version_columns import VersionColumns, is_alike


class Crossed(msgspec.Struct, frozen=True):
    """What is told behind a hole, each table at a ts of its own, and what the journal shall keep of it."""

    ddls: tuple[DdlEvent, ...] = ()
    schemas: tuple[TableSchema, ...] = ()


def cross_hole(book: TableBook, columns: VersionColumns, shown: Mapping[TableName, ServerTable], told_ts: int, from_ts: int) -> Crossed:
    """Note the tables that the server shows as those that there are above ``from_ts``; ``told_ts`` is up to where everyone was told.

    Versions that began between the two may never have been told: the log may have been read further than it was kept.
    """
    told, known = book.living(told_ts), book.living(FOREVER)
    untold: dict[TableName, list[TableSchema]] = {}
    for version in book.begun_since(told_ts):
        untold.setdefault((version.schema, version.table), []).append(version)
    ddls: list[DdlEvent] = []
    schemas: list[TableSchema] = []
    for name in sorted(told.keys() | untold.keys() | shown.keys()):
        ts = from_ts + 1 + len(ddls)
        old, now = known.get(name), shown.get(name)
        if old is not None and old == told.get(name) and name not in untold and now is not None:
            after = _altered(columns, old, now, ts)
            if after is None:
                continue
            if not is_made_anew(old, after.columns):
                book.adopt([after])
                schemas.append(after)
                ddls.append(DdlEvent(ts, DdlType.MULTI_SCHEMA_CHANGE, compose_alter(old, after), after.schema, (after,)))
                continue
        gone = {t.table_id: t for t in (told.get(name), old, *untold.get(name, ())) if t is not None}
        schemas += [book.end(t, ts) for t in gone.values()]
        if now is None:
            ddls.append(DdlEvent(ts, DdlType.DROP_TABLE, compose_drop([name]), name[0], (), tuple(gone)))
            continue
        made = TableSchema(table_id(*name, ts), *name, ts, now.columns, unique_keys=now.unique_ids(now.columns))
        book.adopt([made])
        schemas.append(made)
        text = compose_replace(made) if gone else compose_create(made)
        ddls.append(DdlEvent(ts, DdlType.CREATE_TABLE, text, name[0], (made,), tuple(gone)))
    return Crossed(tuple(ddls), tuple(schemas))


def _altered(columns: VersionColumns, old: TableSchema, now: ServerTable, ts: int) -> TableSchema | None:
    """Return the next version of a table that went on; None where it is as it was."""
    numbered = columns.numbered(old, now.columns)
    keys = now.unique_ids(numbered)
    if is_alike(old.columns, now.columns) and keys == old.unique_keys:
        return None
    fixed, _ = columns.with_initials(old, numbered)
    return TableSchema(old.table_id, old.schema, old.table, ts, fixed, unique_keys=keys)
