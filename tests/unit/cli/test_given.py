"""Settings as a verb is given them: a file, ``--set``, and options of their own."""

import io
from pathlib import Path

import pytest

from penstock.cli.given import URI, read_tree
from penstock.model.errors import PenstockError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "feed.toml"
    path.write_text('name = "a"\ntables = ["shop.*"]\nsink = "file:///tmp/a"\n', encoding="utf-8")
    return path


def test_what_stands_nearer_to_the_verb_wins(file: Path) -> None:
    found = read_tree(file, ["name=b", "flush-interval=10s"], {"tables": ["x.y"], "source": None})
    assert found == {"name": "b", "tables": ["x.y"], "sink": {"uri": "file:///tmp/a"}, "flush-interval": "10s"}
    assert read_tree(None, [], {"name": None}) == {}


def test_a_sink_that_is_a_uri_keeps_it_beside_settings_of_its_own(file: Path) -> None:
    assert read_tree(file, ["sink.protocol=csv"], {})["sink"] == {"uri": "file:///tmp/a", "protocol": "csv"}
    assert read_tree(file, ["sink=file:///tmp/b"], {})["sink"] == {"uri": "file:///tmp/b"}
    assert read_tree(None, ["sink.protocol=csv"], {"sink": {"uri": "file:///tmp/c"}})["sink"]["uri"] == "file:///tmp/c"


def test_secrets_are_put_in_everywhere(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p%w\n", encoding="utf-8")
    file.write_text(f'source = "mysql://cdc:{{file:{secret}}}@db:3306"\n', encoding="utf-8")
    assert read_tree(file, [], {})["source"] == "mysql://cdc:p%25w@db:3306"


def test_targets_on_the_line_take_the_place_of_those_in_the_file(file: Path) -> None:
    assert "sink" not in read_tree(file, [], {"sinks": ["null:", "console:"]})
    file.write_text('sinks = ["null:", "console:"]\n', encoding="utf-8")
    assert read_tree(file, [], {"sink": {"uri": "null:"}, "sinks": None}) == {"sink": {"uri": "null:"}}
    assert read_tree(file, [], {"sink": None, "sinks": ["a:", "b:"]}) == {"sinks": ["a:", "b:"]}


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("./out", f"{Path.cwd().as_uri()}/out"),
        ("/data/a b?protocol=csv&x={env:PENSTOCK_TEST_WORD}", "file:///data/a%20b?protocol=csv&x=w"),
        ("s3://bucket/p", "s3://bucket/p"),
        ("{env:PENSTOCK_TEST_WORD}", "w"),
        ("console:", "console:"),
    ],
)
def test_a_path_is_a_uri_too(given: str, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_WORD", "w")
    assert URI.convert(given, None, None) == uri


def test_where_nobody_can_be_asked_it_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("getpass.getpass", __import__("getpass").fallback_getpass)
    monkeypatch.setattr("sys.stdin", io.StringIO("p%w\n"))
    assert URI.convert("mysql://cdc:{ask:first}@db", None, None) == "mysql://cdc:p%25w@db"
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(PenstockError, match="there is no terminal") as caught:
        URI.convert("mysql://cdc:{ask:second}@db", None, None)
    assert caught.value.code == "CONFIG_INVALID"
    assert "Warning" not in capsys.readouterr().err.replace("Warning: Password input may be echoed.", "")
