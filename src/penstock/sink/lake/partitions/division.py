"""The partitions of a lake's tables: which one a row belongs to, and how its values are written.

A value of a partition is a text or NULL, whatever the column: numbers as they are, moments as far as they count (``2024``, ``2024-02``,
``2024-02-29``, ``2024-02-29T13``), in UTC where they have a zone. Buckets are those of Iceberg's specification, in every format.
Invariants: rows are divided by columns, never one by one; the same rows are divided in the same way, whoever does it. Runs on executors
and in the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import I64
from penstock.model.errors import PenstockError
from penstock.sink.lake.partitions.rules import Transform

Partition = dict[str, str | None]
"""The values of one partition by the names of its fields, in their order; empty where a table has no partitions."""
PARTITIONS_MAX = 10_000
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_AT = "_at"
_UNITS = {Transform.YEAR: "Y", Transform.MONTH: "M", Transform.DAY: "D", Transform.HOUR: "h"}
_YEARS = (1 - 1970, 9999 - 1970)


class PartitionField(msgspec.Struct, frozen=True):
    """One of the things that a table is divided by; the column is that of the lake."""

    transform: Transform
    column: str
    buckets: int = 0
    column_id: int = 0
    """The id of the column; 0 where the format knows columns by their names alone."""

    @property
    def name(self) -> str:
        """Return the field's own name, which is the column's where its values are."""
        if self.transform is Transform.BUCKET:
            return f"{self.column}_bucket_{self.buckets}"
        return self.column if self.transform is Transform.IDENTITY else f"{self.column}_{self.transform.value}"

    @property
    def is_derived(self) -> bool:
        """Return whether no column has the values."""
        return self.transform is not Transform.IDENTITY

    @property
    def derived_type(self) -> pa.DataType:
        """Return the type of a column that shows the values of a derived field."""
        if self.transform is Transform.DAY:
            return pa.date32()
        return pa.int32() if self.transform in {Transform.YEAR, Transform.BUCKET} else pa.string()

    def takes(self, data_type: pa.DataType) -> bool:
        """Return whether values of a type have such partitions."""
        plain = bool(pa.types.is_integer(data_type) or pa.types.is_date32(data_type) or pa.types.is_string(data_type))
        if self.transform is Transform.IDENTITY:
            return plain or bool(pa.types.is_decimal(data_type) and data_type.scale == 0)
        if self.transform is Transform.BUCKET:
            return plain or bool(pa.types.is_timestamp(data_type))
        return bool(pa.types.is_timestamp(data_type) or (pa.types.is_date32(data_type) and self.transform is not Transform.HOUR))


def divided(fields: Sequence[PartitionField], rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """Yield rows by their partitions, those of each in their order."""
    if not fields:
        yield {}, rows
        return
    names = [f"_{at}" for at in range(len(fields))]
    frame = pl.DataFrame([_numbered(f, rows.column(f.column)).alias(n) for n, f in zip(names, fields, strict=True)]).with_row_index(_AT)
    groups = frame.group_by(names).agg(pl.col(_AT)).sort(names, nulls_last=True)
    if groups.height > PARTITIONS_MAX:
        what = f"rows of one file would go to {groups.height} partitions, more than {PARTITIONS_MAX}; see partition-by"
        raise PenstockError("SINK_VALUE_REFUSED", what)
    places = groups.get_column(_AT)
    for at, values in enumerate(groups.select(names).iter_rows()):
        here = rows if groups.height == 1 else rows.take(places[at].to_arrow())
        yield {f.name: _text(f, value) for f, value in zip(fields, values, strict=True)}, here


def folder_of(partition: Mapping[str, str | None]) -> str:
    """Return the folder of a partition as Hive names it: some readers take the values from there."""
    return "".join(f"{quote(name, safe='')}={_NULL_FOLDER if text is None else quote(text, safe='')}/" for name, text in partition.items())


def constant(text: str | None, count: int, wanted: pa.DataType) -> pa.Array:
    """Return the value of a partition as often as there are rows."""
    return pa.repeat(pa.scalar(text, pa.string()).cast(wanted), count)


def ordinal(transform: Transform, text: str | None) -> int | None:
    """Return the number that Iceberg has for the value of a derived field."""
    if text is None or transform is Transform.BUCKET:
        return None if text is None else int(text)
    return int(np.datetime64(text, _UNITS[transform]).astype(np.int64))  # type: ignore[call-overload]


def ordinal_text(transform: Transform, number: int | None) -> str | None:
    """Return the value that a number of ``ordinal`` stands for."""
    if number is None or transform is Transform.BUCKET:
        return None if number is None else str(number)
    return str(np.datetime64(number, _UNITS[transform]))  # type: ignore[call-overload]


def _numbered(field: PartitionField, column: pa.ChunkedArray) -> pl.Series:
    """Return what rows are told apart by."""
    if field.transform is Transform.BUCKET:
        return pl.Series(_buckets(column, field.buckets))
    if field.transform is Transform.IDENTITY and not pa.types.is_date32(column.type):
        if pa.types.is_string(column.type) and pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
            # Delta's protocol reads an empty text of a partition as NULL.
            raise PenstockError("SINK_VALUE_REFUSED", f"column {field.column}: an empty text names no partition; use bucket(n, column)")
        return pl.Series(column)
    unit = _UNITS.get(field.transform, "D")
    moments = column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
    numbers = moments.combine_chunks().to_numpy(zero_copy_only=False).astype(f"M8[{unit}]")
    years = numbers.astype("M8[Y]").astype(np.int64)[~np.isnat(numbers)]
    if len(years) and (years.min() < _YEARS[0] or years.max() > _YEARS[1]):
        raise PenstockError("SINK_VALUE_REFUSED", f"column {field.column}: a year below 1 or above 9999 names no partition")
    found = pl.Series(pa.array(numbers.astype(np.int64), mask=np.isnat(numbers)))
    return found.cast(pl.Date) if unit == "D" else found


def _text(field: PartitionField, value: object) -> str | None:
    if isinstance(value, int) and field.transform in {Transform.YEAR, Transform.MONTH, Transform.HOUR}:
        return ordinal_text(field.transform, value)
    return None if value is None else str(value)


def _buckets(column: pa.ChunkedArray, count: int) -> pa.Array:
    """Return the buckets of values: Murmur3 of 32 bits over numbers as eight bytes, and over texts as they are."""
    values = column.combine_chunks()
    if pa.types.is_string(values.type):
        filled = pc.fill_null(values, "")
        offsets = np.frombuffer(filled.buffers()[1], np.int32, len(filled) + 1, filled.offset * 4).astype(np.int64)
        data = np.frombuffer(filled.buffers()[2] or b"", np.uint8)
    else:
        whole = values.cast(pa.timestamp("us")) if pa.types.is_timestamp(values.type) else values
        whole = whole.cast(pa.int32()) if pa.types.is_date32(whole.type) else whole
        numbers = pc.fill_null(whole.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).astype("<i8")
        data, offsets = numbers.view(np.uint8), np.arange(len(numbers) + 1, dtype=np.int64) * 8
    hashes = murmur3(data, offsets)
    found = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    return pa.array(found.astype(np.int32), mask=pc.is_null(values).to_numpy(zero_copy_only=False))


def murmur3(data: np.ndarray[tuple[int], np.dtype[np.uint8]], offsets: I64) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return Murmur3 (x86, 32 bits, seed 0) of values that stand one behind the other, some bytes of all of them at a time."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = np.zeros(len(lengths), np.uint32)
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    whole = lengths // 4
    for at in range(int(whole.max(initial=0))):
        here = np.flatnonzero(whole > at)
        mixed = hashes[here] ^ _scrambled(_words(padded, starts[here] + 4 * at, np.full(len(here), 4)))
        hashes[here] = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    tails = np.flatnonzero(lengths % 4)
    hashes[tails] ^= _scrambled(_words(padded, starts[tails] + 4 * whole[tails], lengths[tails] % 4))
    hashes ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes ^ (hashes >> np.uint32(16))


def _words(data: np.ndarray[tuple[int], np.dtype[np.uint8]], starts: I64, counts: I64) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return up to four bytes from each start as a number, the lowest first."""
    found = np.zeros(len(starts), np.uint32)
    for at in range(4):
        found |= np.where(counts > at, data[starts + at], 0).astype(np.uint32) << np.uint32(8 * at)
    return found


def _scrambled(words: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(words: np.ndarray[tuple[int], np.dtype[np.uint32]], by: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))
