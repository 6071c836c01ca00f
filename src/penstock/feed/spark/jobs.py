"""Jobs: the seam behind which Spark stands. Work goes in as tasks, answers come back, and a group of jobs can be cancelled.

A job is a list of tasks in bytes and the function that does one of them; the answers stand in the order of the tasks. A task that fails
with an error of ours answers with that error, so its code is not read out of text; only what Spark itself says is. Invariants: a job's
answers are those of all its tasks, or the job raises; an error that passes is left to Spark while it has attempts for the task. Whatever
Spark says that is none of our errors passes too. ``Jobs`` is called by several threads at once; a job holds its thread until it ends.
``testing/twins/local_jobs.py`` does the same in one process. Runs in the driver; ``attempt``, on executors.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.model.errors import ErrorKind, PenstockError
from penstock.settings.masking import mask_text

if TYPE_CHECKING:
    from penstock.feed.filters.row_queries import RowQueries

Work = Callable[[bytes], bytes]
"""What does a task: a function of a module, which executors import."""

# Jobs of one pool have their turn as they came. Of pools that have as many tasks running, Spark takes the first by name, every time: on a
# busy cluster with a pool for each feed the last of 7 feeds had 9 windows while the first had 190.
RECEIVERS_POOL = "penstock 1 receivers"
WINDOWS_POOL = "penstock 2 windows"
BOOTSTRAP_POOL = "penstock 3 bootstrap"

_LOCAL_ATTEMPTS = re.compile(r"local\[[^,\]]+,\s*(\d+)\]")
_CANCELLED = "cancelled part of cancelled job group"
# What Spark says where a process vanished: no error of ours can be in the text then.
_LOST = ("Python worker exited unexpectedly", "ExecutorLostFailure", "java.io.EOFException", "Connection reset", "Broken pipe")
_REASON = re.compile(r"Job aborted due to stage failure|Exception|Error|SparkContext was shut down")
_DETAIL_MAX = 500


@dataclass(frozen=True)
class Job:
    """Tasks that are done together.

    Attributes:
        group: with which jobs it is cancelled.
        pool: with which jobs it shares its turn; pools take turns.
        description: what people see of it in Spark. No secrets.
        work: what does a task.
        tasks: what each task is told. Spark shows nothing of it.
    """

    group: str
    pool: str
    description: str
    work: Work
    tasks: Sequence[bytes]


class Jobs(Protocol):
    """Runs jobs. Called by several threads at once."""

    @property
    def parallelism(self) -> int:
        """Return how many tasks run at once, as far as is known when it is asked."""

    def run(self, job: Job) -> list[bytes]:
        """Have a job done; return what its tasks answered, in their order.

        Raises the error of a task, ``CANCELLED`` where the job was cancelled, and ``WORKER_LOST`` or ``FEED_FAILED`` for what else happens.
        Tasks may have been attempted more than once, and two attempts of one may have run at the same time.
        """

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group that run now; one that is submitted later runs. May be called twice, and when there are none."""


@runtime_checkable
class Querying(Protocol):
    """Jobs that evaluate the expressions of filters as well."""

    @property
    def queries(self) -> RowQueries | None:
        """Return what evaluates expressions."""


class SparkJobs:
    """Runs jobs in a Spark session. Implements ``Jobs`` and ``Querying``."""

    def __init__(self, session: SparkSession, static_tables: Mapping[str, str] | None = None) -> None:
        """``static_tables`` are what expressions of filters may join with: names, each with ``format:path``."""
        self._session = session
        self._static_tables = static_tables
        self._context = session.sparkContext
        self._attempts = _attempts_max(str(self._context.master), self._context.getConf().get("spark.task.maxFailures") or "4")

    @property
    def parallelism(self) -> int:
        """Return the session's parallelism."""
        try:
            return max(1, self._context.defaultParallelism)
        except Exception as error:
            raise spark_error(str(error)) from error

    @functools.cached_property
    def queries(self) -> RowQueries:
        """Return what evaluates expressions in this session. Its parts are imported here, because most feeds need none."""
        from penstock.feed.filters.row_queries import SparkRowQueries

        return SparkRowQueries(self._session, self._static_tables)

    def run(self, job: Job) -> list[bytes]:
        """Submit a plain RDD job of one partition per task and wait for it. Group, pool and description are this thread's."""
        if not job.tasks:
            return []
        context = self._context
        try:
            context.setJobGroup(job.group, job.description, interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", job.pool)
            tasks = context.parallelize(list(job.tasks), len(job.tasks))
            answers = tasks.mapPartitions(functools.partial(attempt, job.work, self._attempts)).collect()
        except Exception as error:
            raise spark_error(str(error)) from error
        return sorted_out(answers)

    def cancel(self, group: str) -> None:
        """Cancel a group's jobs; their Python workers are ended where they do not end by themselves."""
        # A JVM that is gone has no jobs.
        with contextlib.suppress(Exception):
            self._context.cancelJobGroup(group)


def attempt(work: Work, attempts_max: int, tasks: Iterable[bytes]) -> Iterator[bytes | PenstockError]:
    """Do tasks; answer with the error of one that failed, unless it passes and Spark has an attempt left. Runs on an executor."""
    context = TaskContext.get()
    last = context is None or context.attemptNumber() + 1 >= attempts_max
    for task in tasks:
        try:
            yield work(task)
        except PenstockError as error:
            if error.kind is ErrorKind.TRANSIENT and not last:
                raise PenstockError(error.code, mask_text(error.detail), error.hint) from None
            yield error
        except Exception as error:  # noqa: BLE001 - what is not ours is told too, without what it must not tell
            # Spark writes what a task raises to its log of events, with the whole chain of causes.
            failed = PenstockError("FEED_FAILED", mask_text(f"{type(error).__name__}: {error}")[:_DETAIL_MAX])
            if not last:
                raise failed from None
            yield failed


def sorted_out(answers: Sequence[bytes | PenstockError]) -> list[bytes]:
    """Return the answers, or raise the error among them that decides most: one that passes only where there is no other."""
    errors = [answer for answer in answers if isinstance(answer, PenstockError)]
    if errors:
        raise min(errors, key=lambda error: error.kind is ErrorKind.TRANSIENT)
    return [answer for answer in answers if isinstance(answer, bytes)]


def spark_error(text: str) -> PenstockError:
    """Return the Penstock error in the text of a failed job, or what Spark's words mean where it is none of ours."""
    if _CANCELLED in text:
        return PenstockError("CANCELLED", "the job was cancelled")
    found = PenstockError.from_text(text)
    if found.code != "FEED_FAILED":
        return found
    lines = [line.strip().removeprefix(":").strip() for line in text.splitlines()]
    detail = next((line for line in lines if _REASON.search(line)), found.detail)[:_DETAIL_MAX]
    return PenstockError("WORKER_LOST" if any(words in text for words in _LOST) else "FEED_FAILED", detail)


def _attempts_max(master: str, configured: str) -> int:
    """Return how often Spark attempts a task. With a local master, in whose threads nothing gets lost, that is once unless it says more."""
    if master.startswith("local") and not master.startswith("local-cluster"):
        found = _LOCAL_ATTEMPTS.fullmatch(master)
        return int(found[1]) if found else 1
    return int(configured)
