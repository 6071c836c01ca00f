from __future__ import annotations

import socket
from pathlib import Path

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.server.data_directory import DataDirectory
from penstock.server.feeds.keeper import foreign_error
from penstock.server.http.listener import HttpListener
from penstock.server.metrics import FeedCollector, render
from penstock.server.process import check_reachable


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


def test_data_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    owner = first.owner(None, "1234")
    with refused("CONFIG_INVALID"):
        DataDirectory(tmp_path / "data")
    first.close()
    second = DataDirectory(tmp_path / "data")
    assert second.owner(None, "5678") == owner
    assert second.owner("name", "5678") == "name-1234"
    second.close()


def test_taken_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listener = HttpListener(FastAPI(), "127.0.0.1", taken.getsockname()[1])
        with refused("CONFIG_INVALID"):
            listener.start()
        listener.stop()


@pytest.mark.parametrize("uri", ["dataserver://", "dataserver://host", "dataserver://host:port", "dataserver://host:99999"])
def test_source_without_an_address(uri: str) -> None:
    with refused("CONFIG_INVALID"):
        check_reachable(uri)


def test_source_where_nothing_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        uri = f"dataserver://user:hunter2@127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(PenstockError) as caught:
            check_reachable(uri)
    assert caught.value.code == "UPSTREAM_UNREACHABLE"
    assert "hunter2" not in str(caught.value)


JAVA = """An error occurred while calling o71.start.
: org.apache.spark.SparkException: could not start
\tat org.apache.spark.X.y(X.scala:1)
Caused by: java.lang.ClassNotFoundException: a.b.C
\tat java.base/Y.z(Y.java:2)
"""


def test_root_cause_of_a_foreign_error_without_its_stack() -> None:
    found = foreign_error(RuntimeError(JAVA))
    assert found.code == "FEED_FAILED"
    assert found.detail == "RuntimeError: An error occurred while calling o71.start. java.lang.ClassNotFoundException: a.b.C"
    assert foreign_error(RuntimeError(JAVA + "Caused by: [SINK_UNWRITABLE] no space")).code == "SINK_UNWRITABLE"
    assert foreign_error(KeyError()).detail == "KeyError:"
    python = 'no instance: Traceback (most recent call last):\n  File "x.py", line 1\n    x\nImportError: no y\n\n\tat a.B.c(D.java:1)'
    found = foreign_error(RuntimeError(python))
    assert found.detail == "RuntimeError: no instance: Traceback (most recent call last): ImportError: no y"


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
