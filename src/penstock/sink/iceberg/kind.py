"""Apache Iceberg as a kind of target. Runs on executors and in the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock.model.errors import PenstockError
from penstock.sink.lake.format import LakeFormat
from penstock.sink.lake.kind import LakeKind
from penstock.sink.lake.settings import LakeSettings
from penstock.target.storage import ObjectTarget


class IcebergKind(LakeKind):
    """Tables of Apache Iceberg."""

    name = "iceberg"
    library = "pyiceberg"
    server_only_options = frozenset({"catalog"})
    has_small_ints = False
    partition_in_files = True

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, LakeSettings]:
        """Return the URI of the warehouse, and the settings."""
        place, settings = super().settings(uri, options)
        if not settings.catalog and urlsplit(place).scheme != "file":
            raise PenstockError("CONFIG_INVALID", "catalog: a warehouse that is not a folder of this machine needs one")
        return place, settings

    def open_lake(self, uri: str, catalog: str, target: ObjectTarget, feed: str) -> LakeFormat:
        """Return the tables of a warehouse."""
        from penstock.sink.iceberg.lake import IcebergLake

        return IcebergLake(uri, catalog, target, feed)


KIND = IcebergKind()
