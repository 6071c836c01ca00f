"""Progress that a target tells for sure, and what makes it unsure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.format.layout.checkpoint import render_checkpoint
from penstock.format.layout.checksum_record import FileChecksum, record_path, render_record
from penstock.format.layout.paths import METADATA_PATH, DataDir, DataPath, Layout
from penstock.model.errors import PenstockError
from penstock.readback.recovery import recover_progress
from penstock.target.dispatcher import DispatcherId
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import ObjectTarget

SETTINGS = StorageSinkSettings()
LAYOUT: Layout = SETTINGS.layout
DISPATCHERS = [(DispatcherId(100), "d", "t"), (DispatcherId(101), "d", "u")]
COMMITTED = {"100-0": {"schema/7": 5, "5/2026-11-15": 2}}
"""Table version 7 writes into the directory of version 5."""


def file(table: str, date: str, number: int) -> str:
    return LAYOUT.data_path(DataPath(DataDir("d", table, 5, 0, date), "", number))


class Target:
    """A target at 30; the meta database knows it as it was at 10."""

    def __init__(self, folder: Path) -> None:
        self.objects = ObjectTarget.open(folder.as_uri())
        self.put(render_checkpoint(30), METADATA_PATH)
        self.window(10, file("t", "2026-11-15", 1), file("t", "2026-11-15", 2))
        self.window(20, file("t", "2026-11-15", 3), file("u", "2026-11-15", 1))
        self.window(30, file("t", "2026-11-16", 1), file("t", "2026-11-16", 2))

    def put(self, content: bytes, *paths: str) -> None:
        for path in paths:
            self.objects.put(path, content)

    def window(self, end_ts: int, *files: str) -> None:
        self.put(b"rows", *files)
        self.put(render_record(FileChecksum(path, 4, "x") for path in files), record_path(end_ts))

    def recovered(self) -> tuple[int, dict[str, dict[str, int]]]:
        return recover_progress(self.objects, SETTINGS, DISPATCHERS, 10, COMMITTED)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def test_positions_are_those_of_the_last_published_window(target: Target) -> None:
    assert target.recovered() == (30, {"100-0": {"schema/7": 5, "5/2026-11-16": 2}, "101-0": {"schema/5": 5, "5/2026-11-15": 1}})


HARMS: dict[str, Callable[[Target], None]] = {
    "a window that was not published": lambda target: target.window(40, file("t", "2026-11-16", 3)),
    "a file of a window that was cut off": lambda target: target.put(b"rows", file("t", "2026-11-16", 3)),
    "a file in a new directory": lambda target: target.put(b"rows", file("u", "2026-11-17", 1)),
    "a DDL": lambda target: target.put(b"{}", "d/t/meta/schema_20_0000000001.json"),
    "a table that the feed does not have": lambda target: target.window(25, file("other", "2026-11-16", 1)),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_what_is_not_sure_is_refused(target: Target, harm: Callable[[Target], None]) -> None:
    harm(target)
    with pytest.raises(PenstockError, match="META_BEHIND_TARGET"):
        target.recovered()


def test_partitions_of_a_table_are_not_told_apart(target: Target) -> None:
    with pytest.raises(PenstockError, match="has partitions"):
        recover_progress(target.objects, SETTINGS, [*DISPATCHERS, (DispatcherId(102), "d", "t")], 10, COMMITTED)
