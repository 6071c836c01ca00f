"""Any table shape and any value survives encode, file, decode, in every option set."""

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from penstock.format.csv.decoder import decode
from penstock.format.csv.dialect import BinaryEncoding, CsvSettings, row_columns
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.table_strategies import changes, comparable, damaged
from testing.checks.whole_file import encode

delimiters = st.sampled_from([",", "|", "\t", "||", "@@@", ";;", "é", "|@|", "-|-"])


@st.composite
def dialects(draw: st.DrawFn) -> CsvSettings:
    chosen = CsvSettings(
        delimiter=draw(delimiters),
        quote=draw(st.sampled_from(['"', "'", "", "`"])),
        null=draw(st.sampled_from(["\\N", "", "NULL", "\\null", "\\"])),
        terminator=draw(st.sampled_from(["\r\n", "\n", "", "\x01\n", "#"])),
        include_commit_ts=draw(st.booleans()),
        binary_encoding=draw(st.sampled_from(BinaryEncoding)),
        output_old_value=draw(st.booleans()),
        output_field_header=draw(st.booleans()),
    )
    assume(not list(chosen.problems()))
    return chosen


@settings(max_examples=120, deadline=None)
@given(changes(), dialects())
@example(
    (
        TableSchema(1, "s", "t", 5, (Column(1, "c", ColumnType(TypeKind.INT)),)),
        pa.RecordBatch.from_pylist(
            [{"_ts": 2**64 - 1, "_op": 1, "_key": b"", "c1": -(2**31)}],
            schema=TableSchema(1, "s", "t", 5, (Column(1, "c", ColumnType(TypeKind.INT)),)).batch_schema(),
        ),
    ),
    CsvSettings(),
)
def test_rows_come_back(made: tuple[TableSchema, pa.RecordBatch], dialect: CsvSettings) -> None:
    table, records = made
    content = dialect.header(table) + encode(table, records, dialect)
    shown = ["_ts", "_op", *(c.field_name for c in row_columns(table))]
    expected = records.select(shown).to_pylist()
    if not dialect.output_old_value:
        expected = [row for row in expected if row["_op"] != Op.BEFORE]
    if not dialect.quote:
        # Without quotes a text that equals the null text is NULL; the default null text is escaped and so stays apart.
        assume("\\" in dialect.null or not any(v == dialect.null for row in expected for v in row.values()))
        assume("\\" in dialect.null or dialect.null not in {table.schema, table.table})
        assume(dialect.null or not _shows_empty(table, expected))
    found = decode(content, table, dialect).to_arrow().to_pylist()
    for row in expected:
        if not dialect.include_commit_ts:
            row["_ts"] = 0
    assert comparable(found) == comparable(expected)


def _shows_empty(table: TableSchema, rows: list[dict[str, object]]) -> bool:
    kinds = {c.field_name: c.type.kind for c in table.columns}
    coded = {TypeKind.ENUM, TypeKind.SET}
    return any((kinds.get(k) in coded and v == 0) or v == b"" for row in rows for k, v in row.items())


@settings(max_examples=80, deadline=None)
@given(changes(), dialects(), st.data())
def test_damaged_files_give_rows_or_a_clear_error(
    made: tuple[TableSchema, pa.RecordBatch], dialect: CsvSettings, data: st.DataObject
) -> None:
    table, records = made
    content = damaged(data, dialect.header(table) + encode(table, records, dialect))
    caught: PenstockError | None = None
    try:
        frame = decode(content, table, dialect, "dir/f.csv")
    except PenstockError as error:
        caught = error
    if caught is None:
        assert frame.columns[:2] == ["_ts", "_op"]
    else:
        assert caught.code == "FILE_MALFORMED"
        assert "dir/f.csv: line" in caught.detail


@settings(max_examples=40, deadline=None)
@given(st.lists(st.none() | st.floats() | st.sampled_from([-0.0, float("inf"), float("-inf")]), max_size=5), dialects())
def test_floats_that_json_lacks_come_back(numbers: list[float | None], dialect: CsvSettings) -> None:
    table = TableSchema(1, "s", "t", 5, (Column(1, "a", ColumnType(TypeKind.DOUBLE)), Column(2, "b", ColumnType(TypeKind.FLOAT))))
    assume(dialect.quote or "\\" in dialect.null or dialect.null)
    rows = [{"_ts": 1, "_op": 0, "_key": b"", "c1": n, "c2": None} for n in numbers]
    records = pa.RecordBatch.from_pylist(rows, schema=table.batch_schema())
    found = decode(dialect.header(table) + encode(table, records, dialect), table, dialect).to_arrow().to_pylist()
    assert comparable([{"c1": r["c1"]} for r in found]) == comparable([{"c1": n} for n in numbers])


@pytest.mark.parametrize("quote", ['"', ""])
def test_every_kind_at_once(quote: str) -> None:
    columns = tuple(Column(i + 1, f"n{i}", ColumnType(kind, elems=("a", "b"))) for i, kind in enumerate(TypeKind))
    table = TableSchema(1, "s", "t", 5, columns)
    row: dict[str, object] = {"_ts": 1, "_op": 0}
    for column in columns:
        dtype = column.type.arrow()
        row[column.field_name] = b"\xff\x00" if pa.types.is_binary(dtype) else "x" if pa.types.is_string(dtype) else 1
    empty = {name: None if name.startswith("c") else value for name, value in row.items()}
    records = pa.RecordBatch.from_pylist([row, empty], schema=table.batch_schema().remove(2))
    dialect = CsvSettings(quote=quote)
    assert decode(encode(table, records, dialect), table, dialect).to_arrow().to_pylist() == records.to_pylist()
