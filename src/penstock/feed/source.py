"""The feed's source: a streaming Python data source over the event store.

The offset is the frontier, one ts; a micro-batch is the window ``(start, end]``; a partition is a group of dispatchers packed by
bytes; the rows are opaque batches. ``latestOffset`` and ``partitions`` run in a Python process of their own beside the driver and
reach the log service over Flight and the meta database over SQL; ``read`` runs on executors. Spark takes the source through several
processes more, one after the other, before the first row: what only one of them needs is imported there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from penstock.feed.assignment import FeedContext
from penstock.feed.opaque import SPARK_SCHEMA, RowKind, batch_row, opaque_row
from penstock.feed.planned_partition import PlannedPartition, WorkItem
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.sink.catalog import before_rule, open_state

if TYPE_CHECKING:
    from penstock.feed.window_planner import WindowPlanner
    from penstock.store.flight_client import FlightStoreClient


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
            from penstock.feed.window_planner import WindowPlanner

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
        from penstock.store.flight_client import FlightStoreClient

        plan = msgspec.json.decode(partition.value, type=PlannedPartition)
        if plan.to_ts:
            yield opaque_row("", RowKind.WINDOW, msgspec.json.encode(plan.to_ts))
        needs_before = before_rule(self._context.sink_uri, self._context.sink_options)
        client = FlightStoreClient(self._context.flight_location, self._context.flight_token)
        try:
            for item in plan.items:
                yield from read_item(self._context, client, item, needs_before)
        finally:
            client.close()

    def stop(self) -> None:
        """Close the planner's connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def read_item(
    context: FeedContext, client: FlightStoreClient, item: WorkItem, needs_before: Callable[[TableSchema], bool]
) -> Iterator[pa.RecordBatch]:
    """Yield one dispatcher's opaque rows: its changes, or the difference between what the target holds and the state that is known."""
    if item.difference_nbytes is None:
        yield from read_work(client, item, needs_before)
    else:
        from penstock.feed.resnapshot import read_difference

        state = open_state(context.sink_uri, context.sink_options)
        yield from read_difference(client, state, item.work, item.span_id, item.difference_nbytes, needs_before)


def read_work(client: FlightStoreClient, item: WorkItem, needs_before: Callable[[TableSchema], bool]) -> Iterator[pa.RecordBatch]:
    """Yield one dispatcher's opaque rows, from OPEN to CLOSE, with before-images where the sink wants those of a table version."""
    from penstock.store.contract import EndOfRange
    from penstock.store.ordering import merge_step

    work, name = item.work, str(item.work.dispatcher)
    yield opaque_row(name, RowKind.OPEN, msgspec.json.encode(work))
    current: TableSchema = work.table
    versions: dict[int, TableSchema] = {current.version: current}
    ahead = deque(item.ddls)
    handle = client.open_changes(item.span_id, work.from_ts, work.to_ts)
    try:
        while not isinstance(step := handle.next(), EndOfRange):
            found = {batch.header.schema_version for batch in (*step.tombstones, *step.data)}
            if not found <= versions.keys():
                versions.update({t.version: t for t in client.schema_history(work.dispatcher.table_id)})
            for version, records in merge_step(step, any(needs_before(versions[v]) for v in found)):
                # A DDL makes a version, so a batch lies before it or after it as a whole.
                while ahead and ahead[0].commit_ts <= version:
                    yield opaque_row(name, RowKind.DDL, ahead.popleft().to_json())
                if version != current.version:
                    current = versions[version]
                    yield opaque_row(name, RowKind.SCHEMA, current.to_json())
                yield batch_row(name, records)
    finally:
        handle.close()
    for ddl in ahead:
        yield opaque_row(name, RowKind.DDL, ddl.to_json())
    yield opaque_row(name, RowKind.CLOSE)


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
            # By name, so that whoever only asks for the schema imports nothing of this module.
            from penstock.feed.source import FeedStreamReader

            return FeedStreamReader(context)

    return FeedSource
