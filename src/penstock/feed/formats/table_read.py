"""A read of one table of the event store: what the options of the format ``penstock`` ask for, planned, and its rows, typed.

``from-ts`` with an optional ``to-ts`` asks for changes, ``as-of`` (or nothing: as of now) for rows; changes from 0 on begin with the rows
that there are at the end, as inserts. Rows of older versions are shown under the version that is shown. ``plan_read`` runs in the
driver, ``read_span`` on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.feed.formats.typed_rows import CHANGE_FIELDS, op_names, typed_columns
from penstock.model.batch import COMMIT_TS, OP, without_before
from penstock.model.errors import PenstockError
from penstock.model.rows.projection import shown_at
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.store.changes.ordering import merge_step
from penstock.store.changes.snapshot import stored_columns
from penstock.store.contract import EndOfRange
from penstock.store.flight.address import FlightAddress, read_address
from penstock.store.flight.client import FlightStoreClient
from penstock.store.stats import SpanStats

_FLAGS = {"true": True, "false": False}


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
    """

    table: str
    from_ts: int | None
    to_ts: int | None
    as_of: int | None
    keep_before: bool
    bytes_per_batch: int

    @staticmethod
    def of(options: Mapping[str, str]) -> TableOptions:
        """Read options; raises ``CONFIG_INVALID`` for bad ones."""
        from_ts, to_ts, as_of = (_whole(options, name) for name in ("from-ts", "to-ts", "as-of"))
        if from_ts is not None and as_of is not None:
            raise PenstockError("CONFIG_INVALID", "from-ts and as-of: changes are read between two ts, a state as of one; give one of them")
        if to_ts is not None and from_ts is None:
            raise PenstockError("CONFIG_INVALID", "to-ts: it needs from-ts; for a state use as-of")
        keep_before = options.get("before", "false").lower()
        if keep_before not in _FLAGS:
            raise PenstockError("CONFIG_INVALID", "before: expected true or false")
        nbytes = _whole(options, "bytes-per-batch") or 0
        return TableOptions(_required(options, "table"), from_ts, to_ts, as_of, _FLAGS[keep_before], nbytes)


class TableRead(msgspec.Struct, frozen=True):
    """A planned read; ``from_ts = 0`` is the state at ``to_ts``, as rows or, with operations, as inserts."""

    table: TableSchema
    versions: tuple[TableSchema, ...]
    span_ids: tuple[int, ...]
    from_ts: int
    to_ts: int
    keep_before: bool
    with_ops: bool


def read_span(client: FlightStoreClient, plan: TableRead, span_id: int) -> Iterator[pa.RecordBatch]:
    """Yield the typed rows of a span's window."""
    versions = {v.version: v for v in plan.versions}
    handle = client.open_changes(span_id, plan.from_ts, plan.to_ts)
    try:
        while not isinstance(step := handle.next(), EndOfRange):
            if plan.from_ts == TS_ZERO:
                found = [(batch.header.schema_version, batch.records) for batch in step.data]
            else:
                found = merge_step(step, keep_before=True)
            for version, records in found:
                shown = records if plan.keep_before else without_before(records)
                if shown.num_rows:
                    yield _typed(shown, versions.get(version), plan)
    finally:
        handle.close()


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
    return TableRead(
        shown_at(history, end_ts),
        history.versions(),
        tuple(s.span_id for s in spans),
        options.from_ts or TS_ZERO,
        end_ts,
        options.keep_before,
        with_ops=options.from_ts is not None,
    )


def address_of(options: Mapping[str, str]) -> FlightAddress:
    """Return where the event store is read: of the server on a data directory, or as the options say."""
    if options.get("data-dir"):
        return read_address(Path(options["data-dir"]))
    return FlightAddress(_required(options, "location"), _required(options, "token"))


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


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise PenstockError("CONFIG_INVALID", f"{name}: this option of the format penstock is required")
    return value


def _whole(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdigit():
        raise PenstockError("CONFIG_INVALID", f"{name}: expected a whole number")
    return int(value)
