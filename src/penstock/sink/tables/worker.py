"""One thread of a table sink: takes the events of its dispatchers in order, and applies them in transactions.

Rows of a dispatcher are gathered up to a bound and applied in one transaction, which ends where a transaction of the source does, unless
that one is larger than several bounds. It begins with the dispatcher's progress row: rows that are counted there were applied by another
attempt and are left out, whatever cuts that one made. A dispatcher may have several lanes, each with keys, progress and a connection of
its own. Invariants: everything of one dispatcher is applied in order; an event is told durable once, behind the commit that has its last
row. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.model.batch import commit_ts_array
from penstock.model.clock import system_random
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherWork
from penstock.sink.tables.books import ALL_DONE, BARRIER, FIRST_TOKEN, Books, Progress
from penstock.sink.tables.database import Database, Session, TableTraits, Transactions
from penstock.sink.tables.folding import apply, frame_of, lanes_of, load, naming
from penstock.sink.tables.settings import ExistingRows, TableSinkSettings
from penstock.sink.tables.structure import Structure
from penstock.target.kind import SinkRun

T = TypeVar("T")
_LARGE = 4
"""A transaction of the source that has so many times the rows of one transaction here is applied in parts."""


@dataclass(slots=True)
class Gathering:
    """The state of an open dispatcher, known to its worker alone but for ``work``."""

    work: DispatcherWork
    taken: int = 0
    """Rows of the window that were taken in, gathered ones included."""
    ddls: int = 0
    table: TableSchema | None = None
    parts: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    told: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """What is told once so many rows of the window are durable."""
    prepared: bool = False
    token: int = 0
    """Of a difference: what the progress row has in the place of a count, as long as nobody else wrote since the target was read."""

    @property
    def brings_state(self) -> bool:
        """Return whether the rows are the table's first state, for which it is emptied."""
        return self.work.from_ts == TS_ZERO and not self.work.is_difference

    @property
    def name(self) -> str:
        """Return how the books call the dispatcher."""
        return str(self.work.dispatcher)


@dataclass(frozen=True, slots=True)
class TableEngine:
    """What all workers of a sink share."""

    database: Database
    settings: TableSinkSettings
    books: Books
    structure: Structure
    run: SinkRun


class DispatcherWriter:
    """Applies the changes of dispatchers over connections of its own. One thread."""

    def __init__(self, engine: TableEngine, open_transactions: Callable[[], Transactions]) -> None:
        self.engine = engine
        self.transactions = open_transactions()
        self._lanes = [self.transactions, *(open_transactions() for _ in range(engine.settings.lanes - 1))]
        self._pool = ThreadPoolExecutor(len(self._lanes), "lane") if len(self._lanes) > 1 else None
        self._traits: dict[tuple[int, int], TableTraits] = {}
        self._random = system_random()

    def begin_difference(self, state: Gathering) -> None:
        """Make sure that from now on nobody but this attempt writes what it will find to differ: no earlier window, no other attempt."""
        engine, token = self.engine, self._new_token()

        def take(session: Session) -> int:
            engine.books.lock(session, engine.run.feed, BARRIER)
            found = engine.books.lock(session, engine.run.feed, state.name).within(state.work.to_ts, engine.run.epoch)
            if found.rows >= ALL_DONE:
                return ALL_DONE
            engine.books.end_earlier(session, engine.run.feed, state.work.to_ts)
            engine.books.write(session, engine.run.feed, state.name, Progress(state.work.to_ts, token, found.ddls, engine.run.epoch))
            return token

        state.token = self.transactions.run(take)
        if state.token < ALL_DONE:
            # What differs is read under the columns of now.
            self.prepare(state, state.work.table)

    def add(self, state: Gathering, table: TableSchema, records: pa.RecordBatch, flushed: Callable[[], None] | None) -> None:
        """Take rows in, and apply what has become enough."""
        if table is not state.table and table != state.table:
            self.flush(state)
            state.table = table
        if records.num_rows:
            state.parts.append(records)
            state.rows += records.num_rows
            state.taken += records.num_rows
        if flushed is not None:
            state.told.append((state.taken, flushed))
        if not state.rows:
            self._tell(state)
        elif state.rows >= self.engine.settings.transaction_rows:
            self._flush_whole(state)

    def flush(self, state: Gathering) -> None:
        """Apply everything that was taken in."""
        if state.rows:
            self._apply(state, pa.Table.from_batches(state.parts).combine_chunks())
            state.parts, state.rows = [], 0
        self._tell(state)

    def end(self, state: Gathering) -> None:
        """Apply what is left of the window; a first state makes its table even if it has no rows."""
        self.flush(state)
        if state.brings_state and not state.prepared:
            self.prepare(state, state.table or state.work.table)

    def alter(self, state: Gathering, event: DdlEvent) -> list[str]:
        """Apply a DDL that this dispatcher alone is involved in, once."""
        engine, ordinal = self.engine, state.ddls
        state.ddls += 1

        def change(session: Session) -> list[str]:
            progress = engine.books.lock(session, engine.run.feed, state.name).within(state.work.to_ts, engine.run.epoch)
            if progress.ddls > ordinal:
                return [table.full_name for table in event.tables]
            done = self._alone(session, lambda other: engine.structure.apply(other, event))
            rows = max(progress.rows, state.taken) if engine.settings.lanes == 1 else progress.rows
            engine.books.write(session, engine.run.feed, state.name, Progress(state.work.to_ts, rows, ordinal + 1, engine.run.epoch))
            return done

        reach("schema-file:before")
        done = self.transactions.run(change)
        reach("schema-file:after")
        self._traits.clear()
        return done

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for lane in self._lanes:
            lane.close()

    def _alone(self, session: Session, work: Callable[[Session], T]) -> T:
        """Change a structure within the transaction, or beside it where the database commits each DDL: the progress row stays locked."""
        if not self.engine.database.dialect.ddl_commits:
            return work(session)
        beside = self.engine.database.connect()
        try:
            return work(beside)
        finally:
            beside.close()

    def _flush_whole(self, state: Gathering) -> None:
        """Apply the transactions of the source that are surely whole; the last one may go on."""
        last_ts = commit_ts_array(state.parts[-1])[-1]
        table = pa.Table.from_batches(state.parts).combine_chunks()
        ts = table.column("_ts").to_numpy()
        whole = int(np.searchsorted(ts, last_ts, side="left"))
        if state.work.from_ts == TS_ZERO or (len(ts) - whole) >= _LARGE * self.engine.settings.transaction_rows:
            whole = len(ts)
        if whole == 0:
            state.parts = table.to_batches()
            return
        rest = table.slice(whole)
        state.rows = whole
        self._apply(state, table.slice(0, whole), behind=rest.num_rows)
        state.parts, state.rows = rest.to_batches(), rest.num_rows
        self._tell(state)

    def _tell(self, state: Gathering) -> None:
        durable = state.taken - state.rows
        while state.told and state.told[0][0] <= durable:
            state.told.pop(0)[1]()

    def _apply(self, state: Gathering, rows: pa.Table, behind: int = 0) -> None:
        assert state.table is not None
        if state.work.is_difference:
            self._apply_difference(state, state.table, rows)
            return
        start = state.taken - behind - rows.num_rows
        lanes = len(self._lanes) if self._laned(state) else 1
        if not state.prepared and not self._remains(state, start + rows.num_rows, lanes):
            return
        self.prepare(state, state.table)
        frame = frame_of(rows, state.table)
        reach("data-put:before")
        if lanes == 1 or self._pool is None:
            self._in_lane(state, 0, 1, frame, start)
        else:
            lane_of = lanes_of(frame, state.table, lanes)
            offsets = pl.Series(np.arange(start, start + frame.height))
            waiting = [
                self._pool.submit(self._in_lane, state, lane, lanes, part, start, offsets.filter(chosen))
                for lane in range(lanes)
                if (part := frame.filter(chosen := lane_of == lane)).height
            ]
            for one in waiting:
                one.result()
        reach("data-put:after")

    def _apply_difference(self, state: Gathering, table: TableSchema, rows: pa.Table) -> None:
        """Apply a part of what differs, unless somebody wrote since the target was read: then it is read again."""
        if state.token >= ALL_DONE:
            return
        engine, before, after = self.engine, state.token, self._new_token()
        frame, renamed = frame_of(rows, table), engine.settings.renamed(table)

        def change(session: Session) -> None:
            progress = engine.books.lock(session, engine.run.feed, state.name).within(state.work.to_ts, engine.run.epoch)
            if progress.rows == after or progress.rows >= ALL_DONE:
                return
            if progress.rows != before:
                raise PenstockError("TXN_CONFLICT", f"{table.full_name}: another attempt compares it with the target")
            apply(session, engine.database, engine.settings, renamed, self.traits_of(session, renamed), frame)
            engine.books.write(session, engine.run.feed, state.name, Progress(state.work.to_ts, after, progress.ddls, engine.run.epoch))

        reach("data-put:before")
        self.transactions.run(change)
        state.token = after
        reach("data-put:after")

    def _new_token(self) -> int:
        return FIRST_TOKEN + self._random.getrandbits(60)

    def _laned(self, state: Gathering) -> bool:
        """Return whether keys of the table are independent of each other: something names rows, and nothing else is unique."""
        table = state.table
        return table is not None and len(self._lanes) > 1 and bool(table.handle_columns) and not self.engine.settings.unique_keys

    def _lane_name(self, state: Gathering, lane: int, lanes: int) -> str:
        # Another version may divide keys otherwise: then what it finds is of nobody, and keyed rows are applied again.
        return state.name if lanes == 1 else f"{state.name}/{lane}of{lanes}-{pl.__version__}"

    def _in_lane(self, state: Gathering, lane: int, lanes: int, frame: pl.DataFrame, start: int, offsets: pl.Series | None = None) -> None:
        """Apply rows of one lane in one transaction; ``start`` is the number of the first row of all lanes in the window."""
        engine, table = self.engine, state.table
        assert table is not None
        name = self._lane_name(state, lane, lanes)
        end = start + frame.height if offsets is None else int(offsets[-1]) + 1
        renamed = engine.settings.renamed(table)

        def change(session: Session) -> None:
            progress = engine.books.lock(session, engine.run.feed, name).within(state.work.to_ts, engine.run.epoch)
            if progress.rows >= end:
                return
            rows = frame
            if progress.rows > start:
                rows = frame[progress.rows - start :] if offsets is None else frame.filter(offsets >= progress.rows)
            traits = self.traits_of(session, renamed)
            with naming(table):
                put = load if state.brings_state and self._is_fresh(renamed, traits) else apply
                put(session, engine.database, engine.settings, renamed, traits, rows)
            ddls = progress.ddls
            engine.books.write(session, engine.run.feed, name, Progress(state.work.to_ts, end, ddls, engine.run.epoch))

        self._lanes[lane].run(change)

    def _is_fresh(self, table: TableSchema, traits: TableTraits) -> bool:
        """Return whether the rows of a first state may be put in as they are: the table was emptied for it, or made."""
        return self.engine.settings.existing_rows is not ExistingRows.KEEP and len(traits.unique_sets) <= 1

    def _remains(self, state: Gathering, end: int, lanes: int) -> bool:
        """Return whether anything up to a row is not applied yet: a table that a later DDL dropped is not made again."""
        engine = self.engine

        def look(session: Session) -> bool:
            for lane in range(lanes):
                found = engine.books.read(session, engine.run.feed, self._lane_name(state, lane, lanes)) or Progress()
                if found.within(state.work.to_ts, engine.run.epoch).rows < end:
                    return True
            return False

        return self.transactions.run(look, begin=False)

    def prepare(self, state: Gathering, table: TableSchema) -> None:
        """Make sure of a dispatcher's table, once in a window."""
        if state.prepared:
            return
        engine = self.engine
        if state.work.from_ts != TS_ZERO and self.transactions.run(lambda session: engine.structure.is_made(session, table), begin=False):
            state.prepared = True
            return
        state_ts = state.work.to_ts if state.brings_state else 0

        def prepare(session: Session) -> None:
            # One after the other, whichever dispatcher or attempt it is: of a split table, the first one empties it for its state.
            engine.books.lock(session, engine.run.feed, BARRIER)
            found = engine.books.read(session, engine.run.feed, state.name) or Progress()
            if found.within(state.work.to_ts, engine.run.epoch).rows < ALL_DONE:
                self._alone(session, lambda other: engine.structure.prepare(other, table, state_ts, again=state.work.is_difference))

        self.transactions.run(prepare)
        state.prepared = True

    def traits_of(self, session: Session, table: TableSchema) -> TableTraits:
        """Return what a table of the target has."""
        key = (table.table_id, table.version)
        if key not in self._traits:
            self._traits[key] = self.engine.database.traits(session, table.schema, table.table)
        return self._traits[key]
