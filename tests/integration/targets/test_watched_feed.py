"""Targets that keep nothing, through the whole path: what the console prints of each window, and that nothing else is needed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from testing.paths.whole_path import WholePath

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]


@pytest.mark.parametrize("uri", ["null:", "null://", "console:?rows=5", "console://"])
def test_windows_pass_and_are_printed(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(WholePath(tmp_path, SETUP, target_uri=uri)) as path:
        path.write({"d.a": {1: "one"}})
        path.drain()
        path.write({"d.a": {1: "two", 2: "new"}, "d.b": {7: None}}, {"d.a": [99]})
        path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN x INT DEFAULT 7")
        path.write({}, {"d.a": [2]})
        path.upstream.execute_ddl("TRUNCATE TABLE d.b")
        until_ts = path.write({"d.a": {3: "three"}})
        path.drain()
        assert path.feed.checkpoint_ts() >= until_ts
        assert path.meta.get_feed("f").rows_total == 6, "an update is one change"
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    if uri.startswith("null"):
        assert lines == []
        return
    assert sorted(lines) == sorted(
        [
            '~ d.a id=1 v="one" -> "two"',
            '+ d.a id=1 v="one"',
            '+ d.a id=2 v="new"',
            "+ d.b id=7 v=null",
            "! ALTER TABLE d.a ADD COLUMN x INT DEFAULT 7",
            '- d.a id=2 v="new" x=7',
            "! TRUNCATE TABLE d.b",
            '+ d.a id=3 v="three" x=null',
        ]
    )
