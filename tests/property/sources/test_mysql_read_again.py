"""A log that is read again, by this process or the next, gives each table the id that it got first, whatever the server shows meanwhile.

A server runs random statements, some in words that nobody understands. Readings come behind it at random distances, begin at random
places and know what earlier ones kept. The first reading of a place decides; the others must find the same ids under the same names.
"""

from __future__ import annotations

import random

import pytest

from penstock.ddl.statement import parse_statement
from penstock.model.table import Column, TableSchema
from penstock.source.mysql.tables.columns import ServerTable, column_type
from penstock.source.mysql.tables.table_versions import TableVersions, Told
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.tablemap import MapColumn, TableMap

UTF8MB4 = 45
TYPES = {
    "int": (wire.TYPE_LONG, 0),
    "bigint": (wire.TYPE_LONGLONG, 0),
    "double": (wire.TYPE_DOUBLE, 8),
    "varchar(40)": (wire.TYPE_VARCHAR, 160),
}
ODD = "strange % words"
FIRST_TS, STEP_TS = 100, 10
Shape = tuple[tuple[tuple[str, str], ...], bool]
"""Names and types of columns, and whether the first is the key."""
Entry = tuple[str, TableMap | None]


class Server:
    """Names and shapes of tables, and the log of what was done to them; ``states[n]`` is what there was behind ``n`` entries."""

    def __init__(self, rng: random.Random, length: int) -> None:
        self._rng = rng
        self._full = rng.random() < 0.7
        self.tables: dict[str, Shape] = {}
        self.log: list[Entry] = []
        self.states: list[dict[str, Shape]] = [{}]
        acts = (
            self._create,
            self._create,
            self._copy,
            self._drop,
            self._rename,
            self._swap,
            self._modify,
            self._modify,
            self._rows,
            self._rows,
        )
        while len(self.log) < length:
            entry = rng.choice(acts)(rng.choice("ab"))
            if entry is not None:
                self.log.append(entry)
                self.states.append(dict(self.tables))

    def _type(self) -> str:
        return self._rng.choice(list(TYPES))

    def _create(self, name: str) -> Entry | None:
        if name in self.tables:
            return None
        columns, key = (("k", self._type()), ("v", self._type())), self._rng.random() < 0.5
        self.tables[name] = columns, key
        parts = [
            *(f"{c} {kind}" for c, kind in columns),
            *(["primary key(k)"] if key else []),
            *([ODD] if self._rng.random() < 0.4 else []),
        ]
        return f"create table {name}({', '.join(parts)})", None

    def _copy(self, name: str) -> Entry | None:
        if name in self.tables or not self.tables:
            return None
        other, is_like = self._rng.choice(sorted(self.tables)), self._rng.random() < 0.5
        self.tables[name] = self.tables[other][0], self.tables[other][1] and is_like
        return f"create table {name} " + (f"like {other}" if is_like else f"as select * from {other}"), None

    def _drop(self, name: str) -> Entry | None:
        if self.tables.pop(name, None) is None:
            return None
        return f"drop table {name}", None

    def _rename(self, name: str) -> Entry | None:
        new = self._rng.choice("abc")
        if name not in self.tables or new in self.tables:
            return None
        self.tables[new] = self.tables.pop(name)
        return f"rename table {name} to {new}", None

    def _swap(self, name: str) -> Entry | None:
        other = self._rng.choice("abc")
        if name == other or not {name, other} <= self.tables.keys():
            return None
        self.tables[name], self.tables[other] = self.tables[other], self.tables[name]
        return f"rename table {name} to d, {other} to {name}, d to {other}", None

    def _modify(self, name: str) -> Entry | None:
        if name not in self.tables:
            return None
        columns, key = self.tables[name]
        at, kind = self._rng.randrange(2), self._type()
        self.tables[name] = tuple((c, kind if n == at else old) for n, (c, old) in enumerate(columns)), key
        return f"alter table {name} modify {columns[at][0]} {kind}{' ' + ODD if self._rng.random() < 0.3 else ''}", None

    def _rows(self, name: str) -> Entry | None:
        if name not in self.tables:
            return None
        columns, key = self.tables[name]
        full = self._full
        told = []
        for at, (column, kind) in enumerate(columns):
            text = kind.startswith("varchar")
            collation = UTF8MB4 if text and full else None
            told.append(MapColumn(*TYPES[kind], not (key and at == 0), None if text else False, column if full else None, collation))
        return "", TableMap("x", name, tuple(told), key=((0,) if key else ()) if full else None)

    def shown(self, at: int, name: str) -> ServerTable | None:
        if name not in self.states[at]:
            return None
        columns, key = self.states[at][name]
        made = tuple(Column(n + 1, c, column_type(k), not (key and n == 0), key and n == 0) for n, (c, k) in enumerate(columns))
        return ServerTable("x", name, made, tuple("utf8mb4" if k.startswith("varchar") else "" for _, k in columns))


class Readings:
    """Reads the log of a server again and again; ``lives[n]`` is what lived behind ``n`` entries when that was read first."""

    def __init__(self, rng: random.Random, server: Server) -> None:
        self._rng = rng
        self._server = server
        self._now = 0
        """How many entries the server's log has."""
        self._kept: list[TableSchema] = []
        self._tables = self._process()
        self.lives: list[dict[str, int]] = [{}]
        self._events: list[object] = []

    def _process(self) -> TableVersions:
        return TableVersions(lambda _, name: self._server.shown(self._now, name), lambda: {UTF8MB4: "utf8mb4"})

    def read(self, begin: int, end: int, *, restart: bool) -> None:
        if restart:
            self._tables = self._process()
            self._tables.adopt(self._kept)
        self._tables.rewind(FIRST_TS + STEP_TS * begin)
        assert self._living() == self.lives[begin], f"at {begin}"
        for at in range(begin, end):
            total = len(self._server.log)
            self._now = max(self._now, self._rng.choice([at + 1, at + 1, total, self._rng.randrange(at + 1, total + 1)]))
            told = self._entry(at)
            self._kept += [*told.ended, *(told.event.tables if told.event is not None else ())]
            event = told.event and (told.event.type, [t.table_id for t in told.event.tables], told.event.dropped_table_ids)
            if at + 1 == len(self.lives):
                self.lives.append(self._living())
                self._events.append(event)
            assert event == self._events[at], f"at {at}: {self._server.log[at]}"
            assert self._living() == self.lives[at + 1], f"behind {at}: {self._server.log[at]}"
        if end + 1 == len(self.lives):
            assert {t.table: t.table_id for t in self._tables.newest()} == self.lives[-1]

    def _entry(self, at: int) -> Told:
        (text, mapped), ts = self._server.log[at], FIRST_TS + STEP_TS * (at + 1)
        if mapped is not None:
            return self._tables.revise(mapped, ts)
        statement = parse_statement(text, "x")
        assert statement is not None
        return self._tables.apply(statement, text, ts, lambda: self._now == at + 1)

    def _living(self) -> dict[str, int]:
        return {t.table: t.table_id for t in self._tables.list()}


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_every_reading_gives_tables_the_ids_of_the_first(first: int) -> None:
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        server = Server(rng, rng.randrange(3, 20))
        readings = Readings(rng, server)
        try:
            for _ in range(3):
                begin = rng.randrange(len(readings.lives))
                readings.read(begin, rng.randrange(begin, len(server.log) + 1), restart=rng.random() < 0.6)
            readings.read(rng.randrange(len(readings.lives)), len(server.log), restart=True)
        except AssertionError as error:
            error.add_note(f"seed {seed}: {[text or 'rows' for text, _ in server.log]}")
            raise
