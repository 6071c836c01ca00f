"""What a target tells a feed whose history is lost, whatever kind of target it is. Runs on executors and beside the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from penstock.model.table import TableSchema
from penstock.target.dispatcher import DispatcherId, DispatcherWork


class TargetState(Protocol):
    """What a target holds, read back, for a feed whose history is lost. Not every target can tell."""

    def position(self, dispatcher: DispatcherId, table: TableSchema) -> dict[str, int]:
        """Return where a dispatcher stands after everything that it wrote, also in a window that was never committed."""

    def columns(self, table: TableSchema) -> TableSchema:
        """Return the table with the columns that the target holds."""

    def row_key(self, work: DispatcherWork) -> list[str]:
        """Return the fields that name a row in all that the target holds; empty where rows must be counted."""

    def changes(self, work: DispatcherWork) -> Iterator[pa.RecordBatch]:
        """Yield the changes that make up the dispatcher's state at ``work.position``, in order: ``_op``, then the columns of ``columns``.

        The same for every attempt of the work, whatever an attempt wrote; of a target that holds tables, what it holds since the sink
        opened the dispatcher, which lets no other attempt write from then on. Runs on executors.
        """
