"""Re-read: a doubted table is read again by Spark tasks, and what differs from the event store's state is settled in the log.

One round: the log service begins to watch which keys the log changes, at L; a snapshot begins; each task compares a key range of each
captured span with the span's state at a resolved ts H at or above L; the corrections go to the log service, which leaves out what the log
changed since L and appends the rest at a ts of its own. Where the table got another key, the store's rows go under the keys that they
came with, and in the target each takes the row along that has their values now: so all rows are given again behind them, which is settled
only if the log changed none meanwhile. With an exact snapshot H is the snapshot's own ts. A round whose table changed its
schema meanwhile is given up with ``UPSTREAM_CHANGING``, whatever the reading said; of a table that is gone nothing is settled. Correction
files live as long as their round. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Protocol

from penstock.feed.bootstrap.bootstrap import BootstrapProgress, BootstrapSettings, PartReader, TaskRunner
from penstock.feed.bootstrap.reread_part import ComparedPart, CorrectionObjects, RereadPart
from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.puller.doubts import Corrections, Settlement, Watch
from penstock.source.contract import SnapshotTicket
from penstock.source.single_log import LoggedUpstream
from penstock.store.history import HistoryNeeds
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace

RESOLVE_S_MAX = 120.0
_POLL_S = 0.02


class WatchedLog(Protocol):
    """The log service as a re-read needs it; see ``puller/doubts.py``."""

    def begin_watch(self, table_id: int) -> Watch:
        """Remember from now on which keys the log changes in a table."""

    def settle(
        self,
        table_id: int,
        corrections: Iterable[Corrections],
        bag: bool,
        check: Callable[[], None],
        alone: bool,
        read_at: Sequence[str],
    ) -> Settlement:
        """Append corrections at a new ts; durable when it returns; see ``puller/doubts.py``."""

    def settled_ts(self) -> int:
        """Return a ts at or above every commit that was acknowledged before the call."""


class HeldState(Protocol):
    """The event store as a re-read needs it."""

    objects: ObjectSpace
    needs: HistoryNeeds

    def resolved_ts(self, span_id: int) -> int:
        """Return the span's resolved ts."""

    def base_ts(self, span_id: int) -> int | None:
        """Return from which ts on the state of a span is known."""

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table that is known, oldest first."""


class FlightPlace(Protocol):
    """Where executors read the store's state."""

    @property
    def location(self) -> str:
        """Return the Flight service's location."""

    @property
    def token(self) -> str:
        """Return its secret."""


class Reread(PartReader):
    """Reads one table again, once. One thread calls ``run``; the doubt stays open where it is stopped."""

    def __init__(
        self,
        tasks: TaskRunner,
        store: HeldState,
        upstream: LoggedUpstream,
        source: str,
        watched: WatchedLog,
        flight: FlightPlace,
        settings: BootstrapSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(tasks, store.objects, upstream, source, settings, clock)
        self._store = store
        self._watched = watched
        self._flight = flight

    def run(self, table_id: int) -> Settlement | None:
        """Read a table once and settle what differs; None where the table is gone. Whoever calls ends the watch after an error."""
        try:
            watch = self._watched.begin_watch(table_id)
        except PenstockError as error:
            if error.code != "TABLE_UNKNOWN":
                raise
            if self._is_gone(table_id):
                return None
            # A feed that is about to begin captures it.
            raise PenstockError("CONGESTED", error.detail) from error
        try:
            return self._round(watch)
        except PenstockError as error:
            if error.code == "CANCELLED":
                raise
            with contextlib.suppress(PenstockError):
                # Perhaps what the log tells next explains it.
                self._watched.settled_ts()
            if self._is_gone(table_id):
                return None
            if self._version(table_id, TS_MAX).version > self._version(table_id, watch.ts).version and error.code != "UPSTREAM_CHANGING":
                raise _changed(table_id) from error
            raise

    def _round(self, watch: Watch) -> Settlement:
        name = f"reread {watch.table_id}"
        ticket = self._begin()
        objects: list[ObjectMeta] = []
        try:
            held_ts = ticket.start.ts if ticket.exact and ticket.start.ts > watch.ts else watch.ts
            for span in watch.spans:
                self._await_state(span, held_ts)
                self._store.needs.pin(span.span_id, name, held_ts)
            table = self._version(watch.table_id, held_ts)
            rekeyed = _got_key_since(self._store.schema_history(watch.table_id), watch.settled_ts)
            compared = self._compare(watch.spans, ticket, table, held_ts, rekeyed)
            objects += [meta for _, part in compared for meta in part.objects()]
            if self._is_gone(watch.table_id):
                raise PenstockError("TABLE_UNKNOWN", f"{table.full_name} is gone")
            found = self._corrections(compared)
            bag, read_at = not table.key_columns, [part.read_at for _, part in compared if part.read_at]
            return self._watched.settle(watch.table_id, found, bag, lambda: self._check_version(table), rekeyed, read_at)
        finally:
            self._upstream.end_snapshot(ticket)
            self._store.needs.unpin(name)
            for meta in objects:
                self._store.objects.delete(meta.path)

    def _begin(self) -> SnapshotTicket:
        # A place of the log gets its ts from whoever reads it, so the reader must be under way before a ticket names one.
        self._watched.settled_ts()
        return self._upstream.begin_snapshot()

    def _await_state(self, span: Span, ts: int) -> None:
        base_ts = self._store.base_ts(span.span_id)
        if base_ts is None or base_ts > ts:
            raise PenstockError("CONGESTED", f"the first snapshot of span {span.span_id} is not done yet")
        deadline_s = self._clock.monotonic_s() + RESOLVE_S_MAX
        while self._store.resolved_ts(span.span_id) < ts:
            if self._clock.monotonic_s() > deadline_s:
                raise PenstockError("CONGESTED", f"span {span.span_id} does not get on")
            if self._clock.wait(self._stop, _POLL_S):
                raise PenstockError("CANCELLED", "the re-read was stopped")

    def _version(self, table_id: int, ts: int) -> TableSchema:
        return SchemaHistory(table_id, self._store.schema_history(table_id)).at_or_first(ts)

    def _is_gone(self, table_id: int) -> bool:
        return all(table.table_id != table_id for table in self._upstream.list_tables())

    def _compare(
        self, spans: Sequence[Span], ticket: SnapshotTicket, table: TableSchema, held_ts: int, rekeyed: bool
    ) -> list[tuple[int, ComparedPart]]:
        """Have every range of every span compared, several at once; return what was found by span, in key order."""
        reads = [self._part(span, at, piece, ticket, table) for span in spans for at, piece in enumerate(self._upstream.divide(span))]
        parts = [RereadPart(read, held_ts, self._flight.location, self._flight.token, rekeyed) for read in reads]
        self._expect(BootstrapProgress(len(parts), 0, 0))
        with ThreadPoolExecutor(self._settings.tasks_max, "reread") as pool:
            futures = [pool.submit(self._compare_part, part) for part in parts]
            try:
                for done in wait(futures, return_when=FIRST_EXCEPTION).done:
                    done.result()
                return [(part.read.span.span_id, future.result()) for part, future in zip(parts, futures, strict=True)]
            except BaseException:
                self.cancel()
                pool.shutdown(cancel_futures=True)
                self._remove(futures)
                raise

    def _remove(self, futures: Iterable[Future[ComparedPart]]) -> None:
        for future in futures:
            if not future.cancelled() and future.exception() is None:
                for meta in future.result().objects():
                    self._store.objects.delete(meta.path)

    def _compare_part(self, part: RereadPart) -> ComparedPart:
        compared = self._patiently(lambda: self._tasks.compare(part), part.read)
        self._count(compared.rows)
        return compared

    def _check_version(self, table: TableSchema) -> None:
        """Raise where the schema changed meanwhile: the reader of the log has passed what was read, so the store knows every version."""
        if self._version(table.table_id, TS_MAX).version != table.version:
            raise _changed(table.table_id)

    def _corrections(self, compared: Sequence[tuple[int, ComparedPart]]) -> Iterator[Corrections]:
        """Yield what differs piece by piece, read when it is asked for."""
        for span_id, part in compared:
            for pair in part.corrections:
                yield self._correction(span_id, pair)

    def _correction(self, span_id: int, pair: CorrectionObjects) -> Corrections:
        return Corrections(span_id, self._batches(pair.tombstones), self._batches(pair.data))

    def _batches(self, meta: ObjectMeta | None) -> tuple[ChangeBatch, ...]:
        return () if meta is None else tuple(self._store.objects.batches(meta, TS_ZERO, TS_MAX))


def _changed(table_id: int) -> PenstockError:
    return PenstockError("UPSTREAM_CHANGING", f"the schema of table {table_id} changed while it was read again")


def _got_key_since(versions: Sequence[TableSchema], ts: int) -> bool:
    """Return whether a version above a ts names rows otherwise than the one before it, and still does."""
    keys = [(v.version, tuple((c.id, c.type) for c in v.key_columns)) for v in versions]
    return bool(keys) and bool(keys[-1][1]) and any(now > ts and key != before for (_, before), (now, key) in itertools.pairwise(keys))
