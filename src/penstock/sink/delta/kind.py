"""Delta Lake as a kind of target. Runs on executors and in the server."""

from __future__ import annotations

from penstock.sink.lake.format import LakeFormat
from penstock.sink.lake.kind import LakeKind
from penstock.target.storage import ObjectTarget


class DeltaKind(LakeKind):
    """Tables of Delta Lake."""

    name = "delta"
    library = "deltalake"
    has_small_ints = True
    partition_in_files = False
    option_keys = LakeKind.option_keys - {"catalog"}

    def open_lake(self, uri: str, catalog: str, target: ObjectTarget, feed: str) -> LakeFormat:
        """Return the tables below a root."""
        from penstock.sink.delta.lake import DeltaLake

        return DeltaLake(uri, target, feed)


KIND = DeltaKind()
