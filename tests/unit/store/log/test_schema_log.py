"""The schema log: versions and DDLs, each once, and which DDLs concern a window."""

import msgspec

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table_pattern import TablePatterns
from penstock.store.log.schema_log import SchemaLog, read_schemas
from penstock.store.log.wal_segment import RecordKind
from testing.checks.change_batches import TABLE

NEWER = msgspec.structs.replace(TABLE, version=12)
ALTER = DdlEvent(12, DdlType.ADD_COLUMN, "ALTER TABLE orders ADD c INT", "shop", (NEWER,))
OTHER = DdlEvent(
    14, DdlType.CREATE_TABLE, "CREATE TABLE fresh (id INT)", "shop", (msgspec.structs.replace(TABLE, table_id=9, table="fresh"),)
)
DROP = DdlEvent(16, DdlType.DROP_TABLE, "DROP TABLE fresh", "shop", dropped_table_ids=(9,))


def test_what_is_there_is_not_added_again() -> None:
    log = SchemaLog()
    assert log.put([TABLE, TABLE]) == (TABLE,)
    assert not log.holds(ALTER)
    assert log.put_ddl(ALTER)
    assert not log.put_ddl(ALTER)
    assert log.holds(ALTER)
    assert log.versions(7) == (TABLE, NEWER)
    assert log.versions(1) == ()


def test_ddls_of_a_window_are_those_of_its_tables_or_names_and_drops_follow_what_they_drop() -> None:
    log = SchemaLog()
    for ddl in (DROP, OTHER, ALTER):
        log.put_ddl(ddl)
    assert log.ddls([7], 0, 20) == (ALTER,)
    assert log.ddls([7], 12, 20) == ()
    assert log.ddls([7, 9], 11, 14) == (ALTER, OTHER)
    assert log.ddls([], 0, 20, TablePatterns(("shop.fr*",))) == (OTHER, DROP)
    assert log.ddls([], 14, 20, TablePatterns(("shop.fr*",))) == ()


def test_the_records_of_a_segment_s_head_make_the_same_log() -> None:
    log, again = SchemaLog(), SchemaLog()
    assert list(log.records()) == []
    log.put([TABLE])
    log.put_ddl(ALTER)
    log.put_ddl(DROP)
    schemas, *ddls = log.records()
    assert schemas.kind is RecordKind.SCHEMAS
    again.put(read_schemas(bytes(schemas.body)))
    for record in ddls:
        again.put_ddl(DdlEvent.from_json(bytes(record.body)))
    assert again.versions(7) == log.versions(7)
    assert again.ddls([7, 9], 0, 20) == log.ddls([7, 9], 0, 20) == (ALTER, DROP)
