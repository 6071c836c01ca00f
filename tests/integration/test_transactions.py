"""A feed of transactions over the whole path without Spark, read by a consumer that was written from the documentation alone."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.feed.settings import FeedSettings
from penstock.model.errors import PenstockError
from penstock.model.failpoints import arm
from penstock.readback.consumer import StorageConsumer
from penstock.readback.inspection import check_target
from penstock.readback.replay_database import ReplayDatabase
from penstock.readback.replay_opening import open_database
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget
from testing.checks.transaction_consumer import Transaction, apply, boundaries, windows
from testing.paths.whole_path import WholePath

TABLES = ("d.a", "d.b", "d.c")
SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in TABLES)]
State = dict[str, dict[int, str | None]]


class History:
    """What was committed upstream: the state after each transaction, by commit ts."""

    def __init__(self, path: WholePath, seed: int) -> None:
        self._path = path
        self._rng = random.Random(seed)
        self._state: State = {name: {} for name in TABLES}
        self.states: dict[int, State] = {}

    def commit(self, rows: int) -> None:
        """Commit a transaction of so many rows, over some of the tables."""
        changes: dict[str, dict[int, str | None]] = {}
        gone: dict[str, list[int]] = {}
        for name in self._rng.sample(TABLES, self._rng.randint(1, 3)):
            ids = self._rng.sample(range(2 * rows + 4), rows)
            changes[name] = {i: self._rng.choice([None, f"{name} {self._rng.random()}"]) for i in ids}
            gone[name] = [i for i in self._state[name] if i not in changes[name] and self._rng.random() < 0.2]
        ts = self._path.write(changes, gone)
        for name, values in changes.items():
            kept = {i: v for i, v in self._state[name].items() if i not in gone[name]}
            self._state[name] = kept | values
        self.states[ts] = copy.deepcopy(self._state)


@contextlib.contextmanager
def opened(root: Path, options: Mapping[str, str], spans: int = 1) -> Iterator[tuple[WholePath, History]]:
    splits = {"d.a": [5, 100]} if spans > 1 else None
    chosen = {"transaction-atomicity": "transaction", "file-size": "1KiB", **options}
    # Divided tables come with windows that are too small for most transactions: each of those is a window.
    settings = FeedSettings(window_bytes_max=300) if spans > 1 else None
    path = WholePath(root, SETUP, sink_options=chosen, spans_per_table=spans, splits=splits, settings=settings)
    with contextlib.closing(path):
        history = History(path, 7)
        path.drain()
        try:
            yield path, history
        finally:
            arm("")


def shown(state: Mapping[str, Mapping[Any, Sequence[Any]]]) -> State:
    """The tables of a consumer as the history has them: the key and the first text."""
    return {name: {int(k): row[1] for k, row in state.get(name, {}).items()} for name in TABLES}


def told(folder: Path) -> list[Transaction]:
    """The transactions of a target, after looking at what its windows say of themselves."""
    found: list[Transaction] = []
    reached_ts = 0
    for window in windows(folder):
        assert window.from_ts >= reached_ts
        assert all(window.from_ts < one.id <= window.to_ts for one in window.transactions)
        reached_ts = window.to_ts
        found += window.transactions
    return found


@pytest.mark.parametrize(
    ("options", "spans"),
    [({}, 1), ({}, 2), ({"protocol": "canal-json"}, 1), ({"protocol": "debezium"}, 2)],
    ids=["csv", "divided", "canal", "debezium"],
)
def test_each_transaction_comes_whole_and_in_commit_order(tmp_path: Path, options: Mapping[str, str], spans: int) -> None:
    with opened(tmp_path, options, spans) as (path, history):
        for round_ in range(4):
            for _ in range(3):
                history.commit(2)
            # Larger than a file, so that one transaction is in several.
            history.commit(60)
            path.wait_resolved(max(history.states))
            if round_ % 2:
                path.feed.run_window(commit=False)
            if round_ == 1:
                path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN x INT DEFAULT 7")
            path.drain()
    transactions = told(tmp_path / "files")
    assert [one.id for one in transactions] == sorted(history.states)
    assert spans == 1 or len(list(windows(tmp_path / "files"))) >= len(transactions) / 2
    state: dict[str, dict[Any, Any]] = {}
    for one in transactions:
        apply(state, one.changes)
        assert shown(state) == history.states[one.id]
    if options.get("protocol") == "debezium":
        check_numbers(tmp_path / "files", transactions)


def check_numbers(folder: Path, transactions: Sequence[Transaction]) -> None:
    """Compare what Debezium's events and messages say with what the index says."""
    for one in transactions:
        blocks = [event["transaction"] for event in one.events]
        assert {block["id"] for block in blocks} == {str(one.id)}
        assert [block["total_order"] for block in blocks] == list(range(1, len(blocks) + 1))
        seen: dict[str, int] = {}
        for (table, _, _), block in zip(one.changes, blocks, strict=True):
            seen[table] = seen.get(table, 0) + 1
            assert block["data_collection_order"] == seen[table]
    expected = []
    for one in transactions:
        collections = [{"data_collection": table, "event_count": count} for table, count in one.counts().items()]
        moment = {"id": str(one.id), "ts_ms": one.id >> 18}
        expected.append({"status": "BEGIN", "event_count": None, "data_collections": None, **moment})
        expected.append({"status": "END", "event_count": len(one.changes), "data_collections": collections, **moment})
    assert boundaries(folder) == expected


def test_state_is_of_no_transaction(tmp_path: Path) -> None:
    with contextlib.closing(WholePath(tmp_path, SETUP[:2], sink_options={"transaction-atomicity": "transaction"})) as path:
        path.write({"d.a": {1: "before the feed's first window", 2: "x"}})
        path.snapshot_ts = path.upstream.current_ts()
        path.restart()
        path.drain()
        later_ts = path.write({"d.a": {2: "y"}})
        path.drain()
    first, second = windows(tmp_path / "files")
    assert (first.from_ts, first.transactions) == (0, [])
    assert sorted(first.state) == [("d.a", "I", ("1", "before the feed's first window")), ("d.a", "I", ("2", "x"))]
    assert [(one.id, one.changes) for one in second.transactions] == [(later_ts, [("d.a", "U", ("2", "y"))])]


def test_a_window_that_is_done_again_writes_the_same_index(tmp_path: Path) -> None:
    with opened(tmp_path, {"protocol": "debezium"}) as (path, history):
        for _ in range(5):
            history.commit(3)
        path.drain()
        for point in ("transactions:before", "transactions:after", "progress:before"):
            history.commit(3)
            path.wait_resolved(max(history.states))
            arm(f"{point}=raise")
            with pytest.raises(PenstockError, match="FAILPOINT"):
                path.drain()
            arm("")
            # Everything is written and progress is not: the window comes again, from a store that was lost.
            before = transaction_objects(path)
            path.restart(lose_store=True)
            path.drain()
            after = transaction_objects(path)
            assert {name: after[name] for name in before} == before
            assert len(after) == len(before) + (2 if point == "transactions:before" else 0)
        target_uri, chosen = from_uri((tmp_path / "files").as_uri(), path.sink_options)
        assert list(check_target(ObjectTarget.open(target_uri), chosen)) == []
    assert [one.id for one in told(tmp_path / "files")] == sorted(history.states)


def transaction_objects(path: WholePath) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (path.root / "files" / ".penstock" / "transactions").iterdir()}


@pytest.mark.parametrize("options", [{}, {"protocol": "parquet"}], ids=["csv", "parquet"])
def test_a_replay_shows_states_between_transactions_only(tmp_path: Path, options: Mapping[str, str]) -> None:
    with opened(tmp_path, options, 2) as (path, history):
        for round_ in range(3):
            for _ in range(4):
                history.commit(3)
            history.commit(40)
            path.wait_resolved(max(history.states))
            if round_ == 1:
                path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN x INT DEFAULT 7")
            path.drain()
        seen: list[State] = []
        database = observed(open_database(f"sqlite:///{tmp_path}/replay.db"), seen)
        done = StorageConsumer(path.reader(), database, transaction_rows=1).run_round()
        again = StorageConsumer(path.reader(), database).run_round()
        database.close()
    assert done.checkpoint_ts >= max(history.states)
    assert (again.files, again.rows) == (0, 0)
    # Every state that anybody could have seen is one that the source had, in its order, and none is left out.
    visited = [state for at, state in enumerate(seen) if at == 0 or state != seen[at - 1]]
    assert visited == [{name: {} for name in TABLES}, *(history.states[ts] for ts in sorted(history.states))]


def observed(database: ReplayDatabase, seen: list[State]) -> ReplayDatabase:
    """The same database, which notes its tables behind each commit once all of them are there."""
    fetch = database._fetch

    def watching(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        found = fetch(sql, values)
        if sql == "COMMIT" and all(database.exists(*name.split(".")) for name in TABLES):
            names = {name: database.dialect.table(*name.split(".")) for name in TABLES}
            seen.append({name: dict(fetch(f"SELECT id, v FROM {table}", ())) for name, table in names.items()})  # type: ignore[misc]
        return found

    return ReplayDatabase(database.dialect, database._connection, watching)
