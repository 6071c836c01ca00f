"""Real servers on loopback for tests: PostgreSQL, MariaDB and Azurite, in a directory of the test, stopped by process.

How they are started and ended is in ``testing/servers/loopback.py``; Azurite is installed from npm into a
cache folder by the first test that wants it. Runs in tests.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from penstock.cli.demo.loopback import POSTGRES_ENDS
from penstock.model.clock import SystemClock
from testing.servers.loopback import answers, as_user, free_port, program, running, unprivileged

INSTALL_S_MAX = 300.0
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has; not a secret."""
AZURITE = "azurite@3.35.0"
"""The last one that runs on the node of every Debian and Ubuntu in use; later ones want node 22."""


@contextmanager
def postgres(directory: Path, options: Sequence[str] = (), port: int = 0) -> Iterator[str]:
    """Start PostgreSQL in a directory, again if it was there before, with more options of the server; yield the URI of its database."""
    user = unprivileged(directory)
    data, port = directory / "data", port or free_port()
    initdb = program("initdb", "postgresql")
    made = [initdb, "-D", str(data), "-U", "penstock", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8"]
    if not data.exists():
        subprocess.run(as_user(user, made), check=True, capture_output=True, cwd=directory, timeout=INSTALL_S_MAX)
    server = program("postgres", "postgresql")
    command = [server, "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(directory), "-F", *options]
    ready = program("pg_isready", "postgresql-client")

    def is_ready() -> bool:
        return subprocess.run([ready, "-h", "127.0.0.1", "-p", str(port)], check=False, capture_output=True, timeout=120).returncode == 0

    with running(command, directory, is_ready, user, signals=POSTGRES_ENDS):
        yield f"postgresql://penstock@127.0.0.1:{port}/postgres"


@contextmanager
def mariadb(directory: Path, options: Sequence[str] = (), port: int = 0) -> Iterator[str]:
    """Start MariaDB in a directory, again if it was there before, with more options; yield the URI of a database in it."""
    user = unprivileged(directory)
    data, port = directory / "data", port or free_port()
    install = program("mariadb-install-db", "mariadb-server-core")
    server = program("mariadbd", "mariadb-server-core")
    made = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
    # It starts a server, and one that starts removes what it finds in the folder for temporary tables, those of other servers too.
    apart = os.environ | {"TMPDIR": str(directory)}
    if not data.exists():
        done = subprocess.run(as_user(user, made), check=False, capture_output=True, cwd=directory, timeout=INSTALL_S_MAX, env=apart)
        if done.returncode:
            raise AssertionError(f"{install} ended with {done.returncode}: {(done.stdout + done.stderr).decode()[-4_000:]}")
    command = [
        *(server, "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1", f"--socket={directory}/s.sock"),
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
    return from_npm(AZURITE, "dist/src/blob/main.js")


def from_npm(package: str, file: str) -> Path:
    """Return where a file of a package ``name@version`` is; it is installed into a folder of its own, once for all clones."""
    npm, name = program("npm", "npm"), package.rpartition("@")[0]
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock" / package
    found = folder / "node_modules" / name / file
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-fund", "--no-audit", "--loglevel=error", package]
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S_MAX)
        if done.returncode:
            raise RuntimeError(f"npm could not install {package}: {done.stderr[-2000:]}")
    return found


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
    answer = httpx.put(f"{endpoint}/{container}?restype=container", headers=headers, timeout=120)
    if answer.status_code not in {httpx.codes.CREATED, httpx.codes.CONFLICT}:
        raise RuntimeError(f"azurite: {answer.status_code} {answer.text[:500]}")
