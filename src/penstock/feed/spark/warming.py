"""Warming: one throw-away job of a window's own shape, so that the first window of a feed does not pay for Spark's start.

Spark starts Python workers when they are first needed, each loads what it needs, and the JVM compiles what it runs; together that is more
work than a million changes. The workers stay and are used again by windows. The job reads nothing and writes nothing. Runs in the
driver; what it starts, on executors.
"""

from __future__ import annotations

import logging

from penstock.feed.spark.jobs import Job, Jobs
from penstock.model.errors import PenstockError

log = logging.getLogger(__name__)
_NAME = "penstock warming"


def warm(jobs: Jobs) -> None:
    """Run the job once; a failure is only noted, because feeds work without it."""
    try:
        jobs.run(Job(_NAME, _NAME, "warming up", warm_worker, [b""] * jobs.parallelism))
    except PenstockError as error:
        log.warning("spark was not warmed: %s", error)


def warm_worker(task: bytes) -> bytes:
    """Load what a window's task needs. Runs on an executor."""
    import penstock.feed.window.delivery  # noqa: F401
    from penstock.sink.storage.warm_kernels import warm_encoder

    warm_encoder()
    return task
