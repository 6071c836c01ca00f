"""DDL events and their types.

The numbers are those of the storage layout's ``Type`` field. A DDL is a barrier: every row with a smaller commit ts is in the target
before its schema file is, and no row with a larger one. Runs anywhere.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from penstock.model.decoding import decoded
from penstock.model.table import TableSchema


class DdlType(IntEnum):
    """What a DDL does; the number stands in the schema file."""

    NONE = 0
    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    RENAME_TABLE = 14
    SET_DEFAULT = 15
    TABLE_COMMENT = 17
    ADD_PARTITION = 19
    DROP_PARTITION = 20
    TABLE_CHARSET = 22
    TRUNCATE_PARTITION = 23
    EXCHANGE_PARTITION = 42
    RENAME_TABLES = 47
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    REORGANIZE_PARTITION = 64


IN_PLACE = frozenset(
    {
        DdlType.ADD_COLUMN,
        DdlType.DROP_COLUMN,
        DdlType.ADD_INDEX,
        DdlType.DROP_INDEX,
        DdlType.MODIFY_COLUMN,
        DdlType.SET_DEFAULT,
        DdlType.TABLE_COMMENT,
        DdlType.TABLE_CHARSET,
        DdlType.MULTI_SCHEMA_CHANGE,
    }
)
"""What changes a table's structure and leaves its name, its id and every other table alone."""


class DdlEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One DDL as it stands in the log. ``tables`` holds the new version of each table that it made or changed."""

    commit_ts: int
    type: DdlType
    query: str
    schema: str
    tables: tuple[TableSchema, ...] = ()
    dropped_table_ids: tuple[int, ...] = ()
    old_names: tuple[tuple[int, str, str], ...] = ()
    """For renames: table id, old schema, old table."""
    made_table_ids: tuple[int, ...] = ()
    """For partitions: the physical ids among ``tables`` that the DDL made."""

    @property
    def table_ids(self) -> frozenset[int]:
        """Return the ids of all tables that the DDL touches."""
        return frozenset(t.table_id for t in self.tables) | frozenset(self.dropped_table_ids)

    @property
    def one_table_id(self) -> int | None:
        """Return the id of the table that the DDL changes in place, if it does nothing else; otherwise None."""
        alone = self.type in IN_PLACE and len(self.tables) == 1 and not self.dropped_table_ids
        return self.tables[0].table_id if alone else None

    def to_json(self) -> bytes:
        """Return the event as JSON, the form in which it travels and is logged."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> DdlEvent:
        """Read what ``to_json`` wrote."""
        return decoded(data, cls)
