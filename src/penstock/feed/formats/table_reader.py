"""The Spark format ``penstock``: a table's changes between two ts, typed and in order, or its state as of a ts, or a stream.

``spark.read.format("penstock").option("data-dir", …).option("table", "shop.orders")`` and then either ``from-ts`` with an optional
``to-ts`` for changes, or ``as-of`` (or nothing: as of now) for rows. ``spark.readStream`` with ``from-ts`` follows changes. ``data-dir``
is the data directory of the server; where it cannot be reached, ``location`` and ``token`` stand for it (``penstock store address`` tells
both). Spark tells a Python source which filters a query has, but not which columns: ``columns``, or a schema that the reader is given,
says those. Runs in the driver (plan) and on executors (read).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.feed.formats.followed_store import Patience, address_of, opened, read_followed
from penstock.feed.formats.pushed_filters import kept_rows
from penstock.feed.formats.table_parts import plan_parts
from penstock.feed.formats.table_read import TableOptions, TablePart, TableRead, plan_read
from penstock.feed.formats.table_stream import TableStreamReader
from penstock.feed.formats.typed_rows import typed_schema
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.rows.typed_columns import COMMIT_TS_COLUMN, OP_COLUMN
from penstock.store.flight.address import FlightAddress

PUSHDOWN_KEY = "spark.sql.python.filterPushdown.enabled"


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
        """Return the reader of the planned window, with the columns that Spark was told of or was given."""
        return PenstockTableReader(dict(self.options), self._planned(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query."""
        return TableStreamReader(dict(self.options), schema)

    def _planned(self) -> TableRead:
        if self._plan is None:
            options = dict(self.options)
            with opened(options) as client:
                self._plan = plan_read(client, TableOptions.of(options))
        return self._plan


class PenstockTableReader(DataSourceReader):
    """Reads the planned window, part by part."""

    def __init__(self, options: dict[str, str], plan: TableRead, schema: StructType) -> None:
        self._options = options
        self._names = schema.fieldNames()
        heads = (COMMIT_TS_COLUMN, OP_COLUMN) if plan.with_ops else ()
        shown = plan.showing([name for name in self._names if name not in heads])
        known = {f.name: f.dataType for f in typed_schema(shown.table, plan.with_ops)}
        other = [f.name for f in schema if known[f.name] != f.dataType]
        if other:
            raise PenstockError("CONFIG_INVALID", f"the schema has another type than {plan.table.full_name} for {', '.join(other)}")
        self._plan = msgspec.json.encode(shown)
        self._whole = msgspec.json.encode(plan)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Remember what the query asks for, and leave all of it to Spark as well: here rows are only left out."""
        self._filters = list(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts, each with where it is read."""
        plan, nbytes = decoded(self._whole, TableRead), TableOptions.of(self._options).bytes_per_partition
        patience = Patience(self._options)
        parts = patience.ask(self._options, lambda client: plan_parts(client, plan, nbytes, self._filters))
        address = address_of(self._options)
        return [InputPartition(msgspec.json.encode((address, part))) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield typed rows of one part, in order. Runs on an executor."""
        if partition.value is None:
            # Spark asks for this one where there are none.
            return
        address, part = decoded(partition.value, tuple[FlightAddress, TablePart])
        for batch in read_followed(self._options, address, decoded(self._plan, TableRead), part):
            kept = kept_rows(self._filters, batch)
            if kept.num_rows:
                yield kept.select(self._names)


def register_penstock(session: SparkSession) -> None:
    """Make the format known to a session, which from then on tells Python sources its filters."""
    session.conf.set(PUSHDOWN_KEY, "true")
    session.dataSource.register(PenstockTable)
