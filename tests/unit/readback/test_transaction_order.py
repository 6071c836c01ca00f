"""A replay by source transactions: stopped anywhere, begun before there were indexes, or with windows that have none."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.format.layout.transaction_index import index_path
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.consumer import Round, StorageConsumer
from penstock.readback.inspection import check_target
from penstock.readback.replay_database import ReplayDatabase
from penstock.readback.replay_opening import open_database
from penstock.target.expiry import expire
from testing.paths.storage_lab import StorageLab

T0 = compose_ts(1_700_000_000_000)
DAY = 86_400_000 << 18
_numbers = itertools.count()
# Tables without a key count what is applied twice.
A, B = (TableSchema(at, "s", name, T0, (Column(1, "v", ColumnType(TypeKind.VARCHAR, length=20)),)) for at, name in ((1, "a"), (2, "b")))


class Target:
    """A target whose windows have an index of their transactions, or none. Each row is (ts, text): an insert."""

    def __init__(self) -> None:
        self.lab = StorageLab(f"memory://transaction-order-{next(_numbers)}/?transaction-atomicity=transaction&file-size=1024")
        for table in (A, B):
            self.lab.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE ...", table)
        self._from_ts = T0

    def window(self, to_ts: int, a: Sequence[int], b: Sequence[int], *, index: bool = True) -> None:
        results = [self.lab.write(table, [(T0 + ts, Op.INSERT, f"{ts}") for ts in found]) for table, found in ((A, a), (B, b)) if found]
        if index:
            self.lab.maintainer.record_window(self._from_ts, T0 + to_ts, results)
        self._from_ts = T0 + to_ts
        self.lab.checkpoint(T0 + to_ts)

    def replay(self, database: ReplayDatabase, *patterns: str) -> Round:
        return StorageConsumer(self.lab.reader(), database, patterns, transaction_rows=1).run_round()


@pytest.fixture
def database(tmp_path: Path) -> Any:
    opened = open_database(f"sqlite:///{tmp_path}/replay.db")
    yield opened
    opened.close()


def rows(database: ReplayDatabase, table: str) -> list[int]:
    return sorted(int(v) for (v,) in database._fetch(f"SELECT v FROM {database.dialect.table('s', table)}", ()))


@pytest.mark.parametrize("indexed", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("every", [1, 3])
def test_windows_with_and_without_an_index(database: ReplayDatabase, indexed: tuple[bool, ...], every: int) -> None:
    target = Target()
    for at, index in enumerate(indexed):
        base = at * 10
        target.window(base + 9, [base + 1, base + 1, base + 3], [base + 1, base + 2], index=index)
        if (at + 1) % every == 0:
            target.replay(database)
    assert target.replay(database) == Round(T0 + 29, 0, 0, 0)
    assert rows(database, "a") == [n for base in (0, 10, 20) for n in (base + 1, base + 1, base + 3)]
    assert rows(database, "b") == [n for base in (0, 10, 20) for n in (base + 1, base + 2)]


def test_a_stop_anywhere_loses_and_repeats_nothing(database: ReplayDatabase) -> None:
    target = Target()
    target.window(9, [1, 1, 3], [1, 2])
    # More than a file: one transaction is in several.
    target.window(19, [11] * 200 + [12], [11, 13])
    statements = itertools.count(1)
    faults = {n * (n + 1) // 2 for n in range(1, 60)}

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if next(statements) in faults and sql != "ROLLBACK":
            raise OSError("the database went away")
        found = database._fetch(sql, values)
        if sql == "COMMIT" and all(database.exists("s", name) for name in "ab"):
            # Transactions 1 and 11 are whole or not there.
            states = rows(database, "a"), rows(database, "b")
            assert (states[0].count(1), states[1].count(1)) in {(0, 0), (2, 1)}
            assert (states[0].count(11), states[1].count(11)) in {(0, 0), (200, 1)}
        return found

    faulty = ReplayDatabase(database.dialect, database._connection, fetch)
    stops = 0
    for _ in range(60):
        try:
            done = target.replay(faulty)
        except PenstockError as error:
            assert "the database went away" in error.detail  # noqa: PT017
            stops += 1
        else:
            if (done.files, done.rows) == (0, 0):
                break
    assert stops > 3
    assert rows(database, "a") == [1, 1, 3, *([11] * 200), 12]
    assert rows(database, "b") == [1, 2, 11, 13]


def test_a_replay_that_began_before_there_were_indexes_goes_on(database: ReplayDatabase) -> None:
    target = Target()
    target.window(9, [1], [1])
    hidden = target.lab.target.get(index_path(T0 + 9))
    target.lab.target.delete(index_path(T0 + 9))
    target.replay(database)
    target.lab.target.put(index_path(T0 + 9), hidden)
    target.window(19, [11], [])
    target.replay(database)
    assert (rows(database, "a"), rows(database, "b")) == ([1, 11], [1])


def test_tables_that_are_left_out_stay_out(database: ReplayDatabase) -> None:
    target = Target()
    target.window(9, [1, 2], [1])
    assert target.replay(database, "s.a").rows == 2
    assert rows(database, "a") == [1, 2]
    assert not database.exists("s", "b")


def test_a_check_and_a_replay_find_what_is_wrong_with_an_index(database: ReplayDatabase) -> None:
    target = Target()
    target.window(9, [1], [1])
    target.window(19, [11], [11])
    lab, first, second = target.lab, index_path(T0 + 9), index_path(T0 + 19)
    assert list(check_target(lab.target, lab.settings)) == []
    content = lab.target.get(second)
    lab.target.put(second, content[:-2])
    assert [str(f) for f in check_target(lab.target, lab.settings)] == [
        f"{second}: line 1: it is no index of transactions, or a damaged one"
    ]
    lab.target.put(second, lab.target.get(first))
    assert [str(f) for f in check_target(lab.target, lab.settings)] == [f"{second}: transactions that the window before has too"]
    lab.target.put(second, content)
    gone = next(p for p in lab.target.paths("s/b") if p.endswith("2.csv"))
    lab.target.delete(gone)
    found = [str(f) for f in check_target(lab.target, lab.settings, read_rows=False)]
    assert found[0] == f"{gone}: missing, though {second} names it"
    with pytest.raises(PenstockError, match="OBJECT_MISSING"):
        target.replay(database)


def test_an_index_goes_with_its_files() -> None:
    target = Target()
    for day in range(3):
        target.window(day * DAY + 5, [day * DAY + 1], [])
    expire(target.lab.target, target.lab.settings, 1)
    assert sorted(p for p in target.lab.target.paths(".penstock/transactions")) == [index_path(T0 + d * DAY + 5) for d in (1, 2)]
