"""Debezium-style events, against events written by hand."""

import json

from penstock.format.protocols import DebeziumSettings
from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import encode, paired_rows

K = TypeKind
TS = 433305438660591626
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)
NAME = Column(2, "name", ColumnType(K.VARCHAR, length=20))
TABLE = TableSchema(7, "hr", "employee", 5, (ID, NAME))


def test_debezium_events() -> None:
    content = encode(
        TABLE,
        paired_rows(
            TABLE,
            (TS, Op.INSERT, b"k", 1, None),
            (TS + 1, Op.BEFORE, b"k", 1, None),
            (TS + 1, Op.UPDATE, b"k", 1, 'a "b"'),
            (TS + 2, Op.DELETE, b"k", 1, "x"),
        ),
        DebeziumSettings(),
    )
    insert, update, delete = content.decode().splitlines()
    ms = TS >> 18
    assert insert == (
        '{"before":null,"after":{"Id":1,"name":null},'
        f'"source":{{"connector":"penstock","db":"hr","table":"employee","commit_ts":{TS},"ts_ms":{ms}}},"op":"c","ts_ms":{ms}}}'
    )
    assert json.loads(update)["before"] == {"Id": 1, "name": None}
    assert json.loads(update)["after"] == {"Id": 1, "name": 'a "b"'}
    assert (json.loads(delete)["before"], json.loads(delete)["after"]) == ({"Id": 1, "name": "x"}, None)
    bare = encode(
        TABLE,
        paired_rows(TABLE, (TS, Op.BEFORE, b"k", 1, None), (TS, Op.UPDATE, b"k", 1, "b")),
        DebeziumSettings(output_old_value=False),
    )
    assert json.loads(bare)["before"] is None


def test_what_is_not_finite_is_text_and_changes_no_other_row() -> None:
    table = TableSchema(7, "hr", "employee", 5, (ID, Column(2, "f", ColumnType(K.DOUBLE))))
    values = [1.5, float("nan"), None, float("inf"), -2.0, float("-inf")]
    changes = [(TS + at, Op.INSERT, b"k", at, value) for at, value in enumerate(values)]
    whole = encode(table, paired_rows(table, *changes), DebeziumSettings())
    assert [json.loads(line)["after"]["f"] for line in whole.splitlines()] == [1.5, "NaN", None, "+Inf", -2.0, "-Inf"]
    assert b"".join(encode(table, paired_rows(table, change), DebeziumSettings()) for change in changes) == whole
    pair = ((TS, Op.BEFORE, b"k", 1, float("nan")), (TS, Op.UPDATE, b"k", 1, 0.25))
    update = json.loads(encode(table, paired_rows(table, *pair), DebeziumSettings()))
    assert (update["before"]["f"], update["after"]["f"]) == ("NaN", 0.25)
