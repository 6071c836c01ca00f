"""Real servers on loopback for tests: PostgreSQL, MariaDB and Azurite, in a directory of the test, stopped by process.

A server whose program is not on this machine raises ``FileNotFoundError``, which says what to install; Azurite is installed from npm into a
cache folder by the first test that wants it. Runs in tests.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from penstock.model.clock import SystemClock

START_S_MAX = 90.0
STOP_S_MAX = 20.0
INSTALL_S_MAX = 300.0
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has; not a secret."""

_POSTGRES_DIRS = ("/usr/lib/postgresql/17/bin", "/usr/lib/postgresql/16/bin", "/usr/lib/postgresql/15/bin", "/usr/local/bin", "/usr/bin")


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], directory: Path, ready: Callable[[], bool], user: str | None = None) -> Iterator[None]:
    """Run a server until the block ends; wait until it is ready."""
    log = directory / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True, user=user)
    try:
        clock, pause = SystemClock(), threading.Event()
        deadline = clock.monotonic_s() + START_S_MAX
        while not ready():
            if process.poll() is not None or clock.monotonic_s() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
            clock.wait(pause, 0.1)
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def answers(port: int) -> Callable[[], bool]:
    """Return a test of whether something listens at a loopback port."""

    def ready() -> bool:
        with socket.socket() as one:
            one.settimeout(1.0)
            return one.connect_ex(("127.0.0.1", port)) == 0

    return ready


def _program(name: str, directories: Sequence[str], package: str) -> str:
    for directory in directories:
        if (Path(directory) / name).exists():
            return str(Path(directory) / name)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name}: install the Debian package {package}")
    return found


def unprivileged(directory: Path) -> str | None:
    """Return the user under which a database server runs that refuses to run as root, and let it into the directory."""
    if os.geteuid() != 0:
        return None
    name = next(u.pw_name for u in pwd.getpwall() if u.pw_name in {"postgres", "mysql", "nobody"})
    shutil.chown(directory, name)
    for parent in (directory, *directory.parents):
        if parent.stat().st_uid == 0 and parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    return name


@contextmanager
def postgres(directory: Path, options: Sequence[str] = (), port: int = 0) -> Iterator[str]:
    """Start PostgreSQL in a directory, again if it was there before, with more options of the server; yield the URI of its database."""
    directory.mkdir(parents=True, exist_ok=True)
    user = unprivileged(directory)
    data, port = directory / "data", port or free_port()
    initdb = _program("initdb", _POSTGRES_DIRS, "postgresql")
    made = [initdb, "-D", str(data), "-U", "penstock", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8"]
    if not data.exists():
        subprocess.run(made, check=True, capture_output=True, user=user, cwd=directory, timeout=INSTALL_S_MAX)
    server = _program("postgres", _POSTGRES_DIRS, "postgresql")
    command = [server, "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(directory), "-F", *options]
    ready = _program("pg_isready", _POSTGRES_DIRS, "postgresql-client")

    def is_ready() -> bool:
        return subprocess.run([ready, "-h", "127.0.0.1", "-p", str(port)], check=False, capture_output=True, timeout=10).returncode == 0

    with running(command, directory, is_ready, user):
        yield f"postgresql://penstock@127.0.0.1:{port}/postgres"


@contextmanager
def mariadb(directory: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """Start MariaDB in a directory, with more options of the server; yield the URI of a database in it."""
    directory.mkdir(parents=True, exist_ok=True)
    user = unprivileged(directory)
    data, port = directory / "data", free_port()
    install = _program("mariadb-install-db", ("/usr/bin",), "mariadb-server-core")
    server = _program("mariadbd", ("/usr/sbin",), "mariadb-server-core")
    made = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(made, check=True, capture_output=True, user=user, cwd=directory, timeout=INSTALL_S_MAX)
    command = [
        *(server, "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1", f"--socket={directory}/s.sock"),
        # A server that starts removes what it finds in the folder for temporary tables, those of other servers too.
        *("--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", f"--pid-file={directory}/pid", f"--tmpdir={directory}", *options),
    ]
    with running(command, directory, answers(port), user):
        import pymysql

        connection = pymysql.connect(host="127.0.0.1", port=port, user="root")
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS replay")
        connection.close()
        yield f"mysql://root@127.0.0.1:{port}/replay"


@contextmanager
def azurite(directory: Path, container: str = "penstock-test") -> Iterator[str]:
    """Start Azurite in a directory with one container; yield the query parameters of its URIs."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    script = _azurite_script()
    command = [
        *("node", str(script), "--silent", "--skipApiVersionCheck", "--location", str(directory)),
        *("--blobHost", "127.0.0.1", "--blobPort", str(port)),
    ]
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    with running(command, directory, answers(port)):
        _create_container(endpoint, container)
        key = AZURE_KEY.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
        yield f"account-name={AZURE_ACCOUNT}&account-key={key}&endpoint={endpoint}"


def _azurite_script() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise FileNotFoundError("node: install the Debian package npm")
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock" / "azurite"
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-fund", "--no-audit", "--silent", "azurite"]
        subprocess.run(command, check=True, cwd=folder, capture_output=True, timeout=INSTALL_S_MAX)
    return script


def _create_container(endpoint: str, container: str) -> None:
    moment = dt.datetime.fromtimestamp(SystemClock().now_ms() / 1000, dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    version = "2021-08-06"
    # An emulator has the account in the path, so the canonical resource names it twice.
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{container}\nrestype:container"
    to_sign = "\n".join(["PUT", *[""] * 11, f"x-ms-date:{moment}", f"x-ms-version:{version}", resource])
    digest = hmac.new(base64.b64decode(AZURE_KEY), to_sign.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": moment,
        "x-ms-version": version,
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}",
    }
    answer = httpx.put(f"{endpoint}/{container}?restype=container", headers=headers, timeout=30)
    if answer.status_code not in {httpx.codes.CREATED, httpx.codes.CONFLICT}:
        raise RuntimeError(f"azurite: {answer.status_code} {answer.text[:500]}")
