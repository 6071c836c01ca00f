"""Feeds under an operator who does anything at any time, and a server that is killed: in the end the targets are the tables."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from testing.checks.lives.operated_life import OperatedLife
from testing.checks.lives.servers import MySqlServer
from testing.servers.loopback_server import mariadb

OPTIONS = ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--sync-binlog=0")


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_operator_at_random(tmp_path: Path, seed: int) -> None:
    (tmp_path / "db").mkdir()
    with (
        mariadb(tmp_path / "db", OPTIONS) as uri,
        contextlib.closing(OperatedLife(MySqlServer("mariadb", tmp_path / "db", uri), tmp_path, seed)) as life,
    ):
        life.live(25)
