"""What changes leave behind: the last change of each key, and where nothing names a row, how many copies of it.

Rows without a key are a bag: each insert adds a copy, each delete and before-image takes one, and equal rows are told apart by their
number only. A delete that finds no copy takes none: what a first snapshot did not see any more may still be deleted by the log behind
it. Works on frames of changes, in order, with ``_op``. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import OP, TableSchema

ROW_OPS = [int(Op.INSERT), int(Op.UPDATE)]
COUNT, TAKEN = "\0count", "\0taken"


def last_of_each(changes: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the last change of each key, in order."""
    return changes.unique(subset=keys, keep="last", maintain_order=True)


def alive() -> pl.Expr:
    """Return whether a change leaves a row."""
    return pl.col(OP).is_in(ROW_OPS)


def net_copies(changes: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return each distinct row in the order of their first change: how many copies that were there before are taken, if there are so many.

    And how many copies are there behind that.
    """
    sign = pl.when(alive()).then(1).otherwise(-1)
    lowest = pl.min_horizontal(pl.col(TAKEN), 0)
    steps = changes.select(*columns, sign.alias(COUNT)).group_by(columns, maintain_order=True)
    counted = steps.agg(pl.col(COUNT).sum(), pl.col(COUNT).cum_sum().min().alias(TAKEN))
    return counted.with_columns((pl.col(COUNT) - lowest).alias(COUNT), (-lowest).alias(TAKEN))


def sum_copies(counted: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return each distinct row with the sum of its counts, in the order of their first appearance."""
    return counted.group_by(columns, maintain_order=True).agg(pl.col(COUNT).sum())


def repeated(net: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return each row as often as its count says, whatever its sign."""
    times = net[COUNT].abs().to_numpy()
    return net.select(columns)[np.repeat(np.arange(net.height), times)]


def unexplained_updates(changes: pl.DataFrame) -> int:
    """Return how many updates do not show what they replaced."""
    return changes.filter(pl.col(OP) == int(Op.UPDATE)).height - changes.filter(pl.col(OP) == int(Op.BEFORE)).height


def keyless_updates(table: TableSchema) -> PenstockError:
    """Return the error for updates of a table whose rows must be counted, where files do not show what an update replaced."""
    return PenstockError(
        "TYPE_UNSUPPORTED",
        f"{table.full_name} has no primary key and its updates carry no old values",
        "Set output-old-value, or create a new feed into a prefix of its own.",
    )
