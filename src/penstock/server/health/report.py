"""The health of one server, put together: which components are looked at, which feeds have problems. Runs in the server."""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.clock import Clock
from penstock.server.health.feed_watch import FeedProblem, FeedWatch
from penstock.server.health.watch import ComponentHealth, HealthWatch, Look


class ServerHealth:
    """Answers everything that the API and the metrics ask about health. ``start`` and ``stop`` are called by one thread."""

    def __init__(self, looks: dict[str, Look], feeds: FeedWatch, alive: Callable[[], str], clock: Clock) -> None:
        """``alive`` says why the process cannot do its work, or nothing."""
        self._feeds = feeds
        self._alive = alive
        self._watch = HealthWatch({**looks, "feeds": feeds.look}, clock)

    def start(self) -> None:
        """Begin to look."""
        self._watch.start()

    def stop(self) -> None:
        """Look no more."""
        self._watch.stop()

    def components(self) -> dict[str, ComponentHealth]:
        """Return what is known of every component."""
        return self._watch.components()

    def alive(self) -> str:
        """Return why the process cannot do its work, or nothing where it can."""
        return self._alive()

    def problem(self, name: str) -> FeedProblem | None:
        """Return the problem of a feed, or None."""
        return self._feeds.problem(name)

    def problems(self) -> dict[str, FeedProblem]:
        """Return all problems by feed."""
        return self._feeds.problems()
