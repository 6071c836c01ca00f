import json

import pytest

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.model.types import ColumnType, TypeKind

TABLE = TableSchema(7, "shop", "orders", 20, (Column(1, "id", ColumnType(TypeKind.INT), nullable=False, primary_key=True),))

EVENTS = [
    DdlEvent(10, DdlType.CREATE_SCHEMA, "CREATE DATABASE `shop`", "shop"),
    DdlEvent(20, DdlType.CREATE_TABLE, "CREATE TABLE orders (id INT PRIMARY KEY)", "shop", (TABLE,)),
    DdlEvent(30, DdlType.RENAME_TABLE, "RENAME TABLE a TO `ördérs`", "shop", (TABLE,), (), ((7, "shop", "a"),)),
    DdlEvent(40, DdlType.TRUNCATE_TABLE, "TRUNCATE orders", "shop", (TABLE,), (6,)),
    DdlEvent(TS_MAX, DdlType.DROP_TABLE, 'DROP TABLE "x"\n', "shop", (), (7, 8)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.type.name)
def test_an_event_survives_json(event: DdlEvent) -> None:
    assert DdlEvent.from_json(event.to_json()) == event
    assert DdlEvent.from_json(event.to_json().decode()) == event
    assert isinstance(DdlEvent.from_json(event.to_json()).type, DdlType)


def test_json_is_small_and_readable_by_others() -> None:
    assert json.loads(EVENTS[0].to_json()) == {"commit_ts": 10, "type": 1, "query": "CREATE DATABASE `shop`", "schema": "shop"}


def test_table_ids_are_those_made_changed_and_dropped() -> None:
    assert [sorted(e.table_ids) for e in EVENTS] == [[], [7], [7], [6, 7], [7, 8]]


def test_numbers_are_those_of_the_storage_layout() -> None:
    assert {t.name: t.value for t in DdlType} == {
        "NONE": 0,
        "CREATE_SCHEMA": 1,
        "DROP_SCHEMA": 2,
        "CREATE_TABLE": 3,
        "DROP_TABLE": 4,
        "ADD_COLUMN": 5,
        "DROP_COLUMN": 6,
        "ADD_INDEX": 7,
        "DROP_INDEX": 8,
        "TRUNCATE_TABLE": 11,
        "MODIFY_COLUMN": 12,
        "RENAME_TABLE": 14,
        "SET_DEFAULT": 15,
        "TABLE_COMMENT": 17,
        "ADD_PARTITION": 19,
        "DROP_PARTITION": 20,
        "TABLE_CHARSET": 22,
        "TRUNCATE_PARTITION": 23,
        "EXCHANGE_PARTITION": 42,
        "RENAME_TABLES": 47,
        "CREATE_TABLES": 60,
        "MULTI_SCHEMA_CHANGE": 61,
        "REORGANIZE_PARTITION": 64,
    }
