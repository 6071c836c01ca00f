from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from penstock.feed.spark.class_archive import archive_options, archive_path, quoted
from penstock.feed.spark.session import LOG4J_FILE


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("")
    (home / "release").write_text('JAVA_VERSION="17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return home


def test_an_archive_is_used_where_it_is(java: Path) -> None:
    del java
    path = archive_path()
    assert path is not None
    assert archive_options() == ""
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert f"-XX:SharedArchiveFile={path}" in archive_options().split()


def test_another_java_has_another_archive(java: Path) -> None:
    before = archive_path()
    (java / "release").write_text('JAVA_VERSION="17.0.2"')
    assert archive_path() != before


def test_without_java_there_is_none(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java / "nowhere"))
    assert archive_path() is None
    assert archive_options() == ""


def test_a_folder_with_a_space_stays_one_option() -> None:
    """Spark splits options as a shell does; Python's own splitter is the oracle."""
    for name in ("/opt/penstock/x.jsa", '/home/ada l/my "venv"/x.jsa', "/it's/x.jsa", "/back\\slash/x.jsa"):
        assert shlex.split(f"-Xshare:auto -XX:SharedArchiveFile={quoted(Path(name))} -Xlog") == [
            "-Xshare:auto",
            f"-XX:SharedArchiveFile={name}",
            "-Xlog",
        ]
    assert quoted(Path("/opt/penstock/x.jsa")) == "/opt/penstock/x.jsa"
    assert " " not in LOG4J_FILE.with_name("with space").as_uri()
