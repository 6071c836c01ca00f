from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from penstock import Client, PenstockError
from penstock.cli.main import run
from penstock.cli.server_client import await_server
from penstock.config.known_servers import HOME_VARIABLE, announce_start, find_server, is_starting
from testing.servers.waiting import wait_until


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


def test_a_server_that_is_starting_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    said = ""
    # Whoever listens there already may be anybody: it counts when the server says that it has started.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        started = announce_start(url)
        # It is known to start; a token is not sent there before it is known to be the one that listens.
        assert (is_starting(url), find_server(url)) == (True, None)
        waiting = threading.Thread(target=await_server, args=(url, 300.0), daemon=True)
        waiting.start()

        def is_said() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return "\n" in said

        wait_until(is_said, "it says what it waits for", 60)
        assert said == f"waiting up to 300 s for the server at {url}, which is starting\n"
        assert waiting.is_alive()
        started()
        waiting.join(60)
    assert (waiting.is_alive(), is_starting(url)) == (False, False)


def test_what_does_not_come_is_waited_for_up_to_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        # Nobody else can have the port, and nobody listens there.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for verb in (["feed", "create", "x", "--table", "a.b", "--sink", "file:///tmp/never"], ["sql", "-e", "SHOW CHANGEFEEDS"]):
            assert run([*verb, "--wait", "0.1", "--server", url]) == 75
            said = capsys.readouterr().err.splitlines()
            assert said[0] == f"waiting up to 0.1 s for the server at {url}, where nobody listens yet"
            assert "SERVER_UNREACHABLE" in said[1]


@pytest.mark.parametrize("address", ["", "http://", "ftp://127.0.0.1:1", "http://[", "http://h:port"])
def test_what_is_no_address_is_the_callers_fault(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--server", address]) == 2
    assert "is no address of one" in capsys.readouterr().err
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        Client(address)
