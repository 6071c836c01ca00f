"""Secrets that a URI names instead of showing."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.given_uris import GivenUris
from penstock.access.mysql_server import parse_uri
from penstock.cli.main import cli
from penstock.model.errors import PenstockError


def never(label: str) -> str:
    raise AssertionError(label)


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_password_arrives(password: str) -> None:
    uri = GivenUris({"DB": password}, never).resolve("mysql://cdc:{env:DB}@db:3306/?ssl=off")
    assert parse_uri(uri).password == password
    assert (parse_uri(uri).host, parse_uri(uri).port) == ("db", 3306)


def test_files_variables_and_questions(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(label: str) -> str:
        asked.append(label)
        return "t/yp?ed"

    (tmp_path / "secret").write_text("fi#le\nmore\n")
    names = GivenUris({"WHOLE": "s3://b/p?secret-access-key=a b", "K": "a b"}, ask)
    assert names.resolve("{env:WHOLE}") == "s3://b/p?secret-access-key=a b"
    assert names.resolve(f"postgresql://u:{{file:{tmp_path}/secret}}@h/d") == "postgresql://u:fi%23le@h/d"
    for uri in ("mysql://u:{ask}@h", "mysql://v:{ask}@h", "mysql://v:{ask:other}@h"):
        assert unquote(urlsplit(names.resolve(uri)).password or "") == "t/yp?ed"
    assert asked == ["password", "other"]
    tree = {"source": "mysql://u:{env:K}@h", "conf": {"secret.key": "{env:K}"}, "tables": ["a.{b}"], "n": 1}
    assert names.resolve_tree(tree) == {"source": "mysql://u:a%20b@h", "conf": {"secret.key": "a b"}, "tables": ["a.{b}"], "n": 1}


@pytest.mark.parametrize("uri", ["mysql://u:{env:NONE}@h", "{file:/no/such/file}", "{env}", "{file:}"])
def test_what_is_missing_is_said(uri: str) -> None:
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        GivenUris({}, never).resolve(uri)


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "{env:PENSTOCK_TEST_URI}"],
        ["replay", "file:///tmp", "{env:PENSTOCK_TEST_URI}"],
        ["replay", "{env:PENSTOCK_TEST_URI}", "sqlite:////tmp/x"],
        ["storage", "ls", "{env:PENSTOCK_TEST_URI}"],
        ["run", "--source", "{env:PENSTOCK_TEST_URI}"],
        ["server", "--source", "{env:PENSTOCK_TEST_URI}"],
        ["feed", "create", "x", "--sink", "{env:PENSTOCK_TEST_URI}"],
        ["verify", "--sink", "{env:PENSTOCK_TEST_URI}"],
    ],
)
def test_every_verb_that_takes_a_uri_takes_the_name_of_one(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, PenstockError)
    assert "PENSTOCK_TEST_URI" in result.exception.detail


def test_settings_on_the_line_and_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_PROTOCOL", "nonsense-of-the-environment")
    (tmp_path / "feed.toml").write_text('tables = ["a.b"]\n[sink]\nuri = "memory://x"\nprotocol = "{env:PENSTOCK_TEST_PROTOCOL}"\n')
    for arguments in (
        ["storage", "ls", "memory://x", "--set", "protocol={env:PENSTOCK_TEST_PROTOCOL}"],
        ["doctor", "--config", str(tmp_path / "feed.toml")],
    ):
        result = CliRunner().invoke(cli, arguments)
        assert "nonsense-of-the-environment" in result.output + str(result.exception)
