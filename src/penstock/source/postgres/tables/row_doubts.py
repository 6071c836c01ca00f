"""When a table's rows may be others than the log told: pure comparisons of what the catalog showed before and shows now.

A doubt costs one reading of the table, a wrong certainty costs its rows, so whatever is not known for sure is doubted. Every function
returns the reason, or an empty text. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from penstock.model.table import TableSchema
from penstock.source.postgres.tables.catalog import CatalogTable

PARTITION_GONE = "a partition of it was dropped or detached"
ANEW = "values by which its rows are known have another type: it begins again"
_AHEAD = "its definition changed again before the log of this one was read"


def storage_doubt(before: CatalogTable, now: CatalogTable, known: Callable[[int], bool]) -> str:
    """Return why rows may have changed unseen between two looks: they lie in other files, or in other partitions.

    A new partition that is as it was made is empty but for what the log tells, unless the log told of it as a table of its own (``known``).
    """
    old = {s.oid: s.file for s in before.storage}
    new = {s.oid: s.file for s in now.storage}
    since = {s.oid: s.since for s in now.storage}
    types = {c.column.id: c.type_oid for c in now.columns}
    came = [s for s in now.storage if s.oid not in old]
    reasons = {
        "it was added to the publication, which did not give its rows before": now.published and not before.published,
        "the publication gives another part of it": (before.row_filter, before.columns_hidden) != (now.row_filter, now.columns_hidden),
        "the publication was changed, and may not have given all of its rows for a while": now.silence is None
        and bool(before.given)
        and before.given != now.given,
        "a column has another type": any(types.get(c.column.id, c.type_oid) != c.type_oid for c in before.columns),
        # Two rows that had one key for a moment are told apart only where that is known.
        "its key was deferrable": before.deferrable and not now.deferrable,
        "its rows are named otherwise (REPLICA IDENTITY)": not now.has_key and (before.identity == "f") != (now.identity == "f"),
        "a generated column became an ordinary one": not {c.column.id for c in now.columns}.isdisjoint(before.generated),
        "its rows were rewritten (the table or a partition of it lies in another file)": any(new.get(o, f) != f for o, f in old.items()),
        PARTITION_GONE: not old.keys() <= new.keys(),
        "a partition of it was detached for a while": any(since.get(s.oid, s.since) != s.since for s in before.storage),
        "a table was attached to it as a partition": any(not s.pristine or known(s.oid) for s in came),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def text_doubt(table: CatalogTable, types: Collection[int]) -> str:
    """Return why values may be printed otherwise: a type of a column is among those that changed."""
    changed = types and any(c.type_oid in types for c in table.columns)
    return "a type of one of its columns was changed" if changed else ""


def shape_doubt(before: TableSchema, after: TableSchema, now: CatalogTable | None, told: Sequence[TableSchema], rewritten: str) -> str:
    """Return why old rows may not be what the next version makes of them; ``now`` is None where the catalog is ahead of the log.

    ``told`` are all versions of the table before, ``rewritten`` the reason why its rows are in doubt already.
    """
    if now is None:
        return _AHEAD
    old = {c.id: c for c in before.columns}
    kept = [(old[c.id].type, c.type) for c in after.columns if c.id in old]
    last = max((c.id for v in told for c in v.columns), default=0)
    fresh = sorted(c.id for c in after.columns if c.id > last)
    names = {c.name for c in before.columns}
    went = [c.type for c in before.columns if c.id not in {a.id for a in after.columns}]
    initial = {c.column.id: c.initial for c in now.columns}
    reasons = {
        "its rows are named by another key": [c.id for c in before.key_columns] != [c.id for c in after.key_columns],
        "a column has another type": any((a.kind, a.unsigned) != (b.kind, b.unsigned) for a, b in kept),
        # A column of the same name may have come and gone in between, with rows that had it.
        "columns came and went": fresh != list(range(last + 1, last + 1 + len(fresh))),
        "a column came back": any(c.id not in old and c.id <= last for c in after.columns),
        "a column was dropped and added again": any(c.id not in old and c.name in names for c in after.columns),
        # Dropped, added again and renamed: between the last two the log told rows of the new column under the old one's name.
        "a column came that may have had the name of one that went": any(c.id in fresh and c.type in went for c in after.columns),
        "the value that a new column has in old rows cannot be told": any(initial.get(i) is msgspec.UNSET for i in fresh),
        "values of a new column were computed": bool(rewritten) and any(initial.get(i) is None for i in fresh),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def creation_doubt(now: CatalogTable | None) -> str:
    """Return why a table that the log shows for the first time may have rows that it never showed."""
    if now is None:
        return _AHEAD
    if now.listed or not now.pristine or not all(s.pristine for s in now.storage):
        return "it may have had rows before the log told of it"
    return ""
