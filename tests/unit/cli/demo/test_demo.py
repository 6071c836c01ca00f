"""The demo before it starts anything: what is not there or not possible is said at once, and nothing is left."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import click
import pytest
from rich.console import Console

from penstock.cli.demo.demo import LOG, _verified, folder, java_files_in
from penstock.cli.demo.loopback import program
from penstock.cli.demo.view import View
from penstock.cli.main import run
from penstock.cli.server_client import ServerClient
from penstock.config.known_servers import HOME_VARIABLE
from penstock.feed.spark.java import ensure_java
from penstock.model.errors import PenstockError
from penstock.server.process import ServerProcess
from testing.servers.api_server import ApiServer
from tests.unit.cli.demo.test_picture import figures


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert run(["demo", "--out", str(tmp_path)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_server_that_is_not_installed_is_named_with_its_package() -> None:
    with pytest.raises(PenstockError) as caught:
        program("no-such-server", "some-package")
    assert (caught.value.code, caught.value.hint) == ("MISSING_DEPENDENCY", "Install the Debian package some-package.")


def test_a_folder_that_cannot_be_made_is_said(temporary: Path) -> None:
    with pytest.raises(PenstockError, match="/proc/nothing") as caught, folder(Path("/proc/nothing/out"), keep=False):
        pass
    assert caught.value.code == "CONFIG_INVALID"
    assert list(temporary.iterdir()) == []


def fail(error: BaseException) -> None:
    """Begin a demo, and fail in the middle of it."""
    with folder(None, keep=False) as (root, target):
        (root / LOG).write_text("what Spark said")
        (target / "file").write_text("x")
        raise error


def test_a_log_is_kept_beside_where_something_failed(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PenstockError):
        fail(PenstockError("FEED_FAILED", "no"))
    [kept] = temporary.iterdir()
    assert (kept.read_text(), capsys.readouterr().err) == ("what Spark said", f"log: {kept}\n")


@pytest.mark.parametrize("failure", [click.exceptions.Exit(130), KeyboardInterrupt(), SystemExit(1)])
def test_nothing_is_left_of_one_that_was_stopped(temporary: Path, failure: BaseException) -> None:
    with pytest.raises(type(failure)):
        fail(failure)
    assert list(temporary.iterdir()) == []


def test_what_is_to_be_kept_is_kept(temporary: Path) -> None:
    with folder(None, keep=True) as (root, target):
        (target / "file").write_text("x")
    assert list(temporary.iterdir()) == [root]
    assert (target / "file").read_text() == "x"


def test_what_others_print_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"""
import os, sys, warnings
from pathlib import Path
from penstock.cli.demo.quiet import quiet
print("before")
with quiet(Path({str(log)!r})) as shown:
    os.system("echo noise; echo noise >&2")
    print("python's noise")
    warnings.warn("a warning")
    print("shown \\u25b6", file=shown)
print("after")
print("error", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, timeout=60
    )
    assert done.stdout.decode().split("\n") == ["before", "shown ?", "after", ""]
    assert done.stderr.decode() == "error\n"
    assert sorted(line for line in log.read_text().splitlines() if "noise" in line) == ["noise", "noise", "python's noise"]
    assert "a warning" in log.read_text()


LEFT = """
import sys, threading
from pathlib import Path
from penstock.cli.demo.demo import _leave
root = Path(sys.argv[1])
begun = threading.Event()
def write():
    number = 0
    while True:
        number += 1
        try:
            (root / "data" / str(number)).write_bytes(b"x")
        except FileNotFoundError:
            pass
        if number == 200:
            begun.set()
for _ in range(2):
    threading.Thread(target=write, daemon=True).start()
begun.wait()
_leave(130, root)
"""


def test_who_leaves_at_once_leaves_no_file_though_threads_write(tmp_path: Path) -> None:
    root = tmp_path / "penstock-demo-x"
    (root / "data").mkdir(parents=True)
    done = subprocess.run([sys.executable, "-c", LEFT, str(root)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_java_keeps_its_files_in_the_folder_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Done=1")
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    root = tmp_path / "a folder's name"
    root.mkdir()
    ensure_java()
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    with java_files_in(root):
        shown = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True, timeout=120
        ).stderr
        assert os.environ["SPARK_LOCAL_DIRS"] == str(root / "java")
    assert {"java.io.tmpdir = " + str(root / "java"), "one = 1"} <= {line.strip() for line in shown.splitlines()}
    assert os.environ["JAVA_TOOL_OPTIONS"] == "-Done=1"
    assert "SPARK_LOCAL_DIRS" not in os.environ


def test_verification_shows_the_token_of_the_server_whatever_the_home_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ApiServer(tmp_path, "shop.orders") as server:
        # As where nothing could be written into the home: the command line finds no token there.
        monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "none"))
        process = cast("ServerProcess", SimpleNamespace(url=server.url, token=server.token))
        view = View(Console(file=io.StringIO()), "local[*]", threading.Event())
        with ServerClient(server.url, token=server.token) as client, pytest.raises(PenstockError) as caught:
            _verified(process, client, view, figures(), threading.Event())
    assert caught.value.code == "FEED_UNKNOWN", "it was let in, and asked for a feed that is not there"
