"""Large and unwilling things: a transaction of very many rows, a table that comes with rows, a target that is full."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from testing.checks.target_audit import DeliveredChanges, digests, numbering_problems
from testing.paths.whole_path import WholePath

SETUP = ["CREATE DATABASE d", "CREATE DATABASE x", *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(400))" for t in ("d.a", "x.big"))]
GROWTH_MIB_MAX = 700


@pytest.mark.parametrize("rows", [200_000, pytest.param(10_000_000, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])
def test_a_transaction_of_many_rows_passes_in_bounded_memory(tmp_path: Path, rows: int) -> None:
    command = [sys.executable, "-m", "testing.paths.large_transaction", str(tmp_path), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    # One commit is one window, however many windows' worth of bytes it has.
    assert (said["windows"], said["rows"]) == (1, rows)
    assert said["peak_mib"] - said["before_mib"] < GROWTH_MIB_MAX, said
    files = sorted((tmp_path / "files").rglob("CDC*.csv"))
    assert len(files) == said["files"]
    assert sum(file.read_bytes().count(b"\r\n") for file in files) == rows


def test_a_table_that_comes_with_rows_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with contextlib.closing(WholePath(tmp_path, SETUP)) as path:
        path.write({"x.big": dict.fromkeys(range(2000), "before")})
        path.drain()
        path.hold_back = True
        path.upstream.execute_ddl("RENAME TABLE x.big TO d.big")
        # Its span is not captured yet, as if its state were still being read.
        path.feed.drain(path.write({"d.a": {1: "goes on"}}), 30)
        assert [t.name for t in path.verify_joined().tables] == ["d.a"]
        path.feed.drain(path.write({"d.a": {2: "and on"}, "d.big": {1: "changed meanwhile", 5_000: "new"}}), 30)
        path.hold_back = False
        path.drain()
        verdict = path.verify()
        verdict.check()
        assert {t.name: t.rows for t in verdict.tables} == {"d.a": 2, "d.big": 2_001}
        assert DeliveredChanges(path.reader()).problems() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system takes the rights to do so")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_target_stops_the_feed_and_nothing_is_lost(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "feed").mkdir()
    with contextlib.closing(WholePath(tmp_path / "feed", SETUP, target=small_disk / "files")) as path:
        path.drain()
        for first in range(0, 8_000, 1_000):
            path.write({"d.a": dict.fromkeys(range(first, first + 1000), "x" * 300)})
        for _ in range(2):
            with pytest.raises(PenstockError, match=r"SINK_FULL|SINK_UNAVAILABLE"):
                path.drain()
        published = digests(small_disk / "files")
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        path.drain()
        path.verify().check()
        after = digests(small_disk / "files")
        assert {name: after.get(name) for name in published} == published
        assert numbering_problems(small_disk / "files") == []
        assert DeliveredChanges(path.reader()).problems() == []
