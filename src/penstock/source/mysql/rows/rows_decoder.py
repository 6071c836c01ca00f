"""From rows events to change batches, table by table.

Owns the way through the kernels: images to columns, texts to UTF-8, keys, folding, batches. Columns that an after-image leaves out are
taken from the before-image where it has them, else from the table by key. A delete may leave out all but its key. Rows of a table that
cannot be decoded are left out with a doubt about it, and no other table is concerned. Runs in the log service.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import I64, U8, U64, Flags
from penstock.model.batch import BatchKind, ChangeBatch, Op, bounded_batches, change_records
from penstock.model.errors import PenstockError
from penstock.model.rows.bag_key import is_bag
from penstock.model.table import TableSchema
from penstock.source.bags import BagRows, bag_changes
from penstock.source.mysql.rows.charsets import to_utf8
from penstock.source.mysql.rows.folding import fold, is_identity
from penstock.source.mysql.rows.images import DELETE, INSERT, UPDATE, SideColumns, fill_columns, walk_events
from penstock.source.mysql.rows.row_keys import row_contents, row_keys
from penstock.source.mysql.rows.shown_values import shown
from penstock.source.mysql.tables.columns import is_text
from penstock.source.mysql.tables.row_history import is_present
from penstock.source.mysql.tables.table_slots import Binding, TableSlots
from penstock.source.mysql.tables.table_versions import TableVersions
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire import framing
from penstock.source.single_log import TableDoubt

Charset = Callable[[TableSchema, str], str]
ReadRows = Callable[[TableSchema, tuple[pa.Array, ...]], tuple[pa.Array, ...]]
"""See ``keyed_read``."""
INFLATED_BYTES_MAX = 1 << 30
_OF_ONE_TABLE = frozenset({"SCHEMA_UNKNOWN", "DECODE_FAILED", "TYPE_UNSUPPORTED", "UPSTREAM_MISCONFIGURED"})
"""Errors that concern the table whose rows were decoded, and no other."""
_PARTIAL_HINT = "Run SET GLOBAL binlog_row_value_options = '' and reconnect the writers."


def _ops() -> U8:
    ops = np.zeros(256, dtype=np.uint8)
    for first in (wire.WRITE_ROWS_V1, wire.WRITE_ROWS_V2, wire.WRITE_ROWS_COMPRESSED_V1, wire.WRITE_ROWS_COMPRESSED):
        ops[first : first + 3] = [INSERT, UPDATE, DELETE]
    return ops


_OPS = _ops()


class RowsDecoder:
    """Decodes the rows of all tables that a reader knows. Not thread safe."""

    def __init__(self, slots: TableSlots, tables: TableVersions, read_rows: ReadRows | None = None) -> None:
        """``read_rows`` reads by key what the log leaves out."""
        self._slots = slots
        self._tables = tables
        self._read_rows = read_rows

    def decoded(self, events: U8, rows: I64, ts: U64) -> tuple[list[ChangeBatch], list[TableDoubt]]:
        """Decode rows events at their commit ts; return as well the doubts about tables whose rows are left out."""
        changes: list[ChangeBatch] = []
        doubts: list[TableDoubt] = []
        of_slot = rows[:, framing.ROW_SLOT]
        slots = np.unique(of_slot)
        for slot in slots:
            mine, when = (rows, ts) if len(slots) == 1 else (rows[of_slot == slot], ts[of_slot == slot])
            try:
                changes += decode_rows(events, self._slots.bind(int(slot)), mine, when, self._charset, self._read_rows)
            except PenstockError as error:
                if error.code not in _OF_ONE_TABLE:
                    raise
                doubts.append(self._left_out(int(slot), error, int(when.min())))
            except (pa.ArrowException, ValueError, KeyError, OverflowError) as error:
                doubts.append(self._left_out(int(slot), PenstockError("DECODE_FAILED", type(error).__name__), int(when.min())))
        return changes, doubts

    def is_counted(self, change: ChangeBatch) -> bool:
        """Return whether a change is one of rows that nothing names, which are counted."""
        versions = self._tables.history(change.header.table_id)
        return any(v.version == change.header.schema_version and is_bag(v) for v in versions)

    def partly_told(self, slot: int) -> TableDoubt:
        """Return the doubt about a table of whose values the log tells only how they changed."""
        return self._left_out(
            slot, PenstockError("UPSTREAM_MISCONFIGURED", "the log holds partial updates of its JSON columns", _PARTIAL_HINT)
        )

    def _left_out(self, slot: int, error: PenstockError, ts: int = 0) -> TableDoubt:
        mapped, table = self._slots.map_of(slot), self._slots.table_of(slot)
        number = table.table_id if table is not None else 0
        return TableDoubt(number, mapped.schema, mapped.table, ts, error.detail, error.code, error.hint or "")

    def _charset(self, table: TableSchema, column: str) -> str:
        return self._tables.charset((table.schema, table.table), column)


def decode_rows(events: U8, binding: Binding, rows: I64, ts: U64, charset: Charset, read_rows: ReadRows | None = None) -> list[ChangeBatch]:
    """Decode the rows events of one table; ``rows`` is the scan kernel's table, ``ts`` the commit ts of each of them."""
    table = binding.walked
    starts, ends, kinds = rows[:, framing.ROW_START], rows[:, framing.ROW_END], rows[:, framing.ROW_KIND]
    if bool((kinds >= wire.WRITE_ROWS_COMPRESSED_V1).any()):
        events, starts, ends = _inflated(events, starts, ends, kinds, binding.layout.columns)
    ops = _OPS[kinds]
    walked = walk_events(events, binding.layout, np.ascontiguousarray(starts), np.ascontiguousarray(ends), ops)
    types = tuple(c.type.arrow() for c in table.columns)
    ceased = fill_columns(events, binding.layout, walked.ceased, types)
    became = fill_columns(events, binding.layout, walked.became, types)
    ceased_arrays = _finished(table, binding, ceased, charset)
    became_arrays = _finished(table, binding, became, charset)
    if became.missing is not None:
        updated = ops[walked.became.event] == UPDATE
        became_arrays = _completed(table, walked.sides, updated, ceased, ceased_arrays, became, became_arrays, read_rows or _no_read)
    ceased_ts, became_ts = ts[walked.ceased.event], ts[walked.became.event]
    table, sides = binding.table, walked.sides
    if binding.row_end is not None:
        # Rows that have an end are history; one that gets its end ceases.
        past, now = (is_present(arrays[binding.row_end]) for arrays in (ceased_arrays, became_arrays))
        ceased_arrays, became_arrays = tuple(a.filter(past) for a in ceased_arrays), tuple(a.filter(now) for a in became_arrays)
        kept_past, kept_now = (np.asarray(kept.to_numpy(zero_copy_only=False), dtype=np.bool_) for kept in (past, now))
        kept = np.empty(len(sides), dtype=np.bool_)
        kept[sides == 0], kept[sides == 1] = kept_past, kept_now
        sides, ceased_ts, became_ts = sides[kept], ceased_ts[kept_past], became_ts[kept_now]
        shown_columns = len(table.columns)
        ceased_arrays, became_arrays = ceased_arrays[:shown_columns], became_arrays[:shown_columns]
    if is_bag(table):
        sides_ts = ((ceased_ts, ceased_arrays), (became_ts, became_arrays))
        return bag_changes(table, *(BagRows(t, row_contents(table, a), functools.partial(_taken, a)) for t, a in sides_ts))
    ceased_keys, became_keys = row_keys(table, ceased_arrays), row_keys(table, became_arrays)
    folded = fold(sides, ceased_ts, ceased_keys, became_ts, became_keys)
    batches: list[ChangeBatch] = []
    batches += _batches(table, BatchKind.TOMBSTONE, folded.ceased, folded.ceased_ops, ceased_ts, ceased_keys, ceased_arrays)
    batches += _batches(table, BatchKind.DATA, folded.became, folded.became_ops, became_ts, became_keys, became_arrays)
    return batches


def snapshot_batches(span_id: int, table: TableSchema, ts: int, arrays: tuple[pa.Array, ...], keys: pa.Array) -> Iterator[ChangeBatch]:
    """Return rows of a snapshot as INSERTs at one ts, in the order in which they are given."""
    rows = len(keys)
    ops = np.full(rows, int(Op.INSERT), dtype=np.uint8)
    records = change_records(table, np.full(rows, ts, dtype=np.uint64), ops, keys, arrays)
    return bounded_batches(span_id, table, BatchKind.DATA, records)


def _finished(table: TableSchema, binding: Binding, side: SideColumns, charset: Charset) -> tuple[pa.Array, ...]:
    """Give every column its type of the model. A text is of the charset that the log tells, else of the one that the server shows now."""
    arrays = []
    for form, column, told, bare in zip(binding.layout.forms, table.columns, binding.charsets, side.arrays, strict=True):
        array = bare if form == wire.F_PLAIN else shown(bare, form, column.name)
        if pa.types.is_string(array.type):
            arrays.append(array)
        elif pa.types.is_string(column.type.arrow()):
            arrays.append(to_utf8(array, told or charset(table, column.name) if is_text(column) else "utf8mb4", column.name))
        else:
            arrays.append(array)
    return tuple(arrays)


def _completed(
    table: TableSchema,
    sides: U8,
    updated: Flags,
    ceased: SideColumns,
    before: tuple[pa.Array, ...],
    became: SideColumns,
    after: tuple[pa.Array, ...],
    read_rows: ReadRows,
) -> tuple[pa.Array, ...]:
    """Fill what after-images leave out: from the before-images of the same updates, and what these leave out too by a keyed read."""
    assert became.missing is not None
    assert ceased.missing is not None
    # An update's two images follow each other, so its before-image is the last one that ceased.
    partner = np.maximum(np.cumsum(sides == 0)[sides == 1] - 1, 0)
    missing = became.missing.copy()
    filled = []
    for number, array in enumerate(after):
        full = array
        if bool(missing[number].any()) and len(before[number]):
            told = missing[number] & updated & ~ceased.missing[number][partner]
            full = pc.if_else(pa.array(told), before[number].take(pa.array(partner)), array)
            missing[number] &= ~told
        filled.append(full)
    lacking = missing.any(axis=0)
    if bool(lacking.any()):
        rows = pa.array(np.flatnonzero(lacking))
        read = read_rows(table, tuple(array.take(rows) for array in filled))
        # Where each row that lacks something stands among those that were read.
        place = pa.array(np.where(lacking, np.cumsum(lacking) - 1, 0))
        for number in np.flatnonzero(missing.any(axis=1)).tolist():
            filled[number] = pc.if_else(pa.array(missing[number]), read[number].take(place), filled[number])
    return tuple(filled)


def _no_read(table: TableSchema, arrays: tuple[pa.Array, ...]) -> tuple[pa.Array, ...]:
    raise PenstockError("UPSTREAM_MISCONFIGURED", f"the log leaves out columns of {table.full_name}: binlog_row_image is not FULL")


def _batches(
    table: TableSchema, kind: BatchKind, rows: I64, ops: U8, ts: U64, keys: pa.Array, arrays: tuple[pa.Array, ...]
) -> list[ChangeBatch]:
    if len(rows) == 0:
        return []
    if is_identity(rows, len(ts)):
        records = change_records(table, ts, ops, keys, arrays)
    else:
        records = change_records(table, ts[rows], ops, keys.take(pa.array(rows)), _taken(arrays, rows))
    return list(bounded_batches(0, table, kind, records))


def _taken(arrays: tuple[pa.Array, ...], rows: I64) -> list[pa.Array]:
    chosen = pa.array(rows)
    return [array.take(chosen) for array in arrays]


def _inflated(events: U8, starts: I64, ends: I64, kinds: I64, columns: int) -> tuple[U8, I64, I64]:
    """Return events in which MariaDB's compressed rows stand behind the rest, in full."""
    starts, ends = starts.copy(), ends.copy()
    pieces: list[U8] = [events]
    at = len(events)
    # One call per event: the server compresses only events that are worth it (log_bin_compress_min_len).
    for number in np.flatnonzero(kinds >= wire.WRITE_ROWS_COMPRESSED_V1):
        start, end = int(starts[number]), int(ends[number])
        bitmaps = 2 if _OPS[kinds[number]] == UPDATE else 1
        head = (3 if columns > 250 else 1) + bitmaps * ((columns + 7) // 8)
        if start + head > end:
            raise PenstockError("DECODE_FAILED", "a compressed rows event is malformed")
        body = events[start : start + head].tobytes() + inflate(events[start + head : end].tobytes())
        pieces.append(np.frombuffer(body, dtype=np.uint8))
        starts[number], ends[number] = at, at + len(body)
        at += len(body)
    return np.concatenate(pieces), starts, ends


def inflate(record: bytes) -> bytes:
    """Return what a compressed record of MariaDB holds: a byte of flags and length, the size big endian, a zlib stream."""
    size_bytes = record[0] & 7 if record else 0
    size = int.from_bytes(record[1 : 1 + size_bytes], "big")
    if size > INFLATED_BYTES_MAX:
        raise PenstockError("DECODE_FAILED", "a compressed event claims more than 1 GiB")
    try:
        text = zlib.decompressobj().decompress(record[1 + size_bytes :], max(1, size))
    except zlib.error as error:
        raise PenstockError("DECODE_FAILED", "a compressed event does not inflate") from error
    if len(text) != size or not size_bytes:
        raise PenstockError("DECODE_FAILED", "a compressed event has another size than it claims")
    return text
