from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.feed.spark.class_archive import archive_options, archive_path


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
