from __future__ import annotations

import io
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.feeds.sql import with_secrets
from penstock.cli.feeds.sql_shell import Shell
from penstock.cli.main import run
from penstock.cli.server_client import ServerClient
from testing.servers.api_server import ApiServer

SECRET = "hunter2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("server"), "shop.orders", "shop.items") as running:
        yield running


def typing(*lines: str) -> Callable[[str], str]:
    """Return what stands in for a user who types these lines and leaves."""
    left = list(lines)

    def ask(_prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return ask


def test_a_script_is_executed_in_order(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "feeds.sql"
    script.write_text(
        f"-- two feeds\nCREATE CHANGEFEED one FOR TABLE shop.* INTO 's3://{tmp_path.name}/one';\n"
        f"CREATE CHANGEFEED two FOR TABLE shop.* INTO 's3://{tmp_path.name}/two';\nDROP CHANGEFEED two;\nSHOW CHANGEFEEDS LIKE 'on_'"
    )
    assert run(["sql", "-f", str(script), "--server", server.url, "--output", "json"]) == 0
    decoder, text, found = json.JSONDecoder(), capsys.readouterr().out.strip(), []
    while text:
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:].strip()
    assert [one.get("name") for one in found[:3]] == ["one", "two", "two"]
    assert [feed["name"] for feed in found[3]["feeds"]] == ["one"]
    assert run(["sql", "-e", "SHOW CHANGEFEED one HISTORY; SHOW CHANGEFEED one", "--server", server.url]) == 0
    shown = capsys.readouterr().out
    assert "TIME" in shown
    assert "create" in shown


def test_a_script_with_a_mistake_changes_nothing_and_says_where(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"CREATE CHANGEFEED three FOR TABLE shop.* INTO 's3://{tmp_path.name}/3';\n\n  PAUSE CHANGEFED three;"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert run(["sql", "--server", server.url]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: [SQL_INVALID] line 3, column 9: expected CHANGEFEED, not 'CHANGEFED'",
        "    PAUSE CHANGEFED three",
        "          ^",
        "hint: Did you mean CHANGEFEED?",
    ]
    assert "three" not in [feed.name for feed in server.meta.list_feeds()]


def test_secrets_are_named_and_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_KEY", "it's/one")
    assert with_secrets("INTO 's3://k:{env:LAKE_KEY}@b' WITH (a = '{b}')") == "INTO 's3://k:it%27s%2Fone@b' WITH (a = '{b}')"


def test_the_shell_goes_on_after_an_error_and_keeps_no_secret(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = f"s3://{tmp_path.name}/x?secret-access-key={SECRET}"
    history = tmp_path / "home" / "sql_history"
    with ServerClient(server.url) as client:
        Shell(
            client,
            "table",
            typing(
                "CREATE CHANGEFEED shell",
                f"FOR TABLE shop.* INTO '{sink}'",
                "  COMMENT 'x';",
                f"CREATE CHANGEFEED shell FOR TABLE shop.* INTO '{sink}';",
                "PAUSE CHANGEFEED shell; SHOW CHANGEFEED shell TABLES;",
                "exit",
                "DROP CHANGEFEED shell;",
            ),
            history,
        ).run()
        told = capsys.readouterr()
        assert "expected the end, not 'COMMENT'" in told.err
        assert "shop.items" in told.out
        assert SECRET not in told.out + told.err
        kept = history.read_text()
        assert [line.split()[0] for line in kept.splitlines()] == ["CREATE", "CREATE", "PAUSE"]
        assert SECRET not in kept
        assert stat.S_IMODE(history.stat().st_mode) == 0o600
        assert server.meta.get_feed("shell").requested_state.value == "paused"
        Shell(client, "table", typing("SHOW CHANGEFEEDS;"), history).run()
        assert history.read_text().startswith(kept)


def test_words_are_completed(server: ApiServer, tmp_path: Path) -> None:
    with ServerClient(server.url) as client:
        client.execute(f"CREATE CHANGEFEED IF NOT EXISTS completed FOR TABLE shop.* INTO 's3://{tmp_path.name}/x'", reads=False)
        shell = Shell(client, "table")
        assert shell.completions("", "pa") == ["PAUSE "]
        assert shell.completions("SHOW ", "") == ["CHANGEFEED ", "CHANGEFEEDS "]
        assert shell.completions("PAUSE CHANGEFEED ", "comp") == ["completed "]
        assert shell.completions("ALTER CHANGEFEED x SET (", "flush-i") == ["flush-interval "]
