"""A table whose filter fails leaves the feed alone, and comes back with nothing lost: on the whole path, against what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import PenstockError
from penstock.readback.replay import replay_table
from testing.checks.target_audit import digests, numbering_problems
from testing.paths.controlled_path import ControlledPath
from testing.twins.local_jobs import LocalQueries

DDLS = ["CREATE DATABASE d", *(f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v TEXT)" for name in "tuv")]


class FilteredPath(ControlledPath):
    """A feed of three tables, of which ``d.t`` and ``d.u`` are filtered."""

    def __init__(self, root: Path, queries: LocalQueries, *, spans: int = 1) -> None:
        splits = {"d.t": [50]} if spans > 1 else None
        super().__init__(root, DDLS, splits=splits, queries=queries, filter=rules("no"))

    def stopped(self) -> dict[str, str]:
        """Return the tables that are stopped, with why; what the checkpoint says must agree."""
        found = {f"{d.schema}.{d.table}": d.stopped for d in self.live() if d.stopped}
        told = json.loads((self.target / "metadata").read_text()).get("not-covered", {})
        assert told == dict.fromkeys(found, "stopped")
        return found

    def deliver(self) -> None:
        """Run windows until the checkpoint is at what was written, whatever stopped."""
        ts = self.upstream.current_ts()
        while self.feed.checkpoint_ts() < ts:
            try:
                self.feed.drain(ts, 60)
            except PenstockError as error:
                if error.code not in ("FEED_ALTERED", "FENCED"):
                    raise
                self.begin_run()

    def rows(self, table: str) -> dict[int, str]:
        """Return what the target has."""
        frame = replay_table(self.reader(), "d", table)
        return dict(zip(frame["id"].to_list(), frame["v"].to_list(), strict=True))


def rules(where: str, **more: str) -> dict[str, Any]:
    return {"rules": [{"tables": ["d.t"], "where": where, **more}, {"tables": ["d.u"], "where": "not"}]}


@pytest.mark.parametrize("spans", [1, 2])
def test_a_row_that_fails_stops_its_table_which_comes_back_with_what_differs(tmp_path: Path, spans: int) -> None:
    queries = LocalQueries(lambda where, text: text == "boom" and where == "no")
    path = FilteredPath(tmp_path, queries, spans=spans)
    try:
        path.write({name: {1: "a", 2: "b", 60: "c", 61: "no"} for name in ("d.t", "d.u", "d.v")})
        path.drain()
        assert path.rows("t") == {1: "a", 2: "b", 60: "c"}
        path.write({"d.t": {3: "d", 62: "e"}, "d.u": {3: "d"}}, gone={"d.t": [1]})
        path.write({"d.t": {63: "boom", 1: "back"}, "d.u": {4: "boom"}, "d.v": {4: "boom"}})
        path.wait_resolved(path.upstream.current_ts())
        # The attempt that finds out ends before its commit, and the next one does the same without the table.
        assert path.feed.run_window(commit=False)
        first = digests(path.target)
        # Of two spans the first was delivered before the second failed: its file stays.
        assert len([name for name in first if name.startswith("d/t/")]) == (3 if spans == 2 else 1)
        path.deliver()
        assert {name: digest for name, digest in digests(path.target).items() if name in first} == first
        (why,) = path.stopped().values()
        assert why.startswith("[FILTER_FAILED] d.t: [A_ROW]")
        assert "where = 'no'" in why
        assert path.rows("u") == {1: "a", 2: "b", 60: "c", 61: "no", 3: "d", 4: "boom"}
        assert path.rows("v")[4] == "boom"
        # Meanwhile rows change, of which the log tells and the target hears nothing.
        path.write({"d.t": {2: "bb", 5: "f"}, "d.v": {5: "f"}}, gone={"d.t": [3, 60]})
        path.deliver()
        assert path.rows("v")[5] == "f"
        assert set(path.stopped()) == {"d.t"}
        path.do("alter", changes={"filter": rules("boom")})
        path.drain()
        assert path.stopped() == {}
        assert path.rows("t") == {1: "back", 2: "bb", 5: "f", 61: "no", 62: "e"}
        path.write({"d.t": {5: "g", 7: "boom"}}, gone={"d.t": [2]})
        path.drain()
        assert path.rows("t") == {1: "back", 5: "g", 61: "no", 62: "e"}
        assert numbering_problems(path.target) == []
    finally:
        path.close()


def test_a_table_whose_filter_fits_not_from_the_first_window_on_begins_when_it_is_mended(tmp_path: Path) -> None:
    queries = LocalQueries()
    queries.broken = {"no"}
    path = FilteredPath(tmp_path, queries)
    try:
        path.write({name: {1: "a", 2: "no"} for name in ("d.t", "d.u", "d.v")})
        path.deliver()
        (why,) = path.stopped().values()
        assert why.startswith("[FILTER_BROKEN] d.t: where: does not fit")
        assert path.rows("u") == {1: "a", 2: "no"}
        path.write({"d.t": {1: "b"}})
        path.deliver()
        path.do("alter", changes={"filter": rules("a")})
        path.drain()
        assert path.stopped() == {}
        assert path.rows("t") == {1: "b", 2: "no"}
        assert path.rows("v") == {1: "a", 2: "no"}
    finally:
        path.close()


def test_a_table_is_tried_again_when_asked_and_stops_again_while_the_row_is_there(tmp_path: Path) -> None:
    path = FilteredPath(tmp_path, LocalQueries(lambda where, text: text == "boom"))
    try:
        path.write({"d.t": {1: "boom", 2: "a"}, "d.v": {1: "a"}})
        path.deliver()
        for attempt in ("x", "y"):
            assert set(path.stopped()) == {"d.t"}
            path.write({"d.t": {1: "boom" if attempt == "x" else "mended"}, "d.v": {1: attempt}})
            path.deliver()
            path.do_table("retry", "d.t")
            # The table joins the window after that for which its state is known.
            for number in (2, 3):
                path.write({"d.v": {number: attempt}})
                path.deliver()
            assert path.rows("v") == dict.fromkeys((1, 2, 3), attempt)
        assert path.stopped() == {}
        assert path.rows("t") == {1: "mended", 2: "a"}
        assert [e.what for e in path.meta.lives.history("f") if e.what.startswith("table")] == ["table retry"] * 2
        # A table that is not stopped has nothing to retry; it is neither delivered again.
        path.do_table("retry", "d.t")
        path.deliver()
        assert not any(d.with_state for d in path.live())
    finally:
        path.close()


def test_a_stopped_table_may_get_other_expressions_for_the_columns_that_it_has(tmp_path: Path) -> None:
    path = FilteredPath(tmp_path, LocalQueries(lambda where, text: text == "boom"))
    try:
        path.write({"d.t": {1: "a"}, "d.u": {1: "a"}})
        path.drain()
        with pytest.raises(PenstockError, match="only where may change"):
            path.do("alter", changes={"filter": rules("no", select="id, v")})
        path.write({"d.t": {1: "boom"}})
        path.deliver()
        assert set(path.stopped()) == {"d.t"}
        path.do("alter", changes={"filter": rules("no", select="id, v")})
        with pytest.raises(PenstockError, match="only where may change"):
            path.do("alter", changes={"filter": rules("no", select="id, v") | {"rules": [{"tables": ["d.t"], "columns": ["id"]}]}})
    finally:
        path.close()
