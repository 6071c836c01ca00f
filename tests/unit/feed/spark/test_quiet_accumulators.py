"""A JVM that dies breaks the connection over which it sends accumulators; that is no traceback on the terminal."""

from __future__ import annotations

import logging
import socket

import pytest
from pyspark import accumulators

from penstock.feed.spark.quiet_accumulators import quiet_accumulators
from testing.servers.waiting import wait_until


def test_a_broken_connection_is_one_line_of_the_log(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    quiet_accumulators()
    server = accumulators._start_update_server("token", is_unix_domain_sock=False)
    try:
        with caplog.at_level(logging.DEBUG):
            with socket.create_connection(server.server_address) as jvm:  # type: ignore[arg-type]
                jvm.sendall(b"token")
            wait_until(lambda: bool(caplog.records), "the end of the connection is noticed", 60)
    finally:
        server.shutdown()
    assert [(record.levelname, record.error) for record in caplog.records] == [("DEBUG", "EOFError")]  # type: ignore[attr-defined]
    assert "Traceback" not in "".join(capfd.readouterr())
