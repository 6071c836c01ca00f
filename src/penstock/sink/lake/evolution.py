"""What a DDL makes of the columns of a lake's table.

Where the format can, only the columns change; otherwise all files are written again in the new shape, in one version: rows then show what
every reader of changes sees (``model/rows/projection.py``), so a column that comes with a default shows it. A table of changes is written
again only where a column's type changed; where the format knows columns by name alone, it keeps those that were dropped or renamed. Runs
beside the driver.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.rows.elements import ELEMENT_KINDS
from penstock.model.rows.projection import default_of, is_converted
from penstock.model.table import TableSchema
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.format import LakeFormat, TableVersion
from penstock.sink.lake.rewriting import Rewriting, places


def evolve(lake: LakeFormat, shape: LakeShape, version: TableVersion, after: TableSchema, rewriting: Rewriting) -> bool:
    """Give a table the columns of a later version of the upstream's, and its partitions, unless it has them; return whether it changed."""
    before = version.table
    if before is None:
        return False
    after = max(before, after, key=lambda t: t.version)
    fields = shape.partition(after)
    is_divided = version.is_partitioned_by(fields)
    if is_divided and before.version == after.version:
        return False
    if not shape.settings.is_merge and not lake.keeps_columns and not _same_ids(before, after):
        raise PenstockError("SINK_DDL_REFUSED", f"{after.full_name} was made again with other columns, and its changes know columns by ids")
    mark = version.mark
    schema = next_schema(lake, shape, version, after)
    if is_divided and before.columns == after.columns and same_fields(schema, version.schema):
        return False
    if not is_divided and not version.keeps_partitions(schema):
        version.replace(mark, rewriting.reshaped(version.files(), lambda rows: [({}, rows)], version.schema), before, version.schema, ())
        return True
    is_shown = not defaults_show(shape, before, after) and not elements_change(before, after)
    if is_divided and is_shown and version.is_free(before, after, schema):
        version.alter(mark, after, schema)
        return True
    derived = {f.name for f in fields if f.is_derived}
    own = pa.schema([f for f in schema if f.name not in derived])
    files = rewriting.reshaped(
        version.files(), lambda rows: shape.divided(after, in_schema(shape.reshaped(rows, before, after), rows, own)), version.schema
    )
    version.replace(mark, files, after, schema, fields)
    return True


def check_own(shape: LakeShape, version: TableVersion, name: str) -> None:
    """Raise where somebody else did to a table what no change can be written on."""
    if version.table is None:
        raise PenstockError("SINK_CONFLICT", f"{name} is a table that the feed did not make")
    if version.is_set_back():
        what = f"{name} was set back to an older version, without what the feed wrote since; penstock feed table resnapshot compares it"
        raise PenstockError("SINK_CONFLICT", what)
    wanted = shape.schema(version.table)
    lost = sorted(set(wanted.names) - places(version.schema, wanted).keys())
    if lost:
        raise PenstockError("SINK_CONFLICT", f"{name} has no column {lost[0]!r} any more, which the feed did not drop")


def next_schema(lake: LakeFormat, shape: LakeShape, version: TableVersion, after: TableSchema) -> pa.Schema:
    """Return the columns that a table has after a DDL."""
    wanted = shape.table_schema(after)
    if shape.settings.is_merge or not lake.keeps_columns:
        return wanted
    kept = [f for f in version.schema if f.name not in wanted.names and f.name not in version.derived]
    return pa.schema([*(wanted.field(f.name) for f in version.schema if f.name in wanted.names), *kept, *_added(version.schema, wanted)])


def defaults_show(shape: LakeShape, before: TableSchema, after: TableSchema) -> bool:
    """Return whether rows that are there show something in a column that comes."""
    known = {c.id for c in before.columns}
    return shape.settings.is_merge and any(c.id not in known and default_of(c).is_valid for c in row_columns(after))


def elements_change(before: TableSchema, after: TableSchema) -> bool:
    """Return whether names of an ENUM or SET mean something else."""
    known = {c.id: c for c in before.columns if c.type.kind in ELEMENT_KINDS}
    return any(c.id in known and c.type.kind in ELEMENT_KINDS and is_converted(known[c.id], c) for c in after.columns)


def same_fields(one: pa.Schema, other: pa.Schema) -> bool:
    """Return whether two schemas have the same columns in the same order."""
    return [(f.name, f.type) for f in one] == [(f.name, f.type) for f in other]


def in_schema(rows: pa.Table, old: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema: of the new rows, else of the old ones, else NULL."""
    arrays = []
    for field in schema:
        source = rows if field.name in rows.column_names else old if field.name in old.column_names else None
        arrays.append(pa.nulls(rows.num_rows, field.type) if source is None else source.column(field.name).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _same_ids(before: TableSchema, after: TableSchema) -> bool:
    """Return whether ids of columns mean the same in both; those of one table always do."""
    known = {c.id: c.name for c in before.columns}
    return before.table_id == after.table_id or all(known.get(c.id, c.name) == c.name for c in after.columns)


def _added(before: pa.Schema, wanted: pa.Schema) -> list[pa.Field]:
    return [f for f in wanted if f.name not in before.names]
