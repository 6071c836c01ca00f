"""Parquet files of a lake's tables: written, described, read.

A file is named after its window and dispatcher, and by a hash of its bytes: another attempt with the same rows finds it there, one with
other bytes (another version of a library) cannot harm it. Invariants: a file never changes; what is said of a file's columns holds for all
its rows. Runs on executors and in the server.
"""

from __future__ import annotations

import io
import re

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.sink.lake.settings import DAY_COLUMN, Codec
from penstock.target.storage import ObjectTarget

ROW_GROUP_ROWS = 1 << 17
STAGED_DIR = ".penstock/windows"
_TEXT_CHARS_MAX = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]|^\.+$")


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """What a file's statistics tell of a column: how many NULLs, and its lowest and highest value where that is cheap to compare."""

    nulls: int
    low: int | str | None = None
    high: int | str | None = None


class LakeFile(msgspec.Struct, frozen=True):
    """One Parquet file of a table; its path is below the lake's root."""

    path: str
    rows: int
    nbytes: int
    bounds: dict[str, Bounds] = {}
    day: str | None = None
    """The commit date of all its rows, where the table is partitioned by it."""


def dir_name(name: str) -> str:
    """Return a name as a folder of any object store: what is not plain is ``~`` and its code."""
    return _UNSAFE.sub(lambda m: "".join(f"~{ord(c):x}~" for c in m[0]), name)


def table_dir(schema: str, table: str) -> str:
    """Return the folder of a table below the lake's root."""
    return f"{dir_name(schema)}/{dir_name(table)}"


def write_file(target: ObjectTarget, path: str, rows: pa.Table, codec: Codec, day: str | None = None) -> LakeFile:
    """Write rows as a Parquet file whose path begins like this; return what it is."""
    content = parquet_bytes(rows, codec)
    if day is not None:
        # Some readers take the value of a partition from the folder.
        folder, _, name = path.rpartition("/")
        path = f"{folder}/{DAY_COLUMN}={day}/{name}"
    named = f"{path}-{xxhash.xxh3_64_hexdigest(content)}.parquet"
    reach("data-put:before")
    target.put_new(named, content)
    reach("data-put:after")
    return LakeFile(named, rows.num_rows, len(content), bounds_of(rows), day)


def parquet_bytes(rows: pa.Table, codec: Codec) -> memoryview:
    """Return rows as a Parquet file; the same for the same rows, however they were divided."""
    out = io.BytesIO()
    rows = rows.combine_chunks()
    pq.write_table(rows, out, row_group_size=ROW_GROUP_ROWS, compression=codec.value, store_schema=False)
    return out.getbuffer()


def read_rows(target: ObjectTarget, path: str, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a file, or some of their columns as far as it has them."""
    try:
        content = target.get(path)
    except FileNotFoundError:
        raise PenstockError("SINK_FILE_GONE", f"{target.name}: {path} is gone") from None
    return read_parquet(content, columns)


def read_parquet(content: bytes, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a file's bytes."""
    return pq.read_table(pa.BufferReader(content), columns=columns)


def bounds_of(rows: pa.Table) -> dict[str, Bounds]:
    """Return what is known of the columns of rows."""
    found = {}
    for field in rows.schema:
        values = rows.column(field.name)
        low = high = None
        if _is_compared(field.type) and values.null_count < len(values):
            extremes = pc.min_max(values).as_py()
            low, high = (_plain(v) for v in (extremes["min"], extremes["max"]))
            if low is None or high is None:
                low = high = None
        found[field.name] = Bounds(values.null_count, low, high)
    return found


def _is_compared(data_type: pa.DataType) -> bool:
    whole = pa.types.is_decimal(data_type) and data_type.scale == 0
    return bool(pa.types.is_integer(data_type) or pa.types.is_date32(data_type) or pa.types.is_string(data_type) or whole)


def _plain(value: object) -> int | str | None:
    if isinstance(value, int):
        return value
    text = str(value)
    if isinstance(value, str):
        # A cut text would be too low for the highest one; a quote of control characters means nothing to other readers either.
        return text if len(text) <= _TEXT_CHARS_MAX and text.isprintable() else None
    return int(text) if text.lstrip("-").isdigit() else text
