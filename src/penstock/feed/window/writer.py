"""The feed's writer: takes opaque rows to the sink on executors, and commits windows beside the driver.

A task opens a sink, hands it the events of its dispatchers and returns their results as the commit message. The commit acts as
the maintainer of the barrier: schema files of the DDL that ended the window, then progress (fenced, one transaction), then the
published checkpoint. Each step is idempotent, so a crash between two of them is repaired by the next attempt of the same window.
What only one of these steps needs is imported there, as in ``feed/window/source.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.feed.spark.imported_objects import keep_imported
from penstock.feed.window.assignment import FeedContext
from penstock.model.errors import InvariantError
from penstock.sink.contract import DispatcherResult, TaskReport


@dataclass
class WindowPart(WriterCommitMessage):
    """The commit message of one task: the results of its dispatchers and what its sink counted, as JSON."""

    results: bytes
    report: bytes = b"{}"
    to_ts: int = 0
    """The end of the window that the part is of; 0 where the batch is no window."""


class FeedStreamWriter(DataSourceStreamArrowWriter):
    """Writes windows on executors and commits them beside the driver."""

    def __init__(self, context: FeedContext) -> None:
        self._context = context

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WindowPart:
        """Deliver the dispatchers of one partition; everything is durable in the target when it returns. Runs on an executor."""
        from penstock.feed.window.delivery import write_partition

        results, report, to_ts = write_partition(self._context, iterator)
        return WindowPart(msgspec.json.encode(results), msgspec.json.encode(report), to_ts)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the recorded window. Runs beside the driver, once all tasks have succeeded."""
        parts = [message for message in messages if isinstance(message, WindowPart) and message.to_ts]
        ends = {part.to_ts for part in parts}
        if not ends:
            # A batch without a window. Whatever is on record is still to be done.
            return
        if len(ends) > 1:
            raise InvariantError(f"one batch has parts of windows that end at {sorted(ends)}")
        results = [result for part in parts for result in msgspec.json.decode(part.results, type=list[DispatcherResult])]
        reports = [msgspec.json.decode(part.report, type=TaskReport) for part in parts]
        from penstock.feed.window.barrier import commit_recorded_window

        keep_imported()
        commit_recorded_window(self._context, ends.pop(), results, reports)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave everything as it is: published files are the same in the next attempt, and nothing was committed."""


def feed_sink(context: FeedContext, format_name: str) -> type[DataSource]:
    """Return the data sink class of one run of a feed; the context travels inside the pickled class."""

    class FeedSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            keep_imported()
            return FeedStreamWriter(context)

    return FeedSink
