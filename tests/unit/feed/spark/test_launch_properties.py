"""Settings of Spark reach a JVM by a file, whole, and nobody else."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feed.spark.launch_properties import launched_with, properties_text


def java_properties(text: str) -> dict[str, str]:
    """Read properties as Java does, apart from lines that go on: the first = that is not escaped divides."""

    def plain(part: str) -> str:
        units = re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), part)
        return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")

    lines = [line for line in text.split("\n") if line]
    assert all(re.fullmatch(r"(?:[\x21-\x7e])*", line) and line[0] not in "#!" for line in lines)
    return {plain(key): plain(value) for key, _, value in (line.partition("=") for line in lines)}


texts = st.text(st.characters(codec="utf-8"), max_size=12)


@given(st.dictionaries(texts.filter(bool), texts, max_size=3))
def test_any_setting_arrives(conf: dict[str, str]) -> None:
    assert java_properties(properties_text(conf)) == conf


@pytest.mark.parametrize("before", [None, "--verbose pyspark-shell"])
def test_the_file_is_for_its_owner_alone_and_goes_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None) -> None:
    folder = tmp_path / "a folder's name"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    if before is None:
        monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", before)
    with launched_with({"spark.hadoop.fs.s3a.secret.key": "S3cret"}):
        arguments = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        file = Path(arguments[arguments.index("--properties-file") + 1])
        assert file.parent == folder
        assert file.stat().st_mode & 0o777 == 0o600
        assert java_properties(file.read_text()) == {"spark.hadoop.fs.s3a.secret.key": "S3cret"}
        assert arguments[-1] == "pyspark-shell"
        assert "S3cret" not in " ".join(arguments)
    assert not file.exists()
    assert os.environ.get("PYSPARK_SUBMIT_ARGS") == before
    with launched_with({}):
        assert os.environ.get("PYSPARK_SUBMIT_ARGS") == before
