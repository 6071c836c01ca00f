"""Opens a target from its URI: the sink inside a task, and the maintainer beside the driver. Runs on executors and in the server."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.sink.contract import Sink, SinkMaintainer
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.settings import StorageSinkSettings
from penstock.sink.storage.sink import StorageSink
from penstock.sink.storage.target import ObjectTarget


def open_sink(uri: str, options: Mapping[str, str]) -> Sink:
    """Return the sink of one task."""
    target_uri, settings = StorageSinkSettings.from_uri(uri, options)
    return StorageSink(ObjectTarget.open(target_uri), settings)


def open_maintainer(uri: str, options: Mapping[str, str]) -> SinkMaintainer:
    """Return the part of the target that acts once per feed."""
    target_uri, settings = StorageSinkSettings.from_uri(uri, options)
    return StorageMaintainer(ObjectTarget.open(target_uri), settings)


def needs_before(uri: str, options: Mapping[str, str]) -> bool:
    """Return whether the target's settings ask for old values, so that before-images must travel."""
    return StorageSinkSettings.from_uri(uri, options)[1].needs_before
