"""How MariaDB and MySQL servers are entered: TLS of every mode, and every plugin that proves a password, for queries and for the log."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.access.mysql_server import parse_uri
from penstock.model.batch import BatchKind
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.source.mysql.connection import Session
from penstock.source.mysql.upstream import MySqlUpstream
from testing.servers.databases.mysql_lab import BINLOG, connect, run
from testing.servers.databases.mysql_server import mysql
from testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration
PASSWORD, WRITTEN = "p@ss/word", "p%40ss%2Fword"
GRANTS = ("GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO {user}",)


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=240)


def make_certificates(folder: Path) -> None:
    """Make an authority, a certificate of the server for 127.0.0.1, one of a client, and an authority that signed nothing."""
    folder.mkdir()
    for name in ("ca", "other"):
        subject = f"/CN=penstock {name}"
        openssl(*f"req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {folder}/{name}.key -out {folder}/{name}.pem -subj".split(), subject)
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(*f"req -newkey rsa:2048 -nodes -keyout {folder}/{name}.key -out {folder}/{name}.csr -subj /CN={name}".split())
        signed = f"x509 -req -in {folder}/{name}.csr -CA {folder}/ca.pem -CAkey {folder}/ca.key -CAcreateserial -days 2"
        openssl(*f"{signed} -out {folder}/{name}.pem -extfile {folder}/san".split())
    for file in folder.iterdir():
        file.chmod(0o644)


@pytest.fixture(scope="module")
def plugins() -> Path:
    """Return the folder of MariaDB's plugins, laid out from Debian's package once, because the core package has none."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock" / "mariadb-server"
    found = folder / "usr" / "lib" / "mysql" / "plugin"
    if not found.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            subprocess.run(["apt-get", "download", "mariadb-server"], check=True, capture_output=True, cwd=work, timeout=120)
            package = next(Path(work).glob("mariadb-server_*.deb"))
            subprocess.run(["dpkg", "-x", str(package), f"{work}/laid"], check=True, capture_output=True, timeout=120)
            # Another process may have been quicker.
            with contextlib.suppress(OSError):
                Path(f"{work}/laid").rename(folder)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access") / "certificates"
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, plugins: Path) -> Iterator[str]:
    # Where its user may look.
    directory = folder.parent
    (directory / "plugins").mkdir()
    shutil.copy(plugins / "auth_ed25519.so", directory / "plugins")
    tls = (f"--ssl-ca={folder}/ca.pem", f"--ssl-cert={folder}/server.pem", f"--ssl-key={folder}/server.key")
    with mariadb(directory, (*BINLOG, *tls, f"--plugin-dir={directory}/plugins", "--plugin-load-add=auth_ed25519")) as uri:
        yield uri


def address(uri: str) -> str:
    found = parse_uri(uri)
    return f"{found.host}:{found.port}"


def check_capture(uri: str, writer: Any, name: str) -> None:
    """Check that the log and a snapshot come over connections of this URI."""
    upstream = MySqlUpstream(uri)
    run(writer, f"CREATE TABLE replay.{name} (id INT PRIMARY KEY, note VARCHAR(200))")
    start = upstream.first_position()
    with writer.cursor() as cursor:
        cursor.executemany(f"INSERT INTO replay.{name} VALUES (%s, %s)", [(n, "x" * 150) for n in range(3000)])
    table = next(t for t in upstream.list_tables() if t.table == name)
    end, found = upstream.log_end(), []
    steps = upstream.read_log(start, (), lambda i: i == table.table_id, threading.Event())
    for step in steps:
        found += [n for c in step.changes if c.header.kind is BatchKind.DATA for n in c.records.column("c1").to_pylist()]
        if step.position is not None and upstream.reached(step.position.text, end):
            break
    assert sorted(found) == list(range(3000))
    assert [n for b in upstream.read_now(Span(table.table_id)) for n in b.records.column("c1").to_pylist()] == list(range(3000))
    upstream.close()


def cipher(uri: str) -> str:
    with Session(parse_uri(uri)) as session:
        return str(session.rows("SHOW STATUS LIKE 'Ssl_cipher'")[0][1])


def refused(uri: str) -> PenstockError:
    with pytest.raises(PenstockError) as wrong:
        Session(parse_uri(uri))
    assert PASSWORD not in str(wrong.value)
    assert WRITTEN not in str(wrong.value)
    return wrong.value


def test_tls_of_every_mode_carries_queries_and_the_log(server: str, folder: Path) -> None:
    writer = connect(server)
    run(writer, f"CREATE USER cdc IDENTIFIED BY '{PASSWORD}'", f"CREATE USER held IDENTIFIED BY '{PASSWORD}' REQUIRE X509")
    run(writer, *(g.format(user=user) for g in GRANTS for user in ("cdc", "held")), "SET GLOBAL require_secure_transport = ON")
    base = f"mysql://cdc:{WRITTEN}@{address(server)}/"
    try:
        for mode in ("preferred", "required", f"verify-ca&ssl-ca={folder}/ca.pem", f"verify-identity&ssl-ca={folder}/ca.pem"):
            assert cipher(f"{base}?ssl={mode}"), mode
        check_capture(f"{base}?ssl=verify-identity&ssl-ca={folder}/ca.pem", writer, "by_tls")
        plain = refused(f"{base}?ssl=off")
        assert plain.code == "UPSTREAM_REFUSED"
        assert "ssl=required" in (plain.hint or "")
        for mode in (f"verify-ca&ssl-ca={folder}/other.pem", "verify-ca", f"verify-identity&ssl-ca={folder}/other.pem"):
            untrusted = refused(f"{base}?ssl={mode}")
            assert untrusted.code == "UPSTREAM_REFUSED"
            assert "certificate" in untrusted.detail
        elsewhere = base.replace("127.0.0.1", "localhost")
        assert cipher(f"{elsewhere}?ssl=verify-ca&ssl-ca={folder}/ca.pem")
        assert "certificate" in refused(f"{elsewhere}?ssl=verify-identity&ssl-ca={folder}/ca.pem").detail
        for missing in (f"?ssl=verify-ca&ssl-ca={folder}/none", f"?ssl-cert={folder}/none", f"?ssl-cert={folder}/san"):
            assert refused(base + missing).code == "CONFIG_INVALID"
        held = base.replace("cdc:", "held:")
        assert refused(f"{held}?ssl=required").code == "UPSTREAM_REFUSED"
        assert cipher(f"{held}?ssl=required&ssl-cert={folder}/client.pem&ssl-key={folder}/client.key")
    finally:
        # Whoever turned it on may not be able to enter again without TLS.
        run(writer, "SET GLOBAL require_secure_transport = OFF")


def test_ed25519_proves_a_password(server: str) -> None:
    writer = connect(server)
    run(writer, f"CREATE USER curve IDENTIFIED VIA ed25519 USING PASSWORD('{PASSWORD}')", *(g.format(user="curve") for g in GRANTS))
    check_capture(f"mysql://curve:{WRITTEN}@{address(server)}/?ssl=off", writer, "by_curve")
    wrong = refused(f"mysql://curve:nothing@{address(server)}/?ssl=off")
    assert wrong.code == "UPSTREAM_REFUSED"
    assert "nothing" not in str(wrong)


@pytest.mark.mysql
def test_every_plugin_of_mysql_with_and_without_tls(tmp_path: Path) -> None:
    with mysql(tmp_path) as uri:
        writer = connect(uri)
        run(writer, "CREATE DATABASE replay")
        for plugin in ("caching_sha2_password", "sha256_password"):
            run(writer, f"CREATE USER {plugin} IDENTIFIED WITH {plugin} BY '{PASSWORD}'", *(g.format(user=plugin) for g in GRANTS))
            base = f"mysql://{plugin}:{WRITTEN}@{address(uri)}/"
            authority = next(tmp_path.rglob("ca.pem"))
            # Without TLS the password is sent under the server's public key; the second login finds the server's cache.
            shown = "clear-password=on"
            for number, mode in enumerate((f"off&{shown}", f"required&{shown}", f"verify-ca&ssl-ca={authority}", f"off&{shown}")):
                run(writer, "FLUSH PRIVILEGES") if number < 3 else None
                check_capture(f"{base}?ssl={mode}", writer, f"{plugin}{number}")
            assert bool(cipher(f"{base}?ssl=off&{shown}")) is False
            assert cipher(f"{base}?ssl=required&{shown}")
            run(writer, "FLUSH PRIVILEGES")
            assert "verify-identity" in (refused(f"{base}?ssl=required").hint or "")
            assert refused(base.replace(WRITTEN, "nothing") + f"?{shown}").code == "UPSTREAM_REFUSED"
        run(writer, "SET GLOBAL require_secure_transport = ON")
        assert "ssl=required" in (refused(f"{base}?ssl=off&clear-password=on").hint or "")
