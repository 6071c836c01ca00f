"""Tables of lakes in a folder, for the contract suite of sinks and for feeds: read back by polars, which did not write them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import polars as pl
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from penstock.sink.catalog import kind_of
from penstock.sink.iceberg.catalogs import open_catalog
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.targets.kit import Kit

RUN = SinkRun("contract", 1)
# Which files there are pyiceberg says, without another plugin; polars reads them.
os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")


class Lake(NamedTuple):
    """A lake in a folder that may not be there yet."""

    root: Path
    uri: str
    read: Callable[[str, str], pl.DataFrame]
    """The rows of a table, schema and name given."""
    windows: Callable[[str, str], list[int]]
    """The ends of the windows that a table's versions tell of, oldest first, each as often as it was committed."""
    forget: Callable[[str, str], object]
    """Delete a table, as somebody who should not."""


def delta_lake(root: Path) -> Lake:
    """Return a lake of Delta tables."""

    def windows(schema: str, table: str) -> list[int]:
        versions = reversed(DeltaTable(str(root / schema / table)).history())
        told = [int(v["penstock.window"]) for v in versions if v["operation"] == "WRITE" and "penstock.window" in v]
        return [ts for ts in told if ts]

    def read(schema: str, table: str) -> pl.DataFrame:
        return pl.read_delta(str(root / schema / table))

    def forget(schema: str, table: str) -> None:
        shutil.rmtree(root / schema / table)

    return Lake(root, f"delta+{root.as_uri()}", read, windows, forget)


def iceberg_lake(root: Path) -> Lake:
    """Return a lake of Iceberg tables, with the catalog that is the default."""

    def opened() -> Catalog:
        return open_catalog(root.as_uri(), "", f"file://{root}")

    def load(schema: str, table: str) -> Table:
        return opened().load_table((schema, table))

    def read(schema: str, table: str) -> pl.DataFrame:
        return pl.scan_iceberg(load(schema, table)).collect()

    def forget(schema: str, table: str) -> None:
        opened().drop_table((schema, table))

    def windows(schema: str, table: str) -> list[int]:
        told = [s.summary.additional_properties if s.summary else {} for s in load(schema, table).snapshots()]
        return [int(found["penstock.window"]) for found in told if int(found.get("penstock.window", "0"))]

    return Lake(root, f"iceberg+{root.as_uri()}", read, windows, forget)


LAKES: dict[str, Callable[[Path], Lake]] = {"delta": delta_lake, "iceberg": iceberg_lake}


@contextmanager
def delta_kit(tmp_path: Path) -> Iterator[Kit]:
    """Yield Delta tables in a folder."""
    yield _kit(delta_lake(tmp_path / "lake"))


@contextmanager
def iceberg_kit(tmp_path: Path) -> Iterator[Kit]:
    """Yield Iceberg tables in a folder."""
    yield _kit(iceberg_lake(tmp_path / "lake"))


def _kit(lake: Lake) -> Kit:
    uri, kind = f"{lake.uri}?file-size=2048", kind_of(lake.uri)

    def state(schema: str, table: str) -> dict[int, str | None]:
        return dict(lake.read(schema, table).select("id", "note").rows())

    return Kit(lambda: kind.make_sink(uri, {}, None, RUN), lambda: kind.make_maintainer(uri, {}, unfenced, RUN), state)
