"""The Spark format ``penstock``: a table's changes between two ts, typed and in order per span, or its state as of a ts, or a stream.

``spark.read.format("penstock").option("data-dir", …).option("table", "shop.orders")`` and then either ``from-ts`` with an optional
``to-ts`` for changes, or ``as-of`` (or nothing: as of now) for rows. ``spark.readStream`` with ``from-ts`` follows changes. ``data-dir``
is the data directory of the server; where it cannot be reached, ``location`` and ``token`` stand for it (``penstock store address`` tells
both). Only the driver needs either. One partition per span. Runs in the driver (plan) and on executors (read).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.feed.formats.table_read import TableOptions, TableRead, address_of, plan_read, read_span
from penstock.feed.formats.table_stream import TableStreamReader
from penstock.feed.formats.typed_rows import typed_schema
from penstock.model.decoding import decoded
from penstock.store.flight.client import FlightStoreClient


class PenstockTable(DataSource):
    """The data source ``penstock``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plan: TableRead | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "penstock"

    def schema(self) -> StructType:
        """Return the columns of the table, after commit ts and operation where changes are read."""
        plan = self._planned()
        return typed_schema(plan.table, plan.with_ops)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the planned window."""
        address = address_of(self.options)
        return PenstockTableReader(address.location, address.token, self._planned())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        return TableStreamReader(dict(self.options), schema)

    def _planned(self) -> TableRead:
        if self._plan is None:
            address = address_of(self.options)
            with closing(FlightStoreClient(address.location, address.token)) as client:
                self._plan = plan_read(client, TableOptions.of(self.options))
        return self._plan


class SpanPartition(InputPartition):
    """One Spark partition: a span."""

    def __init__(self, span_id: int) -> None:
        super().__init__(span_id)


class PenstockTableReader(DataSourceReader):
    """Reads the planned window of every span."""

    def __init__(self, location: str, token: str, plan: TableRead) -> None:
        self._location = location
        self._token = token
        self._plan = msgspec.json.encode(plan)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per span."""
        return [SpanPartition(span_id) for span_id in decoded(self._plan, TableRead).span_ids]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield typed rows of one span, in order. Runs on an executor."""
        with closing(FlightStoreClient(self._location, self._token)) as client:
            yield from read_span(client, decoded(self._plan, TableRead), partition.value)


def register_penstock(session: SparkSession) -> None:
    """Make the format known to a session."""
    session.dataSource.register(PenstockTable)
