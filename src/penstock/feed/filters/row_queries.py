"""Row queries: the seam behind which Spark evaluates the expressions of filters, in windows and where a feed is created.

A query's tasks read rows, Spark keeps some and computes columns, and the same task delivers them: one partition each, from read to answer.
Where the plan moves rows (a join), they are brought back to their task and in order before they are delivered, so what is delivered does
not depend on how Spark did it. Invariants: expressions read no files (only static tables that the server's configuration names); a task
that is attempted again delivers the same. ``RowQueries`` is called by several threads. Runs in the driver; reading and delivering, on
executors.

A query that Spark planned is kept for the next window of its table, because planning takes longer than evaluating a small window. So what
its tasks are told is no part of the plan: it comes with each job, as a property of it, sealed because Spark writes those to its log of
events.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from penstock.feed.filters.analysis import derived_only, keeps_rows_in_place, query, rows_schema, view_of
from penstock.feed.filters.cost import ARROW_BYTES_MAX
from penstock.feed.filters.query_task import CHECK, PART_BITS, PLACE, Deliver, Read, with_long_place, with_short_place
from penstock.feed.filters.query_watch import IDLE_S_MAX, LOOK_S, QueryWatch
from penstock.feed.filters.rules import FilterRule
from penstock.feed.filters.task_seal import TASKS_PROPERTY, GivenTasks, TaskSeal
from penstock.feed.filters.views import TableView
from penstock.feed.formats.typed_rows import typed_schema
from penstock.feed.spark.arrow_map import map_batches
from penstock.feed.spark.jobs import spark_error
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.settings.masking import mask_text

_CONF = {
    "spark.sql.runSQLOnFiles": "false",
    # Else ${env:NAME} in an expression is what the server's environment has there: a secret, told to whoever may create a feed.
    "spark.sql.variable.substitute": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES_MAX),
}
_EXPRESSION_FAILED = re.compile(
    r"org\.apache\.spark\.(SparkArithmetic|SparkNumberFormat|SparkDateTime|SparkRuntime|SparkUnsupportedOperation|SparkArrayIndex\w*|"
    r"SparkIllegalArgument|SparkUpgrade)Exception: (?P<condition>\[[A-Z_.]+\])"
)
# What the JVM says of an expression that Spark has no condition for, such as a pattern on a text that is too long for it.
_MACHINE_FAILED = re.compile(
    r"\(TID \d+\)[^:\n]*: java\.(lang|time|text|util\.regex)\.(?P<condition>\w*(StackOverflow|OutOfMemory|NegativeArraySize|Arithmetic|"
    r"NumberFormat|DateTime|PatternSyntax|StringIndexOutOfBounds|IllegalArgument)\w*)"
)
_CONDITION = re.compile(r"(?P<condition>\[[A-Z_.]+\])")
_EXPRESSION_ERRORS = (ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException, NumberFormatException, SparkRuntimeException)
_VIEWS_MAX = 10_000
_PLANNED_MAX = 200
_ANSWER = st.StructType([st.StructField("answer", st.BinaryType())])


@dataclass(frozen=True)
class QueryJob:
    """Tasks of one table, and what Spark does to their rows; group, pool and description as in ``feed/spark/jobs.py``."""

    group: str
    pool: str
    description: str
    view: TableView
    rule: FilterRule
    tasks: Sequence[bytes]
    read: Read
    deliver: Deliver
    idle_s_max: float = IDLE_S_MAX


class RowQueries(Protocol):
    """Evaluates expressions. Called by several threads at once."""

    def view(self, table: TableSchema, rule: FilterRule) -> TableView:
        """Return the view of a table version; raises ``FILTER_BROKEN`` where an expression does not fit it, or is not repeatable."""

    def run(self, job: QueryJob) -> list[bytes]:
        """Have a job done; return what its tasks answered, in their order. Errors are those of ``Jobs.run``, and ``FILTER_FAILED``."""


class SparkRowQueries:
    """Evaluates expressions in a session of its own, beside the server's. Implements ``RowQueries``."""

    def __init__(self, session: SparkSession, static_tables: Mapping[str, str] | None = None, look_s: float = LOOK_S) -> None:
        """``static_tables`` are what expressions may join with: names, each with ``format:path``.

        ``look_s`` is how often queries are watched.
        """
        self._look_s = look_s
        self._views: dict[tuple[bytes, FilterRule], TableView | PenstockError] = {}
        self._planned: dict[tuple[object, ...], DataFrame] = {}
        self._seal = TaskSeal.made()
        self._parent = session
        self._static = dict(static_tables or {})
        self._own: SparkSession | None = None
        self._lock = threading.Lock()

    def view(self, table: TableSchema, rule: FilterRule) -> TableView:
        """Ask Spark's analyzer, once for each table version and rule."""
        key = (msgspec.json.encode(table), rule)
        with self._lock:
            if key not in self._views:
                _make_room(self._views, _VIEWS_MAX)
                try:
                    self._views[key] = view_of(self._session(), table, rule)
                except PenstockError as error:
                    self._views[key] = error
            found = self._views[key]
        if isinstance(found, PenstockError):
            raise PenstockError(found.code, found.detail, found.hint)
        return found

    def run(self, job: QueryJob) -> list[bytes]:
        """Submit one job and wait for it. Group, pool and description are this thread's."""
        with self._lock:
            session = self._session()
        context, watch = session.sparkContext, QueryWatch(session, job.idle_s_max, self._look_s)
        try:
            context.setJobGroup(job.group, job.description, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", job.pool)
            sealed = self._seal.sealed(job.tasks) if self._seal is not None else None
            # A thread has the properties that it had before, so this one is always set.
            context.setLocalProperty(TASKS_PROPERTY, sealed or "")
            key = (msgspec.json.encode(job.view), job.rule, len(job.tasks), job.read, job.deliver)
            with self._lock:
                # No two threads have one at the same time.
                frame = self._planned.pop(key, None) if sealed else None
                frame = frame or _planned(session, job, self._seal if self._seal and sealed else GivenTasks(tuple(job.tasks)))
            with watch:
                found = {int(row["part"]): bytes(row["answer"]) for row in frame.collect()}
            with self._lock:
                # What a join reads of static tables would be kept with it.
                if sealed and not job.rule.join:
                    _make_room(self._planned, _PLANNED_MAX)
                    self._planned[key] = frame
        except PenstockError:
            raise
        except Exception as error:
            if watch.cancelled:
                raise _failed(job, f"[NO_PROGRESS] for {job.idle_s_max:,.0f} s") from None
            text = str(error)
            failed = _CONDITION.match(text) if isinstance(error, _EXPRESSION_ERRORS) else _EXPRESSION_FAILED.search(text)
            failed = failed or _MACHINE_FAILED.search(text)
            if failed:
                # Spark's own words may repeat values of rows; its condition does not.
                raise _failed(job, failed["condition"]) from None
            raise spark_error(text) from error
        return [found[part] for part in range(len(job.tasks))]

    def _session(self) -> SparkSession:
        if self._own is None:
            # PySpark logs every refused statement as an error of its own, with its whole stack.
            logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
            own = self._parent.newSession()
            for name, value in _CONF.items():
                own.conf.set(name, value)
            for name, place in self._static.items():
                kind, _, path = place.partition(":")
                own.read.format(kind).option("header", "true").load(path).createOrReplaceTempView(name)
            self._own = own
        return self._own


def _make_room(kept: dict[Any, Any], count_max: int) -> None:
    """Let the oldest go where there are enough."""
    while len(kept) >= count_max:
        del kept[next(iter(kept))]


def _planned(session: SparkSession, job: QueryJob, tasks: TaskSeal | GivenTasks) -> DataFrame:
    """Return the frame whose rows are the answers of the job's tasks, with the number of each."""
    if not job.rule.join:
        frame = _kept(session, job, tasks, in_place=True)
        if keeps_rows_in_place(frame):
            return _delivered(frame, job, tasks, in_place=True)
    frame = _kept(session, job, tasks, in_place=False)
    place, count = frame.columns[0], len(job.tasks)
    frame = frame.repartitionById(count, sf.shiftright(sf.col(place), PART_BITS).cast("int")).sortWithinPartitions(place)
    return _delivered(frame, job, tasks, in_place=False)


def _kept(session: SparkSession, job: QueryJob, tasks: TaskSeal | GivenTasks, *, in_place: bool) -> DataFrame:
    """Return the rows that Spark keeps: place, check and derived columns; where rows stay in place, place and check are one number."""
    table, read, count = job.view.base, job.read, len(job.tasks)
    needed = typed_schema(job.view.read, with_ops=False)

    def read_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                rows = _told(read(tasks.opened()[part], part))
                yield from map(with_short_place, rows) if in_place else rows

    own = [st.StructField(PLACE, st.LongType(), False), *([] if in_place else [st.StructField(CHECK, st.LongType(), False)])]
    rows = map_batches(session.range(0, count, 1, count), read_rows, st.StructType([*own, *needed.fields]))
    # What no expression reads is there by name only: it does not cross the JVM.
    there = {*needed.names, *(field.name for field in own)}
    rows = rows.select(
        *(sf.col(_quoted(f.name)) if f.name in there else sf.lit(None).cast(f.dataType).alias(f.name) for f in rows_schema(table).fields)
    )
    return derived_only(query(rows, table, job.rule), job.view, with_check=not in_place)


def _delivered(kept: DataFrame, job: QueryJob, tasks: TaskSeal | GivenTasks, *, in_place: bool) -> DataFrame:
    deliver = job.deliver

    def deliver_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        part = context.partitionId()
        rows = (with_long_place(batch, part) for batch in batches) if in_place else batches
        answers = list(_told(deliver(tasks.opened()[part], part, rows) for _ in range(1)))
        yield pa.RecordBatch.from_arrays([pa.array([part], pa.int32()), pa.array(answers, pa.binary())], ["part", "answer"])

    return map_batches(kept, deliver_rows, st.StructType([st.StructField("part", st.IntegerType()), *_ANSWER.fields]))


def _told(values: Iterator[pa.RecordBatch] | Iterator[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield values; an error on the way tells no secret, because Spark writes it to its log of events. Runs on an executor."""
    try:
        yield from values
    except PenstockError as error:
        raise PenstockError(error.code, mask_text(error.detail), error.hint) from None


def _failed(job: QueryJob, what: str) -> PenstockError:
    given = "; ".join(f"{name} = {getattr(job.rule, name)!r}" for name in ("where", "select", "join") if getattr(job.rule, name))
    return PenstockError("FILTER_FAILED", f"{job.view.base.full_name}: {what} while rows were filtered; {given}")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
