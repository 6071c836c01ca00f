"""A read of one table of the event store: what the options of the format ``penstock`` ask for, planned, and its rows, typed.

``from-ts`` with an optional ``to-ts`` asks for changes, ``as-of`` (or nothing: as of now) for rows; changes from 0 on begin with the rows
that there are at the end, as inserts. Rows of older versions are shown under the version that is shown. Columns that nobody asked for are
neither sent nor converted. ``plan_read`` runs in the driver, ``read_part`` on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import COMMIT_TS, KEY, OP, without_before
from penstock.model.errors import PenstockError
from penstock.model.moment import ts_of
from penstock.model.rows.bag_key import is_bag
from penstock.model.rows.projection import shown_at
from penstock.model.rows.typed_columns import CHANGE_FIELDS, op_names, typed_columns
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.store.changes.ordering import merge_step
from penstock.store.changes.snapshot import stored_columns
from penstock.store.contract import EndOfRange
from penstock.store.flight.client import FlightStoreClient
from penstock.store.stats import SpanStats

_FLAGS = {"true": True, "false": False}
BYTES_PER_PARTITION = 64 << 20


@dataclass(frozen=True)
class TableOptions:
    """What the options ask for.

    Attributes:
        table: ``database.table``.
        from_ts: where changes begin; None for a state.
        to_ts: where they end; None for now.
        as_of: the ts of a state; None for now.
        keep_before: whether rows that updates replaced are shown.
        bytes_per_batch: how much a micro-batch of a stream holds, about; 0 for all that there is.
        bytes_per_partition: how much of the store a task of a batch query reads, about.
        columns: which columns are shown; empty for all.
    """

    table: str
    from_ts: int | None
    to_ts: int | None
    as_of: int | None
    keep_before: bool
    bytes_per_batch: int
    bytes_per_partition: int = BYTES_PER_PARTITION
    columns: tuple[str, ...] = ()

    @staticmethod
    def of(options: Mapping[str, str]) -> TableOptions:
        """Read options; raises ``CONFIG_INVALID`` for bad ones."""
        from_ts, to_ts, as_of = (_moment(options, name) for name in ("from-ts", "to-ts", "as-of"))
        if from_ts is not None and as_of is not None:
            raise PenstockError("CONFIG_INVALID", "from-ts and as-of: changes are read between two ts, a state as of one; give one of them")
        if to_ts is not None and from_ts is None:
            raise PenstockError("CONFIG_INVALID", "to-ts: it needs from-ts; for a state use as-of")
        keep_before = options.get("before", "false").lower()
        if keep_before not in _FLAGS:
            raise PenstockError("CONFIG_INVALID", "before: expected true or false")
        nbytes = _whole(options, "bytes-per-batch") or 0
        part = _whole(options, "bytes-per-partition") or BYTES_PER_PARTITION
        columns = tuple(name.strip() for name in options.get("columns", "").split(",") if name.strip())
        return TableOptions(required(options, "table"), from_ts, to_ts, as_of, _FLAGS[keep_before], nbytes, part, columns)


class TableRead(msgspec.Struct, frozen=True):
    """A planned read; ``from_ts = 0`` is the state at ``to_ts``, as rows or, with operations, as inserts."""

    table: TableSchema
    """The version that is shown, with the columns that are."""
    versions: tuple[TableSchema, ...]
    span_ids: tuple[int, ...]
    from_ts: int
    to_ts: int
    keep_before: bool
    with_ops: bool

    def showing(self, names: Sequence[str]) -> TableRead:
        """Return the read with some columns of the table, in this order; raises ``CONFIG_INVALID`` for names that it does not have."""
        known = {c.name: c for c in self.table.columns}
        missing = [name for name in names if name not in known]
        if missing:
            raise PenstockError("CONFIG_INVALID", f"columns: {self.table.full_name} has no column {', '.join(missing)}")
        return msgspec.structs.replace(self, table=msgspec.structs.replace(self.table, columns=tuple(known[name] for name in names)))

    @property
    def fields(self) -> frozenset[str] | None:
        """Return the columns that are read, by field names; None for all: nothing but their whole content names the rows of a bag."""
        return None if any(is_bag(v) for v in self.versions) else frozenset(c.field_name for c in self.table.columns)


class TablePart(msgspec.Struct, frozen=True):
    """What one task reads: a window of a span, or the rows of a state whose keys are from one on and up to another (empty: no end)."""

    span_id: int
    from_ts: int
    to_ts: int
    start_key: bytes = b""
    end_key: bytes = b""


def read_span(client: FlightStoreClient, plan: TableRead, span_id: int) -> Iterator[pa.RecordBatch]:
    """Yield the typed rows of a span's window."""
    return read_part(client, plan, TablePart(span_id, plan.from_ts, plan.to_ts))


def read_part(client: FlightStoreClient, plan: TableRead, part: TablePart) -> Iterator[pa.RecordBatch]:
    """Yield the typed rows of a part, in order."""
    versions = {v.version: v for v in plan.versions}
    keys = (part.start_key, part.end_key) if part.start_key or part.end_key else None
    handle = client.open_changes(part.span_id, part.from_ts, part.to_ts, plan.fields, keys)
    try:
        while not isinstance(step := handle.next(), EndOfRange):
            if part.from_ts == TS_ZERO:
                found = [(batch.header.schema_version, batch.records) for batch in step.data]
            else:
                found = merge_step(step, keep_before=True)
            for version, records in found:
                shown = records if plan.keep_before else without_before(records)
                if keys is not None:
                    shown = _between(shown, *keys)
                if shown.num_rows:
                    yield _typed(shown, versions.get(version), plan)
    finally:
        handle.close()


def _between(records: pa.RecordBatch, start: bytes, end: bytes) -> pa.RecordBatch:
    kept = pc.greater_equal(records.column(KEY), pa.scalar(start, pa.binary()))
    return records.filter(pc.and_(kept, pc.less(records.column(KEY), pa.scalar(end, pa.binary()))) if end else kept)


def _typed(records: pa.RecordBatch, version: TableSchema | None, plan: TableRead) -> pa.RecordBatch:
    columns = typed_columns(stored_columns(records, plan.table, version), plan.table)
    fields = [pa.field(c.name, values.type) for c, values in zip(plan.table.columns, columns, strict=True)]
    if plan.with_ops:
        columns = [records.column(COMMIT_TS).cast(pa.int64()), op_names(records.column(OP)), *columns]
        fields = [*CHANGE_FIELDS, *fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def plan_read(client: FlightStoreClient, options: TableOptions) -> TableRead:
    """Find the table, the spans that cover it, and the window; raises ``TABLE_UNKNOWN`` where there is none."""
    spans, history = find_table(client, options.table)
    resolved_ts = min(s.resolved_ts for s in spans)
    end_ts = next((ts for ts in (options.to_ts, options.as_of) if ts is not None), resolved_ts)
    plan = TableRead(
        shown_at(history, end_ts),
        history.versions(),
        tuple(s.span_id for s in spans),
        options.from_ts or TS_ZERO,
        end_ts,
        options.keep_before,
        with_ops=options.from_ts is not None,
    )
    return plan.showing(options.columns) if options.columns else plan


def find_table(client: FlightStoreClient, name: str) -> tuple[list[SpanStats], SchemaHistory]:
    """Return the spans that cover a table once, and its versions; raises ``TABLE_UNKNOWN`` for one that is not captured."""
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


def required(options: Mapping[str, str], name: str) -> str:
    """Return an option that must be there."""
    value = options.get(name)
    if not value:
        raise PenstockError("CONFIG_INVALID", f"{name}: this option of the format penstock is required")
    return value


def _moment(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    return None if value is None else ts_of(value, name)


def _whole(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdigit():
        raise PenstockError("CONFIG_INVALID", f"{name}: expected a whole number")
    return int(value)
