"""Debezium-style JSON, Parquet, pairing of old values, column selectors: what the round trips do not show."""

import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.format import parquet_file
from penstock.format.column_selection import read_selectors, select_columns
from penstock.format.data_file import decode_file
from penstock.format.json import debezium_decoder
from penstock.format.old_values import OLD, UpdatePairs
from penstock.format.parquet_file import ParquetRows, file_name
from penstock.format.protocols import Compression, DataFormat, DebeziumSettings, ParquetSettings, Protocol
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import encode, whole_file

K = TypeKind
TS = 433305438660591626
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)
NAME = Column(2, "name", ColumnType(K.VARCHAR, length=20))
TABLE = TableSchema(7, "hr", "employee", 5, (ID, NAME))


def batch(table: TableSchema, *given: tuple[object, ...]) -> pa.RecordBatch:
    """Rows are (ts, op, key, values...)."""
    arrays = [pa.array([r[at] for r in given], field.type) for at, field in enumerate(table.batch_schema())]
    return pa.RecordBatch.from_arrays(arrays, schema=table.batch_schema())


def paired(table: TableSchema, *given: tuple[object, ...]) -> pa.RecordBatch:
    return UpdatePairs(table).add(batch(table, *given))


def parquet(table: TableSchema, records: pa.RecordBatch, settings: ParquetSettings | None = None) -> bytes:
    rows = ParquetRows(table, settings or ParquetSettings())
    rows.add(records)
    return rows.finish()


def test_updates_meet_their_old_values_however_rows_are_divided() -> None:
    rows = batch(
        TABLE,
        (1, Op.BEFORE, b"a", 1, "old a"),
        (1, Op.BEFORE, b"b", 2, "old b"),
        (1, Op.DELETE, b"c", 3, "c"),
        (1, Op.UPDATE, b"a", 1, "new a"),
        (1, Op.UPDATE, b"b", 2, "new b"),
        (2, Op.INSERT, b"d", 4, "d"),
        (3, Op.UPDATE, b"x", 9, "without a before-image"),
    )
    whole = UpdatePairs(TABLE).add(rows).to_pylist()
    assert [(r["_op"], r["c2"], r[OLD], r["o2"]) for r in whole] == [
        (Op.DELETE, "c", 0, None),
        (Op.UPDATE, "new a", 1, "old a"),
        (Op.UPDATE, "new b", 1, "old b"),
        (Op.INSERT, "d", 0, None),
        (Op.UPDATE, "without a before-image", 0, None),
    ]
    for cut in range(rows.num_rows + 1):
        pairs = UpdatePairs(TABLE)
        assert [*pairs.add(rows.slice(0, cut)).to_pylist(), *pairs.add(rows.slice(cut)).to_pylist()] == whole


def test_a_before_image_in_another_order_is_found_by_its_key() -> None:
    rows = paired(
        TABLE,
        (1, Op.BEFORE, b"b", 2, "old b"),
        (1, Op.BEFORE, b"a", 1, "old a"),
        (1, Op.UPDATE, b"a", 1, "new a"),
        (1, Op.UPDATE, b"b", 2, "new b"),
    )
    assert [r["o2"] for r in rows.to_pylist()] == ["old a", "old b"]


def test_debezium_events() -> None:
    content = encode(
        TABLE,
        paired(
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
        paired(TABLE, (TS, Op.BEFORE, b"k", 1, None), (TS, Op.UPDATE, b"k", 1, "b")),
        DebeziumSettings(output_old_value=False),
    )
    assert json.loads(bare)["before"] is None


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


def test_parquet_has_plain_types() -> None:
    columns = (
        Column(1, "id", ColumnType(K.TINYINT, unsigned=True), False, True),
        Column(2, "price", ColumnType(K.DECIMAL, length=12, scale=2)),
        Column(3, "long", ColumnType(K.DECIMAL, length=65, scale=0)),
        Column(4, "day", ColumnType(K.DATE)),
        Column(5, "at", ColumnType(K.DATETIME, scale=3)),
        Column(6, "stamp", ColumnType(K.TIMESTAMP)),
        Column(7, "body", ColumnType(K.BLOB)),
        Column(8, "kinds", ColumnType(K.SET, elems=("a", "b"))),
        Column(9, "_op", ColumnType(K.ENUM, elems=("x",))),
    )
    table = TableSchema(7, "s", "t", 5, columns)
    row = (7, "1.50", "9" * 65, "2000-01-02", "2000-01-02 03:04:05.678", "2000-01-02 03:04:05", b"\xff", 3, 1)
    content = parquet(table, paired(table, (TS, Op.INSERT, b"k", *row)))
    found = pq.read_table(io.BytesIO(content)).to_pylist()[0]
    moment = dt.datetime(2000, 1, 2, 3, 4, 5)  # noqa: DTZ001
    assert {k: v for k, v in found.items() if not k.startswith("_old")} == {
        "_op": "I",
        "_commit_ts": TS,
        "id": 7,
        "price": Decimal("1.50"),
        "long": "9" * 65,
        "day": dt.date(2000, 1, 2),
        "at": moment.replace(microsecond=678_000),
        "stamp": moment.replace(tzinfo=dt.UTC),
        "body": b"\xff",
        "kinds": "a,b",
        "__op": "x",
    }
    assert parquet_file.decode(content, table).rows() == [(TS, Op.INSERT, *row)]


def test_zero_dates_make_a_column_text_and_come_back() -> None:
    table = TableSchema(7, "s", "t", 5, (ID, Column(2, "day", ColumnType(K.DATE)), Column(3, "at", ColumnType(K.DATETIME))))
    records = paired(table, (TS, Op.INSERT, b"k", 1, "0000-00-00", "2000-01-02 03:04:05"))
    content = parquet(table, records)
    schema = pq.read_schema(io.BytesIO(content))
    assert (schema.field("day").type, schema.field("at").type) == (pa.string(), pa.timestamp("us"))
    assert parquet_file.decode(content, table).rows() == [(TS, Op.INSERT, 1, "0000-00-00", "2000-01-02 03:04:05")]
    uniform = parquet(table, records, ParquetSettings(temporal_as_text=True))
    assert pq.read_schema(io.BytesIO(uniform)).field("at").type == pa.string()


def test_names_like_ours_are_escaped() -> None:
    assert [file_name(n) for n in ("id", "_op", "__op", "_commit_ts", "_old", "_old_x", "_other")] == [
        *("id", "__op", "___op", "__commit_ts", "__old", "__old_x", "_other"),
    ]


@pytest.mark.parametrize("compression", [c for c in Compression if c is not Compression.NONE])
def test_compressed_files(compression: Compression) -> None:
    chosen = DataFormat(Protocol.CANAL_JSON, compression)
    records = paired(TABLE, (TS, Op.INSERT, b"k", 1, "x" * 10_000))
    content = whole_file(chosen, TABLE, [records])
    assert len(content) < len(whole_file(DataFormat(Protocol.CANAL_JSON), TABLE, [records])) // 5
    assert chosen.extension == {"gzip": ".json.gz", "zstd": ".json.zst", "lz4": ".json.lz4"}[compression.value]
    assert decode_file(content, TABLE, chosen, "f").rows() == [(TS, Op.INSERT, 1, "x" * 10_000)]
    with pytest.raises(PenstockError, match="not whole"):
        decode_file(content[:-9], TABLE, chosen, "f")


def test_columns_are_selected_by_the_first_rule_and_keys_stay() -> None:
    rules = read_selectors(
        [{"matcher": ["hr.emp*"], "columns": ["*", "!na?e", "nace"]}, {"matcher": "*.*", "columns": ["nothing"]}],
    )
    assert [c.name for c in select_columns(TABLE, rules).columns] == ["Id"]
    other = TableSchema(8, "HR", "Employees", 5, (ID, NAME, Column(3, "note", ColumnType(K.TEXT))))
    assert [c.name for c in select_columns(other, rules).columns] == ["Id", "note"]
    assert select_columns(other, ()) is other


@pytest.mark.parametrize("raw", ["x", [1], [{"matcher": ["a"]}], [{"matcher": [], "columns": ["a"]}], [{"matcher": ["a"], "columns": [1]}]])
def test_selectors_that_cannot_be_meant(raw: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_selectors(raw)
