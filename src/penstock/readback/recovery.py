"""Finds a dispatcher's position from the target alone, for a feed whose committed progress was lost.

The index file of the newest directory says which number was used last; a data file that exists beyond it counts as used too, so nothing
published is ever written over. Not part of an ordinary restart: there the position comes from the last committed window, or a repeated
attempt would take new numbers. Runs beside the driver.
"""

from __future__ import annotations

from penstock.format.layout.index_file import next_number, parse_index
from penstock.format.layout.paths import DataDir, dispatcher_text, schema_dir
from penstock.model.table import TableSchema
from penstock.target.dispatcher import DispatcherId
from penstock.target.positions import position_key, schema_key
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import SMALL_BYTES_MAX, ObjectTarget


def recover_position(target: ObjectTarget, settings: StorageSinkSettings, dispatcher: DispatcherId, table: TableSchema) -> dict[str, int]:
    """Return the position after everything that the dispatcher published; ``{}`` where there is nothing."""
    layout = settings.layout
    name = dispatcher_text(dispatcher.table_id, dispatcher.span, dispatcher.spans)
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
