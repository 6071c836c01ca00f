"""What a callable gets: changes of one table, typed, in the order of their commits, or a DDL between them. Runs in the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one table, in the order of their commits; with ``ddl``, a DDL that came between them, and no rows.

    Attributes:
        table: ``database.table``.
        records: ``_commit_ts``, ``_op`` (``insert``, ``update``, ``delete``, and ``before`` where old values were asked for), then the
            table's columns.
        ddl: the text of a DDL, or empty.
        commit_ts: the commit ts of the last change.
    """

    table: str
    records: pa.RecordBatch
    ddl: str = ""
    commit_ts: int = 0

    def __len__(self) -> int:
        return int(self.records.num_rows)

    def arrow(self) -> pa.Table:
        """Return the changes as an Arrow table."""
        return pa.Table.from_batches([self.records])

    def polars(self) -> pl.DataFrame:
        """Return the changes as a polars frame."""
        import polars as pl

        frame = pl.from_arrow(self.arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame


Callback = Callable[[Changes], object]
"""What is called with changes; what it returns is ignored."""
