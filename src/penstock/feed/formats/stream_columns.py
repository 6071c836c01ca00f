"""The columns of a stream: fixed when a query begins, while the table's may change.

A query gives everything before a version with columns that it does not show, or shows with another type, and then stops: started again
on the same checkpoint location it goes on there, with the columns of the newest version. Vanished columns need no restart. Runs beside the
driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql.types import StructType

from penstock.feed.formats.typed_rows import typed_schema
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema


def end_before_new_columns(shown: TableSchema, versions: Iterable[TableSchema], start_ts: int, end_ts: int) -> int:
    """Return how far a query can go with the columns that it shows; raise ``SCHEMA_CHANGED`` where that is nowhere."""
    for table in versions:
        if not shown.version < table.version <= end_ts:
            continue
        new = [c.name for c in table.columns if not any(c.id == k.id and c.type.arrow() == k.type.arrow() for k in shown.columns)]
        if new and table.version - 1 > start_ts:
            return table.version - 1
        if new:
            names = ", ".join(new)
            raise PenstockError("SCHEMA_CHANGED", f"{table.full_name} has new or changed columns from ts {table.version} on: {names}")
    return end_ts


def version_of(schema: StructType, versions: Sequence[TableSchema], name: str, columns: Sequence[str] = ()) -> TableSchema:
    """Return the newest version whose changes have the columns that Spark was told of when the frame was loaded, all or those asked for."""
    wanted = [(f.name, f.dataType) for f in schema]
    for table in reversed(versions):
        found = [(f.name, f.dataType) for f in typed_schema(table, True)]
        if (sorted(f for f in found[2:] if f[0] in columns) if columns else found[2:]) == (sorted(wanted[2:]) if columns else wanted[2:]):
            return table
    raise PenstockError("SCHEMA_CHANGED", f"no version of {name} has the columns of this frame")
