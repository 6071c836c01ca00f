"""A target applied by source transactions: batches of whole transactions, in commit order, over all tables.

What stands where is told by the window's transaction index. A batch ends where a table version begins, so that its rows have one structure;
otherwise it grows until it has enough rows. Invariants: no transaction is in two batches; rows of a table come in the order of its files,
and where several wrote it, deletes first at one ts. A file is read once, and what is still to come of it is held. What was applied is noted
in the same transaction, and at a window's end as if its files had been applied by themselves. Runs wherever ``penstock replay`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from penstock.format.layout.paths import DataPath, IndexPath
from penstock.format.layout.transaction_index import FILE, ROWS, TS, IndexedFile, TransactionIndex
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, TableSchema
from penstock.readback.reader import StorageReader, tombstones_first
from penstock.readback.replay import project
from penstock.readback.replay_database import ReplayDatabase

Part = tuple[TableSchema, pl.DataFrame]
_REACHED = "transactions"
"""Under which name the commit ts is noted up to which transactions are applied."""


@dataclass(slots=True)
class WindowFile:
    """A data file of a window: where it stands, and from when to when its transactions are."""

    file: IndexedFile
    index_path: str
    data: DataPath
    first_ts: int = 0
    last_ts: int = 0
    rows: pl.DataFrame | None = None
    """Its rows while they are needed."""


@dataclass(slots=True)
class TransactionOrder:
    """Reads one window. Not thread safe."""

    reader: StorageReader
    index: TransactionIndex
    files: list[WindowFile] = field(init=False)
    """Those with transactions, then those of state, each in the order of the index."""
    _versions: dict[tuple[str, str], dict[int, TableSchema]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.files = [WindowFile(file, *self.reader.place_of(file.path)) for file in self.index.files]
        for number, first_ts, last_ts in self.index.parts.group_by(FILE).agg(pl.col(TS).min(), pl.col(TS).max().alias(ROWS)).rows():
            self.files[number].first_ts, self.files[number].last_ts = first_ts, last_ts

    def batch_ends(self, after_ts: int, borders: Collection[int], rows_max: int) -> list[int]:
        """Return the last commit ts of each batch behind a ts, none of which goes over a border: the ts at which a version begins."""
        found = self.index.transactions().filter(pl.col(TS) > after_ts)
        if not found.height:
            return []
        ts, rows = found[TS].to_numpy(), found[ROWS].to_numpy()
        piece = np.searchsorted(np.sort(np.array(list(borders), np.uint64)), ts, side="right")
        share = (np.cumsum(rows) - rows) // rows_max
        ends = np.flatnonzero((piece[1:] != piece[:-1]) | (share[1:] != share[:-1]))
        return [int(one) for one in ts[[*ends.tolist(), len(ts) - 1]]]

    def tables(self, low_ts: int, high_ts: int) -> Iterator[tuple[tuple[str, str], Iterator[Part]]]:
        """Yield each table with transactions in a stretch, and its rows in order with the version that each part of them has."""
        found: dict[tuple[str, str], list[WindowFile]] = {}
        for one in self.files:
            if not one.file.state and one.first_ts <= high_ts and one.last_ts > low_ts:
                found.setdefault((one.file.schema, one.file.table), []).append(one)
        for name, files in found.items():
            yield name, self._parts(files, low_ts, high_ts)

    def state_files(self) -> Iterator[tuple[WindowFile, Part]]:
        """Yield the files that are of no transaction, with their rows."""
        for one in self.files:
            if one.file.state:
                yield one, (self._version(one), self.reader.read_file(one.file.path, self._version(one)))

    def _parts(self, files: Sequence[WindowFile], low_ts: int, high_ts: int) -> Iterator[Part]:
        # One dispatcher's files follow each other; where several wrote a table, or a partition, their rows meet at a ts.
        if len({one.index_path for one in files}) == 1:
            yield from (self._stretch(one, low_ts, high_ts) for one in files)
            return
        versions: dict[int, list[pl.DataFrame]] = {}
        tables: dict[int, TableSchema] = {}
        for one in files:
            table, rows = self._stretch(one, low_ts, high_ts)
            tables[table.version] = table
            versions.setdefault(table.version, []).append(rows)
        for version in sorted(versions):
            yield tables[version], tombstones_first(pl.concat(versions[version]))

    def _stretch(self, one: WindowFile, low_ts: int, high_ts: int) -> Part:
        """Return the rows of a file in ``(low_ts, high_ts]``; what lies before is not needed again."""
        table = self._version(one)
        held = one.rows if one.rows is not None else self.reader.read_file(one.file.path, table)
        start, end = np.searchsorted(held[COMMIT_TS].to_numpy(), np.array([low_ts, high_ts], np.uint64), side="right")
        one.rows = held[int(end) :] if one.last_ts > high_ts else None
        return table, held[int(start) : int(end)]

    def _version(self, one: WindowFile) -> TableSchema:
        name = one.file.schema, one.file.table
        if name not in self._versions:
            self._versions[name] = {v.table.version: v.table for v in self.reader.versions(*name)}
        table = self._versions[name].get(one.data.dir.version)
        if table is None:
            raise PenstockError("FILE_MALFORMED", f"{one.file.path}: no schema file describes this version")
        return table


@dataclass(slots=True)
class TransactionReplay:
    """Applies the windows of a target whose transactions are known. What it is given are the consumer's own means. Not thread safe."""

    reader: StorageReader
    database: ReplayDatabase
    notes: Mapping[str, str]
    note: Callable[[str, str | None], None]
    target_of: Callable[[str, str], TableSchema | None]
    """The table as the database has it; None where it has none or is to get none."""
    apply_rows: Callable[[TableSchema, pl.DataFrame], None]
    apply_versions: Callable[[int], int]
    """Applies the schema files up to a ts; returns how many."""
    rows_max: int

    def run(self, indexes: Sequence[tuple[IndexPath, str]], borders: Collection[int], tell: Callable[[str], None]) -> tuple[int, int, int]:
        """Apply everything up to the checkpoint that is in order; return how many versions, files and rows that were.

        Where files stand between those of the windows that no index of transactions names, all are left to their own order, but a window
        that was begun. ``borders`` are the ts of the schema files.
        """
        reached_ts = int(self.notes.get(_REACHED, "0"))
        windows = [TransactionOrder(self.reader, index) for index in self.reader.transaction_windows(reached_ts)]
        begun = [window for window in windows if window.index.from_ts < reached_ts]
        # Files that were applied by themselves are not applied again: a replay may have begun before there were indexes.
        fresh = [window for window in windows[len(begun) :] if not all(map(self._is_done, window.files))]
        windows = begun if fresh and self._is_out_of_line(indexes, [*begun, *fresh]) else [*begun, *fresh]
        ddls = rows = 0
        for window in windows:
            low_ts = max(reached_ts, window.index.from_ts)
            for high_ts in window.batch_ends(low_ts, borders, self.rows_max):
                ddls += self.apply_versions(high_ts)
                rows += self._apply(window, low_ts, high_ts)
                low_ts = high_ts
            ddls += self.apply_versions(window.index.to_ts)
            rows += self._end(window)
            tell(f"window to {window.index.to_ts}: {window.index.transactions().height} transactions of {len(window.files)} files")
        return ddls, sum(len(window.files) for window in windows), rows

    def finish(self, limit_ts: int) -> None:
        """Note that everything up to a ts is applied, by whatever order."""
        if self.reader.has_transactions and int(self.notes.get(_REACHED, "0")) < limit_ts:
            with self.database.transaction():
                self.note(_REACHED, str(limit_ts))

    def _apply(self, window: TransactionOrder, low_ts: int, high_ts: int) -> int:
        """Apply whole transactions in one; return how many rows they have."""
        rows = 0
        with self.database.transaction():
            for name, parts in window.tables(low_ts, high_ts):
                rows += sum(self._apply_part(name, part) for part in parts)
            self.note(_REACHED, str(high_ts))
        return rows

    def _end(self, window: TransactionOrder) -> int:
        """Apply the files that are of no transaction, and note that the window is done."""
        rows = 0
        for one, part in window.state_files():
            if not self._is_done(one):
                with self.database.transaction():
                    rows += self._apply_part((one.file.schema, one.file.table), part)
                    self._note_file(one)
        with self.database.transaction():
            for one in window.files:
                self._note_file(one)
            self.note(_REACHED, str(window.index.to_ts))
        return rows

    def _apply_part(self, name: tuple[str, str], part: Part) -> int:
        target = self.target_of(*name)
        if target is None:
            return 0
        self.apply_rows(target, project(part[1], part[0], target))
        return part[1].height

    def _note_file(self, one: WindowFile) -> None:
        if self.target_of(one.file.schema, one.file.table) is not None or self._done(one.index_path):
            self.note(f"file/{one.index_path}", f"{one.data.number}:0")

    def _done(self, index_path: str) -> int:
        return int(self.notes.get(f"file/{index_path}", "0:0").partition(":")[0])

    def _is_done(self, one: WindowFile) -> bool:
        return one.data.number <= self._done(one.index_path)

    def _is_out_of_line(self, indexes: Sequence[tuple[IndexPath, str]], windows: Sequence[TransactionOrder]) -> bool:
        """Return whether a file that no window's index names stands before one that does.

        That is so where a feed had no transaction index at first, or wrote part of a window that never ended.
        """
        named: dict[str, set[int]] = {}
        last: dict[tuple[str, str], tuple[int, str]] = {}
        for one in (one for window in windows for one in window.files):
            named.setdefault(one.index_path, set()).add(one.data.number)
            name, place = (one.file.schema, one.file.table), (one.data.dir.version, one.data.dir.date)
            last[name] = max(last.get(name, place), place)
        for index, path in indexes:
            beside, place_last = named.get(path, set()), last.get((index.dir.schema, index.dir.table))
            numbers = range(self._done(path) + 1, self.reader.last_number(path, index) + 1)
            loose = next((number for number in numbers if number not in beside), None)
            if loose is None or place_last is None:
                continue
            if (index.dir.version, index.dir.date) < place_last or loose < max(beside, default=0):
                return True
        return False
