from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.clock import SystemClock
from penstock.server.metrics import FeedCollector, render


def test_metrics_say_when_the_meta_database_is_gone(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    (tmp_path / "sub").mkdir()
    meta = MetaDatabase(sqlite_url(tmp_path / "sub" / "meta.db"))
    registry.register(FeedCollector(meta, SystemClock()))
    assert b"penstock_meta_up 1.0" in render([registry])
    meta.close()
    for file in (tmp_path / "sub").iterdir():
        file.unlink()
    (tmp_path / "sub").rmdir()
    assert b"penstock_meta_up 0.0" in render([registry])
