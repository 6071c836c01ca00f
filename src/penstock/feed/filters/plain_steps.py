"""The steps of a dispatcher with what a feed leaves out without Spark: kinds of events and of DDLs, and columns.

A mask on each change batch and another table version beside it; what stays is not copied. A feed without a filter does not come here.
Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa

from penstock.feed.filters.rules import FilterSettings
from penstock.feed.window.steps import WorkStep
from penstock.model.batch import OP, Op
from penstock.model.ddl import DdlEvent
from penstock.model.table import TableSchema
from penstock.sink.contract import DispatcherWork


def filtered_steps(steps: Iterator[WorkStep], settings: FilterSettings) -> Iterator[WorkStep]:
    """Yield the steps of a group of dispatchers without what the settings leave out."""
    ops: frozenset[Op] | None = None
    for step in steps:
        if isinstance(step, DispatcherWork):
            ops = settings.ops(step.table.schema, step.table.table)
            yield msgspec.structs.replace(step, table=settings.columns_shown(step.table))
        elif isinstance(step, pa.RecordBatch):
            kept = step if ops is None else of_kinds(step, ops)
            if kept.num_rows:
                yield kept
        elif isinstance(step, TableSchema):
            yield settings.columns_shown(step)
        elif isinstance(step, DdlEvent):
            if settings.tells(step):
                yield msgspec.structs.replace(step, tables=tuple(settings.columns_shown(t) for t in step.tables))
        else:
            yield step


def of_kinds(records: pa.RecordBatch, ops: frozenset[Op]) -> pa.RecordBatch:
    """Return the rows of some operations; without a copy where all are, or none."""
    kept = np.isin(records.column(OP).to_numpy(zero_copy_only=True), np.array(sorted(ops), dtype=np.uint8))
    if bool(kept.all()):
        return records
    return records.filter(pa.array(kept)) if bool(kept.any()) else records.slice(0, 0)
