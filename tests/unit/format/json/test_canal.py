"""Canal-JSON: every field, rendering and option of a message, against messages written by hand."""

import json

import pytest

from penstock.format.json import canal_decoder
from penstock.format.json.canal import mysql_type, sql_type
from penstock.format.protocols import CanalSettings
from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import encode, paired_rows

K = TypeKind
TS = 433305438660591626
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)
NAME = Column(2, "LastName", ColumnType(K.VARCHAR, length=20))
TABLE = TableSchema(7, "hr", "employee", 5, (ID, NAME))


def messages(table: TableSchema, settings: CanalSettings, *given: tuple[object, ...]) -> list[str]:
    content = encode(table, paired_rows(table, *given), settings)
    assert content.endswith(settings.line_end)
    return content.decode().removesuffix(settings.line_end.decode()).split(settings.line_end.decode())


def value_of(ctype: ColumnType, value: object) -> tuple[str, object, int, str]:
    """The raw text of a value in ``data``, what JSON makes of it, its sqlType and its mysqlType."""
    table = TableSchema(7, "s", "t", 5, (Column(1, "c", ctype),))
    (text,) = messages(table, CanalSettings(), (TS, Op.INSERT, b"k", value))
    message = json.loads(text)
    raw = text[text.index('"data":[{"c":') + len('"data":[{"c":') : text.index('}],"_tidb"')]
    return raw, message["data"][0]["c"], message["sqlType"]["c"], message["mysqlType"]["c"]


def test_a_message_has_every_key_in_order_and_no_space() -> None:
    (text,) = messages(TABLE, CanalSettings(), (TS, Op.INSERT, b"k", 101, "Smith"))
    moment = TS >> 18
    assert text == (
        f'{{"id":0,"database":"hr","table":"employee","pkNames":["Id"],"isDdl":false,"type":"INSERT","es":{moment},"ts":{moment},"sql":"",'
        '"sqlType":{"Id":4,"LastName":12},"mysqlType":{"Id":"int","LastName":"varchar"},"old":null,'
        f'"data":[{{"Id":"101","LastName":"Smith"}}],"_tidb":{{"commitTs":{TS}}}}}'
    )


def test_updates_show_the_whole_old_row_and_deletes_theirs() -> None:
    update, delete = messages(
        TABLE,
        CanalSettings(enable_tidb_extension=False),
        (TS, Op.BEFORE, b"k", 101, "Smith"),
        (TS, Op.UPDATE, b"k", 101, None),
        (TS + 1, Op.DELETE, b"k", 101, None),
    )
    assert '"type":"UPDATE"' in update
    assert update.endswith('"old":[{"Id":"101","LastName":"Smith"}],"data":[{"Id":"101","LastName":null}]}')
    assert '"type":"DELETE"' in delete
    assert delete.endswith('"old":null,"data":[{"Id":"101","LastName":null}]}')


def test_only_updated_columns() -> None:
    changed, same, to_null = messages(
        TABLE,
        CanalSettings(only_output_updated_columns=True),
        (TS, Op.BEFORE, b"k", 101, "Smith"),
        (TS, Op.UPDATE, b"k", 101, "Smyth"),
        (TS + 1, Op.BEFORE, b"k", 101, "Smyth"),
        (TS + 1, Op.UPDATE, b"k", 101, "Smyth"),
        (TS + 2, Op.BEFORE, b"k", 101, None),
        (TS + 2, Op.UPDATE, b"k", 102, "x"),
    )
    assert json.loads(changed)["old"] == [{"LastName": "Smith"}]
    assert json.loads(same)["old"] == [{}]
    assert json.loads(to_null)["old"] == [{"Id": "101", "LastName": None}]


def test_deletes_with_handle_keys_only() -> None:
    table = TableSchema(7, "hr", "employee", 5, (NAME, ID))
    insert, delete = messages(
        table,
        CanalSettings(delete_only_output_handle_key_columns=True),
        (TS, Op.INSERT, b"k", "Smith", 101),
        (TS + 1, Op.DELETE, b"k", "Smith", 101),
    )
    assert json.loads(insert)["data"] == [{"LastName": "Smith", "Id": "101"}]
    message = json.loads(delete)
    assert (message["sqlType"], message["mysqlType"], message["data"]) == ({"Id": 4}, {"Id": "int"}, [{"Id": "101"}])
    keyless = TableSchema(7, "hr", "employee", 5, (NAME,))
    (whole,) = messages(keyless, CanalSettings(delete_only_output_handle_key_columns=True), (TS, Op.DELETE, b"k", "Smith"))
    assert json.loads(whole)["data"] == [{"LastName": "Smith"}]
    assert json.loads(whole)["pkNames"] == []


def test_content_compatible_shows_whole_types_and_changed_columns() -> None:
    (text,) = messages(
        TABLE, CanalSettings(content_compatible=True), (TS, Op.BEFORE, b"k", 101, "Smith"), (TS, Op.UPDATE, b"k", 101, "Smyth")
    )
    message = json.loads(text)
    assert message["mysqlType"] == {"Id": "int(11)", "LastName": "varchar(20)"}
    assert message["old"] == [{"LastName": "Smith"}]


def test_row_keys() -> None:
    (text,) = messages(TABLE, CanalSettings(output_row_key=True), (TS, Op.INSERT, b"\x00\xff", 101, "Smith"))
    assert json.loads(text)["_tidb"] == {"commitTs": TS, "rowkey": "AP8="}


@pytest.mark.parametrize(
    ("ctype", "value", "raw", "sql", "mysql"),
    [
        (ColumnType(K.TINYINT), -128, '"-128"', -6, "tinyint"),
        (ColumnType(K.TINYINT, unsigned=True), 127, '"127"', -6, "tinyint unsigned"),
        (ColumnType(K.TINYINT, unsigned=True), 128, '"128"', 5, "tinyint unsigned"),
        (ColumnType(K.SMALLINT, unsigned=True), 32_768, '"32768"', 4, "smallint unsigned"),
        (ColumnType(K.MEDIUMINT, unsigned=True), 16_777_215, '"16777215"', 4, "mediumint unsigned"),
        (ColumnType(K.INT, unsigned=True), 2**31 - 1, '"2147483647"', 4, "int unsigned"),
        (ColumnType(K.INT, unsigned=True), 2**31, '"2147483648"', -5, "int unsigned"),
        (ColumnType(K.INT, unsigned=True), None, "null", 4, "int unsigned"),
        (ColumnType(K.BIGINT), -(2**63), '"-9223372036854775808"', -5, "bigint"),
        (ColumnType(K.BIGINT, unsigned=True), 2**64 - 1, '"18446744073709551615"', 3, "bigint unsigned"),
        (ColumnType(K.FLOAT), 153.123, '"153.123"', 7, "float"),
        (ColumnType(K.DOUBLE), 1e21, '"1000000000000000000000"', 8, "double"),
        (ColumnType(K.DOUBLE), 1e-7, '"0.0000001"', 8, "double"),
        (ColumnType(K.DOUBLE), -1e6, '"-1000000"', 8, "double"),
        (ColumnType(K.DECIMAL, unsigned=True, zerofill=True), "0012.30", '"0012.30"', 3, "decimal unsigned zerofill"),
        (ColumnType(K.CHAR), "x", '"x"', 1, "char"),
        (ColumnType(K.TEXT), 'a"b\\c\td\re\nf', r'"a\"b\\c\td\re\nf"', 2005, "text"),
        (ColumnType(K.TEXT), "<>&\x00\b\f\x7f", '"\\u003c\\u003e\\u0026\\u0000\\u0008\\u000c\x7f"', 2005, "text"),
        (ColumnType(K.TEXT), "é\u2028\u2029😀", '"é\\u2028\\u2029😀"', 2005, "text"),
        (ColumnType(K.TEXT), "plain text of some length<", '"plain text of some length\\u003c"', 2005, "text"),
        (ColumnType(K.BLOB), b"\x00A\xff<", '"\\u0000A\u00ff\\u003c"', 2004, "blob"),
        (ColumnType(K.VARBINARY), b"\x80", '"\u0080"', 2004, "varbinary"),
        (ColumnType(K.DATE), "2000-01-01", '"2000-01-01"', 91, "date"),
        (ColumnType(K.TIMESTAMP, scale=3), "2000-01-01 00:00:00.123", '"2000-01-01 00:00:00.123"', 93, "timestamp"),
        (ColumnType(K.TIME), "-23:59:59", '"-23:59:59"', 92, "time"),
        (ColumnType(K.YEAR), 1970, '"1970"', 12, "year"),
        (ColumnType(K.ENUM, elems=("a", "b")), 2, '"2"', 4, "enum"),
        (ColumnType(K.SET, elems=("a", "b")), 3, '"3"', -7, "set"),
        (ColumnType(K.BIT), 81, '"81"', -7, "bit"),
        (ColumnType(K.JSON), '{"a": 1}', r'"{\"a\": 1}"', 12, "json"),
        (ColumnType(K.VECTOR), "[1,2.5]", '"[1,2.5]"', 12, "vector"),
    ],
)
def test_values_and_types(ctype: ColumnType, value: object, raw: str, sql: int, mysql: str) -> None:
    found_raw, found, found_sql, found_mysql = value_of(ctype, value)
    assert (found_raw, found_sql, found_mysql) == (raw, sql, mysql)
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize(
    ("ctype", "text"),
    [
        (ColumnType(K.INT, length=11), "int(11)"),
        (ColumnType(K.INT, unsigned=True), "int(10) unsigned"),
        (ColumnType(K.TINYINT, length=1), "tinyint(1)"),
        (ColumnType(K.BIT), "bit(1)"),
        (ColumnType(K.YEAR), "year(4)"),
        (ColumnType(K.DECIMAL), "decimal(10,0)"),
        (ColumnType(K.FLOAT), "float"),
        (ColumnType(K.FLOAT, length=10, scale=3), "float(10,3)"),
        (ColumnType(K.DATETIME), "datetime"),
        (ColumnType(K.DATETIME, scale=3), "datetime(3)"),
        (ColumnType(K.VARCHAR, length=123), "varchar(123)"),
        (ColumnType(K.BINARY, length=10), "binary(10)"),
        (ColumnType(K.TEXT), "text"),
        (ColumnType(K.ENUM, elems=("a", "it's")), "enum('a','it''s')"),
        (ColumnType(K.JSON), "json"),
    ],
)
def test_whole_types(ctype: ColumnType, text: str) -> None:
    assert mysql_type(ctype, full=True) == text


def test_every_kind_has_a_java_type() -> None:
    assert {sql_type(ColumnType(k)) for k in K} >= {-7, -6, -5, 1, 3, 4, 5, 7, 8, 12, 91, 92, 93, 2004, 2005}


def test_virtual_columns_are_left_out() -> None:
    table = TableSchema(7, "s", "t", 5, (ID, Column(2, "v", ColumnType(K.INT), generated="VIRTUAL")))
    (text,) = messages(table, CanalSettings(), (TS, Op.INSERT, b"k", 1, 2))
    assert json.loads(text)["data"] == [{"Id": "1"}]


def test_deletes_with_the_unique_key_that_names_a_row() -> None:
    columns = (
        Column(1, "note", ColumnType(TypeKind.VARCHAR, length=20)),
        Column(2, "mail", ColumnType(TypeKind.VARCHAR, length=20), nullable=False),
    )
    table = TableSchema(1, "s", "t", 1, columns, unique_keys=((1,), (2,)))
    settings = CanalSettings(delete_only_output_handle_key_columns=True)
    content = encode(table, paired_rows(table, (TS, Op.INSERT, b"k", "x", "m"), (TS, Op.DELETE, b"k", "x", "m")), settings)
    insert, delete = (json.loads(line) for line in content.decode().splitlines())
    assert (insert["data"], insert["pkNames"]) == ([{"note": "x", "mail": "m"}], [])
    assert (delete["data"], delete["sqlType"]) == ([{"mail": "m"}], {"mail": 12})
    assert canal_decoder.decode(content, table, "f").select("c1", "c2").rows() == [("x", "m"), (None, "m")]
