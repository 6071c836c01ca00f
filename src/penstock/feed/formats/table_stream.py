"""The format ``penstock`` as a stream: every change of a table from a ts on, typed, with Spark's own checkpoint.

The offset is a ts. A micro-batch is the window between two of them and ends on a resolved ts, so it is transaction-consistent; from 0 on
the first one gives the rows that the table has, as inserts. The same two offsets give the same rows, for as long as the store has that
history: asking for the next offset holds what lies behind the last one for a while, a query that rests for longer than history is kept
fails with ``STALE_READ``. With ``data-dir`` the server may be started again meanwhile, and another one may take its feeds over
(``followed_store.py``). ``latestOffset`` and ``partitions`` run beside the driver, ``read`` on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from penstock.feed.formats.followed_store import Patience, address_of, opened, read_followed
from penstock.feed.formats.stream_columns import end_before_new_columns, version_of
from penstock.feed.formats.table_read import TableOptions, TablePart, TableRead, find_table
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.rows.projection import shown_at
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.store.contract import WindowWish
from penstock.store.flight.address import FlightAddress


class StreamPart(msgspec.Struct, frozen=True):
    """What a task reads, and where. Holds a secret: never print it."""

    address: FlightAddress
    part: TablePart
    read: TableRead


class TableStreamReader(DataSourceStreamReader):
    """Follows the resolved ts of a table's spans; the columns are those of the newest version when the query began."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._given = options
        self._options = TableOptions.of(options)
        if self._options.from_ts is None:
            raise PenstockError("CONFIG_INVALID", "from-ts: a stream needs it; 0 begins with the rows as of now")
        self._patience: Patience | None = None
        with opened(options) as client:
            _, history = find_table(client, self._options.table)
        self._table = version_of(schema, history.versions(), self._options.table, self._options.columns)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_patience": None}

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
        patience = self._patience = self._patience or Patience(self._given)
        try:
            with opened(self._given) as client:
                spans, history = find_table(client, self._options.table)
                ids = [s.span_id for s in spans]
                wish = WindowWish(ids, (), start_ts, nbytes)
                plan = client.plan_window(wish) if start_ts else client.plan_resnapshot(ids, (), TS_ZERO)
        except PenstockError as error:
            # Nothing new, for as long as another server may take the table over.
            if not patience.bears(error, wait=False):
                raise
            return start
        patience.met()
        end_ts = min(plan.to_ts, TS_MAX if self._options.to_ts is None else self._options.to_ts)
        if end_ts <= start_ts:
            return start
        # A state is shown in its own version, whatever came before.
        after_ts = start_ts or end_ts
        return {"ts": end_before_new_columns(self._shown(self._table), map(self._shown, history.versions()), after_ts, end_ts)}

    def _shown(self, version: TableSchema) -> TableSchema:
        """Return a version with what the query shows of it, by what its columns are called in the version that the query began with."""
        if not self._options.columns:
            return version
        ids = {c.id for c in self._table.columns if c.name in self._options.columns}
        return msgspec.structs.replace(version, columns=tuple(c for c in version.columns if c.id in ids))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, one for each span."""
        from_ts, to_ts = int(start["ts"]), int(end["ts"])
        if from_ts == to_ts:
            return []
        spans, history = Patience(self._given).ask(self._given, lambda client: find_table(client, self._options.table))
        address = address_of(self._given)
        ids = tuple(s.span_id for s in spans)
        whole = shown_at(history, self._table.version)
        read = TableRead(whole, history.versions(), ids, from_ts, to_ts, self._options.keep_before, with_ops=True)
        if self._options.columns:
            read = read.showing(self._options.columns)
        parts = [TablePart(span_id, from_ts, to_ts) for span_id in ids]
        return [InputPartition(msgspec.json.encode(StreamPart(address, part, read))) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield typed changes of one span, in order. Runs on an executor."""
        told = decoded(partition.value, StreamPart)
        yield from read_followed(self._given, told.address, told.read, told.part)
