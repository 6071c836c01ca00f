"""A backup of the meta database that an earlier Penstock wrote can be restored, as long as its version is spoken."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.meta import backup as backups
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import MetaEngine, MetaSettings, sqlite_url
from penstock.meta.records import NOBODY
from penstock.meta.sealing import Seal
from penstock.meta.soundness import check

GOLDEN = Path(__file__).parent / "golden" / "meta-backup-v1" / "backup"
TAKEN_MS = 1_800_000_000_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "meta.db")


def test_a_backup_of_format_1_is_read(url: str) -> None:
    header, rows = backups.read_backup(GOLDEN)
    assert (header.format, header.feeds, header.taken_ms, header.sealed) == (1, 2, TAKEN_MS, 0)
    engine = MetaEngine(url, MetaSettings())
    done = backups.restore(engine, header, rows, actor=NOBODY, now_ms=TAKEN_MS, with_tokens=True)
    assert (done.feeds, done.tokens) == (2, 1)
    assert check(engine, Seal(url, {})).problems == []
    engine.close()
    with MetaDatabase(url) as meta:
        assert meta.get_feed("a").config == '{"name": "a"}'
        assert meta.progress("a").positions == {"100-0": {"x": 3}}
        assert meta.pending_window("a") is not None
