"""A book of doubts in memory: the states of ``meta/table_states.py`` without a database. Runs in tests."""

from __future__ import annotations

import msgspec

from penstock.meta.table_states import TableState, begin_reread, end_reread, fail_reread, identified, open_doubt
from penstock.model.clock import Clock


class MemoryDoubts:
    """Implements ``puller.doubts.DoubtBook``; a table without an id is kept by its name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[int, TableState] = {}
        self._by_name: dict[tuple[str, str], TableState] = {}

    def states(self) -> list[TableState]:
        """Return every table that was ever in doubt, by id."""
        return [*(state for _, state in sorted(self._by_name.items())), *(state for _, state in sorted(self._states.items()))]

    def open(self, doubt: TableState) -> bool:
        """Keep a doubt."""
        name = (doubt.schema, doubt.table)
        known = self._states.get(doubt.table_id) if doubt.table_id else self._by_name.get(name)
        opened = open_doubt(known, doubt, self._clock.now_ms())
        if opened is not None and doubt.table_id:
            self._states[doubt.table_id] = opened
        elif opened is not None:
            self._by_name[name] = opened
        return opened is not None

    def identify(self, schema: str, table: str, table_id: int) -> None:
        """Give a doubt of which only the name was known the id of its table."""
        known = self._by_name.pop((schema, table), None)
        if known is not None:
            named = identified(known, table_id, self._states.get(table_id), self._clock.now_ms())
            self._states[table_id] = named or self._states[table_id]

    def rename(self, table_id: int, schema: str, table: str) -> None:
        """Give a table that was ever in doubt its present name."""
        if table_id in self._states:
            self._states[table_id] = msgspec.structs.replace(self._states[table_id], schema=schema, table=table)

    def begin(self, table_id: int) -> None:
        """Note that a re-read begins."""
        if table_id in self._states:
            self._states[table_id] = begin_reread(self._states[table_id], self._clock.now_ms())

    def fail(self, table_id: int, reason: str, code: str, hint: str, next_attempt_ms: int) -> None:
        """Note that a re-read failed."""
        if table_id in self._states:
            self._states[table_id] = fail_reread(self._states[table_id], reason, code, hint, next_attempt_ms, self._clock.now_ms())

    def forget(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Remove a table."""
        if table_id:
            self._states.pop(table_id, None)
        else:
            self._by_name.pop((schema, table), None)

    def close_doubt(self, table_id: int, covered_ts: int, settled_ts: int) -> bool:
        """Note that corrections are durable."""
        if table_id not in self._states:
            return True
        self._states[table_id] = end_reread(self._states[table_id], covered_ts, settled_ts, self._clock.now_ms())
        return not self._states[table_id].is_open


class NotedDoubts(MemoryDoubts):
    """Tells when a doubt is kept."""

    def __init__(self, clock: Clock, order: list[str]) -> None:
        super().__init__(clock)
        self._order = order

    def open(self, doubt: TableState) -> bool:
        """Keep a doubt, and note it."""
        self._order.append(f"doubt {doubt.doubt_ts}")
        return super().open(doubt)
