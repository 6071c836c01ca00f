"""What a window costs does not grow with the tables that do nothing in it: statements and questions are counted, not time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.feed.window.fence import driver_meta
from penstock.feed.window.following import live_dispatchers
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.window_job import WindowJobs
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import SubscribeRecord
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.decoding import decoded
from penstock.store.contract import WindowPlan
from testing.paths.wide_feed import ORDERS, SimulatedJobs, SimulatedStore, StatementCounter, context_of, create_feed, tables_of

FEW, MANY = 20, 600


class Wide:
    """A feed over many tables, and its windows."""

    def __init__(self, root: Path, tables: int, active: int) -> None:
        url = sqlite_url(root / "meta.db")
        self.tables = tables_of(tables)
        self.store, self.jobs = SimulatedStore(self.tables, active), SimulatedJobs(8)
        with MetaDatabase(url) as server:
            self.context = context_of(server, url, "f", create_feed(server, "f", self.tables), root, 8)
        self.meta = driver_meta(url)
        self.planner = WindowPlanner(self.context, self.meta, self.store)  # type: ignore[arg-type]
        self.windows = WindowJobs(self.context, self.planner, self.jobs)

    def window(self) -> int:
        """Plan, deliver and commit a window; return how many statements that took."""
        with StatementCounter() as counter:
            planned = self.windows.plan()
            assert planned is not None
            self.windows.commit(planned, self.windows.deliver(planned))
        return counter.statements

    def end_with(self, kind: DdlType, query: str, **what: object) -> int:
        """Let a DDL end the next window; return its statements."""
        self.store.ddls = (DdlEvent(self.meta.checkpoint_ts("f") + 1_000, kind, query, "shop", **what),)  # type: ignore[arg-type]
        return self.window()

    def listed(self) -> list[SubscribeRecord]:
        """Return the tables of the feed, as a server lists them."""
        with MetaDatabase(self.context.meta_url) as server:
            return server.feed_tables("f")

    def positions(self) -> dict[str, dict[str, int]]:
        """Return where all dispatchers stand."""
        return self.meta.progress("f").positions


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Wide]:
    (tmp_path / "few").mkdir()
    rig = Wide(tmp_path / "few", FEW, 3)
    yield rig
    rig.meta.close()


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Wide]:
    (tmp_path / "many").mkdir()
    rig = Wide(tmp_path / "many", MANY, 3)
    yield rig
    rig.meta.close()


def test_a_window_of_few_tables_asks_as_much_whatever_the_number_of_others(few: Wide, many: Wide) -> None:
    for rig in (few, many):
        rig.window()
        rig.store.calls = 0
    assert few.window() == many.window()
    assert few.store.calls == many.store.calls == 2
    planned = many.windows.plan()
    pending = many.meta.pending_window("f")
    assert planned is not None
    assert pending is not None
    recorded = decoded(pending.plan, WindowPlan)
    assert [s.span_id for s in recorded.spans] == [d.span.span_id for d in many.context.dispatchers[:3]]
    assert {i.work.dispatcher.table_id for part in planned.parts for i in part.items} == {100, 101, 102}


def test_positions_of_all_tables_are_written_by_few_statements(tmp_path: Path) -> None:
    rig = Wide(tmp_path, MANY, MANY)
    for _ in range(2):
        assert rig.window() < 50
        to_ts = rig.meta.checkpoint_ts("f")
        assert rig.positions() == {str(d.id): {"file": to_ts} for d in rig.context.dispatchers}
    rig.meta.close()


def test_a_ddl_over_all_tables_ends_them_by_few_statements(few: Wide, many: Wide) -> None:
    many.window()
    fresh = msgspec.structs.replace(ORDERS, table_id=5_000, table="fresh")
    made = {"tables": (fresh,)}
    assert many.end_with(DdlType.CREATE_TABLE, "CREATE TABLE fresh (id INT PRIMARY KEY)", **made) <= few.end_with(
        DdlType.CREATE_TABLE, "CREATE TABLE fresh (id INT PRIMARY KEY)", **made
    )
    assert {t.table_id for t in many.listed()} == {5_000, *(t.table_id for t in many.tables)}
    assert many.planner.dispatcher_changes == 1
    dropped = tuple(t.table_id for t in many.tables[1:])
    assert many.end_with(DdlType.DROP_SCHEMA, "DROP DATABASE shop", dropped_table_ids=dropped) < 60
    left = live_dispatchers(many.context, many.meta)
    assert sorted(d.id.table_id for d in left) == [100, 5_000]
    assert {t.table_id for t in many.listed()} == {100, 5_000}
    assert set(many.positions()) == {"100-0"}
    # What the planner keeps is what is written down.
    assert many.planner.dispatchers(many.meta.checkpoint_ts("f")) == (many.meta.checkpoint_ts("f"), left)
    assert many.end_with(DdlType.DROP_SCHEMA, "DROP DATABASE shop", dropped_table_ids=(100, 5_000)) < 60
    assert live_dispatchers(many.context, many.meta) == ()
    assert len(many.listed()) == 1, "a feed without tables is still a feed"
