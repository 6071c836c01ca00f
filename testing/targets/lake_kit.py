"""Tables of lakes in a folder, for the contract suite of sinks and for feeds: read back by polars, which did not write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import polars as pl
from deltalake import DeltaTable

from penstock.sink.catalog import kind_of
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.targets.kit import Kit

RUN = SinkRun("contract", 1)


class Lake(NamedTuple):
    """A lake in a folder that may not be there yet."""

    root: Path
    uri: str
    read: Callable[[str, str], pl.DataFrame]
    """The rows of a table, schema and name given."""
    windows: Callable[[str, str], list[int]]
    """The ends of the windows that a table's versions tell of, oldest first, each as often as it was committed."""


def delta_lake(root: Path) -> Lake:
    """Return a lake of Delta tables."""

    def windows(schema: str, table: str) -> list[int]:
        versions = reversed(DeltaTable(str(root / schema / table)).history())
        told = [int(v["penstock.window"]) for v in versions if v["operation"] == "WRITE" and "penstock.window" in v]
        return [ts for ts in told if ts]

    return Lake(root, f"delta+file://{root}", lambda schema, table: pl.read_delta(str(root / schema / table)), windows)


LAKES: dict[str, Callable[[Path], Lake]] = {"delta": delta_lake}


@contextmanager
def delta_kit(tmp_path: Path) -> Iterator[Kit]:
    """Yield Delta tables in a folder."""
    yield _kit(delta_lake(tmp_path / "lake"))


def _kit(lake: Lake) -> Kit:
    uri, kind = f"{lake.uri}?file-size=2048", kind_of(lake.uri)

    def state(schema: str, table: str) -> dict[int, str | None]:
        return dict(lake.read(schema, table).select("id", "note").rows())

    return Kit(lambda: kind.make_sink(uri, {}, None, RUN), lambda: kind.make_maintainer(uri, {}, unfenced, RUN), state)
