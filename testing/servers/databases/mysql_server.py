"""A real MySQL on loopback for tests, from a folder that ``scripts/mysql_root.sh`` laid out; nothing of it is installed here.

The tests that want it (marker ``mysql``) run by ``make test-mysql``. Runs in tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testing.servers.loopback import answers, free_port, mysql_command, running, unprivileged

_ROOT_BY_ADDRESS = ("CREATE USER IF NOT EXISTS root@'%' IDENTIFIED BY ''", "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION")


@contextmanager
def mysql(directory: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """Start MySQL in a directory with GTIDs and full row metadata; yield the URI of its root user."""
    user, port = unprivileged(directory), free_port()
    command = mysql_command(directory, port, user, _ROOT_BY_ADDRESS)
    with running([*command, *options], directory, answers(port), user):
        yield f"mysql://root@127.0.0.1:{port}/"
