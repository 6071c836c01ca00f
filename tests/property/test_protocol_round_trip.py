"""Any table shape and any value survives encode, file, decode, in every protocol, option set and compression."""

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.format.csv.dialect import CsvSettings
from penstock.format.data_file import decode_file
from penstock.format.old_values import UpdatePairs
from penstock.format.protocols import (
    CanalSettings,
    Compression,
    DataFormat,
    DebeziumSettings,
    ParquetCodec,
    ParquetSettings,
    Protocol,
)
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from testing.checks.table_strategies import changes, comparable, damaged
from testing.checks.whole_file import whole_file


@st.composite
def formats(draw: st.DrawFn) -> DataFormat:
    protocol = draw(st.sampled_from(Protocol))
    chosen = DataFormat(
        protocol,
        Compression.NONE if protocol is Protocol.PARQUET else draw(st.sampled_from(Compression)),
        CsvSettings(output_old_value=draw(st.booleans()), output_field_header=draw(st.booleans())),
        CanalSettings(
            enable_tidb_extension=draw(st.booleans()),
            content_compatible=draw(st.booleans()),
            only_output_updated_columns=draw(st.booleans()),
            delete_only_output_handle_key_columns=draw(st.booleans()),
            output_row_key=draw(st.booleans()),
            terminator=draw(st.sampled_from(["\r\n", "\n", ""])),
        ),
        ParquetSettings(draw(st.sampled_from(ParquetCodec)), draw(st.booleans()), 2, draw(st.booleans())),
        DebeziumSettings(draw(st.booleans()), draw(st.sampled_from(["\r\n", "\n"]))),
    )
    assume(not list(chosen.problems()))
    return chosen


def written(table: TableSchema, records: pa.RecordBatch, chosen: DataFormat, cut: int = 0) -> bytes:
    pairs = UpdatePairs(table) if chosen.pairs_updates else None
    parts = (records.slice(0, cut), records.slice(cut))
    return whole_file(chosen, table, [pairs.add(part) if pairs is not None else part.drop_columns(["_key"]) for part in parts])


def expected_rows(table: TableSchema, records: pa.RecordBatch, chosen: DataFormat) -> list[dict[str, object]]:
    rows = records.to_pylist()
    keeps_old = {
        Protocol.CSV: chosen.csv.output_old_value,
        Protocol.CANAL_JSON: True,
        Protocol.PARQUET: chosen.parquet.output_old_value,
        Protocol.DEBEZIUM: chosen.debezium.output_old_value,
    }[chosen.protocol]
    narrow = chosen.protocol is Protocol.CANAL_JSON and chosen.canal_json.delete_only_output_handle_key_columns
    if chosen.pairs_updates:
        # Paired protocols show the before-image just before its update.
        befores = {(r["_ts"], r["_key"]): r for r in rows if r["_op"] == Op.BEFORE}
        rows = [r for r in rows if r["_op"] != Op.BEFORE]
        rows = [image for r in rows for image in ([befores[r["_ts"], r["_key"]], r] if r["_op"] == Op.UPDATE else [r])]
    rows = [r for r in rows if keeps_old or r["_op"] != Op.BEFORE]
    for row in rows:
        del row["_key"]
        if not chosen.has_commit_ts:
            row["_ts"] = 0
        if narrow and row["_op"] == Op.DELETE:
            row.update({c.field_name: None for c in table.columns if c not in (table.handle_columns or table.columns)})
        for column in table.columns:
            if column.generated == "VIRTUAL":
                del row[column.field_name]
    return rows


@settings(max_examples=60, deadline=None)
@given(changes(), formats(), st.data())
def test_rows_come_back(made: tuple[TableSchema, pa.RecordBatch], chosen: DataFormat, data: st.DataObject) -> None:
    table, records = made
    cut = data.draw(st.integers(0, records.num_rows))
    content = written(table, records, chosen, cut)
    assert content == written(table, records, chosen), "how rows were divided must not matter"
    found = decode_file(content, table, chosen, "f").to_arrow().to_pylist()
    want = expected_rows(table, records, chosen)
    assert comparable(found) == comparable(want)


@settings(max_examples=40, deadline=None)
@given(changes(), formats(), st.data())
def test_damaged_files_give_rows_or_a_clear_error(
    made: tuple[TableSchema, pa.RecordBatch], chosen: DataFormat, data: st.DataObject
) -> None:
    table, records = made
    content = damaged(data, written(table, records, chosen))
    caught: PenstockError | None = None
    try:
        frame = decode_file(content, table, chosen, "dir/f")
    except PenstockError as error:
        caught = error
    if caught is None:
        assert frame.columns[:2] == ["_ts", "_op"]
    else:
        assert caught.code == "FILE_MALFORMED"
        assert caught.detail.startswith("dir/f: ")
        assert "byte" in caught.detail
