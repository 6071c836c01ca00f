"""Where a source is captured: in the server, or by receivers on Spark's executors; and whether Spark has room for them.

Invariant: what is known before anything starts is refused here: a source that has nothing to divide, receivers that would take every core,
executors of other machines without storage that all of them reach. Runs in the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from penstock.source.catalog import ONE_LOG_SCHEMES

_RECEIVERS_MAX = 1000


class SparkCores(Protocol):
    """Where Spark runs, as far as receivers need to know."""

    @property
    def cores(self) -> int | None:
        """Return how many tasks run at once, None where the cluster decides."""

    @property
    def on_this_machine(self) -> bool:
        """Return whether all executors are processes of this machine."""


@dataclass(frozen=True)
class CaptureSettings:
    """Where rows are captured, and by how many receivers where that is on executors."""

    capture: Literal["server", "executors"] = "server"
    receivers: int = 2

    @property
    def on_executors(self) -> bool:
        """Return whether receivers capture the rows."""
        return self.capture == "executors"

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        return [] if 1 <= self.receivers <= _RECEIVERS_MAX else [("receivers", f"must be between 1 and {_RECEIVERS_MAX}")]

    def problems_with(self, uri: str) -> list[tuple[str, str]]:
        """Return what is wrong with it for a source."""
        scheme = urlsplit(uri).scheme
        if not self.on_executors or scheme not in ONE_LOG_SCHEMES:
            return []
        return [("capture", f'must be "server" for {scheme}://: it has one log, which one reader reads, and nothing to divide')]


def receiver_problems(receivers: int, spark: SparkCores, *, is_shared: bool) -> list[tuple[str, str]]:
    """Return what is wrong with the receivers of all sources together; ``is_shared`` says that there is storage that all machines reach."""
    if not receivers:
        return []
    found = []
    if not is_shared and not spark.on_this_machine:
        found.append(("store.objects", "is required with capture on executors of other machines: what they capture is kept there"))
    cores = spark.cores
    if cores is not None and receivers >= cores:
        found.append(
            (
                "receivers",
                f"{receivers} would take all {cores} cores that Spark has, and windows need one: give fewer, or more cores"
                " (spark.master, spark.cores-max)",
            )
        )
    return found
