"""Sources of a server without an upstream, a store or a log service: what opens, what fails, what was closed. Runs in tests."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.puller.log_service import SpanStatus
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.health.looks import CaptureLook
from penstock.server.source_address import SourcePlace
from penstock.server.sources.sources import Sources
from penstock.server.verify.verification import Verdict
from penstock.source.contract import Upstream
from testing.paths.feed_run import ScriptedFeedRunFactory
from testing.twins.change_stream import ScriptedUpstream


class ScriptedSource:
    """An open source that notes its end. Implements ``OpenSource``, and ``Verifies`` for its feeds."""

    def __init__(self, place: SourcePlace, upstream: Upstream | None = None) -> None:
        self.place = place
        self.upstream = upstream or ScriptedUpstream()
        self.runs = ScriptedFeedRunFactory()
        self.doubted: DoubtedTables | None = None
        self.spans: list[SpanStatus] = []
        self.look = CaptureLook(lambda: self.spans, Path("/"))
        registry = CollectorRegistry()
        Gauge("opened", "1 while the source is open.", registry=registry).set(1)
        self.registries = [registry]
        self.verifier = self
        self.stands_by = False
        self.begun = 0
        self.closed = 0

    def verify(self, name: str) -> Verdict:
        """Return a verdict that is known by its ts."""
        return Verdict(len(name), ())

    def progress(self, name: str) -> list[str] | None:
        """Return who was asked about what."""
        return [f"{self.place.name}: {name}"]

    def cancel(self, name: str) -> bool:
        """Return whether that feed is a longer word than the source."""
        return len(name) > len(self.place.name)

    def verification(self, feed: str) -> dict[str, Any] | None:
        """Return who was asked about what."""
        return {"source": self.place.name, "feed": feed}

    def kept_from_ts(self, _span_ids: Collection[int]) -> int | None:
        """Return that nothing is kept."""
        return None

    def begin(self) -> None:
        """Note that a feed is about to begin."""
        self.begun += 1
        self.stands_by = False

    def stand_by(self) -> None:
        """Note that nothing is captured."""
        self.stands_by = True

    def close(self) -> None:
        """Note the end."""
        self.closed += 1


class ScriptedSources:
    """Opens scripted sources. ``failing`` has errors by source, one for each attempt."""

    def __init__(self, places: Sequence[SourcePlace], clock: Clock, upstream: Upstream | None = None) -> None:
        self.sources = Sources(places, self._open, clock, random.Random(0))
        self.upstream = upstream
        self.opened: list[ScriptedSource] = []
        self.attempts: list[str] = []
        self.failing: dict[str, list[Exception]] = {}

    def fail(self, name: str, errors: Iterable[Exception]) -> None:
        """Have the next attempts to open a source fail."""
        self.failing[name] = list(errors)

    def _open(self, place: SourcePlace) -> ScriptedSource:
        self.attempts.append(place.name)
        if self.failing.get(place.name):
            raise self.failing[place.name].pop(0)
        source = ScriptedSource(place, self.upstream)
        self.opened.append(source)
        return source


def unreachable(name: str) -> PenstockError:
    """Return what a source says that nobody listens for."""
    return PenstockError("UPSTREAM_UNREACHABLE", f"{name} does not answer")
