"""Servers on loopback: what benchmarks and tests have in common, beside what the demo starts them with (``cli/demo/loopback.py``).

A program that is not on this machine is ``MISSING_DEPENDENCY`` and names its Debian package. Runs in benchmarks and in tests.
"""

from __future__ import annotations

import atexit
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from penstock.cli.demo.loopback import STOP_S_MAX, answers, as_user, end, program, running, unprivileged
from penstock.model.errors import PenstockError

__all__ = [
    "STOP_S_MAX",
    "answers",
    "as_user",
    "end",
    "free_port",
    "http_server",
    "mysql_command",
    "mysql_root",
    "program",
    "running",
    "unprivileged",
]
"""What is started by the demo as well has its home there."""
MYSQL_ROOT_VARIABLE = "PENSTOCK_MYSQL_ROOT"
MYSQL_ROOT_DEFAULT = Path("/var/cache/penstock/mysql-root")
_GIVEN_BY_THE_SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORTS = 12_000
_held: list[socket.socket] = []
"""Names that this process holds, one for each port that it was told."""


@atexit.register
def _release() -> None:
    for name in _held:
        name.close()


def free_port(neighbour: int = 0) -> int:
    """Return a loopback port that nobody else gets while this process lives; with ``neighbour``, the one so far above it too.

    It is none of those that the system gives to connections and to servers that ask for any: such a server, or a connection, could have
    it before the server for which it is meant, or while that one is started again.
    """
    end_port = int(_GIVEN_BY_THE_SYSTEM.read_text(encoding="ascii").split()[0]) - neighbour
    first = max(1_024, end_port + neighbour - _PORTS)
    for step in range(end_port - first):
        port = first + (os.getpid() * 101 + step) % (end_port - first)
        if _hold(port) and (not neighbour or _hold(port + neighbour)):
            return port
    raise OSError("no loopback port is free")


def _hold(port: int) -> bool:
    """Hold a port against other processes that ask here, by a name that ends with this process; return whether it could be had."""
    name, one = socket.socket(socket.AF_UNIX), socket.socket()
    try:
        name.bind(f"\0penstock-port-{port}")
        one.bind(("127.0.0.1", port))
    except OSError:
        name.close()
        return False
    finally:
        one.close()
    _held.append(name)
    return True


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None, **shared: object) -> Iterator[str]:
    """Answer HTTP on a free loopback port, each connection in a thread; yield the address. Handlers find what they share at the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    vars(server).update(shared)
    thread = threading.Thread(target=server.serve_forever, name="http-server", daemon=True)
    thread.start()
    try:
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def mysql_root() -> Path | None:
    """Return the folder into which ``scripts/mysql_root.sh`` laid MySQL, or None where it did not."""
    root = Path(os.environ.get(MYSQL_ROOT_VARIABLE, MYSQL_ROOT_DEFAULT))
    return root if (root / "usr/sbin/mysqld").exists() else None


def mysql_command(directory: Path, port: int, user: str | None, statements: Sequence[str]) -> list[str]:
    """Make MySQL's data in a directory; return how its server is called, with its own loader and libraries.

    It has GTIDs and full row metadata, and executes the statements when it starts: it looks no names up, so the account that it comes
    with would let nobody in by address.
    """
    root = mysql_root()
    if root is None:
        raise PenstockError("MISSING_DEPENDENCY", "MySQL is not laid out on this machine", "Run make test-mysql, or scripts/mysql_root.sh.")
    loader = next(iter(root.glob("usr/lib64/ld-linux-*.so.*")))
    libraries = ":".join(str(p) for p in (*root.glob("usr/lib/*-linux-gnu*"), root / "usr/lib/mysql/private"))
    start = [str(loader), "--library-path", libraries, str(root / "usr/sbin/mysqld"), "--no-defaults", f"--basedir={root}/usr"]
    start += [f"--lc-messages-dir={root}/usr/share/mysql", f"--datadir={directory}/data", f"--tmpdir={directory}"]
    subprocess.run(as_user(user, [*start, "--initialize-insecure"]), check=True, capture_output=True, cwd=directory)
    (directory / "init.sql").write_text("".join(f"{statement};\n" for statement in statements), encoding="utf-8")
    return [
        *(*start, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={directory}/s.sock", f"--pid-file={directory}/pid"),
        *("--mysqlx=OFF", "--secure-file-priv=", "--skip-name-resolve", f"--init-file={directory}/init.sql"),
        *("--innodb-flush-log-at-trx-commit=0", "--server-id=1", "--log-bin=binlog"),
        *("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--binlog-row-metadata=FULL"),
    ]
