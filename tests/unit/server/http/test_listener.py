from __future__ import annotations

import socket

import pytest
from fastapi import FastAPI

from penstock.model.errors import PenstockError
from penstock.server.http.listener import HttpListener


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


def test_taken_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listener = HttpListener(FastAPI(), "127.0.0.1", taken.getsockname()[1])
        with refused("CONFIG_INVALID"):
            listener.start()
        listener.stop()
