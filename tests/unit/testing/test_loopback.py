"""Ports that tests are told are theirs, whatever other processes ask for and whatever the system gives to connections."""

import os
import subprocess
import sys
from pathlib import Path

from testing.servers.loopback import free_port

ASKS_IN_MY_PLACE = """
import os
os.getpid = lambda: {pid}
from testing.servers.loopback import free_port
print(*[free_port() for _ in range(20)])
"""


def test_no_two_processes_are_told_the_same_port() -> None:
    """The other one looks where this one looks, although nothing listens there yet."""
    mine = {free_port() for _ in range(20)} | {free_port(100) + more for _ in range(5) for more in (0, 100)}
    assert len(mine) == 30
    command = [sys.executable, "-c", ASKS_IN_MY_PLACE.format(pid=os.getpid())]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    theirs = {int(port) for port in done.stdout.split()}
    assert len(theirs) == 20
    assert not theirs & mine


def test_a_port_is_none_that_the_system_gives_away() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    assert not any(first <= port <= last for port in (free_port(), free_port(10_000) + 10_000))
