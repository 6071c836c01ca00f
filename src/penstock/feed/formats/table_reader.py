"""The Spark format ``penstock``: a table's changes between two ts, typed and in order per span, or its state as of a ts.

``spark.read.format("penstock").option("data-dir", …).option("table", "shop.orders")`` and then either ``from-ts`` with an optional
``to-ts`` for changes, or ``as-of`` (or nothing: as of now) for rows. ``data-dir`` is the data directory of the server; where it cannot be
reached, ``location`` and ``token`` stand for it (``penstock store address`` tells both). Only the driver needs either. One partition per
span; rows of older versions are shown under the version that holds at the end. Runs in the driver (plan) and on executors (read).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.feed.formats.typed_rows import CHANGE_FIELDS, op_names, typed_columns, typed_schema
from penstock.model.batch import COMMIT_TS, OP, without_before
from penstock.model.errors import PenstockError
from penstock.model.projection import shown_at
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.store.changes.ordering import merge_step
from penstock.store.changes.snapshot import stored_columns
from penstock.store.contract import EndOfRange
from penstock.store.flight.address import FlightAddress, read_address
from penstock.store.flight.client import FlightStoreClient
from penstock.store.stats import SpanStats

_FLAGS = {"true": True, "false": False}


class TableRead(msgspec.Struct, frozen=True):
    """A planned read; ``from_ts = 0`` is the state at ``to_ts``."""

    table: TableSchema
    versions: tuple[TableSchema, ...]
    span_ids: tuple[int, ...]
    from_ts: int
    to_ts: int
    keep_before: bool


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
        return typed_schema(plan.table, plan.from_ts != TS_ZERO)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the planned window."""
        address = address_of(self.options)
        return PenstockTableReader(address.location, address.token, self._planned())

    def _planned(self) -> TableRead:
        if self._plan is None:
            address = address_of(self.options)
            client = FlightStoreClient(address.location, address.token)
            try:
                self._plan = plan_read(client, self.options)
            finally:
                client.close()
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
        return [SpanPartition(span_id) for span_id in msgspec.json.decode(self._plan, type=TableRead).span_ids]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield typed rows of one span, in order. Runs on an executor."""
        client = FlightStoreClient(self._location, self._token)
        try:
            yield from read_span(client, msgspec.json.decode(self._plan, type=TableRead), partition.value)
        finally:
            client.close()


def read_span(client: FlightStoreClient, plan: TableRead, span_id: int) -> Iterator[pa.RecordBatch]:
    """Yield the typed rows of a span's window."""
    names = [c.name for c in plan.table.columns]
    versions = {v.version: v for v in plan.versions}
    handle = client.open_changes(span_id, plan.from_ts, plan.to_ts)
    try:
        while not isinstance(step := handle.next(), EndOfRange):
            if plan.from_ts == TS_ZERO:
                for batch in step.data:
                    yield pa.RecordBatch.from_arrays(typed_columns(stored_columns(batch.records, plan.table), plan.table), names=names)
                continue
            for version, records in merge_step(step, keep_before=True):
                shown = records if plan.keep_before else without_before(records)
                if shown.num_rows:
                    head = [shown.column(COMMIT_TS).cast(pa.int64()), op_names(shown.column(OP))]
                    columns = typed_columns(stored_columns(shown, plan.table, versions.get(version)), plan.table)
                    fields = [*CHANGE_FIELDS, *(pa.field(n, c.type) for n, c in zip(names, columns, strict=True))]
                    yield pa.RecordBatch.from_arrays([*head, *columns], schema=pa.schema(fields))
    finally:
        handle.close()


def plan_read(client: FlightStoreClient, options: Mapping[str, str]) -> TableRead:
    """Find the table, the spans that cover it, and the window; raises ``CONFIG_INVALID`` or ``TABLE_UNKNOWN`` for bad options."""
    from_ts, to_ts, as_of = (_ts(options, name) for name in ("from-ts", "to-ts", "as-of"))
    if from_ts is not None and as_of is not None:
        raise PenstockError("CONFIG_INVALID", "from-ts and as-of: changes are read between two ts, a state as of one; give one of them")
    if to_ts is not None and from_ts is None:
        raise PenstockError("CONFIG_INVALID", "to-ts: it needs from-ts; for a state use as-of")
    keep_before = options.get("before", "false").lower()
    if keep_before not in _FLAGS:
        raise PenstockError("CONFIG_INVALID", "before: expected true or false")
    spans, history = _find_table(client, _required(options, "table"))
    resolved_ts = min(s.resolved_ts for s in spans)
    end_ts = next((ts for ts in (to_ts, as_of) if ts is not None), resolved_ts)
    if from_ts is not None and from_ts <= TS_ZERO:
        raise PenstockError("CONFIG_INVALID", "from-ts: expected a ts above 0; for a state use as-of")
    return TableRead(
        shown_at(history, end_ts), history.versions(), tuple(s.span_id for s in spans), from_ts or TS_ZERO, end_ts, _FLAGS[keep_before]
    )


def address_of(options: Mapping[str, str]) -> FlightAddress:
    """Return where the event store is read: of the server on a data directory, or as the options say."""
    if options.get("data-dir"):
        return read_address(Path(options["data-dir"]))
    return FlightAddress(_required(options, "location"), _required(options, "token"))


def _find_table(client: FlightStoreClient, name: str) -> tuple[list[SpanStats], SchemaHistory]:
    by_table: dict[int, list[SpanStats]] = {}
    for status in client.span_status().values():
        by_table.setdefault(status.table_id, []).append(status)
    for table_id, spans in by_table.items():
        versions = client.schema_history(table_id)
        if versions and versions[-1].full_name.lower() == name.lower():
            return _cover(spans, name), SchemaHistory(table_id, versions)
    raise PenstockError("TABLE_UNKNOWN", f"the event store captures no table {name}")


def _cover(spans: Sequence[SpanStats], name: str) -> list[SpanStats]:
    """Choose spans that cover the table once; feeds may have cut it in several ways."""
    chosen: list[SpanStats] = []
    position, complete = b"", False
    while not complete:
        following = [s for s in spans if s.start_key == position and s not in chosen]
        if not following:
            raise PenstockError("SPAN_UNKNOWN", f"the event store captures only parts of table {name}")
        best = max(following, key=lambda s: (not s.end_key, s.end_key))
        chosen.append(best)
        position, complete = best.end_key, not best.end_key
    return chosen


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise PenstockError("CONFIG_INVALID", f"{name}: this option of the format penstock is required")
    return value


def _ts(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdigit():
        raise PenstockError("CONFIG_INVALID", f"{name}: expected a ts, a whole number")
    return int(value)


def register_penstock(session: SparkSession) -> None:
    """Make the format known to a session."""
    session.dataSource.register(PenstockTable)
