"""The catalog of pullers: from what an upstream declares to the puller that pulls it, and to how its payloads reach the store.

The only place that asks how an upstream's changes come. Runs in the log service.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.model.clock import Clock
from penstock.model.errors import InvariantError
from penstock.model.span import Span
from penstock.puller.contract import Capture, Puller
from penstock.puller.logged.single_log_puller import Journal, SingleLogPuller, SingleLogPullerSettings
from penstock.puller.logged.step_capture import StepCapture
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.ranged.region_worker import Channels
from penstock.puller.ranged.span_capture import SpanCapture
from penstock.puller.ranged.warm_kernels import warm_kernels
from penstock.puller.span_pipeline import SpanPipeline
from penstock.source.contract import Upstream
from penstock.source.ranged import has_ranges
from penstock.source.single_log import has_log
from penstock.store.contract import EventStore


@dataclass(frozen=True)
class PullerSettings:
    """The settings of each puller."""

    ranged: LogPullerSettings = field(default_factory=LogPullerSettings)
    logged: SingleLogPullerSettings = field(default_factory=SingleLogPullerSettings)


class PullerParts(NamedTuple):
    """What a puller may need beside its upstream and its pipeline.

    ``journal`` is where positions are kept; an upstream with one log needs it. ``needed_from`` tells from which ts on someone may want that
    log again, whatever is durable here. ``channels`` opens the change streams of ranges.
    """

    clock: Clock
    rng: random.Random
    metrics: LogPullerMetrics
    channels: Channels | None = None
    journal: Journal | None = None
    needed_from: Callable[[], int] | None = None


class Pulling(NamedTuple):
    """A puller, and what takes its payloads for a span."""

    puller: Puller
    capture_of: Callable[[Span], Capture]


def open_puller(upstream: Upstream, store: EventStore, pipeline: SpanPipeline, settings: PullerSettings, parts: PullerParts) -> Pulling:
    """Return the puller of an upstream, its threads started; its caller closes it."""
    if has_ranges(upstream):
        # Before a stream is open, so that its server does not wait for a compiler.
        warm_kernels()
        ranged = LogPuller(upstream, pipeline, settings.ranged, parts.clock, parts.rng, parts.metrics, parts.channels)
        return Pulling(ranged, lambda span: SpanCapture(span, upstream.decoder(), store))
    if not has_log(upstream):
        raise InvariantError(f"{type(upstream).__name__} declares neither ranges nor a log")
    if parts.journal is None:
        raise InvariantError("an upstream with one log needs a journal of positions")
    logged = SingleLogPuller(
        upstream,
        pipeline,
        parts.journal,
        settings.logged,
        parts.clock,
        parts.rng,
        parts.metrics,
        store.put_schemas,
        parts.needed_from,
    )
    return Pulling(logged, lambda span: StepCapture(span, store))
