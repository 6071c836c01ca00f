"""Whoever is told what a hole in the log did to tables has those that the server shows, also where not all of it was kept at first."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from penstock.ddl.statement import parse_statement
from penstock.model.ddl import DdlEvent
from penstock.source.mysql.tables.columns import ServerTable
from penstock.source.mysql.tables.ddl_columns import created_columns
from penstock.source.mysql.tables.table_versions import TableVersions

SHAPES = (
    "id int primary key, a int",
    "id int primary key, a int, b int default 5",
    "id varchar(9) primary key, a int",
    "a int",
)
NAMES = ("p", "q", "r", "s")
FIRST_TS, HOLE_TS = 100, 10_000


class Follower:
    """Tables by id, as one has them who is told of DDLs."""

    def __init__(self) -> None:
        self.tables: dict[int, tuple[str, tuple[str, ...]]] = {}

    def take(self, ddls: Iterable[DdlEvent]) -> None:
        for ddl in ddls:
            for table_id in ddl.dropped_table_ids:
                self.tables.pop(table_id, None)
            for table in ddl.tables:
                self.tables[table.table_id] = (table.table, tuple(f"{c.name} {c.type.kind.name}" for c in table.columns))

    def shown(self) -> list[tuple[str, tuple[str, ...]]]:
        return sorted(self.tables.values())


def server_table(name: str, shape: str) -> ServerTable:
    columns = created_columns(f"create table {name} ({shape})") or ()
    return ServerTable("d", name, columns, ("",) * len(columns))


def expected(shown: Iterable[ServerTable]) -> list[tuple[str, tuple[str, ...]]]:
    return sorted((t.table, tuple(f"{c.name} {c.type.kind.name}" for c in t.columns)) for t in shown)


@pytest.mark.parametrize("seed", range(40))
def test_who_is_told_of_a_hole_has_the_tables_of_the_server(seed: int) -> None:
    rng = random.Random(seed)
    server: dict[str, ServerTable] = {}
    tables = TableVersions(lambda _, name: server.get(name))
    follower, ts = Follower(), FIRST_TS
    tables.load([server_table("p", SHAPES[0])], FIRST_TS)
    follower.tables = {t.table_id: (t.table, tuple(f"{c.name} {c.type.kind.name}" for c in t.columns)) for t in tables.list()}
    untold = rng.randrange(4)
    told_ts = FIRST_TS
    for number in range(8):
        ts += 10
        one, two = rng.sample(NAMES, 2)
        text = rng.choice(
            (
                f"create or replace table {one} ({rng.choice(SHAPES)})",
                f"drop table {one}",
                f"rename table {one} to {two}",
                f"truncate {one}",
            )
        )
        live = {t.table for t in tables.list()}
        if not text.startswith("create") and (one not in live or (two in live and "rename" in text)):
            continue
        statement = parse_statement(text, "d")
        assert statement is not None
        told = tables.apply(statement, text, ts, lambda: False)
        if number < 8 - untold:
            # The rest was read, and is kept nowhere but in the journal.
            follower.take([told.event] if told.event is not None else [])
            told_ts = ts
    for attempt in itertools.count():
        server = {name: server_table(name, rng.choice(SHAPES)) for name in rng.sample(NAMES, rng.randrange(5))}
        crossed = tables.cross_hole(list(server.values()), told_ts, HOLE_TS + 1_000 * attempt)
        assert [d.commit_ts for d in crossed.ddls] == sorted({d.commit_ts for d in crossed.ddls})
        if rng.random() < 0.6:
            follower.take(crossed.ddls)
            break
        # Some of it was kept, and the process ended before it began behind it.
        follower.take(crossed.ddls[: rng.randrange(len(crossed.ddls) + 1)])
    assert follower.shown() == expected(server.values())
    assert {t.table_id for t in tables.newest()} == follower.tables.keys(), "rows come under the ids that were told"
    again = TableVersions(lambda _, name: server.get(name))
    again.adopt([v for t in tables.newest() for v in tables.history(t.table_id)])
    assert not again.cross_hole(list(server.values()), HOLE_TS * 2, HOLE_TS * 3).ddls, "nothing is told twice"
