"""The target that docs/write-a-target.md makes: found by the catalog, run through the whole path, read with nothing but JSON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.sink
from penstock.model.errors import PenstockError
from penstock.sink.catalog import _kind, check_target, open_maintainer, schemes, settings_of
from penstock.target.storage import unfenced
from testing.paths.whole_path import WholePath
from testing.targets.written_kit import events_of, written_modules

SETUP = ["CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))"]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the folder of the page beside the others."""
    first, rest = written_modules()
    folder = tmp_path / "sink" / "lines"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(first, encoding="utf-8")
    (folder / "kind.py").write_text(rest, encoding="utf-8")
    monkeypatch.setattr(penstock.sink, "__path__", [*penstock.sink.__path__, str(folder.parent)])
    schemes.cache_clear()
    yield
    schemes.cache_clear()
    _kind.cache_clear()
    for name in [name for name in sys.modules if name.startswith("penstock.sink.lines")]:
        del sys.modules[name]


@pytest.mark.usefixtures("written")
def test_what_the_page_says_works(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    uri = f"lines://{folder}"
    assert settings_of(f"{uri}?flush-interval=1s")[1].flush_interval_ms == 1_000
    with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*flush-intervall"):
        settings_of(f"{uri}?flush-intervall=1s")
    assert [finding.ok for finding in (*check_target(uri), *check_target("lines:///nowhere"))] == [True, False]
    open_maintainer(uri, {}, unfenced).claim("f")
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        open_maintainer(uri, {}, unfenced).check("other")
    with contextlib.closing(WholePath(tmp_path, SETUP, target_uri=uri)) as path:
        path.write({"d.a": {1: "one", 2: "two"}})
        path.drain()
        path.write({"d.a": {1: "changed", 3: "three"}}, {"d.a": [2]})
        # A window that is not committed comes again, and writes the same.
        path.wait_resolved(path.upstream.current_ts())
        path.feed.run_window(commit=False)
        path.drain()
        checkpoint_ts = path.feed.checkpoint_ts()
    rows: dict[int, str] = {}
    for event in events_of(folder):
        row = event["after"] or event["before"]
        if event["op"] == "d":
            del rows[row["id"]]
        else:
            rows[row["id"]] = row["v"]
    assert rows == {1: "changed", 3: "three"}
    assert int((folder / "checkpoint").read_text()) == checkpoint_ts
