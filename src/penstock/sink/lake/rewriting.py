"""Copy on write: which files of a table hold some keys, and what is left of those files without them.

Files whose bounds leave out every key are not opened. Of the others the key columns are compared first, and only a file that loses a row
is written again. Invariants: a few files are in memory at a time; nothing here looks at a row from Python; a file that is written again is
named by its bytes. Runs beside the driver.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.sink.lake.columns import COUNT_COLUMN
from penstock.sink.lake.data_files import LakeFile, read_parquet, read_rows, write_file
from penstock.sink.lake.settings import Codec
from penstock.target.storage import ObjectTarget

_THREADS = 2
_AT = "_at"
FIELD_ID = b"PARQUET:field_id"
Reshape = Callable[[pa.Table], pa.Table]


class Rewriting:
    """Rewrites files of one table for one version that is being made; ``name`` begins the paths of new files."""

    def __init__(self, target: ObjectTarget, name: str, codec: Codec) -> None:
        self._target = target
        self._name = name
        self._codec = codec

    def read_keys(self, paths: Iterable[str]) -> pl.DataFrame | None:
        """Return the keys, or counted rows, of some staged files; None where there are none."""
        tables = [read_rows(self._target, path) for path in paths]
        return pl.DataFrame(pa.concat_tables(tables)) if tables else None

    def keys_in(self, files: Iterable[LakeFile], names: Sequence[str]) -> pl.DataFrame | None:
        """Return the keys of all rows of some files."""
        tables = [read_rows(self._target, f.path, list(names)) for f in files]
        return pl.DataFrame(pa.concat_tables(tables)) if tables else None

    def without(self, files: Sequence[LakeFile], keys: pl.DataFrame) -> list[tuple[LakeFile, LakeFile | None]]:
        """Return the files that hold rows of some keys, each with what is left of it, if anything."""
        if COUNT_COLUMN in keys.columns:
            return self._without_counted(files, keys)
        names = keys.columns
        keys = keys.unique()
        candidates = [f for f in files if _may_hold(f, keys)]
        with ThreadPoolExecutor(_THREADS, "lake-rewriting") as pool:
            found = list(pool.map(lambda f: (f, *self._looked_at(f, keys, names)), candidates))
        return [(f, left) for f, is_hit, left in found if is_hit]

    def reshaped(self, files: Sequence[LakeFile], reshape: Reshape) -> list[LakeFile]:
        """Return files written again in another shape."""
        return [self.write(reshape(read_rows(self._target, f.path)), f.day) for f in files]

    def write(self, rows: pa.Table, day: str | None = None) -> LakeFile:
        """Write rows as a new file."""
        return write_file(self._target, self._name, rows, self._codec, day)

    def joined(self, files: Sequence[LakeFile], schema: pa.Schema) -> LakeFile:
        """Write the rows of several files as one, with the columns of a schema by their ids."""
        tables = [_by_ids(read_rows(self._target, f.path), schema) for f in files]
        return self.write(pa.concat_tables(tables), files[0].day)

    def _looked_at(self, file: LakeFile, keys: pl.DataFrame, names: list[str]) -> tuple[bool, LakeFile | None]:
        content = self._target.get(file.path)
        own = pl.DataFrame(read_parquet(content, names)).select(names).with_row_index(_AT)
        hit = own.join(keys, on=names, how="semi").get_column(_AT).to_numpy()
        if not len(hit):
            return False, None
        kept = np.ones(own.height, dtype=np.bool_)
        kept[hit] = False
        return True, self._left(file, read_parquet(content), kept)

    def _without_counted(self, files: Sequence[LakeFile], gone: pl.DataFrame) -> list[tuple[LakeFile, LakeFile | None]]:
        names = [name for name in gone.columns if name != COUNT_COLUMN]
        gone = gone.group_by(names).agg(pl.col(COUNT_COLUMN).sum())
        found: list[tuple[LakeFile, LakeFile | None]] = []
        for file in files:
            if not gone.height:
                break
            content = self._target.get(file.path)
            rows = read_parquet(content)
            own = pl.DataFrame(rows.select(names)).with_columns(pl.int_range(pl.len()).over(names).alias(_AT))
            counts = own.join(gone, on=names, how="left", nulls_equal=True, maintain_order="left").get_column(COUNT_COLUMN).fill_null(0)
            hit = own.get_column(_AT) < counts
            if not hit.any():
                continue
            taken = own.filter(hit).group_by(names).agg(pl.len().cast(pl.Int64).alias("_taken"))
            gone = gone.join(taken, on=names, how="left", nulls_equal=True)
            gone = gone.with_columns(pl.col(COUNT_COLUMN) - pl.col("_taken").fill_null(0)).drop("_taken").filter(pl.col(COUNT_COLUMN) > 0)
            found.append((file, self._left(file, rows, ~hit.to_numpy())))
        return found

    def _left(self, file: LakeFile, rows: pa.Table, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> LakeFile | None:
        return self.write(rows.filter(pa.array(kept)), file.day) if bool(kept.any()) else None


def grouped(files: Sequence[LakeFile], file_size: int) -> list[list[LakeFile]]:
    """Return small files in groups of one partition, each of about one file's size and of more than one file."""
    groups: list[list[LakeFile]] = []
    for file in sorted(files, key=lambda f: (f.day or "", f.path)):
        last = groups[-1] if groups else []
        if last and last[0].day == file.day and sum(f.nbytes for f in last) + file.nbytes <= file_size:
            last.append(file)
        else:
            groups.append([file])
    return [group for group in groups if len(group) > 1]


def _by_ids(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema, which knows them by ids; NULL where a file is older than a column."""
    at = {field.metadata[FIELD_ID]: place for place, field in enumerate(rows.schema)}
    found = [rows.column(at[f.metadata[FIELD_ID]]).cast(f.type) if f.metadata[FIELD_ID] in at else None for f in schema]
    arrays = [pa.nulls(rows.num_rows, f.type) if values is None else values for values, f in zip(found, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


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
