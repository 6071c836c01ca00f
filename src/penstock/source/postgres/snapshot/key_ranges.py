"""Key ranges of a table of a server that has none: cuts that divide it in parts of about equal size.

Cuts come from the planner's statistics of the first key column; where there are none, from its smallest and largest value if it is a
number, or else from the rows of some pages. They only say how work is divided: a cut that is badly placed costs time and nothing else. Runs
in the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.model.rows.row_key import encode_row_keys
from penstock.model.table import TableSchema
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.rows.row_keys import place_keys
from penstock.source.postgres.rows.type_map import BPCHAR
from penstock.source.postgres.snapshot.table_scan import ScanPlan, order_expression
from penstock.source.postgres.tables.catalog import OID_MASK, CatalogColumn
from penstock.source.postgres.wire.connection import Connection, quote_ident, quote_literal

_SAMPLE_PAGES = 300
_PAGE_BYTES = 8192


@dataclass(frozen=True)
class RangeSettings:
    """How large a range should be, and how many a table may have."""

    range_rows: int = 200_000
    ranges_max: int = 64


def cut_keys(connection: Connection, plan: ScanPlan, settings: RangeSettings) -> list[bytes]:
    """Return the keys at which a table is cut, in order, none twice."""
    oid = str(plan.table.table_id & OID_MASK)
    rows, pages = connection.query(
        f"SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint, coalesce(sum(c.relpages), 0)::bigint FROM pg_class c "
        f"WHERE c.oid = {oid} OR c.oid IN (SELECT relid FROM pg_partition_tree({oid}) WHERE isleaf)"
    )[0]
    count = min(settings.ranges_max, int(rows or 0) // settings.range_rows + 1)
    if plan.by_place:
        return _place_cuts(connection, oid, int(pages or 0), count)
    if not plan.table.key_columns:
        return []
    first = plan.keys[0]
    if (count == 1 and int(rows or 0) > 0) or first.form is CellForm.BOOLEAN:
        return []
    # Statistics show some types in another way than keys do.
    told = first.type_oid != BPCHAR and first.form not in {CellForm.UTC, CellForm.FLOAT}
    bounds = _histogram(connection, plan, first.column.name) if told else []
    if not bounds and first.form is CellForm.INTEGER:
        bounds = _even_cuts(connection, plan, first.column.name, settings)
        count = min(settings.ranges_max, len(bounds) + 1)
    elif not bounds:
        bounds, estimate = _sampled(connection, plan, first, oid)
        count = min(settings.ranges_max, (int(rows or 0) or estimate) // settings.range_rows + 1)
    cuts = [bounds[len(bounds) * i // count] for i in range(1, count)] if bounds else []
    return sorted({_encode(plan.table, first.form, cut) for cut in cuts})


def _histogram(connection: Connection, plan: ScanPlan, column: str) -> list[str]:
    rows = connection.query(
        "SELECT unnest(bounds) FROM (SELECT histogram_bounds::text::text[] AS bounds FROM pg_stats "
        f"WHERE schemaname = {quote_literal(plan.schema_name)} AND tablename = {quote_literal(plan.table_name)} "
        f"AND attname = {quote_literal(column)} ORDER BY inherited DESC LIMIT 1) AS one"
    )
    return [r[0] for r in rows if r[0] is not None]


def _sampled(connection: Connection, plan: ScanPlan, column: CatalogColumn, oid: str) -> tuple[list[str], int]:
    """Return the column's values in the rows of some pages, in order, and about how many rows the table has."""
    size = connection.query(
        f"SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::bigint FROM pg_class c "
        f"WHERE c.oid = {oid} OR c.oid IN (SELECT relid FROM pg_partition_tree({oid}) WHERE isleaf)"
    )[0][0]
    percent = min(100.0, 100.0 * _SAMPLE_PAGES * _PAGE_BYTES / max(1, int(size or 0)))
    rows = connection.query(
        f"SELECT v FROM (SELECT {order_expression(column)} AS v FROM {plan.source} TABLESAMPLE SYSTEM ({percent:.6f})) AS found ORDER BY v"
    )
    return [r[0] for r in rows if r[0] is not None], int(len(rows) * 100 / percent)


def _even_cuts(connection: Connection, plan: ScanPlan, column: str, settings: RangeSettings) -> list[str]:
    low, high = connection.query(f"SELECT min({quote_ident(column)}), max({quote_ident(column)}) FROM {plan.source}")[0]
    if low is None or high is None:
        return []
    first, last = int(low), int(high)
    parts = min(settings.ranges_max, (last - first) // settings.range_rows + 1)
    return [str(first + (last - first) * i // parts) for i in range(1, parts)]


def _place_cuts(connection: Connection, oid: str, pages: int, count: int) -> list[bytes]:
    if count == 1 or connection.query(f"SELECT relkind FROM pg_class WHERE oid = {oid}")[0][0] != "r":
        return []
    own = int(connection.query(f"SELECT {oid}::oid")[0][0] or 0)
    blocks = sorted({pages * i // count for i in range(1, count)} - {0})
    table = pa.array([own] * len(blocks)).to_numpy()
    keys: list[bytes] = place_keys(table, pa.array(blocks, pa.int64()).to_numpy(), table * 0).to_pylist()
    return keys


def _encode(table: TableSchema, form: CellForm, value: str) -> bytes:
    """Return the key of a row with this first key column and nothing after it."""
    first = table.key_columns[0]
    bare = TableSchema(table.table_id, table.schema, table.table, table.version, (first,))
    array = pa.array([value])
    if form is CellForm.INTEGER:
        array = pa.array([int(value)], first.type.arrow())
    elif form is CellForm.BYTES:
        array = pa.array([bytes.fromhex(value.removeprefix("\\x"))], pa.binary())
    return bytes(encode_row_keys(bare, {first.field_name: array})[0].as_py())
