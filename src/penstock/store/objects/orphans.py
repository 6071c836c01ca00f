"""Files of a span that nothing names: what a crash between an object and its manifest left, and what was never committed.

Invariants: files of a bootstrap are left while any of its records is young, because whoever wrote them commits them later; what may go is
for the caller to say, who knows what manifest and checkpoints name. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.store.log.bootstrap_log import BootstrapLog, bootstrap_prefix
from penstock.store.objects.objects import ObjectSpace


def files(space: ObjectSpace, span_id: int) -> set[str]:
    """Return the objects that the owner of a span wrote itself, without those of bootstraps."""
    return set(space.list_names(f"spans/{span_id}/objects/"))


def files_before(space: ObjectSpace, span_id: int, written_before_ms: int) -> set[str]:
    """Return the objects of a span that were written before a time. The records of a bootstrap that is as old are removed."""
    records = space.list_modified(bootstrap_prefix(span_id))
    alive = any(ms >= written_before_ms for ms in records.values())
    if records and not alive:
        BootstrapLog(space, span_id).clear()
    folders = ("objects",) if alive else ("objects", "bulk")
    return {n for f in folders for n, ms in space.list_modified(f"spans/{span_id}/{f}/").items() if ms < written_before_ms}


def remove(space: ObjectSpace, names: Collection[str]) -> int:
    """Remove files; return how many."""
    for name in names:
        space.delete(name)
    return len(names)
