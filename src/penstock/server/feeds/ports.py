"""What the server's parts need from each other and from the layers below, as small roles. Runs in the server."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from penstock.meta.records import FeedRecord, ServerRecord
from penstock.model.errors import PenstockError
from penstock.source.contract import Upstream


class SnapshotStatus(msgspec.Struct, frozen=True):
    """How far the Spark tasks are that read the state of a feed's tables."""

    parts: int
    parts_done: int
    rows: int


class RunStatus(msgspec.Struct, frozen=True):
    """What a run says about itself beyond what the meta database holds."""

    active: bool
    resolved_ts: int = 0
    """Up to which ts the log service has everything of the feed's tables; 0 while unknown."""
    capture_problems: tuple[str, ...] = ()
    """What keeps the log service from capturing some of the tables; the feed runs, but its checkpoint stands still."""
    snapshot: SnapshotStatus | None = None
    """How far reading the state that the feed begins with is; None where that is not under way."""
    starting: bool = False
    """Whether processes of the run are being started, which others had better wait for; reading a state is no part of that."""


class FeedRun(Protocol):
    """One run of a feed under one epoch. ``start``, ``stop`` and ``wait`` are called by one thread, the rest by any."""

    def start(self) -> None:
        """Begin. Raises where it cannot; then ``stop`` is called still."""

    def stop(self, *, at_once: bool = False) -> None:
        """End, and return when nothing of the run works any more. May be called twice, and after the run ended by itself.

        A window under way may end within some seconds, unless ``at_once`` says that it could not be committed anyway.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait until the run has ended by itself, at most the given seconds; return whether it has."""

    def error(self) -> PenstockError | None:
        """Return why the run ended by itself, or None."""

    def status(self) -> RunStatus:
        """Return where the run is. Must be quick."""


class FeedRunFactory(Protocol):
    """Makes runs. Called by many threads."""

    def prepare(self, feed: FeedRecord, epoch: int) -> FeedRecord:
        """Return a feed as it is to be run: where it was altered, and can be, with the new configuration. Called before ``create``."""

    def create(self, feed: FeedRecord, epoch: int) -> FeedRun:
        """Return a run that is not started; may raise what also ``start`` may raise."""

    def forget(self, feed: FeedRecord) -> None:
        """Release what was kept for a feed that is removed. Called once, after its last run has stopped."""


class KnownSpans(Protocol):
    """What is stored of spans, wherever they are captured: an event store, or receivers. Thread safe."""

    def span_ids(self) -> tuple[int, ...]:
        """Return the ids of all spans that there are."""

    def base_ts(self, span_id: int) -> int | None:
        """Return from which ts on the state of a span is known; None where it is not, or the span is unknown."""

    def resolved_ts(self, span_id: int) -> int:
        """Return the span's resolved ts; raises ``SPAN_UNKNOWN``."""


class SourceInUse(Protocol):
    """A source that is open."""

    @property
    def upstream(self) -> Upstream:
        """Return what is captured."""

    def kept_from_ts(self, span_ids: Collection[int]) -> int | None:
        """Return from which ts on all changes of spans are kept here; None where that is not known."""

    def begin(self) -> None:
        """Capture, where that waits for a first feed: only whoever reads a log knows its tables. Idempotent."""


class FeedSources(Protocol):
    """What the creation of a feed asks about sources."""

    def choose(self, given: str | None) -> str:
        """Return the URI of the source that a feed names, or of the one for feeds that name none; raise where there is none."""

    def using(self, uri: str) -> AbstractContextManager[SourceInUse]:
        """Give a source, opened if it is not, that does not end meanwhile."""


class Liveness(Protocol):
    """What the API asks the supervisor."""

    def wake(self) -> None:
        """Look at the feeds now rather than at the next scan."""

    def retry_now(self, name: str) -> None:
        """Try a feed that waits for its next attempt at once, if it is here."""

    def drain(self, draining: bool) -> None:
        """Hand all feeds over and take none, or take feeds again."""

    def companions(self, feed: FeedRecord) -> list[str]:
        """Return the feeds that one server has together with this one, itself among them."""

    @property
    def owner(self) -> str:
        """Return the name under which this server owns feeds."""

    @property
    def draining(self) -> bool:
        """Return whether this server gives its feeds up."""

    @property
    def servers(self) -> list[ServerRecord]:
        """Return the servers that share the meta database, as they were at the last look."""

    def status(self, name: str) -> RunStatus | None:
        """Return the status of a feed's run, or None where it does not run here."""
