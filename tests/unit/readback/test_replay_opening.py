"""Databases that a replay enters: a server that lies hears no password, and no error shows one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.model.errors import PenstockError
from penstock.readback.replay_opening import open_database
from testing.servers.rogue import Peer, mysql_greeting, mysql_switch, postgres_asks, rogue

PASSWORD = "S3cretOfTheTarget"


def mysql_in_clear(peer: Peer) -> None:
    peer.send(mysql_greeting())
    peer.read_mysql()
    peer.send(mysql_switch(2, "mysql_clear_password"))
    peer.read_mysql()


def postgres_in_clear(peer: Peer) -> None:
    # Requests for encryption are eight bytes long, and the startup message is longer.
    while (length := int.from_bytes(peer.read(4), "big")) == 8:
        peer.read(4)
        peer.send(b"N")
    peer.read(max(0, length - 4))
    peer.send(postgres_asks(3))
    peer.read_postgres()


@pytest.mark.parametrize(("scheme", "script"), [("mysql", mysql_in_clear), ("postgresql", postgres_in_clear)])
def test_a_server_that_nobody_knows_hears_no_password(scheme: str, script: Callable[[Peer], None]) -> None:
    with rogue(script) as server, pytest.raises(PenstockError) as wrong:
        open_database(f"{scheme}://cdc:{PASSWORD}@127.0.0.1:{server.port}/notes")
    assert PASSWORD.encode() not in server.heard
    assert PASSWORD not in str(wrong.value)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://cdc:hunter2SECRET/aa@h:1/x",
        "mysql://cdc:hunter2SECRET/aa@h:3306/x",
        "postgresql://u:hunter2SECRET@[/x",
        "mysql://u:hunter2SECRET@[/x",
        "nothing://u:hunter2SECRET@h/x",
        "mysql://u:hunter2SECRET@h",
    ],
)
def test_no_error_shows_a_part_of_a_password(uri: str) -> None:
    with pytest.raises(PenstockError) as wrong:
        open_database(uri)
    assert "hunter2" not in f"{wrong.value} {wrong.value.hint}"
