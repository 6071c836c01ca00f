"""How far each table of a source can be trusted: its doubts, kept in the meta database.

A table without a row here is ``ok``. A doubt that the log gives is kept before the position that covers it, so it survives any crash; the
same doubt read again is known by its ts and changes nothing. A doubt is closed only by a re-read that began behind it: a newer doubt stays
open. A table of which the log gives only the name has the id 0, and its name tells it from others. One process writes. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec
import sqlalchemy as sa

from penstock.meta.engine import MetaEngine, MetaSettings
from penstock.meta.tables import table_state
from penstock.model.clock import Clock, SystemClock


class TableCondition(StrEnum):
    """Whether the store's state of a table is the table."""

    OK = "ok"
    DOUBTFUL = "doubtful"
    REREADING = "rereading"
    QUARANTINED = "quarantined"


class TableState(msgspec.Struct, frozen=True):
    """What is known of one table's doubts. ``since_ms`` is when the present state began."""

    table_id: int
    schema: str
    table: str
    state: TableCondition
    reason: str = ""
    """For operators: what was seen, or why the last attempt failed."""
    code: str = ""
    """Of ``model/errors.py``. A doubt with a code means that rows are left out: the table is quarantined."""
    hint: str = ""
    since_ms: int = 0
    doubt_ts: int = 0
    """The newest doubt; those at or below it are known."""
    attempts: int = 0
    """Re-reads that were begun since the doubt was opened."""
    next_attempt_ms: int = 0
    """No re-read before this time of the wall clock."""
    settled_ts: int = 0
    """The ts of the last corrections, 0 where there were none yet."""

    @property
    def is_open(self) -> bool:
        """Return whether the table must be read again."""
        return self.state is not TableCondition.OK


def open_doubt(known: TableState | None, doubt: TableState, now_ms: int) -> TableState | None:
    """Return the state of a table with a new doubt; None where a doubt at or above its ts is known. A milder one does not hide an error."""
    if known is None:
        return msgspec.structs.replace(doubt, since_ms=now_ms)
    harder = known.is_open and doubt.doubt_ts == known.doubt_ts and bool(doubt.code) and not known.code
    if doubt.doubt_ts <= known.doubt_ts and not harder:
        return None
    if not known.is_open:
        return msgspec.structs.replace(doubt, since_ms=now_ms, settled_ts=known.settled_ts)
    cause = known if known.code and not doubt.code else doubt
    return msgspec.structs.replace(
        known,
        schema=doubt.schema,
        table=doubt.table,
        state=cause.state,
        reason=cause.reason,
        code=cause.code,
        hint=cause.hint,
        doubt_ts=doubt.doubt_ts,
    )


def identified(known: TableState, table_id: int, there: TableState | None, now_ms: int) -> TableState | None:
    """Return the state of a table whose doubt had only its name; None where what is known of it (``there``) covers the doubt."""
    doubt = msgspec.structs.replace(known, table_id=table_id)
    return doubt if there is None else open_doubt(there, doubt, now_ms)


def begin_reread(known: TableState, now_ms: int) -> TableState:
    """Return the state of a table that is being read again."""
    if not known.is_open:
        return known
    return msgspec.structs.replace(known, state=TableCondition.REREADING, since_ms=now_ms, attempts=known.attempts + 1)


def fail_reread(known: TableState, reason: str, code: str, hint: str, next_attempt_ms: int, now_ms: int) -> TableState:
    """Return the state of a table whose re-read failed."""
    if not known.is_open:
        return known
    state = TableCondition.QUARANTINED if code else TableCondition.DOUBTFUL
    return msgspec.structs.replace(
        known, state=state, reason=reason, code=code, hint=hint, since_ms=now_ms, next_attempt_ms=next_attempt_ms
    )


def end_reread(known: TableState, covered_ts: int, settled_ts: int, now_ms: int) -> TableState:
    """Return the state of a table whose corrections are durable; a doubt above where the re-read began stays open."""
    settled = msgspec.structs.replace(known, settled_ts=settled_ts, since_ms=now_ms, next_attempt_ms=0)
    if known.doubt_ts > covered_ts:
        return msgspec.structs.replace(settled, state=TableCondition.QUARANTINED if known.code else TableCondition.DOUBTFUL)
    # Whatever the log said up to where the re-read began is settled with it, and stays so when it is read again.
    doubt_ts = max(known.doubt_ts, covered_ts)
    return msgspec.structs.replace(settled, state=TableCondition.OK, reason="", code="", hint="", attempts=0, doubt_ts=doubt_ts)


class TableStates:
    """The doubts of one source in the meta database; implements ``puller.logged.doubts.DoubtBook``. Thread safe."""

    def __init__(self, url: str, source: str, clock: Clock | None = None, meta: MetaSettings | None = None) -> None:
        self._source = source
        self._clock = clock or SystemClock()
        self._engine = MetaEngine(url, meta or MetaSettings())

    def states(self) -> list[TableState]:
        """Return every table that was ever in doubt, by id and name."""
        with self._engine.read() as connection:
            return states_of(connection, self._source)

    def open(self, doubt: TableState) -> bool:
        """Make a doubt durable; return False where the log gave it before. ``schema`` and ``table`` follow the newest doubt."""
        with self._engine.write() as connection:
            known = self._find(connection, doubt)
            opened = open_doubt(known, doubt, self._clock.now_ms())
            if opened is not None:
                self._put(connection, known, opened)
            return opened is not None

    def begin(self, table_id: int) -> None:
        """Note that a re-read begins."""
        self._change(table_id, begin_reread)

    def fail(self, table_id: int, reason: str, code: str, hint: str, next_attempt_ms: int) -> None:
        """Note that a re-read failed: the table is quarantined with the error, or doubtful where ``code`` is empty."""
        self._change(table_id, lambda known, now_ms: fail_reread(known, reason, code, hint, next_attempt_ms, now_ms))

    def close_doubt(self, table_id: int, covered_ts: int, settled_ts: int) -> bool:
        """Note that corrections are durable at ``settled_ts``; return whether the table is ``ok`` now.

        ``covered_ts`` is where the re-read began: a doubt above it stays open.
        """
        changed = self._change(table_id, lambda known, now_ms: end_reread(known, covered_ts, settled_ts, now_ms))
        return changed is None or not changed.is_open

    def identify(self, schema: str, table: str, table_id: int) -> None:
        """Give a doubt of which only the name was known the id of its table."""
        with self._engine.write() as connection:
            known = self._find(connection, TableState(0, schema, table, TableCondition.OK))
            if known is None:
                return
            there = self._find(connection, TableState(table_id, schema, table, TableCondition.OK))
            named = identified(known, table_id, there, self._clock.now_ms())
            if named is not None:
                self._put(connection, there, named)
            connection.execute(table_state.delete().where(*self._key(known)))

    def rename(self, table_id: int, schema: str, table: str) -> None:
        """Give a table that was ever in doubt its present name."""
        self._change(table_id, lambda known, _: msgspec.structs.replace(known, schema=schema, table=table))

    def forget(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Remove a table that nobody captures any more, or that was dropped; one without an id goes by its name."""
        with self._engine.write() as connection:
            connection.execute(table_state.delete().where(*self._key(TableState(table_id, schema, table, TableCondition.OK))))

    def close(self) -> None:
        """Close the connections. Called once, by the owner."""
        self._engine.close()

    def _change(self, table_id: int, change: Callable[[TableState, int], TableState]) -> TableState | None:
        with self._engine.write() as connection:
            known = self._find(connection, TableState(table_id, "", "", TableCondition.OK))
            if known is None:
                return None
            changed = change(known, self._clock.now_ms())
            self._put(connection, known, changed)
            return changed

    def _key(self, state: TableState) -> list[sa.ColumnElement[bool]]:
        key = [table_state.c.source == self._source, table_state.c.table_id == state.table_id]
        if state.table_id == 0:
            key += [table_state.c.db_name == state.schema, table_state.c.table_name == state.table]
        return key

    def _find(self, connection: sa.Connection, state: TableState) -> TableState | None:
        row = connection.execute(sa.select(table_state).where(*self._key(state))).first()
        return _state(row) if row is not None else None

    def _put(self, connection: sa.Connection, known: TableState | None, state: TableState) -> None:
        if known is not None:
            connection.execute(table_state.delete().where(*self._key(known)))
        values = msgspec.structs.asdict(state)
        values["db_name"], values["table_name"], values["state"] = values.pop("schema"), values.pop("table"), state.state.value
        connection.execute(table_state.insert().values(source=self._source, **values))


def states_of(connection: sa.Connection, source: str) -> list[TableState]:
    """Return every table of a source that was ever in doubt, by id and name."""
    order = (table_state.c.table_id, table_state.c.db_name, table_state.c.table_name)
    query = sa.select(table_state).where(table_state.c.source == source).order_by(*order)
    return [_state(row) for row in connection.execute(query)]


def _state(row: sa.Row[tuple[object, ...]]) -> TableState:
    fields = dict(row._mapping)
    del fields["source"]
    fields["schema"], fields["table"] = fields.pop("db_name"), fields.pop("table_name")
    return TableState(**fields | {"state": TableCondition(fields["state"])})
