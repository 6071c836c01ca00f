from __future__ import annotations

from pathlib import Path

import pytest

from penstock.feed.spark.java import ensure_java, find_java
from penstock.model.errors import PenstockError


def java(home: Path, version: str, *, release: bool = True) -> Path:
    """Lay a Java out that answers as a real one does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_wins_then_the_path_then_the_usual_places(tmp_path: Path) -> None:
    places = tmp_path / "jvm"
    chosen, path, usual = java(tmp_path / "a", "17.0.15"), java(tmp_path / "b", "21"), java(places / "java-21", "21.0.1", release=False)
    java(places / "java-11", "11.0.2")
    environment = {"JAVA_HOME": str(chosen), "PATH": str(path / "bin")}
    assert find_java(environment, places) == chosen
    assert find_java(environment | {"JAVA_HOME": ""}, places) == path
    assert find_java({"PATH": "/nonexistent"}, places) == usual


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", None])
def test_a_java_home_that_does_not_fit_is_passed_over(tmp_path: Path, version: str | None) -> None:
    wrong = tmp_path / "wrong" if version is None else java(tmp_path / "wrong", version)
    fitting = java(tmp_path / "jvm" / "java-17", "17")
    assert find_java({"JAVA_HOME": str(wrong), "PATH": ""}, tmp_path / "jvm") == fitting


def test_without_one_the_error_says_what_was_seen_and_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(old / "bin"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(PenstockError) as caught:
        ensure_java(tmp_path / "jvm")
    assert caught.value.code == "JAVA_MISSING"
    assert f"JAVA_HOME names {tmp_path / 'gone'}, where no Java is; PATH names {old}, which is Java 8" in caught.value.detail
    assert "openjdk-17-jre-headless" in caught.value.hint
    assert "openjdk-21-jre-headless" in caught.value.hint
