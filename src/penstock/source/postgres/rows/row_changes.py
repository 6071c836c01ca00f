"""From the rows of one relation, as they stand in the stream, to change batches: keys, folding, columns.

Several changes to one key in one transaction are folded to the first before-image and the last after-image; a row that came and went in
one transaction leaves its delete. An update that changes the key is a delete of the old key and an insert of the new one. A value that an
update left in place is taken from the before-image or from an earlier change of the transaction, else read by key. Batches are ordered by
(commit ts, key), of one kind each. All work is on columns. Runs in the log service.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import I32, I64, U8, U64, Flags, kernel
from penstock.model.batch import BatchKind, ChangeBatch, Op, bounded_batches, change_records
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.source.bags import BagRows, bag_changes
from penstock.source.folding import arrange
from penstock.source.postgres.rows.cells import UNCHANGED, CellGrid, tuple_grid
from penstock.source.postgres.rows.row_keys import ordinal_keys, row_contents, row_keys
from penstock.source.postgres.tables.observed import KnownRelation
from penstock.source.postgres.wire.pgoutput import DELETE, END, INSERT, NEW_AT, OLD_AT, OLD_FULL, OLD_KIND, OP, UPDATE

Fetch = Callable[[TableSchema, pa.Array, list[pa.Array], list[Column]], tuple[pa.Array, list[pa.Array]]]
"""Reads columns of rows by key: given keys and key columns, returns the keys found and the columns of those rows."""


class Events(msgspec.Struct, frozen=True):
    """Changes to keys, in log order. ``before`` and ``after`` are rows of the old and the new grid, or -1."""

    ts: U64
    key: I64
    op: I64
    before: I64
    after: I64

    def take(self, at: I64) -> Events:
        """Return chosen events."""
        return Events(self.ts[at], self.key[at], self.op[at], self.before[at], self.after[at])


class Folded(msgspec.Struct, frozen=True):
    """One entry for each (commit ts, key): what became of the row, and which images show it."""

    ts: U64
    key: I64
    existed: Flags
    alive: Flags
    before: I64
    after: I64


def build_changes(
    known: KnownRelation, buffer: U8, rows: I64, ts: U64, ordinals: I64, fetch: Fetch, doubt: Callable[[str], None] = lambda _: None
) -> list[ChangeBatch]:
    """Return the change batches of one relation's rows, which are whole transactions in log order; ``doubt`` is told what stays open."""
    relation, table = known.relation, known.table
    width, name = len(relation.columns), table.full_name
    new_rows = np.flatnonzero(rows[:, NEW_AT] >= 0)
    old_rows = np.flatnonzero(rows[:, OLD_AT] >= 0)
    new = tuple_grid(buffer, rows[new_rows, NEW_AT], rows[new_rows, END], width, name)
    # The old tuple of an update ends where the letter before its new tuple stands.
    old_ends = np.where(rows[old_rows, OP] == UPDATE, rows[old_rows, NEW_AT] - 1, rows[old_rows, END])
    old = tuple_grid(buffer, rows[old_rows, OLD_AT], old_ends, width, name)
    at_new = np.full(len(rows), -1, dtype=np.int64)
    at_new[new_rows] = np.arange(len(new_rows))
    at_old = np.full(len(rows), -1, dtype=np.int64)
    at_old[old_rows] = np.arange(len(old_rows))
    full = np.zeros(len(rows), dtype=np.bool_)
    # The message goes by the table's replica identity, also for the rows of a partition with another one.
    full[old_rows] = (rows[old_rows, OLD_KIND] == OLD_FULL) & (relation.identity == "f")
    _fill_unchanged(new, old, at_new, at_old, full)
    if known.is_bag:
        if bool((~full & (rows[:, OP] != INSERT)).any()):
            # A partition's rows are named as the partition says, whatever its table says.
            raise _no_identity(table)
        sides = ((old_rows, old), (new_rows, new))
        return bag_changes(table, *(BagRows(ts[at], row_contents(g), functools.partial(_chosen_columns, known, g)) for at, g in sides))
    keys = _all_keys(known, new, old, ts[new_rows], ordinals[new_rows])
    events = _events(rows, ts, keys, at_new, at_old, len(new_rows))
    arranged = arrange(events.ts, events.key, keys)
    ordered = events if arranged.order is None else events.take(arranged.order)
    if bool((new.lengths == UNCHANGED).any()):
        _carry_unchanged(arranged.begins, ordered.after, new.starts, new.lengths)
    folded = fold(ordered, arranged.first, arranged.last)
    if known.deferrable and bool(full.any()):
        folded = _fold_instances(folded, ordered, arranged.first, new, old, doubt)
    is_full = full[old_rows]
    return [*_tombstones(known, old, is_full, keys, folded), *_data(known, new, keys, folded, fetch)]


def _fill_unchanged(new: CellGrid, old: CellGrid, at_new: I64, at_old: I64, full: Flags) -> None:
    """Let cells that an update left in place point at the same cell of a full before-image: both stand in one buffer."""
    if not full.any() or not bool((new.lengths == UNCHANGED).any()):
        return
    both = np.flatnonzero(full & (at_new >= 0))
    mine, theirs = at_new[both], at_old[both]
    for column in range(new.columns):
        left = new.lengths[column, mine] == UNCHANGED
        new.starts[column, mine[left]] = old.starts[column, theirs[left]]
        new.lengths[column, mine[left]] = old.lengths[column, theirs[left]]


def _all_keys(known: KnownRelation, new: CellGrid, old: CellGrid, ts: U64, ordinals: I64) -> pa.Array:
    """Return the keys of the new rows, then those of the old rows."""
    table = known.table
    if table.key_columns:
        return pa.concat_arrays([row_keys(known, new), row_keys(known, old)])
    if old.rows:
        raise _no_identity(table)
    return ordinal_keys(ts, ordinals)


def _columns(known: KnownRelation, grid: CellGrid) -> list[pa.Array]:
    return [grid.column(at, known.forms[at], c.type.arrow()) for at, c in enumerate(known.table.columns)]


def _chosen_columns(known: KnownRelation, grid: CellGrid, rows: I64) -> list[pa.Array]:
    return _columns(known, grid.take(rows))


def _no_identity(table: TableSchema) -> PenstockError:
    return PenstockError(
        "UPSTREAM_MISCONFIGURED",
        f"{table.full_name} has neither a key nor REPLICA IDENTITY FULL, or a partition of it has not: its updates and deletes name no row",
        f"Add a primary key, or run: ALTER TABLE {table.full_name} REPLICA IDENTITY FULL",
    )


def _events(rows: I64, ts: U64, keys: pa.Array, at_new: I64, at_old: I64, old_from: int) -> Events:
    """Split rows into changes to keys; an update that moves a row to another key becomes two."""
    op = rows[:, OP]
    old_key = np.where(at_old >= 0, at_old + old_from, -1)
    moved = np.flatnonzero((op == UPDATE) & (at_old >= 0))
    if len(moved):
        same = pc.equal(keys.take(pa.array(at_new[moved])), keys.take(pa.array(old_key[moved]))).to_numpy(zero_copy_only=False)
        moved = moved[~same]
    if len(moved) == 0:
        return Events(ts, np.where(op == DELETE, old_key, at_new), op, at_old, at_new)
    # One place more for each row that moved: its delete comes first, its insert second.
    extra = np.zeros(len(rows), dtype=np.int64)
    extra[moved] = 1
    place = np.arange(len(rows)) + np.cumsum(extra) - extra
    source = np.repeat(np.arange(len(rows)), 1 + extra)
    second = np.zeros(len(source), dtype=np.bool_)
    second[place[moved] + 1] = True
    first = np.zeros(len(source), dtype=np.bool_)
    first[place[moved]] = True
    kinds = np.where(first, DELETE, np.where(second, INSERT, op[source]))
    return Events(
        ts=ts[source],
        key=np.where(kinds == DELETE, old_key[source], at_new[source]),
        op=kinds,
        before=np.where(second, -1, at_old[source]),
        after=np.where(first, -1, at_new[source]),
    )


def fold(events: Events, first: I64, last: I64) -> Folded:
    """Fold events to one entry for each (commit ts, key); ``first`` and ``last`` say where each stands."""
    before = events.before[first]
    # A delete of a row that this transaction had inserted or updated without an image shows what the delete itself gave.
    before = np.where(before >= 0, before, np.where(events.op[last] == DELETE, events.before[last], -1))
    return Folded(
        ts=events.ts[first],
        key=events.key[first],
        existed=events.op[first] != INSERT,
        alive=events.op[last] != DELETE,
        before=before,
        after=np.where(events.op[last] != DELETE, events.after[last], -1),
    )


def _fold_instances(folded: Folded, events: Events, first: I64, new: CellGrid, old: CellGrid, doubt: Callable[[str], None]) -> Folded:
    """Fold again where two rows may have one key until their transaction ends: a delete ends the row that it shows, not the newest one."""
    first = np.append(first, len(events.ts))
    existed, alive = folded.existed.copy(), folded.alive.copy()
    before, after = folded.before.copy(), folded.after.copy()
    shown_old, shown_new = _content_hashes(old), _content_hashes(new)
    if _follow_instances(first, events.op, events.before, events.after, shown_old, shown_new, existed, alive, before, after):
        doubt("two rows of it may have had one key in a transaction (a deferrable key), and the log does not tell which of them is left")
    return Folded(folded.ts, folded.key, existed, alive, before, after)


def _content_hashes(grid: CellGrid) -> U64:
    hashed: U64 = np.frombuffer(row_contents(grid).buffers()[2] or b"", dtype=np.uint64)[::2].copy()
    return hashed


def _tombstones(known: KnownRelation, old: CellGrid, is_full: Flags, keys: pa.Array, folded: Folded) -> Iterator[ChangeBatch]:
    has_image = folded.before >= 0
    image_full = np.zeros(len(folded.ts), dtype=np.bool_)
    image_full[has_image] = is_full[folded.before[has_image]]
    chosen = np.flatnonzero(np.where(folded.alive, folded.existed & image_full, has_image))
    if len(chosen) == 0:
        return iter(())
    columns = _chosen_columns(known, old, folded.before[chosen])
    ops = np.where(folded.alive[chosen], np.uint8(Op.BEFORE), np.uint8(Op.DELETE))
    return batches(known.table, BatchKind.TOMBSTONE, folded.ts[chosen], ops, keys.take(pa.array(folded.key[chosen])), columns)


def _data(known: KnownRelation, new: CellGrid, keys: pa.Array, folded: Folded, fetch: Fetch) -> Iterator[ChangeBatch]:
    chosen = np.flatnonzero(folded.alive)
    if len(chosen) == 0:
        return iter(())
    rows = folded.after[chosen]
    grid = new if len(rows) == new.rows and bool((rows[1:] > rows[:-1]).all()) else new.take(rows)
    own_keys = keys.take(pa.array(folded.key[chosen]))
    columns = _columns(known, grid)
    _read_unchanged(known.table, grid, own_keys, columns, fetch)
    ops = np.where(folded.existed[chosen], np.uint8(Op.UPDATE), np.uint8(Op.INSERT))
    return batches(known.table, BatchKind.DATA, folded.ts[chosen], ops, own_keys, columns)


def _read_unchanged(table: TableSchema, grid: CellGrid, keys: pa.Array, columns: list[pa.Array], fetch: Fetch) -> None:
    """Put values in that no image showed, read by key. A row that is gone by now keeps NULL: its delete follows in the log."""
    left = grid.lengths == UNCHANGED
    if not left.any():
        return
    wanted = [at for at in range(grid.columns) if left[at].any()]
    rows = np.flatnonzero(left.any(axis=0))
    own = keys.take(pa.array(rows))
    key_columns = [columns[at].take(pa.array(rows)) for at, c in enumerate(table.columns) if c.primary_key]
    found, values = fetch(table, own, key_columns, [table.columns[at] for at in wanted])
    for at, read in zip(wanted, values, strict=True):
        mask = pa.array(left[at])
        columns[at] = pc.replace_with_mask(columns[at], mask, read.take(pc.index_in(keys.filter(mask), found)))


def batches(table: TableSchema, kind: BatchKind, ts: U64, ops: U8, keys: pa.Array, columns: list[pa.Array]) -> Iterator[ChangeBatch]:
    """Return rows as batches of bounded size, in the order in which they are given."""
    return bounded_batches(0, table, kind, change_records(table, ts, ops, keys, columns))


@kernel
def _carry_unchanged(begins: Flags, after: I64, starts: I64, lengths: I32) -> None:
    """Let cells that an update left in place point at what the same transaction put there before."""
    for at in range(1, len(after)):
        mine, before = after[at], after[at - 1]
        if mine < 0 or before < 0 or begins[at]:
            continue
        for column in range(starts.shape[0]):
            if lengths[column, mine] == UNCHANGED:
                starts[column, mine] = starts[column, before]
                lengths[column, mine] = lengths[column, before]


@kernel
def _follow_instances(
    first: I64, op: I64, old_row: I64, new_row: I64, old_hash: U64, new_hash: U64, existed: Flags, alive: Flags, before: I64, after: I64
) -> bool:
    """Follow the rows of each key through its changes, by content; return whether it stays open which row a delete ended."""
    unsure = False
    live = np.zeros(len(op) + 1, dtype=np.int64)
    for group in range(len(first) - 1):
        count, was_there, image, own = 0, False, np.int64(-1), False
        for at in range(first[group], first[group + 1]):
            if op[at] != 0 and old_row[at] >= 0:
                found = -1
                for k in range(count):
                    if new_hash[live[k]] == old_hash[old_row[at]]:
                        found = k
                if found >= 0:
                    own = own or op[at] == 2
                    live[found] = live[count - 1]
                    count -= 1
                else:
                    was_there = True
                    image = old_row[at] if image < 0 else image
            if op[at] != 2:
                live[count] = new_row[at]
                count += 1
        if not was_there and own:
            unsure = True
        existed[group] = was_there
        alive[group] = count > 0
        after[group] = live[count - 1] if count > 0 else -1
        if was_there:
            before[group] = image
        elif count > 0:
            before[group] = -1
    return unsure
