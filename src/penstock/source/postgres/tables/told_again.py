"""What was told of tables in an earlier reading, composed once more from the versions that were kept.

A log that is read again after a failure may have told things that were never stored; the store knows those that were. The same versions
always give the same events at the same ts. Not thread safe: whoever has it holds a lock. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.model.ddl import DdlEvent
from penstock.model.table import TableSchema
from penstock.source.postgres.tables.catalog import OID_MASK
from penstock.source.postgres.tables.composed_ddl import (
    compose_change,
    compose_create,
    compose_ddl,
    compose_drop,
    compose_renames,
    compose_truncate,
)
from penstock.source.postgres.tables.histories import TableHistories
from penstock.source.postgres.tables.name_holders import NameHolders
from penstock.source.postgres.tables.versions import shape_of


class ToldAgain:
    """What histories and names tell of an earlier reading."""

    def __init__(self, histories: TableHistories, names: NameHolders) -> None:
        self._histories = histories
        self._names = names

    def of_version(self, before: TableSchema | None, version: TableSchema) -> tuple[DdlEvent, ...]:
        """Return the events of a version that was made in an earlier reading, with those of tables that moved with it."""
        if before is None and version.table_id > OID_MASK:
            # A generation: a TRUNCATE begins it, which the log tells again, unless it was made anew.
            old = self._histories.made_anew_from(version)
            return (compose_change(old, version),) if old is not None else ()
        if before is None:
            return (compose_create(version, version.version, self._names.replaced_by(version)),)
        if (before.schema, before.table) == (version.schema, version.table):
            return (compose_ddl(before, version),)
        steps = self._histories.changes()
        moved = [(b, a) for b, a in steps if a.version == version.version and a.full_name != b.full_name and a != version]
        moves = self._names.clear({version.table_id & OID_MASK: (version.schema, version.table)}, version.version)
        gone = dict.fromkeys([*moves.gone, *self._names.ended_at(version.version - 1)])
        drops = [compose_drop(t, version.version - 1) for oid in gone if (t := self._histories.at(oid, version.version)) is not None]
        return (*drops, compose_renames([(before, version), *moved]) if moved else compose_ddl(before, version))

    def between(
        self, from_ts: int, to_ts: int, made: Collection[TableSchema], *, is_lost: bool = False
    ) -> tuple[tuple[DdlEvent, ...], list[int]]:
        """Return the events of versions that a mark told, between two ts of the chain; and the tables that began.

        ``made`` are versions that are known to be the first of their tables. Where the log between the two ``is_lost`` it does not tell
        again which tables were emptied.
        """
        mine = [
            (b, a) for b, a in self._histories.beginnings() if from_ts < a.version < to_ts and (b is None or shape_of(b) != shape_of(a))
        ]
        begun = [a for b, a in mine if (b is None or a in made) and a.table_id <= OID_MASK]
        events: list[DdlEvent] = [compose_create(a, a.version, self._names.replaced_by(a)) for a in begun]
        anew = [(old, a) for b, a in mine if b is None and (old := self._histories.made_anew_from(a)) is not None]
        events += [compose_change(old, a) for old, a in anew]
        emptied = [a for b, a in mine if b is None] if is_lost else []
        events += [compose_truncate(old, a) for a in emptied if (old := self._histories.emptied_to(a)) is not None]
        replaced = {table_id for event in events for table_id in event.dropped_table_ids}
        events += [compose_drop(t, slot) for t, slot in self._names.ended_between(from_ts, to_ts) if t.table_id not in replaced]
        for version in sorted({a.version for _, a in mine}):
            pairs = [(b, a) for b, a in mine if a.version == version and b is not None and a not in begun]
            moved = [(b, a) for b, a in pairs if b.full_name != a.full_name]
            events += [compose_renames(moved)] if moved else []
            events += [compose_ddl(b, a) for b, a in pairs if b.full_name == a.full_name]
        return tuple(sorted(events, key=lambda e: e.commit_ts)), [a.table_id for a in begun]
