"""Opens a target from its URI: the sink of a task, maintainer and clean-up beside the driver. Runs on executors and in the server.

What a kind of target is made of is imported when one is opened: the processes beside the driver start with every query, and most need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.model.table import TableSchema
from penstock.sink.contract import Sink, SinkMaintainer
from penstock.target.settings import from_uri

if TYPE_CHECKING:
    from penstock.model.clock import Clock
    from penstock.target.expiry import CleanUp
    from penstock.target.storage import Guard


def open_sink(uri: str, options: Mapping[str, Any], guard: Guard | None) -> Sink:
    """Return the sink of one task; without a guard where the task cannot ask who owns the feed."""
    from penstock.sink.storage.sink import StorageSink
    from penstock.target.storage import TargetAddress, retry_of

    target_uri, settings = from_uri(uri, options)
    return StorageSink(TargetAddress(target_uri, retry_of(settings)).open(guard=guard), settings)


def open_maintainer(uri: str, options: Mapping[str, Any], guard: Guard, answer_s_max: float | None = None) -> SinkMaintainer:
    """Return the part of the target that acts once per feed; where somebody waits, a call to it ends soon after ``answer_s_max``."""
    from penstock.sink.storage.maintainer import StorageMaintainer
    from penstock.target.storage import RetrySettings, TargetAddress, retry_of

    target_uri, settings = from_uri(uri, options)
    retry = retry_of(settings) if answer_s_max is None else RetrySettings(request_s_max=answer_s_max, total_s_max=answer_s_max)
    return StorageMaintainer(TargetAddress(target_uri, retry).open(guard=guard), settings)


def open_clean_up(uri: str, options: Mapping[str, Any], guard: Guard, clock: Clock) -> CleanUp | None:
    """Return what lets files of the target expire, or None where they are kept for ever."""
    from penstock.target.expiry import CleanUp
    from penstock.target.storage import TargetAddress

    target_uri, settings = from_uri(uri, options)
    return CleanUp(TargetAddress(target_uri).open(guard=guard), settings, clock) if settings.file_expiration_days else None


def one_task(uri: str, options: Mapping[str, Any]) -> bool:
    """Return whether all rows of a window must go through one task, dispatcher by dispatcher, because each tells its place among them."""
    return from_uri(uri, options)[1].numbers_events


def before_rule(uri: str, options: Mapping[str, Any]) -> Callable[[TableSchema], bool]:
    """Return what tells of a table version whether its before-images and keys must travel to the target."""
    return from_uri(uri, options)[1].needs_before
