"""The target that docs/write-a-target.md makes, for the contract suite of sinks: files of JSON lines, read with nothing but JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from testing.targets.kit import Kit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "write-a-target.md"
_MODULE = "written_target"
_OPS = {"c": 0, "u": 1, "d": 2}


def written_modules() -> tuple[str, str]:
    """Return what the page puts into ``__init__.py`` and into ``kind.py``."""
    first, *rest = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return first, "\n\n".join(rest)


def events_of(folder: Path, name: str = "") -> list[dict[str, Any]]:
    """Return the events of a table in its files, or of all tables, in the order of windows."""
    files = sorted(folder.glob(f"{name}*.jsonl"), key=lambda one: [int(part) for part in one.stem.split("-")[-2:]])
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@contextmanager
def written_kit(root: Path) -> Iterator[Kit]:
    """Yield the page's target in a folder."""
    folder = root / "lines"
    folder.mkdir()
    module = sys.modules[_MODULE] = ModuleType(_MODULE)
    exec(compile(written_modules()[1], str(PAGE), "exec"), module.__dict__)  # noqa: S102

    def changes(schema: str, table: str) -> list[tuple[int, int, int, str | None]]:
        found = []
        for event in events_of(folder, f"{schema}.{table}-"):
            row = event["after"] or event["before"]
            found.append((event["source"]["commit_ts"], _OPS[event["op"]], row["id"], row["note"]))
        return sorted(found)

    def state(schema: str, table: str) -> dict[int, str | None]:
        rows: dict[int, str | None] = {}
        for _, op, key, note in changes(schema, table):
            rows.pop(key, None)
            if op != _OPS["d"]:
                rows[key] = note
        return rows

    try:
        yield Kit(lambda: module.LinesSink(folder), lambda: module.LinesMaintainer(folder), state, changes)
    finally:
        del sys.modules[_MODULE]
