"""Compaction as a Spark job: merged objects are written by executors and committed by the store that owns the spans.

One task per span reads its state through the Flight service, as any reader does, and writes merged objects beside the others; nothing
is visible until the store commits them, and tombstones that came meanwhile are transferred by that commit. ``compact`` runs in the
driver, ``write_merged`` on executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from pyspark.sql import SparkSession

from penstock.model.clock import system_random
from penstock.store.flight.client import FlightStoreClient
from penstock.store.objects.merging import MergePlan, write_merge
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.span_writer import ObjectSettings, SpanWriter

OBJECT_BYTES = 64 * 1024 * 1024


class MergeTarget(Protocol):
    """The event store as a compaction needs it."""

    def plan_merge(self, span_id: int) -> MergePlan | None:
        """Return what a merge would do now."""

    def commit_merge(self, plan: MergePlan, merged: Sequence[ObjectMeta]) -> int:
        """Commit merged objects."""


class MergeTask(msgspec.Struct, frozen=True):
    """What one task merges, and how it reaches the store."""

    plan: MergePlan
    location: str
    token: str
    objects_uri: str
    storage_options: dict[str, str]
    object_bytes: int

    def __repr__(self) -> str:
        return f"MergeTask({self.plan!r}, {self.location!r})"


def compact(
    session: SparkSession,
    store: MergeTarget,
    span_ids: Sequence[int],
    location: str,
    token: str,
    objects_uri: str,
    storage_options: Mapping[str, str] | None = None,
    object_bytes: int = OBJECT_BYTES,
) -> int:
    """Merge spans with one task each; return how many objects were replaced. Spans with nothing to merge are left alone."""
    plans = [plan for plan in map(store.plan_merge, span_ids) if plan is not None]
    if not plans:
        return 0
    options = dict(storage_options or {})
    tasks = [msgspec.json.encode(MergeTask(plan, location, token, objects_uri, options, object_bytes)) for plan in plans]
    answers = session.sparkContext.parallelize(tasks, len(tasks)).map(_merge_encoded).collect()
    return sum(
        store.commit_merge(plan, msgspec.json.decode(merged, type=tuple[ObjectMeta, ...]))
        for plan, merged in zip(plans, answers, strict=True)
    )


def _merge_encoded(task: bytes) -> bytes:
    return msgspec.json.encode(write_merged(msgspec.json.decode(task, type=MergeTask)))


def write_merged(task: MergeTask) -> tuple[ObjectMeta, ...]:
    """Read a span's state and write its merged objects. Runs on an executor."""
    plan = task.plan
    space = ObjectSpace(task.objects_uri, options=task.storage_options)
    writer = SpanWriter(space, plan.span_id, ObjectSettings(task.object_bytes, None), system_random())
    client = FlightStoreClient(task.location, task.token, task.storage_options)
    try:
        view = client.view(plan.span_id, 0, plan.merge_ts)
        tables = view.state.tables
        # Names of objects begin with a number of their manifest; the ts tells these apart from what the owner writes.
        return write_merge(
            view, plan.merge_ts, lambda side, kind, batches, ts: writer.write(plan.merge_ts, side, kind, batches, tables, ts)
        )
    finally:
        client.close()
