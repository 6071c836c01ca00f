"""Any table shape and any value survives encode, file, decode, in every protocol, option set and compression."""

import datetime as dt
import struct

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.format.csv_dialect import CsvSettings
from penstock.format.data_file import DataFile, decode_file
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
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TIME_KINDS, ColumnType, TypeKind
from penstock.sink.storage.file_buffer import FileBuffer

ODD = ["", '"', "\\", "\r\n", "\t", "\x00", "\x1f", "\x7f", "<>&", "\u2028", "\u2029", "\u2027é", "😀", "null", "a" * 30 + '"', "é" * 20]
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=24) | st.sampled_from(ODD)
names = st.sampled_from(["id", "Name", "a<b", 'q"', "_op", "__op", "_old_x", "_commit_ts", "täble", "x y", "data", "old", "type", "\\"])
elements = st.lists(st.text("abc😀 \"'|<", min_size=1, max_size=3), min_size=1, max_size=5, unique=True)


@st.composite
def column_types(draw: st.DrawFn) -> ColumnType:
    kind = draw(st.sampled_from(TypeKind))
    if kind in {TypeKind.ENUM, TypeKind.SET}:
        return ColumnType(kind, elems=tuple(draw(elements)))
    if kind is TypeKind.DECIMAL:
        digits = draw(st.integers(1, 65))
        return ColumnType(kind, length=digits, scale=draw(st.integers(0, min(30, digits))))
    if kind in TIME_KINDS:
        return ColumnType(kind, scale=draw(st.integers(0, 6)))
    return ColumnType(kind, unsigned=kind in INTEGER_KINDS and draw(st.booleans()))


def values(ctype: ColumnType) -> st.SearchStrategy[object]:  # noqa: PLR0911
    dtype, scale = ctype.arrow(), ctype.scale or 0
    if ctype.kind is TypeKind.ENUM:
        return st.integers(0, len(ctype.elems))
    if ctype.kind is TypeKind.SET:
        return st.integers(0, (1 << len(ctype.elems)) - 1)
    if ctype.kind in BINARY_KINDS:
        return st.binary(max_size=24)
    if pa.types.is_integer(dtype):
        low = 0 if pa.types.is_unsigned_integer(dtype) else -(1 << (dtype.bit_width - 1))
        return st.integers(low, (1 << dtype.bit_width) - 1 + low)
    if pa.types.is_floating(dtype):
        return st.floats(width=dtype.bit_width, allow_nan=False, allow_infinity=False)
    if ctype.kind is TypeKind.DECIMAL:
        limit = 10 ** (ctype.length or 10)
        return st.integers(1 - limit, limit - 1).map(lambda n: decimal_text(n, scale))
    if ctype.kind is TypeKind.DATE:
        return st.dates(dt.date(1000, 1, 1)).map(str) | st.just("0000-00-00") | st.just("2000-00-10")
    if ctype.kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP}:
        moments = st.datetimes(dt.datetime(1000, 1, 1)).map(lambda m: m.strftime("%Y-%m-%d %H:%M:%S.%f"))  # noqa: DTZ001
        zero = "0000-00-00 00:00:00.000000"
        return (moments | st.just(zero)).map(lambda t: t[: 20 + scale] if scale else t[:19])
    return texts


def decimal_text(number: int, scale: int) -> str:
    if scale == 0:
        return str(number)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return ("-" if number < 0 else "") + digits[:-scale] + "." + digits[-scale:]


@st.composite
def changes(draw: st.DrawFn) -> tuple[TableSchema, pa.RecordBatch]:
    """A table and its ordered changes; an update has its before-image before it, at the same ts and key."""
    types = draw(st.lists(column_types(), min_size=1, max_size=4))
    labels = draw(st.lists(names, min_size=len(types), max_size=len(types), unique_by=str.lower))
    columns = tuple(Column(i + 1, n, t, primary_key=i == 0) for i, (n, t) in enumerate(zip(labels, types, strict=True)))
    table = TableSchema(1, draw(texts), draw(texts), 5, columns)
    rows: list[list[object]] = []
    ts = draw(st.integers(0, 2**63))
    for _ in range(draw(st.integers(0, 4))):
        ts += draw(st.integers(0, 1 << 40))
        for key in range(draw(st.integers(1, 2))):
            op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
            images = [Op.BEFORE, Op.UPDATE] if op is Op.UPDATE else [op]
            rows += [[ts, int(image), bytes([key]), *(draw(st.none() | values(t)) for t in types)] for image in images]
        ts += 1
    rows.sort(key=lambda r: (r[0], r[1] not in (Op.DELETE, Op.BEFORE), r[2]))
    schema = table.batch_schema()
    arrays = [pa.array([r[at] for r in rows], field.type) for at, field in enumerate(schema)]
    return table, pa.RecordBatch.from_arrays(arrays, schema=schema)


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
            terminator=draw(st.sampled_from(["\r\n", "\n", ""])),
        ),
        ParquetSettings(draw(st.sampled_from(ParquetCodec)), draw(st.booleans()), 2, draw(st.booleans())),
        DebeziumSettings(draw(st.booleans()), draw(st.sampled_from(["\r\n", "\n"]))),
    )
    assume(not list(chosen.problems()))
    return chosen


def comparable(value: object) -> object:
    return struct.pack("<d", value) if isinstance(value, float) else value


def written(table: TableSchema, records: pa.RecordBatch, chosen: DataFormat, cut: int = 0) -> bytes:
    file = DataFile(chosen, table, FileBuffer(64))
    pairs = UpdatePairs(table) if chosen.pairs_updates else None
    for part in (records.slice(0, cut), records.slice(cut)):
        file.add(pairs.add(part) if pairs is not None else part.drop_columns(["_key"]))
    return bytes(file.finish())


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
            row.update({c.field_name: None for c in table.columns if not c.primary_key})
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
    assert [{k: comparable(v) for k, v in row.items()} for row in found] == [{k: comparable(v) for k, v in row.items()} for row in want]


@settings(max_examples=40, deadline=None)
@given(changes(), formats(), st.data())
def test_damaged_files_give_rows_or_a_clear_error(
    made: tuple[TableSchema, pa.RecordBatch], chosen: DataFormat, data: st.DataObject
) -> None:
    table, records = made
    content = bytearray(written(table, records, chosen))
    for _ in range(data.draw(st.integers(1, 3))):
        if not content:
            break
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] = data.draw(st.integers(0, 255))
        else:
            del content[at : at + data.draw(st.integers(1, 5))]
    caught: PenstockError | None = None
    try:
        frame = decode_file(bytes(content), table, chosen, "dir/f")
    except PenstockError as error:
        caught = error
    if caught is None:
        assert frame.columns[:2] == ["_ts", "_op"]
    else:
        assert caught.code == "FILE_MALFORMED"
        assert caught.detail.startswith("dir/f: ")
        assert "byte" in caught.detail
