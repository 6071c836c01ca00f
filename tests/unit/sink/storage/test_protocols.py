"""Protocols through the whole sink: names, contents, settings, chosen columns, identical repetition."""

import itertools
import json
from urllib.parse import quote

import pytest

from penstock.format.protocols import Compression, ParquetCodec, Protocol
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.replay import replay_table
from penstock.sink.catalog import before_rule
from penstock.target.settings import from_uri
from testing.paths.storage_lab import StorageLab

_numbers = itertools.count()
T0 = compose_ts(1_700_000_000_000)
COLUMNS = (
    Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),
    Column(2, "name", ColumnType(TypeKind.VARCHAR, length=40)),
    Column(3, "secret", ColumnType(TypeKind.VARCHAR, length=40)),
)
TABLE = TableSchema(1, "s", "t", T0, COLUMNS)
ROWS = [
    (T0 + 1, Op.INSERT, 1, "a", "x"),
    (T0 + 2, Op.INSERT, 2, "b", "y"),
    (T0 + 3, Op.BEFORE, 1, "a", "x"),
    (T0 + 3, Op.UPDATE, 1, "a2", "x"),
    (T0 + 4, Op.DELETE, 2, "b", "y"),
]


def lab(query: str = "") -> StorageLab:
    return StorageLab(f"memory://protocols-{next(_numbers)}/?{query}")


@pytest.mark.parametrize(
    ("query", "extension"),
    [
        ("protocol=canal-json", ".json"),
        ("protocol=debezium&compression=lz4", ".json.lz4"),
        ("compression=zstd&output-old-value=true", ".csv.zst"),
        ("compression=gzip", ".csv.gz"),
        ("protocol=parquet&parquet.codec=zstd", ".parquet"),
    ],
)
def test_the_whole_way_and_back(query: str, extension: str) -> None:
    source = lab(query)
    result = source.write(TABLE, ROWS)
    source.checkpoint(T0 + 9)
    assert [f.path for f in result.files] == [f"s/t/{T0}/2023-11-14/CDC{1:020d}{extension}"]
    assert source.target.get(f"s/t/{T0}/2023-11-14/meta/CDC.index").decode() == f"CDC{1:020d}{extension}\n"
    assert replay_table(source.reader(), "s", "t").rows() == [(1, "a2", "x")]


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_repeated_attempt_writes_the_same_bytes_however_rows_are_divided(protocol: Protocol) -> None:
    source = lab(f"protocol={protocol}&file-size=1024")
    rows = [(T0 + 1 + i // 3, Op.INSERT, i, f"name {i}", None) for i in range(300)]
    first = source.write(TABLE, rows)
    again = StorageLab(source.uri)
    assert again.write(TABLE, rows) == first
    assert len(first.files) > 1


def test_selected_columns_reach_files_and_schema_files() -> None:
    rules = quote(json.dumps([{"matcher": ["s.*"], "columns": ["*", "!secret", "!id"]}]))
    source = lab(f"protocol=debezium&column-selectors={rules}")
    source.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", TABLE)
    (file,) = source.write(TABLE, ROWS).files
    source.checkpoint(T0 + 9)
    content = source.target.get(file.path).decode()
    assert "secret" not in content
    assert json.loads(content.splitlines()[2])["before"] == {"id": 1, "name": "a"}
    versions = source.reader().versions("s", "t")
    assert [[c.name for c in v.table.columns] for v in versions] == [["id", "name"]]
    assert replay_table(source.reader(), "s", "t").rows() == [(1, "a2")]


def test_settings_of_each_protocol() -> None:
    chosen = from_uri(
        "memory://x/",
        {
            "protocol": "parquet",
            "parquet": {"codec": "zstd", "row-group-rows": 7, "temporal-as-text": True},
            "canal-json.terminator": "\\n",
            "enable-tidb-extension": "false",
            "only-output-updated-columns": True,
            "debezium": {"output-old-value": False},
        },
    )[1]
    assert chosen.protocol is Protocol.PARQUET
    assert (chosen.parquet.codec, chosen.parquet.row_group_rows, chosen.parquet.temporal_as_text) == (ParquetCodec.ZSTD, 7, True)
    assert (chosen.canal_json.terminator, chosen.canal_json.enable_tidb_extension, chosen.canal_json.only_updated) == ("\n", False, True)
    assert not chosen.debezium.output_old_value
    shared = from_uri("memory://x/?terminator=%5Cn&output-old-value=true&compression=gzip")[1]
    assert (shared.csv.terminator, shared.canal_json.terminator, shared.csv.output_old_value) == ("\n", "\n", True)
    assert shared.compression is Compression.GZIP


def test_old_values_are_asked_for_where_they_are_written() -> None:
    assert not before_rule("memory://x/", {})(TABLE)
    assert before_rule("memory://x/?output-old-value=true", {})(TABLE)
    assert all(before_rule(f"memory://x/?protocol={p}", {})(TABLE) for p in ("canal-json", "parquet", "debezium"))


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("protocol=parquet&compression=gzip", "uri?compression: Parquet compresses its pages"),
        ("delete-only-output-handle-key-columns=true", "uri?delete-only-output-handle-key-columns: CSV rows have every column"),
        ("protocol=canal-json&canal-json.terminator=x", "uri?canal-json.terminator: must consist of CR and LF"),
        ("protocol=canal-json&enable-tidb-extension=false&output-row-key=true", "output-row-key: needs enable-tidb-extension"),
        ("file-expiration-days=3&date-separator=none", "uri?file-expiration-days: needs date-separator day"),
        ("parquet.codec=brotli", "uri?parquet.codec: must be one of snappy, zstd, gzip, lz4, none, not 'brotli'"),
        ("column-selectors=x", "uri?column-selectors: "),
    ],
)
def test_options_that_do_not_go_together(query: str, fault: str) -> None:
    with pytest.raises(PenstockError) as caught:
        from_uri(f"memory://x/?{query}")
    assert caught.value.code == "CONFIG_INVALID"
    assert fault in caught.value.detail
