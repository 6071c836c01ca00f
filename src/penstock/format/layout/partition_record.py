"""Partition records: which physical partitions a table has after a DDL, a fact that the layout itself has no place for.

A schema file names a table, and a data directory names a physical partition; which partitions a DDL dropped, truncated or put together
stands in neither, only in the DDL's text, by names that a reader does not know. So the record lies beside the owner's mark, one object
per table and DDL; readers that do not know of it lose nothing that they had. Runs beside the driver and wherever a target is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from penstock.format.layout.paths import OWNER_DIR
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError

_PATH = re.compile(rf"{re.escape(OWNER_DIR)}/partitions/(\d{{20}})_\d+\.json\Z")


class PartitionRecord(msgspec.Struct, frozen=True):
    """The physical ids of a table's partitions from a version on, and what the DDL made and dropped among them."""

    schema: str
    table: str
    version: int
    live: tuple[int, ...]
    made: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    inherits: bool = False
    """Whether the rows of those that were dropped are in those that were made."""

    @property
    def path(self) -> str:
        """Return where the record lies."""
        return f"{OWNER_DIR}/partitions/{self.version:020d}_{min(self.live)}.json"

    def render(self) -> bytes:
        """Return the object's content."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


def is_partition_record(path: str) -> bool:
    """Return whether an object is a partition record."""
    return _PATH.match(path) is not None


def parse_partition_record(content: bytes, path: str) -> PartitionRecord:
    """Read what ``render`` wrote."""
    try:
        return decoded(content, PartitionRecord)
    except msgspec.MsgspecError as error:
        raise PenstockError("FILE_MALFORMED", f"{path}: line 1: {error}") from error


def partition_records(event: DdlEvent) -> list[PartitionRecord]:
    """Return the records of a DDL: one per partitioned table among those that it touches."""
    names = dict.fromkeys((t.schema, t.table) for t in event.tables if t.partition_id)
    found = []
    for schema, table in names:
        live = tuple(sorted(t.partition_id for t in event.tables if (t.schema, t.table) == (schema, table)))
        made = tuple(i for i in event.made_table_ids if i in live)
        inherits = event.type is DdlType.REORGANIZE_PARTITION
        found.append(PartitionRecord(schema, table, event.commit_ts, live, made, event.dropped_table_ids, inherits))
    return found


def visible_partitions(records: Iterable[PartitionRecord]) -> frozenset[int] | None:
    """Return the directories whose rows belong to a table after these records of it; None where there are none."""
    origins: dict[int, frozenset[int]] = {}
    newest: PartitionRecord | None = None
    for newest in sorted(records, key=lambda r: r.version):
        if newest.inherits:
            past = frozenset().union(*(origins.get(i, frozenset({i})) for i in newest.dropped))
            origins |= {i: past | {i} for i in newest.made}
    if newest is None:
        return None
    return frozenset().union(*(origins.get(i, frozenset({i})) for i in newest.live))
