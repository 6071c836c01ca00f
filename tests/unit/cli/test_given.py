"""Settings as a verb is given them: a file, ``--set``, and options of their own."""

from pathlib import Path

import pytest

from penstock.cli.given import read_tree


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
