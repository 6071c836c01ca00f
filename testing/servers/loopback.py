"""Servers on loopback, each in a folder of its own and ended by its process: what benchmarks and tests have in common.

Nothing here knows what a server serves. A program that is not on this machine is ``MISSING_DEPENDENCY`` and names its Debian package.
Runs in benchmarks and in tests.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError

START_S_MAX = 90.0
STOP_S_MAX = 20.0
MYSQL_ROOT_VARIABLE = "PENSTOCK_MYSQL_ROOT"
MYSQL_ROOT_DEFAULT = Path("/var/cache/penstock/mysql-root")


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def answers(port: int) -> Callable[[], bool]:
    """Return a test of whether something listens at a loopback port."""

    def ready() -> bool:
        with socket.socket() as one:
            one.settimeout(1.0)
            return one.connect_ex(("127.0.0.1", port)) == 0

    return ready


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


@contextmanager
def running(command: Sequence[str], directory: Path, ready: Callable[[], bool], user: str | None = None) -> Iterator[None]:
    """Run a server until the block ends; wait until it is ready."""
    log = directory / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(as_user(user, command), stdout=out, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True)
    try:
        clock, pause = SystemClock(), threading.Event()
        deadline = clock.monotonic_s() + START_S_MAX
        while not ready():
            if process.poll() is not None or clock.monotonic_s() > deadline:
                said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise PenstockError("UPSTREAM_UNREACHABLE", f"{command[0]} did not start: {said}")
            clock.wait(pause, 0.1)
        yield
    finally:
        end(process)


def end(process: subprocess.Popen[bytes], wait_s: float = STOP_S_MAX) -> None:
    """End a server that leads its process group, and what it started with it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def unprivileged(directory: Path) -> str | None:
    """Make a directory; return the user under which a server runs that refuses to run as root, let into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return None
    name = next(u.pw_name for u in pwd.getpwall() if u.pw_name in {"postgres", "mysql", "nobody"})
    shutil.chown(directory, name)
    for parent in (directory, *directory.parents):
        if parent.stat().st_uid == 0 and parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    return name


def as_user(user: str | None, command: Sequence[str]) -> list[str]:
    """Return a command that runs under another user.

    Python would fork for it rather than spawn, and gRPC, whose threads are in the tests' process, aborts a fork now and then.
    """
    return [*(("setpriv", f"--reuid={user}") if user else ()), *command]


def program(name: str, package: str) -> str:
    """Return where a program is; PostgreSQL's newest version first, whose programs are on no path."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        raise PenstockError("MISSING_DEPENDENCY", f"{name} is not on this machine", f"Install the Debian package {package}.")
    return found


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
