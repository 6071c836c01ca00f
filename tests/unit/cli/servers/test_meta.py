"""The verb ``meta`` on an embedded database: backup, restore, check, upgrade."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from penstock.cli.main import run
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import FeedRecord, SubscribeRecord
from penstock.meta.tables import META_VERSION
from testing.paths.controlled_path import ControlledPath

LEASE_MS = 10_000


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    with MetaDatabase(sqlite_url(tmp_path / "data" / "meta.db")) as meta:
        meta.create_feed(FeedRecord("f", "u", '{"secret": "hunter2"}'), [SubscribeRecord("d", "t", "", 1)])
        meta.claim("f", "a", LEASE_MS)
    return tmp_path / "data"


def test_what_was_backed_up_is_restored_elsewhere(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "backup", tmp_path / "other"
    other.mkdir()
    assert run(["meta", "backup", str(file), "--data-dir", str(data_dir)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 feeds" in said
    assert "meta.key" in said, "it says where the key is that the file does not have"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run(["meta", "backup", str(file), "--data-dir", str(data_dir)]) == 2
    assert run(["meta", "check", "--backup", str(file)]) == 0
    capsys.readouterr()
    assert run(["meta", "restore", str(file), "--data-dir", str(other), "--output", "json"]) == 0
    grown = json.loads(capsys.readouterr().out)["epochs_grew_by"]
    shutil.copy(data_dir / "meta.key", other / "meta.key")
    with MetaDatabase(sqlite_url(other / "meta.db")) as meta:
        found = meta.get_feed("f")
        assert (found.config, found.owner, found.epoch) == ('{"secret": "hunter2"}', "", 1 + grown)
        assert [e.what for e in meta.lives.history("f")] == ["create", "restore"]
    assert run(["meta", "restore", str(file), "--data-dir", str(other)]) == 2
    assert "[META_NOT_EMPTY]" in capsys.readouterr().err
    assert run(["meta", "restore", str(file), "--data-dir", str(other), "--force"]) == 0
    assert run(["meta", "check", "--data-dir", str(other)]) == 0
    assert "sound" in capsys.readouterr().out


@pytest.mark.parametrize("looks", [True, False])
def test_a_target_that_went_on_counts_when_a_backup_is_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str], looks: bool) -> None:
    with closing(ControlledPath(tmp_path, ["CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))"])) as path:
        at = ["--meta-url", path.meta_url]
        path.write({"d.a": {1: "x"}})
        path.drain()
        assert run(["meta", "backup", str(tmp_path / "backup"), *at]) == 0
        path.write({"d.a": {2: "y"}})
        path.drain()
        stood_ts = path.meta.checkpoint_ts("f")
        capsys.readouterr()
        assert run(["meta", "restore", str(tmp_path / "backup"), "--force", *at, *([] if looks else ["--no-targets"])]) == 0
        assert (f"feed f: goes on from {stood_ts}" in capsys.readouterr().out) == looks
        assert (path.meta.checkpoint_ts("f") == stood_ts) == looks
        assert ("adopt" in [e.what for e in path.meta.lives.history("f")]) == looks
        if looks:
            path.begin_run()
            path.write({"d.a": {3: "z"}})
            path.drain()
            rows = [line.split(",") for file in sorted(path.target.glob("d/a/*/**/*.csv")) for line in file.read_text().splitlines()]
            assert sorted(row[4] for row in rows) == ["1", "2", "3"], "nothing is missing, and nothing comes twice"


def test_a_check_that_finds_something_fails(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(data_dir / "meta.db")) as raw, raw:
        raw.execute("DELETE FROM feed")
    assert run(["meta", "check", "--data-dir", str(data_dir), "--output", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == ["subscribe has rows of the feed f, which is not there"]
    assert any("targets" in left for left in found["not_checked"])


def test_an_upgrade_is_shown_before_it_is_done(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(data_dir / "meta.db")) as raw, raw:
        raw.execute("ALTER TABLE subscribe ADD COLUMN db_id BIGINT NOT NULL DEFAULT 0")
        raw.execute("UPDATE meta_version SET version = 2")
    for dry in (["--dry-run"], ["--dry-run"], []):
        assert run(["meta", "upgrade", *dry, "--data-dir", str(data_dir), "--output", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["version"], told["to_version"], told["done"]) == (2, META_VERSION, not dry)
        assert [step["version"] for step in told["steps"]] == [3]
        assert "subscribe_before" in " ".join(told["steps"][0]["statements"])
    assert run(["meta", "upgrade", "--dry-run", "--data-dir", str(data_dir)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    with MetaDatabase(sqlite_url(data_dir / "meta.db")) as meta:
        assert [t.table_id for t in meta.feed_tables("f")] == [1]


def test_a_place_without_a_database_is_told_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["backup", str(tmp_path / "b")], ["check"], ["upgrade"]):
        assert run(["meta", *verb, "--data-dir", str(tmp_path / "none")]) == 75
        assert "[META_UNAVAILABLE]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
