"""The steps of a dispatcher's work in a window, as a task reads them and hands them to its sink.

The steps of one dispatcher are contiguous: its work, then a table's version before the first batch of it, then batches, a DDL between the
rows before it and those after, then the end. The version that the work begins in is that of the work. Runs on executors.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from penstock.model.ddl import DdlEvent
from penstock.model.table import TableSchema
from penstock.sink.contract import DispatcherWork


class WorkEnd:
    """The end of a dispatcher's work."""


WorkStep: TypeAlias = DispatcherWork | TableSchema | DdlEvent | pa.RecordBatch | WorkEnd
