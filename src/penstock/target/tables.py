"""What a target that holds tables, and not changes, tells of them: for verification, whatever kind of target it is. Runs in the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from penstock.model.table import TableSchema
from penstock.model.types import ColumnType, TypeKind


@dataclass(frozen=True, slots=True)
class StandingTable:
    """One table of a target, read at one moment.

    Attributes:
        as_of_ts: the ts up to which all changes are in it, and none beyond; None where a window is just being written.
        rows: its rows, the columns named by id as the upstream's version has them, values as in change batches. Of a target that holds
            changes, those that make up its rows: with ``_op``, the changes of each row in order.
    """

    as_of_ts: int | None
    rows: Iterator[pl.DataFrame]


class TargetTables(Protocol):
    """The tables of a target. Not thread safe."""

    def checkpoint_ts(self) -> int | None:
        """Return the published checkpoint, or None."""

    def read(self, partitions: Sequence[TableSchema]) -> AbstractContextManager[StandingTable]:
        """Read a table, given as its upstream's physical tables; raise ``TABLE_UNKNOWN`` where the target has none of its name."""

    def close(self) -> None:
        """Let go of the target."""


def canonical(kind: ColumnType, values: pl.Series) -> pl.Series:
    """Return values in the one form that equal ones share: no zeros behind a fraction of a second, no blanks behind a CHAR."""
    if kind.kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP, TypeKind.TIME}:
        return values.str.replace(r"(\.\d*?)0+$", "$1").str.strip_suffix(".")
    return values.str.strip_chars_end(" ") if kind.kind is TypeKind.CHAR else values
