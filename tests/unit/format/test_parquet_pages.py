"""Small Parquet files that take much memory: by values that repeat, by runs, by columns that nobody asked for, by footers that lie."""

from __future__ import annotations

import contextlib
import io
import random
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.format import parquet_file
from penstock.format.data_file import decode_file
from penstock.format.parquet_pages import read_columns
from penstock.format.protocols import DataFormat, Protocol
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

BYTES_MAX = 8 << 20
PARQUET = DataFormat(Protocol.PARQUET)
TABLE = TableSchema(1, "s", "t", 1, (Column(1, "v", ColumnType(TypeKind.VARCHAR, length=9)),))


def file_of(columns: dict[str, pa.Array], **settings: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, store_schema=False, compression="zstd", **settings)
    return out.getvalue()


def change(values: pa.Array) -> dict[str, pa.Array]:
    return {"_op": pa.array(["I"] * len(values)), "_commit_ts": pa.array([7] * len(values), pa.uint64()), "v": values}


def often(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([text]))


@pytest.mark.parametrize(
    ("columns", "settings"),
    [
        (change(often("x" * (1 << 20), 3_000)), {}),
        (change(pa.nulls(3_000_000, pa.string())), {}),
        (change(pa.array(["x" * (20 << 20)])), {"use_dictionary": False}),
        (change(pa.array([[0] * 3_000_000])), {}),
    ],
    ids=["a long value that repeats", "rows of nothing", "a page that inflates", "a list"],
)
def test_a_small_file_that_takes_much_memory_is_not_read(columns: dict[str, pa.Array], settings: dict[str, object]) -> None:
    content = file_of(columns, **settings)
    assert len(content) < 1 << 20
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    with pytest.raises(PenstockError, match=f"FILE_MALFORMED.*more than {BYTES_MAX} bytes"):
        parquet_file.decode(content, TABLE, "x", BYTES_MAX)
    assert pa.total_allocated_bytes() - before < BYTES_MAX
    assert tracemalloc.get_traced_memory()[1] < BYTES_MAX
    tracemalloc.stop()


def test_columns_that_nobody_asked_for_are_not_read() -> None:
    others = {f"c{at}": pa.nulls(100, pa.string()) for at in range(50)} | {"big": often("x" * (1 << 20), 100)}
    content = file_of(change(pa.array(["a"] * 100)) | others)
    assert parquet_file.decode(content, TABLE, "x", BYTES_MAX)[TABLE.columns[0].field_name].to_list() == ["a"] * 100


def test_a_footer_that_lies_is_not_believed() -> None:
    content = file_of(change(pa.array(["x" * (20 << 20)])), use_dictionary=False)
    size = next(
        column.total_uncompressed_size
        for column in (pq.read_metadata(pa.BufferReader(content)).row_group(0).column(at) for at in range(3))
        if column.path_in_schema == "v"
    )
    # The footer has the size as a varint of a zigzag; so long as its length stays, any other number may stand there.
    told, lie = varint(size), varint(1 << (len(varint(size)) - 1) * 7 - 1)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert content[footer:].count(told) >= 1
    lying = content[:footer] + content[footer:].replace(told, lie)
    assert pq.read_table(pa.BufferReader(lying)).num_rows == 1
    with pytest.raises(PenstockError, match=f"more than {BYTES_MAX} bytes"):
        parquet_file.decode(lying, TABLE, "x", BYTES_MAX)


def varint(value: int) -> bytes:
    value, out = value << 1, b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_what_is_read_is_what_arrow_reads(version: str) -> None:
    rng = random.Random(1)
    values = [rng.choice([None, "", "short", "x" * 5_000, str(rng.random())]) for _ in range(4_000)]
    content = file_of(change(pa.array(values)), data_page_version=version, row_group_size=1_000, dictionary_pagesize_limit=2_000)
    for bytes_max in (len("x" * 5_000) * 4_000, 1 << 40):
        assert read_columns(content, {"v", "_op"}, bytes_max).equals(pq.read_table(pa.BufferReader(content), columns=["_op", "v"]))


def test_damage_is_an_error_of_the_file_and_no_end_of_the_process() -> None:
    content = file_of(change(pa.array(["a", "b"] * 50)))
    rng = random.Random(2)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(PenstockError):
            decode_file(bytes(damaged), TABLE, PARQUET, "x", BYTES_MAX)
