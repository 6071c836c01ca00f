"""DDLs that the maintainer applies to a lake, behind the window that they end.

Tables that are made begin empty; what is truncated loses its rows in one version (a table of changes gets a row with operation ``T``);
renames and drops are the format's own; everything else changes columns. Rows that go with a partition are told as changes: by a source that
reads the table as one, or by the feed, which compares the table again. Each is done once, by the ts that the table keeps. Runs beside the
driver.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.ddl.statement import dropped_tables
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import TableSchema
from penstock.sink.lake.columns import LakeShape, truncation_row
from penstock.sink.lake.evolution import check_own, evolve
from penstock.sink.lake.format import LakeConflict, LakeFormat, Mark, TableVersion, check_epoch
from penstock.sink.lake.rewriting import Rewriting

_RENAMES = frozenset({DdlType.RENAME_TABLE, DdlType.RENAME_TABLES})
_CREATES = frozenset({DdlType.CREATE_TABLE, DdlType.CREATE_TABLES})
_NOT_TABLES = frozenset({DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA})
MakeRewriting = Callable[[TableSchema, int], Rewriting]


def apply_ddl(lake: LakeFormat, shape: LakeShape, event: DdlEvent, epoch: int, rewriting: MakeRewriting) -> None:
    """Apply a DDL. Raises ``LakeConflict`` where it is to be tried again."""
    if event.type in _NOT_TABLES:
        return
    if event.type in _RENAMES:
        old = {table_id: (schema, name) for table_id, schema, name in event.old_names}
        lake.rename({old[t.table_id]: t for t in event.tables if t.table_id in old}, Mark(ddl_ts=event.commit_ts, epoch=epoch))
        return
    first = {(t.schema, t.table): t for t in reversed(event.tables)}
    for table in first.values():
        _apply(lake, shape, event, table, epoch, rewriting)
    if not event.tables and event.type is DdlType.DROP_TABLE:
        gone = [(schema, name) for _, schema, name in event.old_names] or dropped_tables(event.query, event.schema)
        for schema, name in gone:
            _let_go(lake, shape, event, schema, name, epoch, rewriting)


def _apply(lake: LakeFormat, shape: LakeShape, event: DdlEvent, table: TableSchema, epoch: int, rewriting: MakeRewriting) -> None:
    version = lake.create(table, shape.table_schema(table), Mark(epoch=epoch), shape.partition(table))
    check_epoch(version, epoch, table.full_name)
    if version.mark.ddl_ts >= event.commit_ts:
        return
    check_own(shape, version, table.full_name)
    if event.type is DdlType.TRUNCATE_TABLE or (event.type in _CREATES and version.mark != Mark(epoch=epoch)):
        # A table that is made under the name of one that was dropped begins empty.
        _empty(lake, shape, version, event, table, epoch, rewriting)
    elif evolve(lake, shape, version, table, rewriting(table, event.commit_ts)):
        raise LakeConflict


def _empty(
    lake: LakeFormat, shape: LakeShape, version: TableVersion, event: DdlEvent, table: TableSchema, epoch: int, rewriting: MakeRewriting
) -> None:
    mark = Mark(version.mark.window_ts, event.commit_ts, epoch)
    if shape.settings.is_merge:
        version.replace(mark, (), table, shape.table_schema(table), shape.partition(table))
        return
    writing = rewriting(table, event.commit_ts)
    if evolve(lake, shape, version, table, writing):
        raise LakeConflict
    row = shape.divided(table, truncation_row(shape, table, event.commit_ts))
    version.commit(mark, [writing.write(own, partition) for partition, own in row], ())


def _let_go(lake: LakeFormat, shape: LakeShape, event: DdlEvent, schema: str, name: str, epoch: int, rewriting: MakeRewriting) -> None:
    version = lake.open(schema, name)
    if version is None or version.mark.ddl_ts >= event.commit_ts:
        return
    check_epoch(version, epoch, f"{schema}.{name}")
    if shape.settings.is_merge:
        lake.drop(schema, name, Mark(version.mark.window_ts, event.commit_ts, epoch))
    elif version.table is not None:
        _empty(lake, shape, version, event, version.table, epoch, rewriting)
