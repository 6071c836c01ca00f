"""Files, in a folder and in memory, for the contract suite of sinks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.sink import StorageSink
from penstock.target.settings import from_uri
from penstock.target.storage import TargetAddress
from testing.targets.kit import Kit

_names = itertools.count()


@contextmanager
def folder_kit(tmp_path: Path) -> Iterator[Kit]:
    """Yield a folder as target."""
    yield _kit(f"file://{tmp_path}/target")


@contextmanager
def memory_kit(_: Path) -> Iterator[Kit]:
    """Yield a target in memory."""
    yield _kit(f"memory://contract-{next(_names)}/")


def _kit(uri: str) -> Kit:
    target_uri, settings = from_uri(f"{uri}?file-size=2048")

    def state(schema: str, table: str) -> dict[int, str | None]:
        reader = StorageReader(TargetAddress(target_uri).open(), settings)
        frame = replay_table(reader, schema, table)
        return dict(frame.select("id", "note").rows())

    def changes(schema: str, table: str) -> list[tuple[int, int, int, str | None]]:
        reader = StorageReader(TargetAddress(target_uri).open(), settings)
        return [row for _, frame in reader.changes(schema, table) for row in frame.rows()]

    return Kit(
        lambda: StorageSink(TargetAddress(target_uri).open(), settings),
        lambda: StorageMaintainer(TargetAddress(target_uri).open(), settings),
        state,
        changes,
    )
