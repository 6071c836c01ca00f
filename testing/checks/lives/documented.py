"""What the reader that was written from the document finds in a life's files, compared with the server's rows. Runs in tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from testing.checks.lives.comparable import Row, comparable
from testing.checks.lives.servers import LiveTable, Server
from testing.consumer.files import Settings
from testing.consumer.tables import Table, read_target

SHOWN_MAX = 3


def document_differences(
    folder: Path, server: Server, schema: str, left_out: Collection[str] = (), settings: Settings | None = None
) -> list[str]:
    """Return how the tables of a schema differ from the server's; those left out are named in small letters."""
    found = {name: table for (database, name), table in read_target(folder, settings).tables.items() if database == schema}
    live = {table.name: table for table in server.tables(schema)}
    problems = []
    for name in sorted(name for name in found.keys() | live.keys() if name.lower() not in left_out):
        if name not in live:
            problems.append(f"{name} is not on the server, but by the document")
        elif name in found:
            problems += _differences(live[name], found[name], server.rows(schema, live[name]))
        elif rows := server.rows(schema, live[name]):
            problems.append(f"{name} is in no file by the document, and has {len(rows)} rows")
    return problems


def _differences(live: LiveTable, held: Table, expected: Counter[Row]) -> list[str]:
    names = [column.name for column in live.stored]
    if held.names != names:
        return [f"{live.name} has columns {names}, by the document {held.names}"]
    found = Counter[Row]()
    for row, count in held.bag().items():
        found[tuple(comparable(c.family, v) for c, v in zip(live.stored, row, strict=True))] += count
    if found == expected:
        return []
    missing, surplus = ([*(side)][:SHOWN_MAX] for side in (expected - found, found - expected))
    return [f"{live.name}: only on the server {missing}, only by the document {surplus}"]
