"""A dispatcher as its target knows it: its name, and what it does in one window. Runs on executors and beside the driver."""

from __future__ import annotations

import msgspec

from penstock.model.table import TableSchema


class DispatcherId(msgspec.Struct, frozen=True, order=True):
    """Names a dispatcher: a table's id and which of its spans. ``span`` is 0 and ``spans`` 1 where the table is not split."""

    table_id: int
    span: int = 0
    spans: int = 1

    def __str__(self) -> str:
        return f"{self.table_id}-{self.span}"


class DispatcherWork(msgspec.Struct, frozen=True):
    """What one dispatcher does in one window, planned on the driver; it is the same for every attempt of the window.

    ``position`` is the sink's own record of where the dispatcher stands after the last committed window (for the storage sink: file
    numbers); ``{}`` at first. ``is_difference``: the rows are what differs from what the target holds, which is read once the sink has
    opened the dispatcher.
    """

    dispatcher: DispatcherId
    table: TableSchema
    from_ts: int
    to_ts: int
    position: dict[str, int] = {}
    is_difference: bool = False
