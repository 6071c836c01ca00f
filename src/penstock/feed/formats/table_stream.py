"""The format ``penstock`` as a stream: every change of a table from a ts on, typed, with Spark's own checkpoint.

The offset is a ts. A micro-batch is the window between two of them and ends on a resolved ts, so it is transaction-consistent; from 0 on
the first one gives the rows that the table has, as inserts. The same two offsets give the same rows, for as long as the store has that
history: asking for the next offset holds what lies behind the last one for a while, a query that rests for longer than history is kept
fails with ``STALE_READ``. With ``data-dir`` the server may be started again meanwhile: where it listens is looked up for each
micro-batch. ``latestOffset`` and ``partitions`` run beside the driver, ``read`` on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from penstock.feed.formats.stream_columns import end_before_new_columns, version_of
from penstock.feed.formats.table_read import TableOptions, TableRead, address_of, find_table, read_span
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.rows.projection import shown_at
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.store.contract import WindowWish
from penstock.store.flight.client import FlightStoreClient


class StreamPart(msgspec.Struct, frozen=True):
    """What a task reads, and where. Holds a secret: never print it."""

    location: str
    token: str
    span_id: int
    read: TableRead


class TableStreamReader(DataSourceStreamReader):
    """Follows the resolved ts of a table's spans; the columns are those of the newest version when the query began."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._given = options
        self._options = TableOptions.of(options)
        if self._options.from_ts is None:
            raise PenstockError("CONFIG_INVALID", "from-ts: a stream needs it; 0 begins with the rows as of now")
        with self._open() as client:
            _, history = find_table(client, self._options.table)
        self._table = version_of(schema, history.versions(), self._options.table)

    def _open(self) -> closing[FlightStoreClient]:
        address = address_of(self._given)
        return closing(FlightStoreClient(address.location, address.token))

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the beginning, which must be the same whenever it is asked."""
        return {"ts": self._options.from_ts or TS_ZERO}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a micro-batch holds at most."""
        nbytes = self._options.bytes_per_batch
        return ReadMaxBytes(nbytes) if nbytes else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return how far everything is resolved, within the limit; the start where that has not moved."""
        start_ts = int(start["ts"])
        nbytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else TS_MAX >> 1
        with self._open() as client:
            spans, history = find_table(client, self._options.table)
            ids = [s.span_id for s in spans]
            wish = WindowWish(ids, (), start_ts, nbytes)
            plan = client.plan_window(wish) if start_ts else client.plan_resnapshot(ids, (), TS_ZERO)
        end_ts = min(plan.to_ts, TS_MAX if self._options.to_ts is None else self._options.to_ts)
        if end_ts <= start_ts:
            return start
        # A state is shown in its own version, whatever came before.
        after_ts = start_ts or end_ts
        return {"ts": end_before_new_columns(self._table, history.versions(), after_ts, end_ts)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, one for each span."""
        from_ts, to_ts = int(start["ts"]), int(end["ts"])
        if from_ts == to_ts:
            return []
        address = address_of(self._given)
        with self._open() as client:
            spans, history = find_table(client, self._options.table)
        ids = tuple(s.span_id for s in spans)
        table = shown_at(history, self._table.version)
        read = TableRead(table, history.versions(), ids, from_ts, to_ts, self._options.keep_before, with_ops=True)
        return [InputPartition(msgspec.json.encode(StreamPart(address.location, address.token, span_id, read))) for span_id in ids]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield typed changes of one span, in order. Runs on an executor."""
        part = decoded(partition.value, StreamPart)
        with closing(FlightStoreClient(part.location, part.token)) as client:
            yield from read_span(client, part.read, part.span_id)
