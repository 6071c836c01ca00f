"""A feed over any number of tables, and any number of feeds, with nothing behind them: for what is counted, not delivered.

Simulated are an event store that always has something to plan, tasks that write nothing, and runs that only live. Everything else is the
product's own: planner, packing, barrier, meta database, supervisors. The time that the simulation takes itself is counted apart
(``SimulatedPart.took_s``), so that it can be taken off. Runs in tests and benchmarks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from penstock.feed.settings import FeedSettings
from penstock.feed.spark.jobs import Job
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.delivery import WindowPart, WindowTask
from penstock.feed.window.following import to_record
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord, SubscribeRecord
from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.server.feeds.creation import FeedDocument
from penstock.server.feeds.ports import RunStatus
from penstock.sink.contract import DispatcherId, DispatcherResult, TaskReport
from penstock.store.contract import SpanWindow, WindowPlan, WindowWish
from penstock.store.stats import SpanStats

SOURCE = "dataserver://127.0.0.1:7000"
BASE_TS = 1 << 60
STEP_TS = 1 << 18
ROWS, ROW_BYTES = 50, 100
ORDERS = TableSchema(
    table_id=1,
    schema="shop",
    table="orders",
    version=BASE_TS - 1,
    columns=(
        Column(1, "id", ColumnType(TypeKind.BIGINT, length=20), nullable=False, primary_key=True),
        *(Column(n, f"column_{n}", ColumnType(TypeKind.VARCHAR, length=64)) for n in range(2, 13)),
    ),
)


class StatementCounter:
    """Counts what one thread asks any meta database: statements as the server gets them, and transactions that wrote."""

    def __init__(self) -> None:
        self.statements = 0
        self.writes = 0
        self._thread = threading.get_ident()

    def __enter__(self) -> StatementCounter:
        sa.event.listen(sa.engine.Engine, "before_cursor_execute", self._executed)
        sa.event.listen(sa.engine.Engine, "commit", self._committed)
        return self

    def __exit__(self, *_: object) -> None:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", self._executed)
        sa.event.remove(sa.engine.Engine, "commit", self._committed)

    def _executed(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, executemany: bool) -> None:
        if statement.startswith("BEGIN") or threading.get_ident() != self._thread:
            return
        # Drivers send rows of one INSERT together, and anything else one by one.
        self.statements += len(parameters) if executemany and not statement.startswith("INSERT") else 1

    def _committed(self, connection: sa.Connection) -> None:
        if threading.get_ident() == self._thread:
            self.writes += bool(connection.get_execution_options().get("penstock_write"))


class SimulatedPart:
    """Counts the CPU seconds that a part of the simulation took in the thread that measures."""

    def __init__(self) -> None:
        self.took_s = 0.0

    @contextlib.contextmanager
    def simulating(self) -> Iterator[None]:
        """Count what is done inside."""
        before_s = time.thread_time()
        try:
            yield
        finally:
            self.took_s += time.thread_time() - before_s


class SimulatedStore(SimulatedPart):
    """The planner's side of an event store: some spans have rows in every window, all are resolved a step further at each question."""

    def __init__(self, tables: Sequence[TableSchema], active: int) -> None:
        super().__init__()
        self._tables = {table.table_id: table for table in tables}
        self._active = {Span(table.table_id).span_id for table in tables[:active]}
        self.calls = 0
        self.ddls: tuple[DdlEvent, ...] = ()
        """What ends the next window."""

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """Answer as a store would that has rows of the active spans."""
        with self.simulating():
            self.calls += 1
            sizes = (ROWS, ROWS * ROW_BYTES)
            spans = tuple(SpanWindow(s, *sizes) if s in self._active else SpanWindow(s, 0, 0) for s in wish.span_ids)
            to_ts = self.ddls[0].commit_ts if self.ddls else wish.from_ts + STEP_TS
            plan = WindowPlan(wish.from_ts, to_ts, to_ts, spans, self.ddls)
            self.ddls = ()
            return plan

    def changed_histories(self, known: Mapping[int, tuple[int, int]]) -> dict[int, tuple[TableSchema, ...]]:
        """Return the one version of each table that is not known."""
        with self.simulating():
            self.calls += 1
            return {table_id: (self._tables[table_id],) for table_id, (count, _) in known.items() if not count}

    def span_status(self) -> dict[int, SpanStats]:
        """Refuse: nothing joins here."""
        raise PenstockError("INTERNAL", "the simulation has no spans that join")


class SimulatedJobs(SimulatedPart):
    """Executors whose tasks answer at once that everything is written. Implements ``Jobs``."""

    def __init__(self, parallelism: int) -> None:
        super().__init__()
        self.parallelism = parallelism
        self.tasks = 0
        self.nbytes = 0

    def run(self, job: Job) -> list[bytes]:
        """Answer for each task."""
        with self.simulating():
            self.tasks += len(job.tasks)
            self.nbytes += sum(map(len, job.tasks))
            return [self._answer(decoded(task, WindowTask)) for task in job.tasks]

    def cancel(self, group: str) -> None:
        """Do nothing: no job lasts."""

    @staticmethod
    def _answer(task: WindowTask) -> bytes:
        results = [DispatcherResult(i.work.dispatcher, {"file": i.work.to_ts}, ROWS, ROWS * ROW_BYTES) for i in task.part.items]
        return msgspec.json.encode(WindowPart(results, TaskReport(counters={"rows": float(ROWS * len(results))})))


class LivingRun:
    """A run that lives until it is stopped. Implements ``FeedRun``."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._ended = threading.Event()

    def start(self) -> None:
        """Be there."""

    def stop(self) -> None:
        """End."""
        self._ended.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait, if need be longer than asked: a thousand keepers in one process would take what is measured."""
        return self._ended.wait(max(timeout_s, self._patience_s))

    def error(self) -> PenstockError | None:
        """Return None."""
        return None

    def status(self) -> RunStatus:
        """Return that it lives."""
        return RunStatus(not self._ended.is_set(), BASE_TS)


class LivingRuns:
    """Makes living runs. Implements ``FeedRunFactory``."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self._patience_s = patience_s

    def create(self, feed: FeedRecord, epoch: int) -> LivingRun:
        """Make a run."""
        del feed, epoch
        return LivingRun(self._patience_s)

    def forget(self, feed: FeedRecord) -> None:
        """Do nothing."""


def tables_of(count: int, first_id: int = 100) -> list[TableSchema]:
    """Return so many tables."""
    return [msgspec.structs.replace(ORDERS, table_id=first_id + n, table=f"orders_{n}") for n in range(count)]


def dispatchers_for(tables: Sequence[TableSchema]) -> tuple[Dispatcher, ...]:
    """Return a dispatcher for each table."""
    return tuple(Dispatcher(DispatcherId(t.table_id), Span(t.table_id), t.schema, t.table) for t in tables)


def create_feed(meta: MetaDatabase, name: str, tables: Sequence[TableSchema]) -> tuple[Dispatcher, ...]:
    """Create a feed over tables, as the server does; return its dispatchers."""
    dispatchers = dispatchers_for(tables)
    config = {"name": name, "tables": [f"{tables[0].schema}.*"], "target": {"uri": "s3://bucket/prefix", "options": {}}}
    document = FeedDocument(config, SOURCE, dispatchers, BASE_TS)
    rows = [SubscribeRecord(t.schema, t.table, name, t.table_id, master_addrs=SOURCE, sink="s3://bucket/prefix") for t in tables]
    meta.create_feed(
        FeedRecord(name, f"uuid-{name}"[:36], document.to_json(), checkpoint_ts=BASE_TS), rows, [to_record(d) for d in dispatchers]
    )
    return dispatchers


def context_of(
    meta: MetaDatabase, meta_url: str, name: str, dispatchers: tuple[Dispatcher, ...], root: Path, partitions: int
) -> FeedContext:
    """Claim a feed and return what its run needs."""
    target = root / name
    target.mkdir(parents=True, exist_ok=True)
    return FeedContext(
        feed=name,
        epoch=meta.claim(name, "bench", 3_600_000) or 0,
        meta_url=meta_url,
        flight_location="grpc://127.0.0.1:1",
        flight_token="none",
        sink_uri=target.as_uri(),
        sink_options={},
        dispatchers=dispatchers,
        # Windows are asked for one after the other: none waits for its interval.
        settings=FeedSettings(flush_interval_s=0.0),
        snapshot_ts=BASE_TS,
        partitions=partitions,
        tables=(f"{dispatchers[0].schema}.*",),
        source=SOURCE,
    )


def cpu_of(work: Callable[[], object], *parts: SimulatedPart) -> float:
    """Return the CPU seconds of this thread in some work, without what the simulation took."""
    before_s, simulated_s = time.thread_time(), sum(part.took_s for part in parts)
    work()
    return time.thread_time() - before_s - (sum(part.took_s for part in parts) - simulated_s)
