from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import main as main_module
from penstock.cli.main import VERBS, run
from penstock.cli.shown.logs import FieldFormatter, without_gateway_tracebacks
from penstock.cli.shown.output import show_error
from penstock.model.errors import PenstockError
from testing.servers.api_server import ApiServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as running:
        yield running


def test_help_names_every_verb_and_imports_none() -> None:
    code = (
        "import sys; from penstock.cli.main import run; run(['--help']); "
        "print('spark', 'pyspark' in sys.modules, 'arrow', 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "spark False arrow False"
    for verb in VERBS:
        assert f"  {verb} " in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("penstock, version ")


@pytest.mark.parametrize("argv", [["fed"], ["feed", "crate"], ["feed", "create"], ["--no-such-option"], ["feed"], []])
def test_wrong_usage_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert "Usage: penstock" in out + err
    assert "Traceback" not in out + err


def test_the_nearest_verb_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fed"]) == 2
    assert "Did you mean feed?" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["feed", "--help"], ["feed", "create", "--help"], ["server", "--help"]])
def test_help_shows_examples(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 0
    assert "penstock " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "exit_code"), [("CONFIG_INVALID", 2), ("SINK_UNWRITABLE", 2), ("UPSTREAM_UNREACHABLE", 75), ("VERIFY_MISMATCH", 1)]
)
def test_exit_codes_by_kind(monkeypatch: pytest.MonkeyPatch, code: str, exit_code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**_: object) -> None:
        raise PenstockError(code, "put s3://b?secret-access-key=hunter2 failed")

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert run([]) == exit_code
    err = capsys.readouterr().err
    assert err.startswith(f"error: [{code}] put s3://b?secret-access-key=*** failed\nhint: ")
    with pytest.raises(PenstockError):
        run(["--debug"])


def test_unexpected_error_has_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert run([]) == 1
    assert capsys.readouterr().err.startswith("error: [INTERNAL] KeyError: 'x'\nhint: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
@pytest.mark.parametrize(
    ("redirected", "code", "told"),
    [
        (">/dev/full", 2, "error: [OUTPUT_FAILED] what this writes: No space left on device"),
        (">/dev/full 2>/dev/full", 2, ""),
        (">&-", 0, ""),
    ],
)
def test_a_full_disk_under_standard_output_is_no_fault_of_ours(redirected: str, code: int, told: str) -> None:
    program = f"{sys.executable} -m penstock.cli.main completion bash {redirected}"
    done = subprocess.run(["/bin/sh", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[:1]) == (code, [told] if told else [])
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_error_of_many_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(PenstockError("CONFIG_INVALID", "a: wrong\nb: wrong"))
    assert capsys.readouterr().err.splitlines()[:3] == ["error: [CONFIG_INVALID] 2 problems", "  a: wrong", "  b: wrong"]


def test_logs_show_fields_and_mask_secrets() -> None:
    record = logging.makeLogRecord(
        {"name": "n", "levelname": "INFO", "msg": "feed %s", "args": ("x",), "feed": "orders", "uri": "s3://b?token=hunter2"}
    )
    line = FieldFormatter().format(record)
    assert line.endswith("INFO n: feed x feed=orders uri=s3://b?token=***")


def test_feed_verbs_end_to_end(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--server", server.url]
    assert run(["feed", "list", "--server", server.url.removeprefix("http://")]) == 0, "host:port will do"
    assert "no feeds" in capsys.readouterr().out

    config = tmp_path / "feed.toml"
    config.write_text(f'tables = ["shop.items"]\nsink = "s3://{tmp_path.name}/out?secret-access-key=hunter2"\nflush-interval = "9s"\n')
    assert run(["feed", "create", "orders", "--config", str(config), "--table", "shop.*", "--set", "sink.csv.delimiter=;", *at]) == 0
    assert capsys.readouterr().out == "feed orders created: 2 tables (shop.items, shop.orders)\n"
    server.runs.next_run().capture_problems = ("shop.items: [NOT_LEADER] no leader, token=hunter2 (3 failures)",)

    assert run(["feed", "show", "orders", "--output", "json", *at]) == 0
    text = capsys.readouterr().out
    shown = json.loads(text)
    assert (shown["name"], shown["config"]["flush-interval"], shown["config"]["sink"]["csv"]) == ("orders", 9.0, {"delimiter": ";"})
    assert "hunter2" not in text

    assert run(["feed", "show", "orders", *at]) == 0
    text = capsys.readouterr().out
    assert "shop.items, shop.orders" in text
    assert "[NOT_LEADER] no leader" in text
    assert "hunter2" not in text

    assert run(["feed", "create", "people", "--source", "crm", "--table", "shop.*", "--sink", "s3://b/people", *at]) == 2
    assert "source: this server captures dataserver://127.0.0.1:1, not 'crm'" in capsys.readouterr().err

    assert run(["feed", "list", "--output", "json", *at]) == 0
    assert [feed["name"] for feed in json.loads(capsys.readouterr().out)] == ["orders"]
    assert run(["feed", "list", *at]) == 0
    assert "orders" in capsys.readouterr().out

    assert run(["feed", "remove", "orders", *at]) == 0
    assert capsys.readouterr().out == "feed orders removed\n"
    assert server.meta.list_feeds() == []


def test_something_else_that_answers_is_no_server(tmp_path: Path, server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["feed", "list", "--server", f"{server.url}/metrics"]) == 2
    assert run(["feed", "list", "--server", "not a url"]) == 75
    assert "Traceback" not in capsys.readouterr().err


def test_tracebacks_of_sparks_gateway_are_left_to_who_called_it() -> None:
    import py4j.java_gateway

    def record(name: str, path: str | None) -> logging.LogRecord:
        return logging.LogRecord(name, logging.ERROR, path or "", 1, "Exception while sending command.", None, None)

    assert not without_gateway_tracebacks(record("root", py4j.java_gateway.__file__))
    assert without_gateway_tracebacks(record("root", __file__))
    assert without_gateway_tracebacks(record("py4j.java_gateway", py4j.java_gateway.__file__))


def piped(argv: list[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    code = "import sys; from penstock.cli.main import main; main(sys.argv[1:])"
    return subprocess.Popen([sys.executable, "-c", code, *argv], stdout=-1, stderr=-1, env=os.environ | (env or {}))


def test_a_reader_that_goes_away_and_an_end_that_is_asked_for(server: ApiServer) -> None:
    watching = ["status", "--watch", "--interval", "0.1", "--output", "json", "--server", server.url]
    with piped(watching) as unread:
        assert unread.stdout is not None
        assert json.loads(unread.stdout.readline())["status"] == "ok"
        unread.stdout.close()
        assert unread.wait(120) == 141
        assert unread.stderr is not None
        assert unread.stderr.read() == b""
    with piped(watching) as ended:
        assert ended.stdout is not None
        assert ended.stdout.readline()
        ended.terminate()
        ended.stdout.read()
        assert ended.wait(120) == 130
        assert ended.stderr is not None
        assert ended.stderr.read().strip() == b""


def test_what_a_terminal_has_no_characters_for(tmp_path: Path) -> None:
    with ApiServer(tmp_path, "shop.büro") as server:
        assert run(["feed", "create", "f", "--table", "shop.*", "--sink", f"s3://{tmp_path.name}/f", "--server", server.url]) == 0
        with piped(["feed", "table", "list", "f", "--server", server.url], {"PYTHONIOENCODING": "ascii"}) as shown:
            out, err = shown.communicate(timeout=120)
        assert (shown.returncode, err) == (0, b"")
        assert b"shop.b\\xfcro" in out


def test_a_word_that_is_no_text(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["feed", "show", "b\udcfcro", "--server", server.url]) == 2
    assert "No text in this terminal's encoding: b'b\\xfcro'" in capsys.readouterr().err
