"""Every bad input through the command line: a code, a hint, exit code 2, and nothing half-created."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import run
from testing.servers.api_server import ApiServer
from testing.servers.loopback import free_port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    (tmp_path / "server").mkdir()
    with ApiServer(tmp_path / "server", "shop.orders", "shop.items") as running:
        yield running


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def create(server: ApiServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[object]:
    """Run ``feed create`` against the server; afterwards nothing may be created anywhere."""
    before = listing(tmp_path)

    def call(*arguments: str, name: str = "orders") -> Outcome:
        nonlocal before
        before = listing(tmp_path)
        code = run(["feed", "create", name, *arguments, "--server", server.url])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    yield call
    assert server.meta.list_feeds() == []
    assert server.meta.feed_tables("orders") == []
    assert listing(tmp_path) == before
    assert server.runs.waiting() == 0


def listing(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*") if "server" not in path.relative_to(root).parts[:1]}


def check(outcome: Outcome, code: str, *texts: str) -> None:
    assert outcome.code == (75 if code in {"UPSTREAM_UNREACHABLE", "SERVER_UNREACHABLE"} else 2), outcome.err
    lines = outcome.err.splitlines()
    assert lines[0].startswith(f"error: [{code}] ")
    assert lines[-1].startswith("hint: ")
    assert len(lines[-1]) > len("hint: ")
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    for text in texts:
        assert text in outcome.err


def test_unknown_table(create, tmp_path: Path) -> None:
    outcome = create("--table", "shop.oders", "--sink", (tmp_path / "out").as_uri())
    check(outcome, "TABLE_UNKNOWN", "shop.oders", "near: shop.orders")


def test_one_unknown_pattern_among_good_ones(create, tmp_path: Path) -> None:
    check(create("--table", "shop.*", "--table", "crm.*", "--sink", (tmp_path / "out").as_uri()), "TABLE_UNKNOWN", "crm.*")


@pytest.mark.parametrize("uri", ["ftp://host/dir", "just/a/path", "s3://", "file://relative/dir", "nonsense", "file:///"[:5]])
def test_bad_sink_uri(create, uri: str) -> None:
    check(create("--table", "shop.*", "--sink", uri), "SINK_URI_INVALID")


def test_unreachable_upstream(create, server: ApiServer, tmp_path: Path) -> None:
    server.upstream.down = True
    check(create("--table", "shop.*", "--sink", (tmp_path / "out").as_uri()), "UPSTREAM_UNREACHABLE", "127.0.0.1:1")


def test_target_of_another_feed(server: ApiServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sink = (tmp_path / "out").as_uri()
    assert run(["feed", "create", "first", "--table", "shop.*", "--sink", sink, "--server", server.url]) == 0
    server.runs.next_run()
    capfd.readouterr()
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    code = run(["feed", "create", "second", "--table", "shop.*", "--sink", sink, "--server", server.url])
    out, err = capfd.readouterr()
    check(Outcome(code, out, err), "SINK_OCCUPIED", "first")
    assert [feed.name for feed in server.meta.list_feeds()] == ["first"]
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_target_with_foreign_files(create, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    check(create("--table", "shop.*", "--sink", (tmp_path / "out").as_uri()), "SINK_OCCUPIED")
    assert (tmp_path / "out" / "precious.txt").read_text() == "mine"


def test_target_that_is_a_file(create, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    check(create("--table", "shop.*", "--sink", (tmp_path / "file").as_uri()), "SINK_UNWRITABLE")


def test_target_below_a_file(create, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    check(create("--table", "shop.*", "--sink", (tmp_path / "file" / "out").as_uri()), "SINK_UNWRITABLE")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_directory(create, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    check(create("--table", "shop.*", "--sink", (tmp_path / "out").as_uri()), "SINK_UNWRITABLE")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory that nobody can write, not even root")
def test_directory_that_nobody_can_write(create) -> None:
    check(create("--table", "shop.*", "--sink", "file:///proc/self/penstock"), "SINK_UNWRITABLE")


def test_invalid_configuration_all_at_once(create, tmp_path: Path) -> None:
    config = tmp_path / "feed.toml"
    config.write_text(
        'tables = ["shop.*"]\nflush-intervall = "5s"\nwindow-bytes-max = "some"\n'
        '[sink]\nuri = "file:///tmp/never?secret-access-key=hunter2"\nfile-size = -1\n[sink.csv]\ndelimeter = ";"\nquote = "long quote"\n'
    )
    outcome = create("--config", str(config), "--set", "partitions=many")
    paths = ["flush-intervall: ", "window-bytes-max: ", "sink.file-size: ", "sink.csv.delimeter: ", "sink.csv.quote: ", "partitions: "]
    check(outcome, "CONFIG_INVALID", *(f"\n  {path}" for path in paths))
    listed = [line for line in outcome.err.splitlines() if line.startswith("  ")]
    assert len(listed) >= len(paths)
    assert f"error: [CONFIG_INVALID] {len(listed)} problems" in outcome.err
    assert "hunter2" not in outcome.err


def test_nothing_given(create) -> None:
    check(create(), "CONFIG_INVALID", "tables: is required", "sink: is required")


@pytest.mark.parametrize("text", ["tables = [", 'when = 2026-11-15\ntables = ["shop.*"]\nsink = "file:///tmp/never"\n'])
def test_configuration_file_that_cannot_be_used(create, tmp_path: Path, text: str) -> None:
    config = tmp_path / "feed.toml"
    config.write_text(text)
    check(create("--config", str(config)), "CONFIG_INVALID")


def test_missing_configuration_file(create, tmp_path: Path) -> None:
    check(create("--config", str(tmp_path / "none.toml")), "CONFIG_INVALID", "none.toml")


@pytest.mark.parametrize("name", ["no/slash", "", "_first", "a" * 64, "sp ace"])
def test_bad_name(create, tmp_path: Path, name: str) -> None:
    check(create("--table", "shop.*", "--sink", (tmp_path / "out").as_uri(), name=name), "CONFIG_INVALID", "name: ")


@pytest.mark.parametrize(
    "verb", [["list"], ["show", "x"], ["remove", "x"], ["create", "x", "--table", "a.b", "--sink", "file:///tmp/never", "--wait", "0"]]
)
def test_no_server(verb: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    code = run(["feed", *verb, "--server", f"http://127.0.0.1:{free_port()}"])
    out, err = capfd.readouterr()
    check(Outcome(code, out, err), "SERVER_UNREACHABLE", "penstock server")


@pytest.mark.parametrize("verb", ["show", "remove"])
def test_unknown_feed(server: ApiServer, verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = run(["feed", verb, "nothing", "--server", server.url])
    out, err = capfd.readouterr()
    check(Outcome(code, out, err), "FEED_UNKNOWN", "nothing")


def server_verb(*arguments: str) -> Outcome:
    command = [sys.executable, "-m", "penstock.cli.main", "server", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_server_with_an_unreachable_source(tmp_path: Path) -> None:
    port = free_port()
    outcome = server_verb("--source", f"dataserver://127.0.0.1:{port}", "--data-dir", str(tmp_path / "data"))
    check(outcome, "UPSTREAM_UNREACHABLE", str(port))


def test_server_with_bad_options(tmp_path: Path) -> None:
    outcome = server_verb(
        "--http-port", "99999", "--set", "supervisor.lease=0s", "--set", "suprevisor=1", "--data-dir", str(tmp_path / "data")
    )
    check(outcome, "CONFIG_INVALID", "source: is required", "supervisor.lease: ", "suprevisor: unknown key; did you mean supervisor")
    assert not (tmp_path / "data").exists()


def test_server_with_an_unwritable_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    check(
        server_verb("--source", "dataserver://127.0.0.1:1", "--data-dir", str(tmp_path / "file" / "data")), "CONFIG_INVALID", "data-dir: "
    )
