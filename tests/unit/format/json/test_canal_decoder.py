"""Canal-JSON messages of other writers, and malformed ones."""

import pytest

from penstock.format.json import canal_decoder
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

K = TypeKind
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)
NAME = Column(2, "LastName", ColumnType(K.VARCHAR, length=20))
TABLE = TableSchema(7, "hr", "employee", 5, (ID, NAME))


def test_messages_of_another_writer_are_read() -> None:
    """Other key order, spaces, unknown keys, escapes that we would not write, no commit ts."""
    content = (
        '{ "table" : "employee", "database":"hr","type":"UPDATE", "ts":1, "extra":{"deep":[{"a":"}"},[1,2]]},'
        '"mysqlType":{"LastName":"varchar","Id":"int"},"data":[{"LastName":"\\u0053m\\u00eft\\/h \\ud83d\\ude00","Id":"101"}],'
        '"old":[{"LastName":"x"}]}\n'
    )
    frame = canal_decoder.decode(content.encode(), TABLE, "f")
    assert frame.rows() == [(0, Op.BEFORE, 101, "x"), (0, Op.UPDATE, 101, "Smït/h 😀")]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("[]", "line 1, byte 0: a message must be a JSON object"),
        ('{"type":"INSERT"', "byte 16: the message does not end"),
        ('{"database":"hr"}\n{"database":"hr" "x":1}', "line 2, byte 35: a comma"),
        ('{"database":"hr","table":"other"}', "the table name is not 'employee'"),
        ('{"database":"hr","table":"employee","type":"QUERY"}', "the type is none of"),
        ('{"database":"hr","table":"employee","type":"INSERT","data":[{"Id":"1"}]}', "column LastName is missing"),
        ('{"database":"hr","table":"employee","type":"INSERT","data":[{"Id":"x","LastName":"y"}]}', "column Id: not a whole number"),
        ('{"database":"hr","table":"employee","type":"INSERT","data":[{"Id":"1","LastName":"\\x"}]}', "bad escape"),
        ('{"database":"hr","table":"employee","type":"INSERT","data":[{"Id":"1","LastName":"a\nb"}]}', "control character"),
        ('{"database":nope}', "neither a string"),
    ],
)
def test_malformed_messages_name_file_line_and_byte(content: str, what: str) -> None:
    with pytest.raises(PenstockError) as caught:
        canal_decoder.decode(content.encode(), TABLE, "dir/f.json")
    assert caught.value.code == "FILE_MALFORMED"
    assert what in caught.value.detail
    assert caught.value.detail.startswith("dir/f.json: line ")


def test_characters_beyond_latin_1_are_not_binary() -> None:
    table = TableSchema(7, "s", "t", 5, (Column(1, "b", ColumnType(K.BLOB)),))
    content = '{"database":"s","table":"t","type":"INSERT","data":[{"b":"€"}]}\n'
    with pytest.raises(PenstockError, match="ISO-8859-1"):
        canal_decoder.decode(content.encode(), table)
