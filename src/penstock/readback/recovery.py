"""Finds a dispatcher's position from the target alone, for a feed whose committed progress was lost, all of it or the newest part.

The index file of the newest directory says which number was used last; a data file that exists beyond it counts as used too, so nothing
published is ever written over. Not part of an ordinary restart: there the position comes from the last committed window, or a repeated
attempt would take new numbers. Invariant: progress is taken from a target only where each of its files is of a window that it has
published. Runs beside the driver, and where commands are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.format.layout.checkpoint import parse_checkpoint
from penstock.format.layout.checksum_record import CHECKSUMS_DIR, parse_record, parse_record_path
from penstock.format.layout.index_file import next_number, parse_index
from penstock.format.layout.paths import METADATA_PATH, DataDir, DataPath, parse_schema_path, schema_dir
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.target.dispatcher import DispatcherId
from penstock.target.positions import newest_directory, position_key, schema_key, shortened
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import SMALL_BYTES_MAX, ObjectTarget


def recover_position(target: ObjectTarget, settings: StorageSinkSettings, dispatcher: DispatcherId, table: TableSchema) -> dict[str, int]:
    """Return the position after everything that the dispatcher published; ``{}`` where there is nothing."""
    layout = settings.layout
    name = layout.dispatcher_text(dispatcher.table_id, dispatcher.span, dispatcher.spans, table.partition_id)
    partition = table.partition_id if settings.enable_partition_separator else 0
    used: dict[DataDir, set[int]] = {}
    indexed: dict[DataDir, int] = {}
    for path in target.paths(schema_dir(table.schema, table.table).removesuffix("/meta")):
        data, index = layout.parse_data(path), layout.parse_index(path)
        if data is not None and data.dispatcher == name and data.dir.partition == partition:
            used.setdefault(data.dir, set()).add(data.number)
        elif index is not None and index.dispatcher == name and index.dir.partition == partition:
            indexed[index.dir] = parse_index(layout, target.get(path, SMALL_BYTES_MAX), path, name)
    newest = max((d for d in {*used, *indexed} if d.version <= table.version), default=None, key=lambda d: (d.version, d.date))
    if newest is None:
        return {}
    numbers = used.get(newest, set())
    # A window that was interrupted may have left a file beyond a gap; its number counts as used as well.
    last = max(next_number(indexed.get(newest, 0), numbers.__contains__) - 1, *numbers, 0)
    return {schema_key(newest.version): newest.version, position_key(newest.version, newest.date, name): last}


Positions = Mapping[str, Mapping[str, int]]
Named = tuple[DispatcherId, str, str]
"""A dispatcher, and the schema and the table that it delivers."""


def recover_progress(
    target: ObjectTarget, settings: StorageSinkSettings, dispatchers: Sequence[Named], committed_ts: int, positions: Positions
) -> tuple[int, dict[str, dict[str, int]]]:
    """Return up to where a target is published, and where the dispatchers stand there that went on since a committed state.

    Raises ``META_BEHIND_TARGET`` where that cannot be told for sure: a DDL came since, or a file is of a window that was not published.
    """
    to_ts = published_ts(target)
    since = _files_since(target, committed_ts, to_ts)
    by_name: dict[tuple[str, str, str], str] = {}
    for dispatcher, schema, table in dispatchers:
        key = (schema, table, settings.layout.dispatcher_text(dispatcher.table_id, dispatcher.span, dispatcher.spans))
        if by_name.setdefault(key, str(dispatcher)) != str(dispatcher):
            raise _unsure(f"{schema}.{table} has partitions")
    went_on: dict[str, dict[str, int]] = {}
    paths = list(target.paths())
    for path in paths:
        schema_file = parse_schema_path(path)
        if schema_file is not None and schema_file.version > committed_ts:
            raise _unsure(f"a DDL came since: {path}")
    found = [(data, path) for path in paths if (data := settings.layout.parse_data(path)) is not None]
    # Of each dispatcher in the order in which they were written.
    for data, path in sorted(found, key=lambda one: (one[0].dir, one[0].number)):
        owner = by_name.get((data.dir.schema, data.dir.table, data.dispatcher))
        before = positions.get(owner or "", {})
        if path in since and owner is not None:
            went_on[owner] = _moved(went_on.get(owner, before), data)
        elif path in since or not _is_before(before, data):
            raise _unsure(f"{path} is of no dispatcher, or of a window that was not published")
    return to_ts, went_on


def published_ts(target: ObjectTarget) -> int:
    """Return up to where a target is published, 0 where it is not."""
    content = target.find(METADATA_PATH)
    return parse_checkpoint(content) if content is not None else 0


def _files_since(target: ObjectTarget, committed_ts: int, to_ts: int) -> set[str]:
    """Return the files of the windows between."""
    found: set[str] = set()
    for path in target.paths(CHECKSUMS_DIR):
        end_ts = parse_record_path(path)
        if end_ts is None or end_ts <= committed_ts:
            continue
        if end_ts > to_ts:
            raise _unsure(f"a window up to {end_ts} was written, and the target is published up to {to_ts}")
        found |= {file.path for file in parse_record(target.get(path), path)}
    return found


def _moved(before: Mapping[str, int], data: DataPath) -> dict[str, int]:
    """Return a position after one more file."""
    key = position_key(data.dir.version, data.dir.date, data.dispatcher)
    known = {schema_key(data.dir.version): data.dir.version, **before}
    return shortened(known | {key: max(data.number, before.get(key, 0))}, key)


def _is_before(before: Mapping[str, int], data: DataPath) -> bool:
    """Return whether a committed position covers a file."""
    newest = newest_directory(before)
    if newest is None:
        return False
    number = before.get(position_key(data.dir.version, data.dir.date, data.dispatcher))
    return data.number <= number if number is not None else (data.dir.version, data.dir.date) < newest[0]


def _unsure(why: str) -> PenstockError:
    return PenstockError("META_BEHIND_TARGET", f"the target does not tell where the feed stands: {why}")
