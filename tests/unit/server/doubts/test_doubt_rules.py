"""Of what several feeds wish for a table, what makes it right comes first."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import DispatcherRecord, FeedRecord
from penstock.server.doubts.doubt_rules import FeedDoubtRules, Recheck
from penstock.server.feeds.creation import FeedDocument

SOURCE = "mysql://u@db:3306"


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaDatabase]:
    with MetaDatabase(sqlite_url(tmp_path / "meta.db")) as database:
        yield database


def create(meta: MetaDatabase, name: str, tables: list[str], source: str = SOURCE, ids: tuple[int, ...] = (), **settings: Any) -> None:
    config = {"name": name, "tables": tables, "sink": {"uri": f"file:///tmp/{name}"}} | settings
    document = FeedDocument(config=config, source=source, dispatchers=(), snapshot_ts=0)
    dispatchers = [DispatcherRecord(f"{number}-0", number, "shop", f"t{number}", "{}") for number in ids]
    meta.create_feed(FeedRecord(name, f"u-{name}", document.to_json()), [], dispatchers)


def test_the_wish_that_makes_a_table_right_is_done(meta: MetaDatabase) -> None:
    rules = FeedDoubtRules(meta, SOURCE)
    assert rules.rule("shop", "t1") == "keep", "no feed has it"
    create(meta, "a", ["shop.*"], **{"on-rewrite": "keep"})
    assert rules.rule("shop", "t1") == "keep"
    create(meta, "b", ["shop.t1"], **{"on-rewrite": "keep", "on-rewrite-tables": {"shop.t1": "pause-table"}})
    assert (rules.rule("shop", "t1"), rules.rule("shop", "t2")) == ("pause-table", "keep")
    create(meta, "c", ["shop.t1"])
    assert rules.rule("shop", "t1") == "resnapshot"
    create(meta, "d", ["*.*"], source="mysql://u@elsewhere:3306")
    assert rules.rule("shop", "t2") == "keep", "another source"


def test_tables_are_read_as_often_as_somebody_wishes(meta: MetaDatabase) -> None:
    rules = FeedDoubtRules(meta, SOURCE)
    create(meta, "a", ["shop.*"], ids=(1, 2), **{"recheck-tables": ["shop.*"], "recheck-interval": "1h"})
    create(meta, "b", ["shop.t1"], ids=(1,), **{"recheck-tables": ["shop.t1"], "recheck-interval": "10m"})
    create(meta, "c", ["shop.t3"], ids=(3,))
    found = sorted(rules.rechecks(), key=lambda one: one.table_id)
    assert found == [Recheck(1, "shop", "t1", 600.0), Recheck(2, "shop", "t2", 3600.0)]
    assert [rules.has_table(number) for number in (1, 2, 3, 4)] == [True, True, True, False]
