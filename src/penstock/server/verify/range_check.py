"""One key range of a table as it is now, compared with the event store's state of it, while both move.

A row counts as different only where it differs in every look at the range, and where the log changed it at no time between the beginning
of the first look and the end of the last: a transaction stands in the log before its rows can be read, and is in the table before the store
has it. The second and third look are taken only where the one before found something, after pauses in which such rows come to rest. Rows
without a key are told by their content. Reads with one connection at a bounded rate; needs the memory of a few batches, and local disk for
the rows of the range. Runs in the server.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa

from penstock.feed.bootstrap.lockstep import leave_out_equal
from penstock.feed.bootstrap.part import Pace
from penstock.feed.bootstrap.reread_part import held_rows, range_view, rows_inside
from penstock.feed.bootstrap.row_key_difference import RowKeyDifference
from penstock.model.batch import COMMIT_TS, KEY, OP, Op
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.readback.state_difference import RowSpool, buckets_for
from penstock.server.verify.table_comparison import TableVerdict
from penstock.source.contract import Upstream
from penstock.store.contract import EndOfRange
from penstock.store.event_store import ColumnarEventStore

DIFFERENCES_MAX = 10_000
"""How many differing rows of a range are followed; where there are more, the rest is not counted."""
_KEYS_SHOWN_MAX = 5
_POLL_S = 0.05


class CheckSettings(msgspec.Struct, frozen=True):
    """How a range is looked at: pauses before the looks that confirm a difference, and how much is read how fast."""

    pauses_s: tuple[float, ...] = (1.0, 15.0)
    rows_max: int = 1_000_000
    rows_per_s: float = 50_000.0
    resolve_s_max: float = 120.0


class _Look(msgspec.Struct, frozen=True):
    """What one look found: how many rows the table has in the range, which differ, and the ts behind it."""

    rows: int
    found: pl.DataFrame
    after_ts: int
    table: TableSchema


class RangeCheck:
    """Compares ranges of the tables of one upstream. One thread calls ``check``."""

    def __init__(
        self, upstream: Upstream, store: ColumnarEventStore, settled_ts: Callable[[], int], clock: Clock, settings: CheckSettings
    ) -> None:
        """``settled_ts`` gives a ts that covers everything acknowledged before the call."""
        self._upstream = upstream
        self._store = store
        self._settled_ts = settled_ts
        self._clock = clock
        self._settings = settings

    def pieces(self, span: Span) -> list[Span]:
        """Return the ranges of a span, in key order."""
        return list(self._upstream.divide(span))

    def check(self, span: Span, piece: Span, stop: threading.Event) -> TableVerdict:
        """Compare a range of a captured span; raises ``UPSTREAM_CHANGING`` where a DDL came in between, ``CANCELLED`` when stopped."""
        name = f"verify {piece.span_id}"
        try:
            first_ts = self._settled_ts()
            self._store.needs.pin(span.span_id, name, first_ts)
            first = look = self._look(span, piece, first_ts, stop)
            for pause_s in self._settings.pauses_s:
                if not look.found.height:
                    break
                if self._clock.wait(stop, pause_s):
                    raise _stopped()
                again = self._look(span, piece, self._settled_ts(), stop)
                if again.table.version != first.table.version:
                    raise _changing(first.table)
                names = _identity(again.table)
                # Without those that a change since the first look explains, and those that the look before did not find.
                found = again.found.join(look.found.select(names), on=names, how="semi", nulls_equal=True)
                look = msgspec.structs.replace(again, found=self._unmoved(found, span, piece, first_ts, again))
            if look.found.height and all(t.table_id != span.table_id for t in self._upstream.list_tables()):
                # Whoever reads it by its id reads what took its place: a TRUNCATE gives the rest of its life another id.
                raise PenstockError("UPSTREAM_CHANGING", f"{first.table.full_name} is another table now")
            return _verdict(look)
        finally:
            self._store.needs.unpin(name)

    def _look(self, span: Span, piece: Span, before_ts: int, stop: threading.Event) -> _Look:
        base_ts = self._store.base_ts(span.span_id)
        if base_ts is None or base_ts > before_ts:
            raise PenstockError("CONGESTED", "the first snapshot of the table is not done yet")
        with tempfile.TemporaryDirectory(prefix="penstock-verify-") as directory:
            table = self._version(span.table_id, before_ts)
            shown = pa.schema([field for field in table.batch_schema() if field.name != COMMIT_TS])
            now = RowSpool(Path(directory) / "now.arrow", shown)
            rows = self._read_table(piece, table, now, stop)
            after_ts = self._settled_ts()
            self._await_state(span, after_ts, stop)
            if self._version(span.table_id, after_ts).version != table.version:
                raise _changing(table)
            look = _Look(rows, self._compare(span, piece, now, after_ts, table, Path(directory)), after_ts, table)
        return msgspec.structs.replace(look, found=self._unmoved(look.found, span, piece, before_ts, look))

    def _read_table(self, piece: Span, table: TableSchema, now: RowSpool, stop: threading.Event) -> int:
        rows, pace = 0, Pace(self._settings.rows_per_s, self._clock)
        for batch in self._upstream.read_now(piece):
            if stop.is_set():
                raise _stopped()
            if batch.records.schema.names != table.batch_schema().names:
                raise _changing(table)
            rows += batch.header.rows
            if rows > self._settings.rows_max:
                raise PenstockError(
                    "CONFIG_INVALID",
                    f"a key range of the table has more than {self._settings.rows_max:,} rows, because its key cannot be divided further",
                    "Run penstock verify FEED, or name the table in recheck-tables.",
                )
            now.add(batch.records.cast(table.batch_schema()).drop_columns([COMMIT_TS]))
            pace.take(batch.header.rows)
        now.finish()
        return rows

    def _compare(self, span: Span, piece: Span, now: RowSpool, ts: int, table: TableSchema, directory: Path) -> pl.DataFrame:
        """Return the rows that differ, with their op: DELETE where only the store has one, INSERT where only the table has."""
        held, fresh = RowSpool(directory / "held.arrow", now.schema), RowSpool(directory / "fresh.arrow", now.schema)
        view = range_view(self._store.view(span.span_id, TS_ZERO, ts), piece)
        leave_out_equal(held_rows(view, piece, ts, table), now.read(), held.add, fresh.add, unique=bool(table.key_columns))
        held.finish()
        fresh.finish()
        difference = RowKeyDifference(table, directory, buckets_for(held.nbytes + fresh.nbytes))
        difference.add_old(held.read())
        difference.add_new(fresh.read())
        empty = pl.DataFrame(now.schema.empty_table())
        parts, height = [empty], 0
        for ended, begun in difference.steps(TS_ZERO):
            for records in (*ended, *begun):
                frame = pl.DataFrame(records.select(now.schema.names)).filter(pl.col(OP) != int(Op.BEFORE)).head(DIFFERENCES_MAX - height)
                parts.append(frame)
                height += frame.height
            if height >= DIFFERENCES_MAX:
                break
        return pl.concat(parts)

    def _unmoved(self, found: pl.DataFrame, span: Span, piece: Span, from_ts: int, look: _Look) -> pl.DataFrame:
        """Return those of some rows that the log did not change from a ts up to the end of a look."""
        if not found.height:
            return found
        names = _identity(look.table)
        handle = self._store.collect_changes(span.span_id, from_ts, look.after_ts)
        try:
            while found.height and not isinstance(step := handle.next(), EndOfRange):
                for batch in (*step.data, *step.tombstones):
                    records = batch.records if not look.table.key_columns else rows_inside(batch.records, piece)
                    moved = pl.DataFrame(records.select(names))
                    found = found.join(moved, on=names, how="anti", nulls_equal=True)
        finally:
            handle.close()
        return found

    def _version(self, table_id: int, ts: int) -> TableSchema:
        return SchemaHistory(table_id, self._store.schema_history(table_id)).at_or_first(ts)

    def _await_state(self, span: Span, ts: int, stop: threading.Event) -> None:
        deadline_s = self._clock.monotonic_s() + self._settings.resolve_s_max
        while self._store.resolved_ts(span.span_id) < ts:
            if self._clock.monotonic_s() > deadline_s:
                raise PenstockError("CONGESTED", "the event store does not get on")
            if self._clock.wait(stop, _POLL_S):
                raise _stopped()


def next_piece(pieces: list[Span], cursor: bytes) -> Span:
    """Return the range in which a cursor lies; the end of each range is the cursor of the next, however the table is cut by then."""
    return next((p for p in reversed(pieces) if p.start_key <= cursor), pieces[0])


def _identity(table: TableSchema) -> list[str]:
    return [KEY] if table.key_columns else table.row_schema().names


def _verdict(look: _Look) -> TableVerdict:
    counts = {op: look.found.filter(pl.col(OP) == int(op)).height for op in (Op.INSERT, Op.DELETE, Op.UPDATE)}
    shown = [c.field_name for c in look.table.key_columns] or look.table.row_schema().names
    sample = tuple(str(row) for row in look.found.select(shown).head(_KEYS_SHOWN_MAX).rows())
    same = look.rows - counts[Op.INSERT] - counts[Op.UPDATE]
    return TableVerdict(look.table.full_name, same, counts[Op.INSERT], counts[Op.DELETE], counts[Op.UPDATE], sample)


def _changing(table: TableSchema) -> PenstockError:
    return PenstockError("UPSTREAM_CHANGING", f"the schema of {table.full_name} changed while it was looked at")


def _stopped() -> PenstockError:
    return PenstockError("CANCELLED", "the verification was stopped")
