"""A consumer of transactions, written from ``docs/storage-layout.md`` alone, with nothing but the standard library.

It shares no code with what writes the files or reads them back, so that it is an oracle for both. It knows CSV, Canal-JSON and Debezium
JSON, takes the first column of a table for its key, and applies rows to tables in memory. Runs in tests.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
Change = tuple[str, str, Row]
"""Table, operation (I, U or D), values."""


@dataclass
class Transaction:
    """A transaction as the files tell it."""

    id: int
    changes: list[Change] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    """The messages, where the protocol has any."""

    def counts(self) -> dict[str, int]:
        """Return how many changes it has of each table."""
        found: dict[str, int] = {}
        for table, _, _ in self.changes:
            found[table] = found.get(table, 0) + 1
        return found


@dataclass
class Window:
    """A window: what its index says."""

    from_ts: int
    to_ts: int
    transactions: list[Transaction]
    state: list[Change]


def windows(folder: Path) -> Iterator[Window]:
    """Yield the windows of a target up to its checkpoint."""
    checkpoint_ts = json.loads((folder / "metadata").read_text())["checkpoint-ts"]
    for path in sorted(p for p in (folder / ".penstock" / "transactions").iterdir() if not p.suffix):
        if int(path.name) <= checkpoint_ts:
            yield _window(folder, path.read_text().splitlines())


def boundaries(folder: Path) -> list[dict[str, Any]]:
    """Return Debezium's messages about beginnings and ends, in order."""
    paths = sorted((folder / ".penstock" / "transactions").glob("*.json"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def apply(state: dict[str, dict[Any, Row]], changes: list[Change]) -> None:
    """Apply changes to tables by key."""
    for table, op, values in changes:
        rows = state.setdefault(table, {})
        if op == "D":
            rows.pop(values[0], None)
        else:
            rows[values[0]] = values


def _window(folder: Path, lines: list[str]) -> Window:
    assert lines[0].startswith("penstock-transactions 1 ")
    head = json.loads(lines[1])
    contents = [_rows(folder / file["path"], f"{file['schema']}.{file['table']}") for file in head["files"]]
    assert [len(rows) for rows in contents] == [file["rows"] for file in head["files"]]
    transactions: list[Transaction] = []
    for line in lines[2:]:
        ts, number, first, count = map(int, line.split(","))
        assert not head["files"][number].get("state")
        if not transactions or transactions[-1].id != ts:
            transactions.append(Transaction(ts))
        for row_ts, change, message in contents[number][first : first + count]:
            assert row_ts == ts
            transactions[-1].changes.append(change)
            transactions[-1].events.append(message)
    state = [change for file, rows in zip(head["files"], contents, strict=True) if file.get("state") for _, change, _ in rows]
    return Window(head["from-ts"], head["to-ts"], transactions, state)


def _rows(path: Path, table: str) -> list[tuple[int, Change, dict[str, Any]]]:
    text = path.read_bytes().decode()
    if path.suffix == ".csv":
        lines = csv.reader(io.StringIO(text, newline=""))
        return [(int(ts), (table, op, tuple(None if v == "\\N" else v for v in values)), {}) for op, _, _, ts, *values in lines]
    found = []
    for message in map(json.loads, text.splitlines()):
        if "op" in message:
            ts, op, image = (
                message["source"]["commit_ts"],
                {"c": "I", "u": "U", "d": "D"}[message["op"]],
                message["after"] or message["before"],
            )
        else:
            ts, op, image = message["_tidb"]["commitTs"], message["type"][0], message["data"][0]
        found.append((ts, (table, op, tuple(None if v is None else str(v) for v in image.values())), message))
    return found
