import json
import zlib

import msgspec
import pytest

from penstock.format.layout.paths import parse_schema_path
from penstock.format.layout.schema_file import SchemaFile, check_schema_name, parse_schema_file
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind


def column(name: str, kind: str, nullable: bool = True, **options: object) -> Column:
    own = {k: options.pop(k) for k in ("primary_key", "default", "generated") if k in options}
    return Column(1, name, ColumnType(TypeKind(kind), **options), nullable, **own)  # type: ignore[arg-type]


def fields(item: Column) -> dict[str, object]:
    rendered = json.loads(SchemaFile("s", "t", 1, columns=(item,)).render())
    return rendered["TableColumns"][0]  # type: ignore[no-any-return]


def test_the_database_of_the_reference_has_its_checksum() -> None:
    file = SchemaFile("schema1", "", 441349361156227000, "CREATE DATABASE `schema1`", 1)
    assert file.checksum == 3233644819
    assert file.path == "schema1/meta/schema_441349361156227000_3233644819.json"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (column("a", "INT"), {"ColumnType": "INT", "ColumnPrecision": "11"}),
        (column("a", "INT", unsigned=True), {"ColumnType": "INT UNSIGNED", "ColumnPrecision": "10"}),
        (column("a", "TINYINT", length=1), {"ColumnType": "TINYINT", "ColumnPrecision": "1"}),
        (column("a", "BIGINT", zerofill=True), {"ColumnType": "BIGINT UNSIGNED", "ColumnPrecision": "20"}),
        (column("a", "BIT"), {"ColumnType": "BIT UNSIGNED", "ColumnPrecision": "1"}),
        (column("a", "YEAR"), {"ColumnType": "YEAR UNSIGNED", "ColumnPrecision": "4"}),
        (column("a", "DOUBLE"), {"ColumnType": "DOUBLE", "ColumnPrecision": "22"}),
        (column("a", "FLOAT", length=10, scale=3), {"ColumnType": "FLOAT", "ColumnPrecision": "10", "ColumnScale": "3"}),
        (column("a", "DECIMAL"), {"ColumnType": "DECIMAL", "ColumnPrecision": "10", "ColumnScale": "0"}),
        (column("a", "DATE"), {"ColumnType": "DATE"}),
        (column("a", "DATETIME"), {"ColumnType": "DATETIME"}),
        (column("a", "TIMESTAMP", scale=6), {"ColumnType": "TIMESTAMP", "ColumnScale": "6"}),
        (column("a", "VARCHAR", length=30), {"ColumnType": "VARCHAR", "ColumnLength": "30", "ColumnPrecision": "30"}),
        (column("a", "BLOB"), {"ColumnType": "BLOB", "ColumnLength": "65535", "ColumnPrecision": "65535"}),
        (column("a", "JSON"), {"ColumnType": "JSON"}),
        (column("a", "ENUM", elems=("x", "y")), {"ColumnType": "ENUM", "ColumnElems": ["x", "y"]}),
        (
            column("a", "INT", False, primary_key=True, default=""),
            {"ColumnType": "INT", "ColumnDefault": "", "ColumnPrecision": "11", "ColumnNullable": "false", "ColumnIsPk": "true"},
        ),
    ],
)
def test_columns(item: Column, expected: dict[str, object]) -> None:
    found = fields(item)
    assert list(found.items()) == list({"ColumnName": "a", **expected}.items())


def test_go_escapes() -> None:
    text = SchemaFile("s<>&", 't"\u2028\x01\x7fé', 1, query="a\\b\n").render().decode()
    assert '"Schema": "s\\u003c\\u003e\\u0026"' in text
    assert '"Table": "t\\"\\u2028\\u0001\x7fé"' in text
    assert '"Query": "a\\\\b\\n"' in text


def test_the_checksum_sees_structure_only() -> None:
    table = TableSchema(1, "s", "t", 5, (column("b", "VARCHAR", length=3), column("a", "INT")))
    plain = SchemaFile.of_table(table)
    assert SchemaFile.of_table(table, "ALTER TABLE t COMMENT 'x'", 17).checksum == plain.checksum
    swapped = SchemaFile("s", "t", 9, columns=table.columns[::-1])
    assert swapped.checksum == plain.checksum
    assert SchemaFile("s", "t", 5, columns=(column("b", "VARCHAR", length=4), column("a", "INT"))).checksum != plain.checksum
    virtual = SchemaFile("s", "t", 5, columns=(column("b", "VARCHAR", length=3, generated="VIRTUAL"), column("a", "INT")))
    assert virtual.checksum == plain.checksum
    assert SchemaFile.of_table(table, output_column_id=True).checksum != plain.checksum


def test_files_parse_back() -> None:
    kinds = [column(f"c{k}", k.value) for k in TypeKind if k not in {TypeKind.ENUM, TypeKind.SET}]
    kinds += [column("e", "ENUM", elems=("a", "b,c")), column("s", "SET", elems=("x", "y")), column("v", "INT", generated="VIRTUAL")]
    numbered = tuple(Column(i + 3, c.name, c.type, c.nullable, c.primary_key, c.default, c.generated) for i, c in enumerate(kinds))
    file = SchemaFile("s", "t", 77, "ALTER", 5, numbered, output_column_id=True)
    parsed = parse_schema_file(file.render(), file.path)
    assert [c.id for c in parsed.columns or ()] == [c.id for c in numbered]
    assert [c.type.arrow() for c in parsed.columns or ()] == [c.type.arrow() for c in numbered]
    assert parsed.render() == file.render()
    name = parse_schema_path(file.path)
    assert name is not None
    check_schema_name(parsed, name, file.path)


def test_the_seed_s_quoted_total_is_read() -> None:
    column_text = b'{"ColumnName":"a","ColumnType":"CHAR","ColumnLength":"20"}'
    content = b'{"Table":"t","Schema":"s","TableVersion":3,"TableColumns":[' + column_text + b'],"TableColumnsTotal":"1"}'
    parsed = parse_schema_file(content, "x")
    assert parsed.columns is not None
    assert parsed.columns[0].type == ColumnType(TypeKind.CHAR, length=20)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"{", "line 1"),
        (b"[]", "not a schema file"),
        (b'{"Table":"t"}', "not a schema file"),
        (b'{"Table":"t","Schema":"s","TableVersion":3,"TableColumns":[{"ColumnName":"a","ColumnType":"WAT"}]}', "not a schema file"),
        (b'{"Table":"t","Schema":"s","TableVersion":3,"TableColumns":null,"TableColumnsTotal":2}', "TableColumnsTotal"),
    ],
)
def test_malformed_files_are_named(content: bytes, what: str) -> None:
    with pytest.raises(PenstockError, match=f"FILE_MALFORMED.*dir/x.json.*{what}"):
        parse_schema_file(content, "dir/x.json")


@pytest.mark.parametrize(
    "fields",
    [
        '"ColumnType":"INT","ColumnDefault":10,"ColumnPrecision":"11"',
        '"ColumnType":"BIT","ColumnPrecision":"1"',
        '"ColumnType":"YEAR","ColumnPrecision":"4"',
        '"ColumnType":"VAR_STRING","ColumnPrecision":"5"',
    ],
)
def test_files_that_say_it_in_other_words_have_the_checksum_of_their_own(fields: str) -> None:
    columns = f'[{{"ColumnName":"a",{fields}}}]'
    hashed = json.dumps(json.loads(f'{{"Table":"t","Schema":"s","Version":0,"TableColumns":{columns},"TableColumnsTotal":1}}'), indent=4)
    path = f"s/t/meta/schema_3_{zlib.crc32(hashed.encode()):010d}.json"
    name = parse_schema_path(path)
    assert name is not None
    content = (
        f'{{"Table":"t","Schema":"s","Version":1,"TableVersion":3,"Query":"","Type":0,"TableColumns":{columns},"TableColumnsTotal":1}}'
    )
    check_schema_name(parse_schema_file(content.encode(), path), name, path)
    with pytest.raises(PenstockError, match="checksum"):
        check_schema_name(parse_schema_file(content.replace('"a"', '"b"').encode(), path), name, path)


def test_a_name_that_does_not_fit_its_content_is_an_error() -> None:
    file = SchemaFile("s", "t", 77, columns=(column("a", "INT"),))
    name = parse_schema_path(file.path)
    assert name is not None
    with pytest.raises(PenstockError, match="checksum"):
        check_schema_name(SchemaFile("s", "t", 77, columns=(column("b", "INT"),)), name, file.path)
    with pytest.raises(PenstockError, match="TableVersion"):
        check_schema_name(SchemaFile("s", "t", 78, columns=(column("a", "INT"),)), name, file.path)


def test_unique_keys_stand_beside_and_do_not_sway_the_checksum() -> None:
    columns = tuple(Column(at, name, ColumnType(TypeKind.INT), nullable=False) for at, name in ((5, "a"), (9, "b")))
    table = TableSchema(1, "s", "t", 3, columns, unique_keys=((9,), (9, 5)))
    file, plain = SchemaFile.of_table(table), SchemaFile.of_table(TableSchema(1, "s", "t", 3, columns))
    assert json.loads(file.render())["UniqueKeys"] == [["b"], ["b", "a"]]
    assert "UniqueKeys" not in json.loads(plain.render())
    assert file.path == plain.path
    back = parse_schema_file(file.render(), file.path).to_table()
    assert (back.unique_keys, [c.name for c in back.handle_columns]) == (((101,), (101, 100)), ["b"])


def test_an_initial_default_stands_beside_and_does_not_sway_the_checksum() -> None:
    plain = Column(2, "n", ColumnType(TypeKind.INT), default="7")
    for initial in ("5", None):
        file = SchemaFile("s", "t", 9, columns=(msgspec.structs.replace(plain, initial_default=initial),))
        assert parse_schema_file(file.render(), "x").columns[0].initial_default == initial
        assert json.loads(file.render())["TableColumns"][0]["ColumnInitialDefault"] == initial
        assert file.path == SchemaFile("s", "t", 9, columns=(plain,)).path
    assert b"ColumnInitialDefault" not in SchemaFile("s", "t", 9, columns=(plain,)).render()
