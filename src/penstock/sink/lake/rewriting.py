"""Copy on write: which files of a table hold some keys, and what is left of those files without them.

Files whose bounds leave out every key are not opened. Of the others the key columns are compared first, and only a file that loses a row
is written again. Invariants: a few files are in memory at a time; nothing here looks at a row from Python; a file that is written again is
named by its bytes. Runs beside the driver.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.sink.lake.columns import COUNT_COLUMN
from penstock.sink.lake.data_files import LakeFile, content_of, read_parquet, read_rows, row_groups, write_batches, write_file
from penstock.sink.lake.partitions.division import Partition, constant, folder_of
from penstock.sink.lake.settings import Codec
from penstock.target.storage import ObjectTarget

_THREADS = 2
_AT = "_at"
FIELD_ID = b"PARQUET:field_id"
Reshape = Callable[[pa.Table], Iterable[tuple[Partition, pa.Table]]]


class Rewriting:
    """Rewrites files of one table for one version that is being made; ``name`` begins the paths of new files."""

    def __init__(self, target: ObjectTarget, name: str, codec: Codec) -> None:
        self._target = target
        self._name = name
        self._codec = codec

    def read_keys(self, paths: Iterable[str]) -> pa.Table | None:
        """Return the keys, or counted rows, of some staged files; None where there are none."""
        tables = [read_rows(self._target, path) for path in paths]
        return pa.concat_tables(tables) if tables else None

    def keys_in(self, files: Iterable[LakeFile], names: Sequence[str], schema: pa.Schema) -> pa.Table | None:
        """Return the keys of all rows of some files."""
        tables = [_filled(read_rows(self._target, f.path, list(names)), f.partition, schema, names) for f in files]
        return pa.concat_tables(tables) if tables else None

    def without(self, files: Sequence[LakeFile], found_keys: pa.Table, schema: pa.Schema) -> list[tuple[LakeFile, LakeFile | None]]:
        """Return the files that hold rows of some keys, each with what is left of it, if anything; all under the columns of a table."""
        keys = pl.DataFrame(found_keys)
        if COUNT_COLUMN in keys.columns:
            return self._without_counted(files, keys, schema)
        own = pa.schema([schema.field(name) for name in keys.columns])
        keys = keys.unique()
        candidates = [f for f in files if _may_hold(f, keys)]
        with ThreadPoolExecutor(_THREADS, "lake-rewriting") as pool:
            found = list(pool.map(lambda f: (f, *self._looked_at(f, keys, own)), candidates))
        return [(f, left) for f, is_hit, left in found if is_hit]

    def reshaped(self, files: Sequence[LakeFile], reshape: Reshape, schema: pa.Schema) -> list[LakeFile]:
        """Return files, read under some columns, written again in another shape, in which rows may belong to other partitions."""
        rows = (in_columns(read_rows(self._target, file.path), schema, file.partition) for file in files)
        return [self.write(own, partition) for found in rows for partition, own in reshape(found)]

    def write(self, rows: pa.Table, partition: Partition | None = None) -> LakeFile:
        """Write rows as a new file."""
        return write_file(self._target, self._name, rows, self._codec, partition)

    def joined(self, files: Sequence[LakeFile], schema: pa.Schema) -> LakeFile:
        """Write the rows of several files as one, with the columns of their table."""
        beside = files[0].partition
        parts = (in_columns(rows, schema, beside, fills=False) for f in files for rows in row_groups(content_of(self._target, f.path)))
        return write_batches(self._target, self._name, parts, self._codec, beside)

    def _looked_at(self, file: LakeFile, keys: pl.DataFrame, schema: pa.Schema) -> tuple[bool, LakeFile | None]:
        content = content_of(self._target, file.path)
        rows = in_columns(read_parquet(content, _places(content, schema)), schema, file.partition)
        own = pl.DataFrame(rows).with_row_index(_AT)
        hit = own.join(keys, on=schema.names, how="semi").get_column(_AT).to_numpy()
        if not len(hit):
            return False, None
        kept = np.ones(own.height, dtype=np.bool_)
        kept[hit] = False
        return True, self._left(file, content, kept)

    def _without_counted(self, files: Sequence[LakeFile], gone: pl.DataFrame, schema: pa.Schema) -> list[tuple[LakeFile, LakeFile | None]]:
        names = [name for name in gone.columns if name != COUNT_COLUMN]
        gone = gone.group_by(names).agg(pl.col(COUNT_COLUMN).sum())
        found: list[tuple[LakeFile, LakeFile | None]] = []
        for file in files:
            if not gone.height:
                break
            content = content_of(self._target, file.path)
            rows = in_columns(read_parquet(content), schema, file.partition)
            own = pl.DataFrame(rows.select(names)).with_columns(pl.int_range(pl.len()).over(names).alias(_AT))
            counts = own.join(gone, on=names, how="left", nulls_equal=True, maintain_order="left").get_column(COUNT_COLUMN).fill_null(0)
            hit = own.get_column(_AT) < counts
            if not hit.any():
                continue
            taken = own.filter(hit).group_by(names).agg(pl.len().cast(pl.Int64).alias("_taken"))
            gone = gone.join(taken, on=names, how="left", nulls_equal=True)
            gone = gone.with_columns(pl.col(COUNT_COLUMN) - pl.col("_taken").fill_null(0)).drop("_taken").filter(pl.col(COUNT_COLUMN) > 0)
            found.append((file, self._left(file, content, ~hit.to_numpy())))
        return found

    def _left(self, file: LakeFile, content: bytes, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> LakeFile | None:
        """Write what is left of a file, if anything: some rows at a time."""
        return write_batches(self._target, self._name, _kept(content, kept), self._codec, file.partition) if bool(kept.any()) else None


def _kept(content: bytes, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[pa.Table]:
    at = 0
    for rows in row_groups(content):
        here = kept[at : at + rows.num_rows]
        if here.any():
            yield rows.filter(pa.array(here))
        at += rows.num_rows


def grouped(files: Sequence[LakeFile], file_size: int) -> list[list[LakeFile]]:
    """Return small files in groups of one partition, each of about one file's size and of more than one file."""
    groups: list[list[LakeFile]] = []
    for file in sorted(files, key=lambda f: (folder_of(f.partition), f.path)):
        last = groups[-1] if groups else []
        if last and last[0].partition == file.partition and sum(f.nbytes for f in last) + file.nbytes <= file_size:
            last.append(file)
        else:
            groups.append([file])
    return [group for group in groups if len(group) > 1]


def in_columns(rows: pa.Table, schema: pa.Schema, beside: Partition, *, fills: bool = True) -> pa.Table:
    """Return rows of a file under the columns of its table, which are known by ids where they have some, by names otherwise.

    NULL where a file is older than a column. What stands beside the file is filled in, or stays there.
    """
    at = places(rows.schema, schema)
    fields = [f for f in schema if f.name in at or f.name not in beside or fills]
    arrays = [rows.column(at[f.name]).cast(f.type) if f.name in at else constant(beside.get(f.name), rows.num_rows, f.type) for f in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _filled(rows: pa.Table, beside: Partition, schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    """Return columns of a file, and those of its partition."""
    arrays = [rows.column(n) if n in rows.column_names else constant(beside[n], rows.num_rows, schema.field(n).type) for n in names]
    return pa.Table.from_arrays(arrays, names=list(names))


def _places(content: bytes, schema: pa.Schema) -> list[str]:
    """Return the names that a file gives to columns of a table, as far as it has them."""
    own = pq.read_schema(pa.BufferReader(content))
    return [own.field(place).name for place in places(own, schema).values()]


def places(own: pa.Schema, schema: pa.Schema) -> dict[str, int]:
    """Return the place of each column of a table in a file that has it."""
    known: dict[object, int] = {_id(field): place for place, field in enumerate(own)}
    if None in known or any(_id(f) is None for f in schema):
        return {f.name: own.get_field_index(f.name) for f in schema if f.name in own.names}
    return {f.name: known[_id(f)] for f in schema if _id(f) in known}


def _id(field: pa.Field) -> bytes | None:
    found: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return found


def _may_hold(file: LakeFile, keys: pl.DataFrame) -> bool:
    """Return whether a file can hold one of some keys, by the bounds of the first column that has any."""
    for name in keys.columns:
        bounds = file.bounds.get(name)
        if bounds is not None and bounds.low is not None and bounds.high is not None:
            column = keys.get_column(name)
            low, high = (_literal(column.dtype, v) for v in (bounds.low, bounds.high))
            if not bool(((column >= low) & (column <= high)).any()):
                return False
    return True


def _literal(dtype: Any, value: int | str) -> Any:
    if dtype == pl.Date and isinstance(value, str):
        return dt.date.fromisoformat(value)
    return value
