from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.main import run

SERVER = """
source = "mysql://cdc:hunter2@db:3306"
http-port = 9000
[supervisor]
lease = "30s"
"""
RUN = """
source = "mysql://cdc:hunter2@db:3306"
tables = ["shop.*"]
sink = "s3://b/x?secret-access-key=hunter2"
flush-interval = "2s"
[server]
http-port = 9001
"""
WRONG = """
source = "mysql://cdc:hunter2@db:3306"
tables = ["shop"]
flsh = 3
[sink]
uri = "s3://b/x"
protocl = "csv"
[server]
http-prot = 9001
"""


def written(folder: Path, text: str) -> str:
    file = folder / "file.toml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(("text", "kind"), [(SERVER, "server"), (RUN, "run"), (RUN.partition("[server]")[0], "feed")])
def test_a_file_that_is_right(tmp_path: Path, text: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, text)
    assert run(["config", "check", file, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "file": file, "kind": kind}


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check", written(tmp_path, WRONG), "--output", "json"]) == 2
    found = json.loads(capsys.readouterr().err)["error"]["problems"]
    assert {line.partition(":")[0] for line in found} == {"sink.protocl", "flsh", "tables[0]", "server.http-prot"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-8"])
def test_a_file_of_any_name_that_another_editor_wrote(tmp_path: Path, encoding: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my shop.toml"
    file.write_bytes(RUN.partition("[server]")[0].replace("\n", "\r\n").encode(encoding))
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is valid, as the file of a feed\n"


def test_a_source_that_is_named_twice_and_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, RUN.replace("[server]", '[server]\nsource = "mysql://cdc@elsewhere:3306"'))
    assert run(["config", "check", file]) == 2
    assert "server.source: is another one than source" in capsys.readouterr().err


def test_what_holds_and_where_it_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", written(tmp_path, RUN), "--set", "sink.file-size=1MiB", "--output", "json"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    held = {one["key"]: (one["value"], one["origin"]) for one in json.loads(text)}
    assert held["flush-interval"] == ("2s", "file")
    assert held["sink.uri"] == ("s3://b/x?secret-access-key=***", "file")
    assert held["sink.file-size"] == (1 << 20, "--set")
    assert held["server.http-port"] == (9001, "file")
    assert held["server.http-host"] == ("127.0.0.1", "default")
    assert held["source"] == ("mysql://cdc:***@db:3306", "file")
    assert run(["config", "show", written(tmp_path, SERVER), "--changed"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["KEY", "VALUE", "FROM"],
        ["source", "mysql://cdc:***@db:3306", "file"],
        ["http-port", "9000", "file"],
        ["supervisor.lease", "30s", "file"],
    ]
