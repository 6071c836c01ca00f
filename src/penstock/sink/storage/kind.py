"""Files on object storage as a kind of target. Runs on executors and in the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.sink.kind import TargetKind
from penstock.target.kind import SinkRun
from penstock.target.settings import OPTION_KEYS, SHARED_KEYS, StorageSinkSettings, from_uri

if TYPE_CHECKING:
    from penstock.model.clock import Clock
    from penstock.model.finding import Finding
    from penstock.sink.contract import Sink, SinkMaintainer
    from penstock.target.expiry import CleanUp
    from penstock.target.state import TargetState
    from penstock.target.storage import Guard


class StorageKind(TargetKind):
    """Files in the open layout."""

    name = "storage"
    option_keys = OPTION_KEYS | frozenset(SHARED_KEYS)
    server_only_options = frozenset({"spool-dir"})

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, StorageSinkSettings]:
        """Return the target's URI and the settings."""
        return from_uri(uri, options)

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> Sink:
        """Return the sink of one task."""
        from penstock.sink.storage.sink import StorageSink
        from penstock.target.storage import TargetAddress, retry_of

        target_uri, settings = from_uri(uri, options)
        return StorageSink(TargetAddress(target_uri, retry_of(settings)).open(guard=guard), settings)

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> SinkMaintainer:
        """Return the part that acts once per feed."""
        from penstock.sink.storage.maintainer import StorageMaintainer
        from penstock.target.storage import RetrySettings, TargetAddress, retry_of

        target_uri, settings = from_uri(uri, options)
        retry = retry_of(settings) if answer_s_max is None else RetrySettings(request_s_max=answer_s_max, total_s_max=answer_s_max)
        return StorageMaintainer(TargetAddress(target_uri, retry).open(guard=guard), settings, claimant=run.claimant)

    def make_clean_up(self, uri: str, options: Mapping[str, Any], guard: Guard, clock: Clock) -> CleanUp | None:
        """Return what lets files expire, or None where they are kept for ever."""
        from penstock.target.expiry import CleanUp
        from penstock.target.storage import TargetAddress

        target_uri, settings = from_uri(uri, options)
        return CleanUp(TargetAddress(target_uri).open(guard=guard), settings, clock) if settings.file_expiration_days else None

    def make_state(self, uri: str, options: Mapping[str, Any]) -> TargetState:
        """Return what reads the files back."""
        from penstock.readback.target_state import StorageState
        from penstock.target.storage import TargetAddress

        target_uri, settings = from_uri(uri, options)
        return StorageState(TargetAddress(target_uri).open(), settings)

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return whether objects can be created, listed and deleted there, and whose it is."""
        from penstock.sink.storage.target_check import check_storage

        return check_storage(uri, options, feed)


KIND = StorageKind()
