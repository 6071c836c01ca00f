"""The bootstrap log: what a bootstrap of a span plans and which of its parts are done, so that it goes on after a crash of its driver.

``spans/<span id>/bootstrap/<start ts>/plan.json`` is written before the first part is read, ``part-<number>.json`` once the objects of a
part are durable; both in the envelope of manifests, create-only, format version 1. Invariants: a span has one plan at a time; an object of
a part counts only once its record is there, so an attempt that dies leaves orphans, which garbage collection removes; the log is removed
after the state is committed. Runs in the driver.
"""

from __future__ import annotations

import msgspec

from penstock.model.span import Span
from penstock.store.objects.manifest import seal, unseal
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace

PLAN_MAGIC = "penstock-bootstrap"
PART_MAGIC = "penstock-bootstrap-part"
VERSION = 1


class BootstrapPlan(msgspec.Struct, frozen=True):
    """A bootstrap under way. ``ticket`` is the source's own, as JSON."""

    span_id: int
    start_ts: int
    pieces: tuple[Span, ...]
    """The parts, in key order: together they are the span."""
    ticket: str = ""
    resumable: bool = True
    """Whether another process may read on: False where the process that began it holds the snapshot open."""


class PulledPart(msgspec.Struct, frozen=True):
    """What a task wrote, the ts of its rows, and how often the snapshot was lost on the way."""

    objects: tuple[ObjectMeta, ...]
    version: int
    restarts: int = 0

    @property
    def rows(self) -> int:
        """Return how many rows the part has."""
        return sum(o.rows for o in self.objects)


def bootstrap_prefix(span_id: int) -> str:
    """Return where the records of a span's bootstraps lie."""
    return f"spans/{span_id}/bootstrap/"


class BootstrapLog:
    """The records of one span's bootstrap. One driver at a time uses it: the one whose server owns the event store."""

    def __init__(self, space: ObjectSpace, span_id: int) -> None:
        self._space = space
        self._span_id = span_id

    def plan(self) -> BootstrapPlan | None:
        """Return the plan that is under way, the newest where an older one was not removed; None where there is none."""
        names = [n for n in self._space.list_names(bootstrap_prefix(self._span_id)) if n.endswith("/plan.json")]
        if not names:
            return None
        return unseal(names[-1], self._space.get(names[-1]), PLAN_MAGIC, VERSION, BootstrapPlan)

    def begin(self, plan: BootstrapPlan) -> None:
        """Record a plan; what an earlier one had written is removed."""
        self.clear(keep_objects=False)
        self._space.put_new(f"{self._folder(plan)}plan.json", [seal(PLAN_MAGIC, VERSION, msgspec.json.encode(plan))])

    def finish(self, plan: BootstrapPlan, number: int, part: PulledPart) -> PulledPart:
        """Record that a part is done; return what counts, which is an earlier attempt's where that was recorded before."""
        path = f"{self._folder(plan)}part-{number:06d}.json"
        if self._space.put_new(path, [seal(PART_MAGIC, VERSION, msgspec.json.encode(part))]):
            return part
        return self._part(path)

    def finished(self, plan: BootstrapPlan) -> dict[int, PulledPart]:
        """Return the parts that are done, by number."""
        prefix = f"{self._folder(plan)}part-"
        names = [n for n in self._space.list_names(self._folder(plan)) if n.startswith(prefix)]
        return {int(n[len(prefix) : -len(".json")]): self._part(n) for n in names}

    def clear(self, *, keep_objects: bool = True) -> None:
        """Remove all records; with ``keep_objects=False`` the recorded objects as well, which no manifest may name."""
        names = self._space.list_names(bootstrap_prefix(self._span_id))
        if not keep_objects:
            for name in names:
                if "/part-" in name:
                    for meta in self._part(name).objects:
                        self._space.delete(meta.path)
        # The plan goes last: until then the rest belongs to it.
        for name in sorted(names, key=lambda n: n.endswith("/plan.json")):
            self._space.delete(name)

    def _part(self, path: str) -> PulledPart:
        return unseal(path, self._space.get(path), PART_MAGIC, VERSION, PulledPart)

    def _folder(self, plan: BootstrapPlan) -> str:
        return f"{bootstrap_prefix(self._span_id)}{plan.start_ts:020d}/"
