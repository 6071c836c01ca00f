"""The feed's source: a streaming Python data source over the event store.

The offset is the frontier, one ts; a micro-batch is the window ``(start, end]``; a partition is a group of dispatchers packed by
bytes; the rows are opaque batches. ``latestOffset`` and ``partitions`` run in a Python process of their own beside the driver and
reach the log service over Flight and the meta database over SQL; ``read`` runs on executors. Spark starts a process for every one of
these steps, and each loads this module: what only one of them needs is imported there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.opaque import SPARK_SCHEMA
from penstock.model.errors import InvariantError

if TYPE_CHECKING:
    from penstock.feed.window.planner import WindowPlanner


class DispatcherGroup(InputPartition):
    """One Spark partition: a group of dispatchers and their windows, as JSON."""

    def __init__(self, plan: bytes) -> None:
        super().__init__(plan)


class FeedStreamReader(DataSourceStreamReader):
    """Plans windows beside the driver and reads them on executors."""

    def __init__(self, context: FeedContext) -> None:
        self._context = context
        self._planner: WindowPlanner | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_context": self._context, "_planner": None}

    @property
    def planner(self) -> WindowPlanner:
        """Return the planner of this process, opened on first use."""
        if self._planner is None:
            from penstock.feed.window.planner import WindowPlanner

            self._planner = WindowPlanner.open(self._context)
        return self._planner

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the last committed checkpoint; Spark's own checkpoint directory is disposable."""
        return {"ts": self.planner.checkpoint_ts()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next window, recorded before anything of it is written, or the start when nothing is new."""
        return {"ts": self.planner.next_window_end(int(start["ts"]))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the window's dispatchers, packed by bytes."""
        plans = self.planner.partitions(int(start["ts"]), int(end["ts"]))
        return [DispatcherGroup(msgspec.json.encode(plan)) for plan in plans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the opaque rows of a group of dispatchers. Runs on an executor."""
        from penstock.feed.window.work_reader import read_partition

        yield from read_partition(self._context, partition.value)

    def stop(self) -> None:
        """Close the planner's connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def feed_source(context: FeedContext, format_name: str) -> type[DataSource]:
    """Return the data source class of one run of a feed; the context travels inside the pickled class."""
    if not format_name.isidentifier():
        raise InvariantError(f"not a format name: {format_name}")

    class FeedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return SPARK_SCHEMA

        def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
            return FeedStreamReader(context)

    return FeedSource
