import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.format.csv.decoder import decode
from penstock.format.csv.dialect import BinaryEncoding, CsvSettings
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import encode

EMPLOYEE = TableSchema(
    1,
    "hr",
    "employee",
    5,
    (
        Column(1, "Id", ColumnType(TypeKind.INT), False, True),
        Column(2, "LastName", ColumnType(TypeKind.VARCHAR, length=20)),
        Column(3, "FirstName", ColumnType(TypeKind.VARCHAR, length=30)),
        Column(4, "HireDate", ColumnType(TypeKind.DATE)),
        Column(5, "OfficeLocation", ColumnType(TypeKind.VARCHAR, length=20)),
    ),
)
SEED = b"""\
"I","employee","hr",433305438660591626,101,"Smith","Bob","2014-06-04","New York"
"U","employee","hr",433305438660591627,101,"Smith","Bob","2015-10-08","Los Angeles"
"D","employee","hr",433305438660591629,101,"Smith","Bob","2017-03-13","Dallas"
"I","employee","hr",433305438660591630,102,"Alex","Alice","2017-03-14","Shanghai"
"U","employee","hr",433305438660591630,102,"Alex","Alice","2018-06-15","Beijing"
"""


def records(table: TableSchema, rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    """Rows of (ts, op, values...)."""
    schema = table.batch_schema().remove(2)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def one_column(kind: str, values: list[object], **options: object) -> tuple[TableSchema, pa.RecordBatch]:
    table = TableSchema(1, "s", "t", 5, (Column(9, "c", ColumnType(TypeKind(kind), **options)),))  # type: ignore[arg-type]
    return table, records(table, [(1, Op.INSERT, v) for v in values])


def test_the_seed_s_example() -> None:
    ts = 433305438660591626
    rows = records(
        EMPLOYEE,
        [
            (ts, Op.INSERT, 101, "Smith", "Bob", "2014-06-04", "New York"),
            (ts + 1, Op.UPDATE, 101, "Smith", "Bob", "2015-10-08", "Los Angeles"),
            (ts + 3, Op.DELETE, 101, "Smith", "Bob", "2017-03-13", "Dallas"),
            (ts + 4, Op.INSERT, 102, "Alex", "Alice", "2017-03-14", "Shanghai"),
            (ts + 4, Op.UPDATE, 102, "Alex", "Alice", "2018-06-15", "Beijing"),
        ],
    )
    settings = CsvSettings(terminator="\n")
    assert encode(EMPLOYEE, rows, settings) == SEED
    assert decode(SEED, EMPLOYEE, settings).to_arrow().to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("kind", "options", "value", "text"),
    [
        ("TINYINT", {}, -128, b"-128"),
        ("BIGINT", {"unsigned": True}, 2**64 - 1, b"18446744073709551615"),
        ("BIGINT", {}, -(2**63), b"-9223372036854775808"),
        ("BIT", {"length": 64}, 81, b"81"),
        ("YEAR", {}, 1970, b"1970"),
        ("DECIMAL", {"length": 20, "scale": 7}, "129012.1230000", b'"129012.1230000"'),
        ("VARCHAR", {"length": 9}, "", b'""'),
        ("VARCHAR", {"length": 9}, '"\\N\r\n,', b'"""\\N\r\n,"'),
        ("VARCHAR", {"length": 9}, None, b"\\N"),
        ("BLOB", {}, "阿斯".encode(), b'"6Zi/5pav"'),
        ("ENUM", {"elems": ("a", "b")}, 1, b'"a"'),
        ("ENUM", {"elems": ("a", "b")}, 0, b'""'),
        ("SET", {"elems": ("a", "b", "c")}, 3, b'"a,b"'),
        ("SET", {"elems": ("a", "b", "c")}, 0, b'""'),
        ("TIMESTAMP", {"scale": 6}, "1973-12-30 15:30:00.123456", b'"1973-12-30 15:30:00.123456"'),
        ("TIME", {}, "-838:59:59", b'"-838:59:59"'),
        ("JSON", {}, '{"a": 1}', b'"{""a"": 1}"'),
        ("VECTOR", {}, "[1,2.5]", b'"[1,2.5]"'),
        ("DOUBLE", {}, 153.123, b"153.123"),
    ],
)
def test_values_of_every_type(kind: str, options: dict[str, object], value: object, text: bytes) -> None:
    table, rows = one_column(kind, [value, None], **options)
    settings = CsvSettings()
    lines = b'"I","t","s",1,' + text + b'\r\n"I","t","s",1,\\N\r\n'
    assert encode(table, rows, settings) == lines
    assert decode(lines, table, settings).get_column("c9").to_list() == [value, None]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (123456.5, "123456.5"),
        (1e6, "1e+06"),
        (1234567.5, "1.2345675e+06"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (100000.0, "100000"),
        (-999999.0, "-999999"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (1e21, "1e+21"),
        (123.0, "123"),
        (0.1, "0.1"),
        (-2.5e-7, "-2.5e-07"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_floats_are_written_as_go_writes_them(value: float, text: str) -> None:
    table, rows = one_column("DOUBLE", [value])
    assert encode(table, rows, CsvSettings()) == f'"I","t","s",1,{text}\r\n'.encode()


def test_floats_of_32_bits_have_their_own_shortest_digits() -> None:
    table, rows = one_column("FLOAT", [0.1, 16777216.0, 3.4028234663852886e38])
    lines = encode(table, rows, CsvSettings()).split(b"\r\n")
    assert [line.rpartition(b",")[2] for line in lines[:-1]] == [b"0.1", b"1.6777216e+07", b"3.4028235e+38"]


def test_old_values_split_updates() -> None:
    table = TableSchema(1, "s", "t", 5, (Column(9, "c", ColumnType(TypeKind.INT), False, True),))
    rows = records(table, [(1, Op.INSERT, 7), (2, Op.BEFORE, 7), (2, Op.UPDATE, 8), (3, Op.DELETE, 8)])
    settings = CsvSettings(output_old_value=True, include_commit_ts=False, output_field_header=True)
    body = encode(table, rows, settings)
    assert body == b'"I","t","s",false,7\r\n"D","t","s",true,7\r\n"I","t","s",true,8\r\n"D","t","s",false,8\r\n'
    header = settings.header(table)
    assert header == b"ticdc-meta$operation,ticdc-meta$table,ticdc-meta$schema,ticdc-meta$is-update,c\r\n"
    assert decode(header + body, table, settings).get_column("_op").to_list() == [0, 3, 1, 2]
    # Without old values the before-image is left out.
    assert encode(table, rows, CsvSettings(include_commit_ts=False)).count(b"\r\n") == 3


def test_escape_mode() -> None:
    table, rows = one_column("VARCHAR", ["a\r\n\\b", "\\N", "x||y", "tail|", "|||", "", None], length=9)
    settings = CsvSettings(quote="", delimiter="||")
    lines = encode(table, rows, settings).split(b"\r\n")
    assert [line.removeprefix(b"I||t||s||1||") for line in lines[:-1]] == [
        b"a\\r\\n\\\\b",
        b"\\\\N",
        b"x\\|\\|y",
        b"tail\\|",
        b"\\|\\|\\|",
        b"",
        b"\\N",
    ]
    assert decode(b"\r\n".join(lines), table, settings).get_column("c9").to_list() == rows.column("c9").to_pylist()


def test_hex_and_names_with_quotes() -> None:
    table = TableSchema(1, 's"1', "t", 5, (Column(9, "c", ColumnType(TypeKind.BLOB)),))
    rows = records(table, [(1, Op.INSERT, b"\x00\xff")])
    settings = CsvSettings(binary_encoding=BinaryEncoding.HEX)
    assert encode(table, rows, settings) == b'"I","t","s""1",1,"00ff"\r\n'
    assert decode(encode(table, rows, settings), table, settings).get_column("c9").to_list() == [b"\x00\xff"]


def test_virtual_columns_stand_in_no_row() -> None:
    table = TableSchema(
        1, "s", "t", 5, (Column(1, "a", ColumnType(TypeKind.INT)), Column(2, "v", ColumnType(TypeKind.INT), generated="VIRTUAL"))
    )
    rows = records(table, [(1, Op.INSERT, 7, 8)])
    assert encode(table, rows, CsvSettings()) == b'"I","t","s",1,7\r\n'
    assert decode(b'"I","t","s",1,7\r\n', table, CsvSettings()).columns == ["_ts", "_op", "c1"]


def test_an_encoding_in_parts_is_the_whole() -> None:
    table, rows = one_column("DOUBLE", [float(i) * 1.25 for i in range(100)])
    assert encode(table, rows.slice(0, 33), CsvSettings()) + encode(table, rows.slice(33), CsvSettings()) == encode(
        table, rows, CsvSettings()
    )
    assert encode(table, rows.slice(0, 0), CsvSettings()) == b""


def test_unknown_enum_index_is_an_error() -> None:
    for kind, value in (("ENUM", 3), ("SET", 4)):
        table, rows = one_column(kind, [value], elems=("a", "b"))
        with pytest.raises(PenstockError, match="column c"):
            encode(table, rows, CsvSettings())


INT_TABLE = TableSchema(1, "s", "t", 5, (Column(9, "c", ColumnType(TypeKind.TINYINT)),))


@pytest.mark.parametrize(
    ("second_line", "what"),
    [
        (b'"I","t","s",1,x', "line 2, byte 31: column c: not a whole number"),
        (b'"I","t","s",1,128', "line 2, byte 31: column c: a number beyond int8"),
        (b'"I","t","s",1,-', "column c: not a whole number"),
        (b'"I","t","s",1,99999999999999999999', "column c: not a whole number"),
        (b'"I","t","s",1', "fewer fields"),
        (b'"I","t","s",1,2,3', "more fields"),
        (b'"I","t","s",1,"2', "does not end"),
        (b'"I"x,"t","s",1,2', "follows a quoted field"),
        (b'"X","t","s",1,2', "none of I, U, D"),
        (b'"I","u","s",1,2', "table name"),
        (b'"I","t","z",1,2', "schema name"),
        (b'"I","t","s",,2', "commit-ts"),
    ],
)
def test_malformed_lines_are_named(second_line: bytes, what: str) -> None:
    content = b'"I","t","s",1,5\r\n' + second_line + b"\r\n"
    with pytest.raises(PenstockError, match=r"FILE_MALFORMED.*dir/f.csv: line 2") as caught:
        decode(content, INT_TABLE, CsvSettings(), "dir/f.csv")
    assert what in caught.value.detail


@pytest.mark.parametrize(
    ("kind", "options", "field", "what"),
    [
        ("DOUBLE", {}, b"1.5x", "not a number"),
        ("BLOB", {}, b'"!"', "not base64"),
        ("ENUM", {"elems": ("a",)}, b'"b"', "not an element of ENUM"),
        ("SET", {"elems": ("a",)}, b'"a,b"', "not an element of SET"),
        ("VARCHAR", {"length": 3}, b'"\xff"', "not UTF-8"),
    ],
)
def test_malformed_values_are_named(kind: str, options: dict[str, object], field: bytes, what: str) -> None:
    table, _ = one_column(kind, [], **options)
    content = b'"I","t","s",1,\\N\r\n"I","t","s",1,' + field + b"\r\n"
    with pytest.raises(PenstockError, match=f"f.csv: line 2, byte 3[23]: column c: {what}"):
        decode(content, table, CsvSettings(), "f.csv")


def test_texts_that_are_utf8_only_together_are_not() -> None:
    table, _ = one_column("VARCHAR", [], length=3)
    content = b'"I","t","s",1,"ok"\r\n"I","t","s",1,"\xc3"\r\n"I","t","s",1,"\xa9"\r\n'
    with pytest.raises(PenstockError, match=r"line 2.*not UTF-8"):
        decode(content, table, CsvSettings())


def test_a_cut_off_file_is_an_error() -> None:
    with pytest.raises(PenstockError, match="last line does not end"):
        decode(b'"I","t","s",1,5', INT_TABLE, CsvSettings())


def test_blocks_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.format.csv.decoder.BLOCK_FIELDS", 20)
    table, rows = one_column("INT", list(range(50)))
    assert decode(encode(table, rows, CsvSettings()), table, CsvSettings()).get_column("c9").to_list() == list(range(50))
    assert decode(b"", table, CsvSettings()).schema == {"_ts": pl.UInt64, "_op": pl.UInt8, "c9": pl.Int32}


def test_sliced_batches_encode_their_own_rows() -> None:
    table, rows = one_column("VARCHAR", [None if i % 3 else f"v{i}" for i in range(20)], length=9)
    sliced = rows.slice(7, 5)
    expected = rows.column("c9").to_pylist()[7:12]
    for quote in ('"', ""):
        settings = CsvSettings(quote=quote)
        assert decode(encode(table, sliced, settings), table, settings).get_column("c9").to_list() == expected
    assert np.all(decode(encode(table, sliced, CsvSettings()), table, CsvSettings()).get_column("_ts").to_numpy() == 1)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (CsvSettings(delimiter=""), "delimiter"),
        (CsvSettings(delimiter="abcd"), "delimiter"),
        (CsvSettings(delimiter="\n"), "delimiter"),
        (CsvSettings(delimiter="1"), "delimiter"),
        (CsvSettings(delimiter='"'), "quote"),
        (CsvSettings(quote="''"), "quote"),
        (CsvSettings(quote="\r"), "quote"),
        (CsvSettings(quote="", delimiter="\\"), "delimiter"),
        (CsvSettings(quote="", terminator=";"), "terminator"),
        (CsvSettings(terminator=","), "terminator"),
        (CsvSettings(null="a,b"), "null"),
        (CsvSettings(null="0"), "null"),
        (CsvSettings(null='"'), "null"),
        (CsvSettings(null="x|", delimiter="||"), "null"),
    ],
)
def test_ambiguous_settings_are_refused(settings: CsvSettings, key: str) -> None:
    assert key in dict(settings.problems())


def test_ordinary_settings_are_accepted() -> None:
    for settings in (CsvSettings(), CsvSettings(delimiter="|", quote="'"), CsvSettings(quote="", delimiter="@@@"), CsvSettings(null="")):
        assert list(settings.problems()) == []
    assert CsvSettings(terminator="").line_end == b"\r\n"
