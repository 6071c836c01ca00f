"""What Spark has and what waits for it: executors that were granted and where, jobs, and jobs of which no task runs. Runs in the driver."""

from __future__ import annotations

import socket
from collections.abc import Callable

import msgspec
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.feed.spark.executors import is_loopback_host

_JOBS_MAX = 100
"""Of more jobs the oldest are looked at."""
_JOBS_SHOWN = 10


class SparkLoad(msgspec.Struct, frozen=True):
    """Executors, active jobs, the ids of those of which no task runs although some are left, and hosts of executors but the driver's."""

    executors: int
    jobs: int
    waiting: tuple[int, ...] = ()
    elsewhere: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    """What the oldest of them are, in words: what each does, and how many of its tasks are done."""


def spark_load(session: SparkSession) -> SparkLoad:
    """Ask Spark; a few quick calls of its JVM."""
    context = session.sparkContext
    tracker = context.statusTracker()
    jobs = sorted(tracker.getActiveJobsIds())
    waiting = []
    for job in jobs[:_JOBS_MAX]:
        info = tracker.getJobInfo(job)
        stages = [stage for stage in (tracker.getStageInfo(number) for number in info.stageIds) if stage] if info else []
        left = any(stage.numCompletedTasks < stage.numTasks for stage in stages)
        if left and not any(stage.numActiveTasks for stage in stages):
            waiting.append(job)
    places = str(context._jsc.sc().getExecutorMemoryStatus().keys().mkString(",")).split(",")
    # The driver has a block manager too, and with a local master it is the only executor.
    master = str(context.master)
    executors = 1 if master == "local" or master.startswith("local[") else len(places) - 1
    here = {context.getConf().get("spark.driver.host"), socket.gethostname()}
    hosts = {place.rpartition(":")[0] for place in places}
    elsewhere = sorted(host for host in hosts - here if not is_loopback_host(host))
    return SparkLoad(executors, len(jobs), tuple(waiting), tuple(elsewhere), tuple(filter(None, map(_words(context), jobs[:_JOBS_SHOWN]))))


def _words(context: SparkContext) -> Callable[[int], str]:
    """Return what says of a job what it is and how far; nothing of one that ended meanwhile."""
    store = context._jsc.sc().statusStore()

    def words(number: int) -> str:
        try:
            job = store.job(number)
        except Exception:  # noqa: BLE001 - the JVM says it in many ways, and a job that nobody can name is none to show
            return ""
        described = job.description()
        what = str(described.get()) if described.isDefined() else str(job.name())
        return f"{what}; {job.numCompletedTasks()} of {job.numTasks()} tasks done, {job.numActiveTasks()} run"

    return words
