"""Checkers of a storage target in a local folder: what must hold for its files, whatever was written and whatever failed. Runs in tests.

Each checker reads the files themselves and returns what is wrong, in words; an empty list means that nothing is. They know nothing of
workloads.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from pathlib import Path

import polars as pl

from penstock.format.layout.checkpoint import parse_checkpoint
from penstock.format.layout.index_file import parse_index
from penstock.format.layout.paths import METADATA_PATH, DataDir, Layout
from penstock.model.batch import Op
from penstock.model.table import COMMIT_TS, OP
from penstock.readback.reader import StorageReader

# What an interrupted write to a local folder leaves behind; no listing shows it.
_PARTIAL = re.compile(r"#\d+\Z")


def data_files(folder: Path, layout: Layout | None = None) -> dict[str, Path]:
    """Return every data file by its path in the target."""
    layout = layout or Layout()
    found = {str(path.relative_to(folder)): path for path in folder.rglob("CDC*") if not _PARTIAL.search(path.name)}
    return {name: path for name, path in found.items() if layout.parse_data(name) is not None}


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every data file."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in data_files(folder).items()}


def numbering_problems(folder: Path, layout: Layout | None = None) -> list[str]:
    """Files of one directory and dispatcher count 1, 2, 3 ..., and the index names the last one."""
    layout = layout or Layout()
    numbers: dict[tuple[DataDir, str], list[int]] = defaultdict(list)
    for name in data_files(folder, layout):
        data = layout.parse_data(name)
        assert data is not None
        numbers[data.dir, data.dispatcher].append(data.number)
    problems = []
    for (directory, dispatcher), found in sorted(numbers.items()):
        place = f"{layout.dir_path(directory)} {dispatcher}".strip()
        if sorted(found) != list(range(1, len(found) + 1)):
            problems.append(f"{place}: numbers {sorted(found)}")
        index = folder / layout.index_path(directory, dispatcher)
        if not index.exists():
            problems.append(f"{place}: no index")
        elif (last := parse_index(layout, index.read_bytes(), str(index), dispatcher)) != max(found):
            problems.append(f"{place}: the index names {last}, the last file is {max(found)}")
    return problems


def checkpoint_of(folder: Path) -> int:
    """Return the published checkpoint."""
    return parse_checkpoint((folder / METADATA_PATH).read_bytes())


class DeliveredChanges:
    """The changes of all tables of a target, by table: commit ts, op and key, in order."""

    def __init__(self, reader: StorageReader) -> None:
        self._tables: dict[str, pl.DataFrame] = {}
        for schema, table in reader.tables():
            frames = []
            for version, frame in reader.changes(schema, table):
                keys = [pl.col(c.field_name) for c in version.key_columns]
                frames.append(frame.select(COMMIT_TS, OP, *keys))
            if frames:
                self._tables[f"{schema}.{table}"] = pl.concat(frames)

    @property
    def rows(self) -> int:
        """Return how many changes there are."""
        return sum(frame.height for frame in self._tables.values())

    def operations(self) -> dict[Op, int]:
        """Return how many changes of each kind there are."""
        counted: Counter[Op] = Counter()
        for frame in self._tables.values():
            counted.update({Op(op): count for op, count in frame[OP].value_counts().rows()})
        return dict(counted)

    def problems(self) -> list[str]:
        """No change is there twice, and no table goes back in time."""
        found = []
        for name, frame in self._tables.items():
            if frame.n_unique() != frame.height:
                found.append(f"{name}: {frame.height - frame.n_unique()} changes are there twice")
            if not frame[COMMIT_TS].is_sorted():
                found.append(f"{name}: commit ts go back")
        return found
