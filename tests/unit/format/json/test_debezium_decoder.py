"""Debezium-style events of other writers, and malformed ones."""

import pytest

from penstock.format.json import debezium_decoder
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

K = TypeKind
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)
NAME = Column(2, "name", ColumnType(K.VARCHAR, length=20))
TABLE = TableSchema(7, "hr", "employee", 5, (ID, NAME))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"op":"c"}', "the schema name is not"),
        ('{"source":{"db":"hr","table":"employee","commit_ts":1},"op":"x"}', "the op is none of"),
        ('{"source":{"db":"hr","table":"employee"},"op":"c"}', "source.commit_ts is missing"),
        ('{"source":{"db":"hr","table":"employee","commit_ts":1},"op":"c"}', "without 'after'"),
        ('{"source":{"db":"hr","table":"employee","commit_ts":1},"op":"d","after":{"Id":1,"name":"x"}}', "without 'before'"),
        ('{"source":{"db":"hr","table":"employee","commit_ts":1},"op":"c","after":{"Id":1}}', "column name is missing"),
        ('{"source":{"db":"hr","table":"employee","commit_ts":1},"op":"c","after":{"Id":1.5,"name":"x"}}', "not a whole number"),
    ],
)
def test_malformed_events(content: str, what: str) -> None:
    with pytest.raises(PenstockError) as caught:
        debezium_decoder.decode(content.encode(), TABLE, "f")
    assert caught.value.code == "FILE_MALFORMED"
    assert what in caught.value.detail


def test_snapshot_rows_of_debezium_are_inserts() -> None:
    content = '{"op":"r","after":{"name":"x","Id":1},"source":{"table":"employee","db":"hr","commit_ts":3}}'
    assert debezium_decoder.decode(content.encode(), TABLE).rows() == [(3, Op.INSERT, 1, "x")]
