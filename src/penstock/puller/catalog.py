"""The catalog of pullers: from what an upstream declares to the puller that pulls it, and to what decodes its payloads.

The only place that asks how an upstream's changes come. Runs in the log service.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.model.clock import Clock
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.puller.contract import Puller
from penstock.puller.doubts import DoubtBook
from penstock.puller.logged.journal_keeper import Journal
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.puller.logged.single_log_puller import SingleLogPuller
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.ranged.matching.warm_kernels import warm_kernels
from penstock.puller.span_capture import Decode, as_given
from penstock.puller.span_pipeline import SpanPipeline
from penstock.source.contract import Upstream
from penstock.source.ranged import has_ranges
from penstock.source.single_log import has_log


class PullerParts(NamedTuple):
    """What a puller may need beside its upstream and its pipeline.

    ``journal`` is where positions are kept; an upstream with one log needs it. ``publish`` makes new table versions known before rows of
    them arrive. ``needed_from`` tells from which ts on someone may want that log again, whatever is durable here. ``doubts`` keeps the
    tables of such a log that must be read again.
    """

    ranged: LogPullerSettings
    logged: SingleLogPullerSettings
    clock: Clock
    rng: random.Random
    metrics: LogPullerMetrics
    publish: Callable[[Sequence[TableSchema]], None]
    journal: Journal | None = None
    needed_from: Callable[[], int] | None = None
    doubts: DoubtBook | None = None


class Pulling(NamedTuple):
    """A puller, and what makes events of its payloads."""

    puller: Puller
    decode: Decode


def open_puller(upstream: Upstream, pipeline: SpanPipeline, parts: PullerParts) -> Pulling:
    """Return the puller of an upstream, its threads started; its caller closes it."""
    if has_ranges(upstream):
        # Before a stream is open, so that its server does not wait for a compiler.
        warm_kernels()
        ranged = LogPuller(upstream, pipeline, parts.ranged, parts.clock, parts.rng, parts.metrics)
        return Pulling(ranged, upstream.decoder().decode)
    if not has_log(upstream):
        raise InvariantError(f"{type(upstream).__name__} declares neither ranges nor a log")
    if parts.journal is None:
        raise InvariantError("an upstream with one log needs a journal of positions")
    logged = SingleLogPuller(
        upstream,
        pipeline,
        parts.journal,
        parts.logged,
        parts.clock,
        parts.rng,
        parts.metrics,
        parts.publish,
        parts.needed_from,
        parts.doubts,
    )
    return Pulling(logged, as_given)
