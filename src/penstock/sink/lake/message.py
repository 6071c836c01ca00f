"""What a task tells the maintainer of a lake about one dispatcher's window: the files that wait to be committed. Runs anywhere."""

from __future__ import annotations

import msgspec

from penstock.model.decoding import decoded
from penstock.model.table import TableSchema
from penstock.sink.lake.data_files import LakeFile


class Segment(msgspec.Struct, frozen=True):
    """Rows of one table version that stand one behind the other in a window.

    In append mode ``files`` are changes. Merged, they are what came of rows, and ``keys`` name files with the keys of all rows that
    changed: whatever was under these keys before the segment is gone behind it. Where rows are counted, ``keys`` has the rows that ceased.
    """

    table: TableSchema
    files: tuple[LakeFile, ...] = ()
    keys: tuple[str, ...] = ()


class DispatcherMessage(msgspec.Struct, frozen=True):
    """One dispatcher's window: the newest version of its table, and its segments in order."""

    table: TableSchema
    is_state: bool = False
    """Whether the rows are the first state of what the dispatcher has, and not changes."""
    segments: tuple[Segment, ...] = ()
    parts: int = 1
    """In how many parts the table is read, each by a dispatcher of its own."""
    seen_ts: int | None = None
    """Of rows that differ from what the table held: the window that it had come to before it was read."""

    def to_json(self) -> bytes:
        """Return the message as it travels."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> DispatcherMessage:
        """Read what ``to_json`` wrote."""
        return decoded(data, cls)
