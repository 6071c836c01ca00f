from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config.known_servers import HOME_VARIABLE, KnownServer, announce, ensure_token, find_server, read_token
from penstock.model.errors import PenstockError

URL = "http://127.0.0.1:8300"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home" / "servers"


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = ensure_token(tmp_path)
    token = read_token(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_token(ensure_token(tmp_path)) == token
    assert len(token) > 40
    file.chmod(0o644)
    with refused("CONFIG_INVALID"):
        ensure_token(tmp_path)
    file.unlink()
    assert read_token(ensure_token(tmp_path)) != token


def test_a_token_that_cannot_be_read(tmp_path: Path) -> None:
    with refused("API_TOKEN_REQUIRED"):
        read_token(tmp_path / "none")


def test_a_server_is_known_while_it_lives(home: Path) -> None:
    server = KnownServer(URL, "/data/api-token")
    assert find_server(URL) is None
    withdraw = announce(server)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [find_server(url) for url in (URL, f"{URL}/", "http://localhost:8300", "http://127.0.0.1:8301", "no url")] == [
        server,
        server,
        server,
        None,
        None,
    ]
    withdraw()
    assert find_server(URL) is None
    assert list(home.iterdir()) == []


def test_a_server_that_was_killed_is_not_trusted(home: Path) -> None:
    program = (
        f"import os; from penstock.config.known_servers import *; announce(KnownServer({URL!r}, '/t')); print(flush=True); os.read(0, 1)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert find_server(URL) == KnownServer(URL, "/t")
        process.kill()
        process.wait()
    assert [file.name for file in home.iterdir()] == ["127.0.0.1-8300.json"]
    # Whoever listens there now is not sent the token.
    assert find_server(URL) is None
    successor = KnownServer(URL, "/u")
    withdraw = announce(successor)
    assert find_server(URL) == successor
    withdraw()


def test_a_server_that_listens_everywhere_is_called_here(home: Path) -> None:
    del home
    withdraw = announce(KnownServer("http://0.0.0.0:8300", "/t"))
    assert find_server(URL) == KnownServer("http://0.0.0.0:8300", "/t")
    withdraw()


def test_notes_that_others_can_write_are_not_believed(home: Path) -> None:
    withdraw = announce(KnownServer(URL, "/t"))
    os.chmod(home, 0o777)
    assert find_server(URL) is None
    announce(KnownServer(URL, "/u"))()
    os.chmod(home, 0o700)
    assert find_server(URL) == KnownServer(URL, "/t")
    withdraw()


def test_a_user_without_a_home_has_a_server_that_starts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As in a container that gives a process a number for its user and nothing else."""
    monkeypatch.delenv("PENSTOCK_HOME", raising=False)
    monkeypatch.setenv("HOME", "~")
    assert find_server("http://127.0.0.1:1") is None
    announce(KnownServer("http://127.0.0.1:1", "/data/api-token"))()
    assert "will not find the token" in caplog.text
