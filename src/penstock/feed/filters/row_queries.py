"""Row queries: the seam behind which Spark evaluates the expressions of filters, in windows and where a feed is created.

A query's tasks read rows, Spark keeps some and computes columns, and the same task delivers them: one partition each, from read to answer.
Where the plan moves rows (a join), they are brought back to their task and in order before they are delivered, so what is delivered does
not depend on how Spark did it. Invariants: expressions read no files (only static tables that the server's configuration names); a task
that is attempted again delivers the same. ``RowQueries`` is called by several threads. Runs in the driver; reading and delivering, on
executors.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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
from penstock.feed.filters.query_task import CHECK, PART_BITS, PLACE, Deliver, Read
from penstock.feed.filters.query_watch import IDLE_S_MAX, LOOK_S, QueryWatch
from penstock.feed.filters.rules import FilterRule
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
        self._parent = session
        self._static = dict(static_tables or {})
        self._own: SparkSession | None = None
        self._lock = threading.Lock()

    def view(self, table: TableSchema, rule: FilterRule) -> TableView:
        """Ask Spark's analyzer."""
        with self._lock:
            return view_of(self._session(), table, rule)

    def run(self, job: QueryJob) -> list[bytes]:
        """Submit one job and wait for it. Group, pool and description are this thread's."""
        with self._lock:
            session = self._session()
        context, watch = session.sparkContext, QueryWatch(session, job.idle_s_max, self._look_s)
        try:
            context.setJobGroup(job.group, job.description, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", job.pool)
            with self._lock:
                frame = _planned(session, job)
            with watch:
                found = {int(row["part"]): bytes(row["answer"]) for row in frame.collect()}
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


def _planned(session: SparkSession, job: QueryJob) -> DataFrame:
    """Return the frame whose rows are the answers of the job's tasks, with the number of each."""
    table, tasks, read, deliver = job.view.base, list(job.tasks), job.read, job.deliver
    needed = typed_schema(job.view.read, with_ops=False)

    def read_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from _told(read(tasks[part], part))

    def deliver_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        part = context.partitionId()
        answers = list(_told(deliver(tasks[part], part, batches) for _ in range(1)))
        yield pa.RecordBatch.from_arrays([pa.array([part], pa.int32()), pa.array(answers, pa.binary())], ["part", "answer"])

    first = st.StructType([st.StructField(PLACE, st.LongType(), False), st.StructField(CHECK, st.LongType(), False), *needed.fields])
    rows = map_batches(session.range(0, len(tasks), 1, len(tasks)), read_rows, first)
    # What no expression reads is there by name only: it does not cross the JVM.
    there = {*needed.names, PLACE, CHECK}
    rows = rows.select(
        *(sf.col(_quoted(f.name)) if f.name in there else sf.lit(None).cast(f.dataType).alias(f.name) for f in rows_schema(table).fields)
    )
    kept = derived_only(query(rows, table, job.rule), job.view)
    if not keeps_rows_in_place(kept):
        place = kept.columns[0]
        kept = kept.repartitionById(len(tasks), sf.shiftright(sf.col(place), PART_BITS).cast("int")).sortWithinPartitions(place)
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
