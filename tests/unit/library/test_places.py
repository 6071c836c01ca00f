"""Places as people give them to the library: secrets are named, and what is wrong is told before anything slow begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext

import penstock
from penstock.library.places import given_uri
from testing.servers.loopback import free_port


def test_secrets_are_named_and_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLACES_PASSWORD", "a/b@c")
    (tmp_path / "secret").write_text("x y\nrest", encoding="utf-8")
    assert given_uri("mysql://cdc:{env:PLACES_PASSWORD}@h:1") == "mysql://cdc:a%2Fb%40c@h:1"
    assert given_uri(f"s3://k:{{file:{tmp_path}/secret}}@bucket") == "s3://k:x%20y@bucket"
    assert given_uri(tmp_path / "{env:NOPE}") == (tmp_path / "{env:NOPE}").as_uri()
    for what in (
        lambda: penstock.read_table("{env:NO_SUCH_PLACE}", "a.b"),
        lambda: penstock.read_changes("s3://{env:NO_SUCH_PLACE}", "a.b"),
    ):
        with pytest.raises(penstock.PenstockError, match="NO_SUCH_PLACE"):
            what()


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("mysql://cdc:{env:NO_SUCH_PLACE}@127.0.0.1:1", "CONFIG_INVALID"),
        ("oracle://127.0.0.1:1", "CONFIG_INVALID"),
        ("dataserver://127.0.0.1:{port}", "UPSTREAM_UNREACHABLE"),
    ],
)
def test_a_capture_that_cannot_begin_says_so_before_spark_and_makes_nothing(
    source: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = source.replace("{port}", str(free_port()))
    with pytest.raises(penstock.PenstockError) as found, penstock.capture(source, "shop.*", tmp_path / "target"):
        pass
    assert found.value.code == code
    assert SparkContext._active_spark_context is None
    assert list(tmp_path.iterdir()) == []
