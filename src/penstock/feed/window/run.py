"""One run of a feed: a Structured Streaming query from the event store to the sink.

The run owns its query, its disposable Spark checkpoint directory and the clean-up of its target; progress lives in the meta database. It
ends by ``stop``, or by itself when a window fails; ``error`` then gives the first Penstock error found in Spark's text. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.clean_up import FeedCleanUp
from penstock.feed.window.fence import OwnerFence
from penstock.feed.window.source import feed_source
from penstock.feed.window.writer import feed_sink
from penstock.meta.database import MetaDatabase
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import InvariantError, PenstockError
from penstock.sink.catalog import open_maintainer

log = logging.getLogger(__name__)
_POLL_S = 0.05
_CAUSES_MAX = 20
# What Spark says where a process vanished: no error of ours can be in the text then.
_LOST = ("Python worker exited unexpectedly", "ExecutorLostFailure", "java.io.EOFException", "Connection reset", "Broken pipe")


class SparkFeedRun:
    """A feed's query, from start to stop. ``start`` and ``stop`` are called by one thread; the rest may be called by any."""

    def __init__(self, session: SparkSession, context: FeedContext, work_dir: Path | None = None, clock: Clock | None = None) -> None:
        self._session = session
        self._clock = clock or SystemClock()
        self._context = context
        self._parent = work_dir
        self._checkpoint_dir: Path | None = None
        self._query: StreamingQuery | None = None
        self._clean_up = FeedCleanUp(context, self._clock)

    def start(self) -> None:
        """Publish the last committed checkpoint (a crash may have come before it) and start the query."""
        if self._query is not None:
            raise InvariantError("a feed run starts once")
        self._repair_published_checkpoint()
        activate(self._session)
        run_id = uuid.uuid4().hex
        source, sink = f"penstock_feed_source_{run_id}", f"penstock_feed_sink_{run_id}"
        self._session.dataSource.register(feed_source(self._context, source))
        self._session.dataSource.register(feed_sink(self._context, sink))
        if self._parent is not None:
            self._parent.mkdir(parents=True, exist_ok=True)
        self._checkpoint_dir = Path(tempfile.mkdtemp(prefix="feed-", dir=self._parent))
        interval_ms = max(1, round(self._context.settings.trigger_interval_s * 1000))
        self._query = (
            self._session.readStream.format(source)
            .load()
            .writeStream.format(sink)
            .option("checkpointLocation", self._checkpoint_dir.as_uri())
            .queryName(f"penstock {self._context.feed} {run_id[:8]}")
            .trigger(processingTime=f"{interval_ms} milliseconds")
            .start()
        )
        self._clean_up.start()
        log.info("feed run started", extra={"feed": self._context.feed, "epoch": self._context.epoch})

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop the query and remove its Spark checkpoint.

        A window under way may end within the grace time; otherwise it is done again by the next run, with the same files.
        """
        self._clean_up.stop()
        if self._query is not None:
            deadline_s = self._clock.monotonic_s() + grace_s
            while self._busy() and self._clock.monotonic_s() < deadline_s:
                self._query.awaitTermination(_POLL_S)  # type: ignore[arg-type]
            with contextlib.suppress(PySparkException):
                self._query.stop()
        if self._checkpoint_dir is not None:
            shutil.rmtree(self._checkpoint_dir, ignore_errors=True)
            self._checkpoint_dir = None

    def _busy(self) -> bool:
        return self._query is not None and bool(self._query.isActive) and bool(self._query.status["isTriggerActive"])

    @property
    def ready(self) -> bool:
        """Return whether the query is up: it waits for a window or is at one, or it has ended."""
        if self._query is None or not self._query.isActive:
            return self._query is not None
        status = self._query.status
        return bool(status["isDataAvailable"]) or str(status["message"]).startswith("Waiting for")

    @property
    def active(self) -> bool:
        """Return whether the query runs."""
        return self._query is not None and bool(self._query.isActive)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the query has ended, at most the given seconds; return whether it has."""
        if self._query is None:
            return True
        try:
            return bool(self._query.awaitTermination(timeout_s))  # type: ignore[arg-type]
        except PySparkException:
            return True

    def error(self) -> PenstockError | None:
        """Return why the query ended by itself, or None."""
        failure = self._query.exception() if self._query is not None else None
        return None if failure is None else query_error(str(failure), self._causes())

    def _causes(self) -> list[str]:
        """Return what caused the query's failure, outermost first: an exception without a message is not in the failure's own text."""
        found: list[str] = []
        cause = self._query._jsq.exception().get().getCause()  # type: ignore[union-attr]
        while cause is not None and len(found) < _CAUSES_MAX:
            found.append(str(cause.toString()))
            cause = cause.getCause()
        return found

    def _repair_published_checkpoint(self) -> None:
        meta = MetaDatabase(self._context.meta_url)
        try:
            checkpoint_ts = meta.progress(self._context.feed).checkpoint_ts
            if checkpoint_ts:
                fence = OwnerFence(self._context.feed, self._context.epoch, meta.check_owner, fresh_s=0.0)
                open_maintainer(self._context.sink_uri, self._context.sink_options, fence).publish_checkpoint(checkpoint_ts)
        finally:
            meta.close()


def query_error(text: str, causes: Sequence[str] = ()) -> PenstockError:
    """Return the Penstock error in the texts of a query's failure and its causes, or what their words mean where none raised it."""
    whole = "\n".join([text, *causes])
    found = PenstockError.from_text(whole)
    if found.code != "FEED_FAILED":
        return found
    root = causes[-1].partition("\n")[0] if causes else ""
    detail = found.detail if root in found.detail else f"{found.detail}: {root}"
    return PenstockError("WORKER_LOST" if any(words in whole for words in _LOST) else "FEED_FAILED", detail)


def activate(session: SparkSession) -> None:
    """Make the session this thread's active one: Spark looks a streaming writer up in the active session only, which is thread local."""
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
