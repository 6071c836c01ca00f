"""The doctor about targets and configurations; what it says of databases is tested beside each source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.sink.catalog import open_maintainer
from penstock.target.storage import ObjectTarget, unfenced


def checked(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Run the doctor; return its exit code and the findings by name."""
    code = run(["doctor", *argv, "--output", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] == (code == 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for one in answer["findings"]:
        found.setdefault(one["name"], []).append(one)
    return code, found


def test_an_empty_target_is_right_and_is_left_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    code, found = checked(["--sink", folder.as_uri()], capsys)
    assert code == 0
    names = ["reachable", "free", "create", "create-only", "list", "delete"]
    assert [(name, one[0]["ok"]) for name, one in found.items()] == [(f"target: {name}", True) for name in names]
    assert not (tmp_path / "a").exists()
    folder.mkdir(parents=True)
    assert checked(["--sink", folder.as_uri()], capsys)[0] == 0
    assert list(folder.rglob("*")) in ([], [folder / ".penstock"])


def test_a_target_of_another_feed_or_of_nobody_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claimed, used = tmp_path / "claimed", tmp_path / "used"
    open_maintainer(claimed.as_uri(), {}, unfenced).claim("orders/1234")
    used.mkdir()
    (used / "file").write_text("x")
    code, found = checked(["--sink", claimed.as_uri()], capsys)
    assert (code, found["target: free"][0]["found"]) == (1, "belongs to feed orders")
    assert found["target: create"][0]["ok"], "the other checks are made all the same"
    code, found = checked(["--sink", used.as_uri()], capsys)
    assert (code, found["target: free"][0]["found"]) == (1, "not empty, and of no feed")
    config = tmp_path / "feed.toml"
    config.write_text(f'name = "orders"\ntables = ["a.b"]\nsink = "{claimed.as_uri()}"\n')
    code, found = checked(["--config", str(config)], capsys)
    assert (code, found["target: free"][0]["level"]) == (0, "note"), "its own"
    before = sorted(p for p in claimed.rglob("*") if p.is_file())
    assert [p.read_bytes() for p in before] == [b'{"feed":"orders/1234","id":"' + p.read_bytes()[28:] for p in before]


def test_a_target_that_cannot_be_used_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    code, found = checked(["--sink", (tmp_path / "file" / "below").as_uri()], capsys)
    assert code == 1
    (one,) = found["target: reachable"]
    assert one["found"].startswith("[SINK_UNWRITABLE] ")
    code, found = checked(["--sink", "ftp://x/y"], capsys)
    assert (code, list(found)) == (1, ["target"])


def test_a_target_that_overwrites_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectTarget, "put_new", ObjectTarget.put)
    code, found = checked(["--sink", "memory://overwrites/x"], capsys)
    assert (code, found["target: create-only"][0]["ok"], found["target: delete"][0]["ok"]) == (1, False, True)


def test_every_problem_of_a_configuration_is_shown_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "feed.toml"
    config.write_text(
        'name = "no name!"\ntables = ["nonsense"]\nflush-interval = "1ms"\nno-such = 1\n'
        'source = "mysql://cdc:secret@127.0.0.1:1"\n'
        f'[sink]\nuri = "{(tmp_path / "files").as_uri()}"\nprotocol = "csv"\nno-option = 1\n[server]\nhttp-port = 99999\n'
    )
    code, found = checked(["--config", str(config)], capsys)
    assert code == 1
    lines = [one["found"] for one in found["configuration"]]
    for field in ("name:", "tables[0]:", "flush-interval:", "no-such", "no-option", "server.http-port:"):
        assert any(field in line for line in lines), (field, lines)
    (source,) = found["source"]
    assert "UPSTREAM_UNREACHABLE" in source["found"]
    assert "secret" not in json.dumps(found)


def test_a_right_configuration_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "feed.toml"
    config.write_text(f'name = "orders"\ntables = ["shop.*"]\nsink = "{(tmp_path / "files").as_uri()}"\n')
    code, found = checked(["--config", str(config), "--set", "flush-interval=10s"], capsys)
    assert code == 0
    assert found["configuration"][0]["ok"]
    assert run(["doctor", "--config", str(config)]) == 0
    assert capsys.readouterr().out.endswith("7 checked, all as they must be\n")


def test_something_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 2
    assert "--config" in capsys.readouterr().err
    assert run(["doctor", "nonsense://x"]) == 2
    assert run(["doctor", "--help"]) == 0
    assert "penstock doctor --config shop.toml" in capsys.readouterr().out
