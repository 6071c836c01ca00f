"""Bootstrap: the state of spans pulled from the upstream by Spark tasks and committed to the event store, each span in one step.

One task per piece of a span writes bulk objects; nothing is visible until the driver commits them. Rows count as committed at
``start_ts``, from which on the span's log is captured, so state and log together are exactly the table from ``base_ts`` on: the start
itself where the snapshot is exact, otherwise a ts that covers everything that had committed when the last task ended.

The plan and every part that is done are on record beside the objects, so a driver that comes back reads only what is missing, as long as
the snapshot can still be read. At most so many tasks run at once, so that the windows of other feeds find a place beside them. Runs in the
driver.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from penstock.feed.bootstrap.part import BootstrapPart, pull_encoded
from penstock.feed.bootstrap.reread_part import ComparedPart, RereadPart, compare_encoded
from penstock.feed.spark.jobs import BOOTSTRAP_POOL, Job, Jobs
from penstock.model.clock import Clock, SystemClock
from penstock.model.decoding import decoded
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.span import Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.source.contract import LogPosition, SnapshotTicket, Upstream
from penstock.store.history import HistoryNeeds
from penstock.store.log.bootstrap_log import BootstrapLog, BootstrapPlan, PulledPart
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace

log = logging.getLogger(__name__)
ATTEMPTS_MAX = 5
RETRY_S = 1.0
R = TypeVar("R")
_CHANGED = frozenset({"UPSTREAM_CHANGING", "TABLE_UNKNOWN"})
"""What a source says where a table is not the one of the plan any more."""


class BulkTarget(Protocol):
    """The event store as a bootstrap needs it."""

    objects: ObjectSpace
    needs: HistoryNeeds

    def commit_bulk(self, span_id: int, objects: Sequence[ObjectMeta], commit_ts: int, base_ts: int | None = None) -> None:
        """Make bulk objects visible in one step."""


@dataclass(frozen=True)
class BootstrapSettings:
    """How a bootstrap reads.

    Attributes:
        tasks_max: how many Spark tasks read at once.
        rows_per_s: how many rows they read per second at most, all together; 0 for as many as they can.
        page_rows: how many rows one request to the upstream asks for.
    """

    tasks_max: int = 4
    rows_per_s: int = 0
    page_rows: int = 16_384


class BootstrapProgress(msgspec.Struct, frozen=True):
    """How far a bootstrap is, over all spans that it was given."""

    parts: int
    parts_done: int
    rows: int


class Bootstrapped(msgspec.Struct, frozen=True):
    """What a bootstrap committed for a span: the state is known from ``base_ts`` on."""

    base_ts: int
    objects: int
    rows: int
    restarts: int


class TaskRunner(Protocol):
    """Runs the parts of a bootstrap or of a re-read. Called by several threads at once."""

    def run(self, part: BootstrapPart) -> PulledPart:
        """Have a part pulled; raises what pulling raised."""

    def compare(self, part: RereadPart) -> ComparedPart:
        """Have a part compared; raises what comparing raised."""

    def cancel(self) -> None:
        """Stop what runs, and whatever is asked for later; ``run`` then raises ``CANCELLED``."""


class JobTasks:
    """Runs each part as a job of one task, so that each is done, tried again and put on record by itself."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._group = f"penstock bootstrap {id(self):x}"
        self._stopped = threading.Event()

    def run(self, part: BootstrapPart) -> PulledPart:
        """Have a part pulled by a task."""
        answer = self._do(pull_encoded, msgspec.json.encode(part), f"bootstrap of span {part.span.span_id}")
        return decoded(answer, PulledPart)

    def compare(self, part: RereadPart) -> ComparedPart:
        """Have a part compared by a task."""
        answer = self._do(compare_encoded, msgspec.json.encode(part), f"re-read of span {part.read.span.span_id}")
        return decoded(answer, ComparedPart)

    def _do(self, work: Callable[[bytes], bytes], part: bytes, shown: str) -> bytes:
        if self._stopped.is_set():
            raise PenstockError("CANCELLED", f"{shown}: stopped")
        try:
            (answer,) = self._jobs.run(Job(self._group, BOOTSTRAP_POOL, shown, work, [part]))
        except PenstockError as error:
            if self._stopped.is_set():
                raise PenstockError("CANCELLED", f"{shown}: stopped") from error
            raise
        return answer

    def cancel(self) -> None:
        """Cancel the jobs that run."""
        self._stopped.set()
        self._jobs.cancel(self._group)


class PartReader:
    """Reads spans in parts, by tasks: what bootstrap and re-read share. Any thread may call ``progress`` and ``cancel``."""

    def __init__(
        self,
        tasks: TaskRunner,
        objects: ObjectSpace,
        upstream: Upstream,
        source: str,
        settings: BootstrapSettings | None,
        clock: Clock | None,
    ) -> None:
        """``source`` is the upstream's URI for executors."""
        self._tasks = tasks
        self._objects = objects
        self._upstream = upstream
        self._source = source
        self._settings = settings or BootstrapSettings()
        self._clock = clock or SystemClock()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._progress = BootstrapProgress(0, 0, 0)

    def progress(self) -> BootstrapProgress:
        """Return how far it is."""
        with self._lock:
            return self._progress

    def cancel(self) -> None:
        """Stop; ``run`` raises ``CANCELLED``. What is on record stays there."""
        self._stop.set()
        self._tasks.cancel()

    def _expect(self, progress: BootstrapProgress) -> None:
        with self._lock:
            self._progress = progress

    def _count(self, rows: int) -> None:
        with self._lock:
            old = self._progress
            self._progress = BootstrapProgress(old.parts, old.parts_done + 1, old.rows + rows)

    def _part(self, span: Span, number: int, piece: Span, ticket: SnapshotTicket, table: TableSchema) -> BootstrapPart:
        return BootstrapPart(
            source=self._source,
            span=span,
            piece=piece,
            ticket=ticket,
            table=table,
            objects_uri=self._objects.uri,
            storage_options=self._objects.options,
            number=number,
            page_rows=self._settings.page_rows,
            rows_per_s=self._settings.rows_per_s / self._settings.tasks_max,
        )

    def _patiently(self, work: Callable[[], R], part: BootstrapPart) -> R:
        """Do a part's work, again after transient failures, a bounded number of times; raises ``CANCELLED`` once it is stopped."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            if self._stop.is_set():
                break
            try:
                return work()
            except PenstockError as error:
                if error.kind is not ErrorKind.TRANSIENT or attempt == ATTEMPTS_MAX:
                    raise
                shown = {"span_id": part.span.span_id, "part": part.number, "code": error.code, "attempt": attempt}
                log.warning("part of a table will be read again", extra=shown)
                self._clock.wait(self._stop, RETRY_S * attempt)
        raise PenstockError("CANCELLED", "reading was stopped")


class Bootstrap(PartReader):
    """Bootstraps spans whose log is captured or about to be. One thread calls ``run``."""

    def __init__(
        self,
        tasks: TaskRunner,
        store: BulkTarget,
        upstream: Upstream,
        source: str,
        settled_ts: Callable[[], int],
        settings: BootstrapSettings | None = None,
        clock: Clock | None = None,
        doubt: Callable[[Span], None] = lambda _: None,
    ) -> None:
        """``settled_ts`` gives a ts that covers everything acknowledged before the call.

        ``doubt`` is told, before it is read, of a span whose rows are not all seen at one moment.
        """
        super().__init__(tasks, store.objects, upstream, source, settings, clock)
        self._store = store
        self._settled_ts = settled_ts
        self._doubt = doubt

    def run(self, spans: Sequence[Span], capture: Callable[[Span, int], None]) -> dict[int, Bootstrapped]:
        """Bring spans to a known state; return what was committed by span id.

        ``capture`` is called with a span and the ts from which on its log must be captured, before anything of it is read.
        """
        planned = self._resumable(spans)
        fresh = [span for span in spans if span.span_id not in planned]
        ticket = None
        if fresh:
            # A place of a log gets its ts from whoever reads it, so the reader must be under way before a ticket names one.
            self._settled_ts()
            ticket = self._upstream.begin_snapshot()
            planned |= {span.span_id: (span, self._plan(span, ticket)) for span in fresh}
        try:
            for span, plan in planned.values():
                capture(span, plan.start_ts)
                if plan.resumable:
                    self._doubt(span)
                # However long it takes: the state is right only together with the log since its start.
                self._store.needs.pin(span.span_id, _holder(span), plan.start_ts)
            return self._read(list(planned.values()))
        finally:
            for span in spans:
                self._store.needs.unpin(_holder(span))
            if ticket is not None:
                self._upstream.end_snapshot(ticket)

    def _resumable(self, spans: Sequence[Span]) -> dict[int, tuple[Span, BootstrapPlan]]:
        """Return the plans that can be gone on with."""
        found: dict[int, tuple[Span, BootstrapPlan]] = {}
        for span in spans:
            plan = BootstrapLog(self._store.objects, span.span_id).plan()
            if plan is not None and plan.resumable:
                log.info("bootstrap goes on", extra={"span_id": span.span_id, "start_ts": plan.start_ts})
                found[span.span_id] = (span, plan)
        return found

    def _plan(self, span: Span, ticket: SnapshotTicket) -> BootstrapPlan:
        pieces, encoded = tuple(self._upstream.divide(span)), msgspec.json.encode(ticket).decode()
        plan = BootstrapPlan(span.span_id, ticket.start.ts, pieces, encoded, resumable=not ticket.exact)
        BootstrapLog(self._store.objects, span.span_id).begin(plan)
        return plan

    def _read(self, planned: Sequence[tuple[Span, BootstrapPlan]]) -> dict[int, Bootstrapped]:
        """Read all missing parts, several at once, and commit each span when its last part is done."""
        done = {span.span_id: BootstrapLog(self._store.objects, span.span_id).finished(plan) for span, plan in planned}
        rows = sum(part.rows for parts in done.values() for part in parts.values())
        self._expect(BootstrapProgress(sum(len(p.pieces) for _, p in planned), sum(map(len, done.values())), rows))
        with ThreadPoolExecutor(self._settings.tasks_max, "bootstrap") as pool:
            reads = [(span, plan, self._submit(pool, span, plan, done[span.span_id])) for span, plan in planned]
            try:
                return {span.span_id: self._commit(span, plan, futures, done[span.span_id]) for span, plan, futures in reads}
            except BaseException:
                self.cancel()
                pool.shutdown(cancel_futures=True)
                raise

    def _submit(
        self, pool: ThreadPoolExecutor, span: Span, plan: BootstrapPlan, done: Mapping[int, PulledPart]
    ) -> dict[int, Future[PulledPart]]:
        parts = self._parts(span, plan)
        return {part.number: pool.submit(self._pull, plan, part) for part in parts if part.number not in done}

    def _parts(self, span: Span, plan: BootstrapPlan) -> list[BootstrapPart]:
        ticket = _ticket_of(plan)
        table = SchemaHistory(span.table_id, self._upstream.schema_history(span.table_id)).at_or_first(plan.start_ts)
        return [self._part(span, number, piece, ticket, table) for number, piece in enumerate(plan.pieces)]

    def _pull(self, plan: BootstrapPlan, part: BootstrapPart) -> PulledPart:
        """Have one part pulled by a Spark task, again after a transient failure, and record it."""
        pulled = self._patiently(lambda: self._run(part), part)
        recorded = BootstrapLog(self._store.objects, part.span.span_id).finish(plan, part.number, pulled)
        self._count(recorded.rows)
        return recorded

    def _run(self, part: BootstrapPart) -> PulledPart:
        """Have one part pulled, as its table is now where a DDL changed it since the plan was made."""
        try:
            return self._tasks.run(part)
        except PenstockError as error:
            if error.code not in _CHANGED or part.table is None:
                raise
            log.info("a DDL came while a table was read", extra={"span_id": part.span.span_id, "part": part.number, "code": error.code})
        self._settled_ts()
        table = next((t for t in self._upstream.list_tables() if t.table_id == part.span.table_id), None)
        # Of a table that is no more nothing is needed: the log says that it ended, behind the start of the bootstrap.
        return PulledPart((), part.start_ts) if table is None else self._tasks.run(msgspec.structs.replace(part, table=table))

    def _commit(
        self, span: Span, plan: BootstrapPlan, futures: Mapping[int, Future[PulledPart]], done: Mapping[int, PulledPart]
    ) -> Bootstrapped:
        wait(futures.values(), return_when=FIRST_EXCEPTION)
        pulled = [*done.values(), *(future.result() for future in futures.values())]
        base_ts = plan.start_ts if _ticket_of(plan).exact else max(plan.start_ts, self._settled_ts())
        objects = [o for part in pulled for o in part.objects]
        records = BootstrapLog(self._store.objects, span.span_id)
        try:
            self._store.commit_bulk(span.span_id, objects, plan.start_ts, base_ts)
        except PenstockError as error:
            if error.code != "STALE_READ":
                raise
            records.clear(keep_objects=False)
            raise PenstockError("SNAPSHOT_DUE", f"the bootstrap took longer than the log is kept: {error.detail}") from error
        records.clear()
        committed = Bootstrapped(base_ts, len(objects), sum(o.rows for o in objects), sum(p.restarts for p in pulled))
        log.info("span bootstrapped", extra={"span_id": span.span_id, "rows": committed.rows, "base_ts": base_ts})
        return committed


def _holder(span: Span) -> str:
    """Return under which name a bootstrap pins the history of a span."""
    return f"bootstrap {span.span_id}"


def _ticket_of(plan: BootstrapPlan) -> SnapshotTicket:
    if not plan.ticket:
        # A record of a time when ranges were read without a ticket.
        return SnapshotTicket(LogPosition(plan.start_ts, ""))
    return decoded(plan.ticket, SnapshotTicket)
