"""What a feed leaves out without Spark: kinds of events and of DDLs, columns and tables, on the whole path, against what was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.feed.filters.rules import FilterRule, FilterSettings
from penstock.feed.settings import FeedSettings
from penstock.model.batch import Op
from testing.paths.whole_path import WholePath

DDLS = ("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v TEXT, w INT)", "CREATE TABLE d.u (id INT PRIMARY KEY, v TEXT, w INT)")
OPS = {"insert": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}


def filtered(root: Path, chosen: FilterSettings, tables: Sequence[str] = ("d.*",), **more: object) -> WholePath:
    return WholePath(root, DDLS, tables=tables, settings=FeedSettings(filter=chosen), **more)  # type: ignore[arg-type]


def delivered(path: WholePath, table: str) -> list[tuple[int, int, int]]:
    """Return commit ts, operation and id of every change in the target; old values that stand with an update are no change."""
    found = []
    for version, frame in path.reader().changes("d", table):
        names = {c.name: c.field_name for c in version.columns}
        found += list(zip(*(frame[name].to_list() for name in ("_ts", "_op", names["id"])), strict=True))
    return [change for change in found if change[1] != Op.BEFORE]


@pytest.mark.parametrize("protocol", ["csv", "canal-json"])
@pytest.mark.parametrize("kinds", [("insert",), ("update", "delete"), ("insert", "delete")])
def test_events_that_are_not_wanted_are_left_out(tmp_path: Path, kinds: tuple[str, ...], protocol: str) -> None:
    chosen = FilterSettings(events=kinds, rules=(FilterRule(("d.u",), events=("delete",)),))
    path = filtered(tmp_path, chosen, sink_options={"protocol": protocol})
    try:
        path.drain()
        made = path.write({"d.t": {1: "a", 2: "b"}, "d.u": {1: "a", 2: "b"}})
        changed = path.write({"d.t": {1: "c"}, "d.u": {1: "c"}}, gone={"d.t": [2], "d.u": [2]})
        path.drain()
        wanted = [(made, Op.INSERT, 1), (made, Op.INSERT, 2), (changed, Op.DELETE, 2), (changed, Op.UPDATE, 1)]
        kept = {OPS[kind] for kind in kinds}
        assert delivered(path, "t") == [(ts, int(op), i) for ts, op, i in wanted if op in kept]
        assert delivered(path, "u") == [(changed, int(Op.DELETE), 2)]
    finally:
        path.close()


def test_columns_that_are_not_wanted_are_in_no_file_also_after_ddls(tmp_path: Path) -> None:
    rules = (FilterRule(("d.t",), columns=("*", "!w", "!secret*")),)
    path = filtered(tmp_path, FilterSettings(ddl=("!add-index",), rules=rules), tables=("d.*", "!d.u"))
    try:
        path.write({"d.t": {1: "a"}, "d.u": {1: "a"}})
        path.drain()
        path.upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN secret_note TEXT")
        path.write({"d.t": {2: "b"}})
        path.upstream.execute_ddl("ALTER TABLE d.t ADD INDEX by_v (id)")
        path.upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN open_note TEXT")
        path.write({"d.t": {1: "c"}})
        path.drain()
        reader = path.reader()
        assert reader.tables() == [("d", "t")]
        shown = [[c.name for c in version.table.columns] for version in reader.versions("d", "t")]
        assert (shown[0], shown[-1]) == (["id", "v"], ["id", "v", "open_note"])
        assert not any({"w", "secret_note"} & set(names) for names in shown)
        assert [(op, i) for _, op, i in delivered(path, "t")] == [(Op.INSERT, 1), (Op.INSERT, 2), (Op.UPDATE, 1)]
        told = [ddl.query for ddl in reader.ddls("d", "t")]
        assert not any("INDEX" in query for query in told)
        assert any("open_note" in query for query in told)
    finally:
        path.close()
