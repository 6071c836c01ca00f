"""MariaDB and PostgreSQL as the demo starts them: made in a folder, with a log that can be captured, ended with the block.

Invariant: nothing outside of the folder is read or written, whatever configuration the machine has for its own servers. Runs in the demo
and in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.cli.demo.loopback import POSTGRES_ENDS, answers, complete, free_port, program, running, unprivileged, with_us

BINLOG = ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW")
"""Options with which MariaDB writes a log that can be captured."""
LOGICAL = ("-c", "wal_level=logical")
"""The same for PostgreSQL."""


@contextmanager
def mariadb(directory: Path, stop: threading.Event, options: Sequence[str] = BINLOG) -> Iterator[str]:
    """Run MariaDB in a new folder; yield the URI of its root user."""
    install = program("mariadb-install-db", "mariadb-server-core")
    server = program("mariadbd", "mariadb-server-core")
    user, data, pid_file = unprivileged(directory), directory / "data", directory / "pid"
    made = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
    # It starts a server, and one that starts removes what it finds in the folder for temporary tables, those of other servers too.
    complete(made, directory, user, stop, {"TMPDIR": str(directory)})
    port = free_port()
    listens = answers(port)

    def is_ready() -> bool:
        # Whatever else may answer at the port, the file is the server's own.
        return pid_file.exists() and listens()

    # A socket's path may have 107 bytes, and folders for temporary files may have more: it lies in the server's own folder.
    command = [
        *(server, "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1", "--socket=s.sock"),
        *("--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", f"--pid-file={pid_file}", f"--tmpdir={directory}", *options),
    ]
    with running(with_us(command, "TERM"), directory, is_ready, user, stop):
        yield f"mysql://root@127.0.0.1:{port}/"


@contextmanager
def postgres(directory: Path, stop: threading.Event, options: Sequence[str] = LOGICAL) -> Iterator[str]:
    """Run PostgreSQL in a new folder; yield the URI of its database."""
    initdb, server = program("initdb", "postgresql"), program("postgres", "postgresql")
    user, data = unprivileged(directory), directory / "data"
    made = [initdb, "-D", str(data), "-U", "penstock", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8"]
    complete(made, directory, user, stop, {})
    port = free_port()
    command = [server, "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-F", "-c", "unix_socket_directories=", *options]
    pid_file = data / "postmaster.pid"

    def is_ready() -> bool:
        # The server writes "ready" into it once it lets sessions in.
        return pid_file.exists() and pid_file.read_text(encoding="utf-8").splitlines()[-1:] == ["ready   "]

    with running(with_us(command, "INT"), directory, is_ready, user, stop, POSTGRES_ENDS):
        yield f"postgresql://penstock@127.0.0.1:{port}/postgres"


STARTERS = {"mysql": mariadb, "postgres": postgres}
PROGRAMS = {
    "mysql": (("mariadb-install-db", "mariadb-server-core"), ("mariadbd", "mariadb-server-core")),
    "postgres": (("initdb", "postgresql"), ("postgres", "postgresql")),
}


def check_programs(kind: str) -> None:
    """Raise ``MISSING_DEPENDENCY`` where a server is not on this machine."""
    for name, package in PROGRAMS[kind]:
        program(name, package)
