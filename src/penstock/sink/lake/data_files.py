"""Parquet files of a lake's tables: written, described, read.

A file is named after its window and dispatcher, and by a hash of its bytes: another attempt with the same rows finds it there, one with
other bytes (another version of a library) cannot harm it. Invariants: a file never changes; what is said of a file's columns holds for all
its rows. Runs on executors and in the server.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from penstock.model.errors import InvariantError, PenstockError
from penstock.model.failpoints import reach
from penstock.sink.lake.partitions.division import Partition, folder_of
from penstock.sink.lake.settings import Codec
from penstock.target.storage import ObjectTarget

ROW_GROUP_ROWS = 1 << 17
STAGED_DIR = ".penstock/windows"
_TEXT_CHARS_MAX = 64
_SAMPLED_ROWS = 8_192
_PLAIN = {pa.string_view(): pa.string(), pa.large_string(): pa.string(), pa.binary_view(): pa.binary(), pa.large_binary(): pa.binary()}
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
    partition: Partition = {}
    """What all its rows have in common, where the table is partitioned."""


def dir_name(name: str) -> str:
    """Return a name as a folder of any object store: what is not plain is ``~`` and its code."""
    return _UNSAFE.sub(lambda m: "".join(f"~{ord(c):x}~" for c in m[0]), name)


def table_dir(schema: str, table: str) -> str:
    """Return the folder of a table below the lake's root."""
    return f"{dir_name(schema)}/{dir_name(table)}"


def write_file(target: ObjectTarget, path: str, rows: pa.Table, codec: Codec, partition: Partition | None = None) -> LakeFile:
    """Write rows as a Parquet file whose path begins like this; return what it is."""
    # Where one chunk ends shows in the bytes.
    return write_batches(target, path, [rows.combine_chunks()], codec, partition)


def write_batches(target: ObjectTarget, path: str, parts: Iterable[pa.Table], codec: Codec, partition: Partition | None = None) -> LakeFile:
    """Write some rows after the other as one Parquet file."""
    content = parquet_bytes(parts, codec)
    if partition:
        folder, _, name = path.rpartition("/")
        path = f"{folder}/{folder_of(partition)}{name}"
    named = f"{path}-{xxhash.xxh3_64_hexdigest(content)}.parquet"
    reach("data-put:before")
    target.put_new(named, content)
    reach("data-put:after")
    metadata = pq.read_metadata(pa.BufferReader(content))
    return LakeFile(named, metadata.num_rows, len(content), bounds_of(metadata), partition or {})


def parquet_bytes(parts: Iterable[pa.Table], codec: Codec) -> memoryview:
    """Return rows as a Parquet file: row groups of one size, however the rows were divided."""
    out, writer = io.BytesIO(), None
    for rows in _in_row_groups(parts):
        if writer is None:
            told = {"compression": codec.value, "store_schema": False, "store_decimal_as_integer": True}
            writer = pq.ParquetWriter(out, rows.schema, use_dictionary=_repeating(rows), **told)
        writer.write_table(rows, ROW_GROUP_ROWS)
    if writer is None:
        raise InvariantError("a file has columns")
    writer.close()
    return out.getbuffer()


def _in_row_groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield rows again, as many as a row group has, and the rest; at least one table."""
    waiting: pa.Table | None = None
    for rows in parts:
        waiting = rows if waiting is None else pa.concat_tables([waiting, rows])
        while waiting.num_rows > ROW_GROUP_ROWS:
            yield waiting.slice(0, ROW_GROUP_ROWS)
            waiting = waiting.slice(ROW_GROUP_ROWS)
    if waiting is not None:
        yield waiting


def read_rows(target: ObjectTarget, path: str, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a file, or some of their columns as far as it has them."""
    return read_parquet(content_of(target, path), columns)


def content_of(target: ObjectTarget, path: str) -> bytes:
    """Return the bytes of a file; raise ``SINK_UNAVAILABLE`` where somebody deleted it."""
    try:
        return target.get(path)
    except FileNotFoundError:
        raise PenstockError("SINK_UNAVAILABLE", f"{target.name}: {path} is gone") from None


def read_parquet(content: bytes, columns: list[str] | None = None) -> pa.Table:
    """Return the rows of a file's bytes."""
    return _plainly(pq.read_table(pa.BufferReader(content), columns=columns))


def row_groups(content: bytes) -> Iterator[pa.Table]:
    """Yield the rows of a file's bytes, some after the other; the next ones are read while the caller does something with them."""
    file = pq.ParquetFile(pa.BufferReader(content))
    with ThreadPoolExecutor(1, "lake-reading") as pool:
        ahead: deque[Future[pa.Table]] = deque()
        for at in range(file.num_row_groups):
            ahead.append(pool.submit(file.read_row_group, at))
            if at:
                yield _plainly(ahead.popleft().result())
        for rest in ahead:
            yield _plainly(rest.result())


def bounds_of(metadata: pq.FileMetaData) -> dict[str, Bounds]:
    """Return what is known of the columns of a file, by what the writer noted of its row groups."""
    schema = metadata.schema.to_arrow_schema()
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    found = {}
    for place, field in enumerate(schema):
        noted = [group.column(place).statistics for group in groups]
        if not all(s is not None and s.has_null_count for s in noted):
            continue
        nulls = sum(s.null_count for s in noted)
        filled = [s for s, group in zip(noted, groups, strict=True) if s.null_count < group.num_rows]
        low = high = None
        if filled and _is_compared(field.type) and all(s.has_min_max for s in filled):
            low, high = _plain(min(s.min for s in filled)), _plain(max(s.max for s in filled))
            if low is None or high is None:
                low = high = None
        found[field.name] = Bounds(nulls, low, high)
    return found


def _plainly(rows: pa.Table) -> pa.Table:
    """Return rows with texts and bytes as plain ones: other writers note types of their own beside them."""
    if not any(f.type in _PLAIN for f in rows.schema):
        return rows
    return rows.cast(pa.schema([f.with_type(_PLAIN.get(f.type, f.type)) for f in rows.schema]))


def _repeating(rows: pa.Table) -> list[str] | bool:
    """Return the columns whose values come again, by their first rows: a dictionary of the others costs more time than it saves room."""
    head = rows.slice(0, _SAMPLED_ROWS)
    found = [name for name in rows.column_names if pc.count_distinct(head.column(name)).as_py() * 2 <= head.num_rows]
    return found or False


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
