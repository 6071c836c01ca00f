from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.main import run
from testing.servers.api_server import ApiServer


def test_tokens_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with ApiServer(tmp_path, "shop.orders") as server:
        at = ["--server", server.url]
        assert run(["token", "create", "dashboard", "--expires", "30d", *at]) == 0
        token = capsys.readouterr().out.strip()
        assert run(["token", "list", "--output", "json", *at]) == 0
        [listed] = json.loads(capsys.readouterr().out)
        assert (listed["name"], listed["role"], listed["expires_ms"] - listed["created_ms"]) == ("dashboard", "read", 30 * 86_400_000)
        assert run(["token", "list", *at]) == 0
        shown = capsys.readouterr().out
        assert "dashboard" in shown
        assert token not in shown

        monkeypatch.setenv("PENSTOCK_TOKEN", token)
        assert run(["feed", "list", *at]) == 0
        assert run(["feed", "remove", "x", *at]) == 2
        assert "needs the role operate" in capsys.readouterr().err
        monkeypatch.delenv("PENSTOCK_TOKEN")

        assert run(["token", "revoke", listed["id"], *at]) == 0
        assert "revoked" in capsys.readouterr().out
        (tmp_path / "token").write_text(token)
        monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "token"))
        assert run(["feed", "list", *at]) == 2
        error = capsys.readouterr().err
        assert "API_TOKEN_REQUIRED" in error
        assert "PENSTOCK_TOKEN_FILE" in error


def test_another_user_is_told_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with ApiServer(tmp_path, "shop.orders") as server:
        monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "of-another"))
        assert run(["feed", "create", "x", "--table", "shop.*", "--sink", "file:///tmp/x", "--server", server.url]) == 2
        error = capsys.readouterr().err
        assert "carries no token" in error
        assert "penstock token create" in error
        assert server.meta.list_feeds() == []
