"""A real MySQL on loopback for tests, from a folder that ``scripts/mysql_root.sh`` laid out; nothing of it is installed here.

The server runs with the folder's own dynamic loader and libraries. ``PENSTOCK_MYSQL_ROOT`` names the folder; without it the server is not
there, and the tests that want it (marker ``mysql``) run only by ``make test-mysql``. Runs in tests.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.testing.loopback_server import INSTALL_S_MAX, answers, free_port, running, unprivileged

ROOT_VARIABLE = "PENSTOCK_MYSQL_ROOT"


def mysql_program() -> list[str]:
    """Return how MySQL's server is called; ``FileNotFoundError`` says what to do where it is not there."""
    root = Path(os.environ.get(ROOT_VARIABLE, "/nowhere"))
    server = root / "usr/sbin/mysqld"
    loader = next(iter(root.glob("usr/lib64/ld-linux-*.so.*")), None)
    if loader is None or not server.exists():
        raise FileNotFoundError(f"mysqld: run make test-mysql, or set {ROOT_VARIABLE} to what scripts/mysql_root.sh prints")
    libraries = ":".join(str(p) for p in (*root.glob("usr/lib/*-linux-gnu*"), root / "usr/lib/mysql/private"))
    return [str(loader), "--library-path", libraries, str(server), "--no-defaults", f"--basedir={root}/usr"]


@contextmanager
def mysql(directory: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """Start MySQL in a directory with GTIDs and full row metadata; yield the URI of its root user."""
    directory.mkdir(parents=True, exist_ok=True)
    user = unprivileged(directory)
    data, port, program = directory / "data", free_port(), mysql_program()
    messages = f"--lc-messages-dir={os.environ[ROOT_VARIABLE]}/usr/share/mysql"
    made = [*program, messages, "--initialize-insecure", f"--datadir={data}"]
    subprocess.run(made, check=True, capture_output=True, user=user, cwd=directory, timeout=INSTALL_S_MAX)
    # The server looks no names up, so root's account on "localhost" would not let it in by address.
    (directory / "init.sql").write_text(
        "CREATE USER IF NOT EXISTS root@'%' IDENTIFIED BY '';\nGRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;\n", encoding="utf-8"
    )
    command = [
        *(*program, messages, f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1", f"--socket={directory}/s.sock"),
        *("--mysqlx=OFF", "--secure-file-priv=", "--skip-name-resolve", f"--init-file={directory}/init.sql"),
        *("--innodb-flush-log-at-trx-commit=0", f"--pid-file={directory}/pid"),
        *("--server-id=1", "--log-bin=binlog", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--binlog-row-metadata=FULL"),
        *options,
    ]
    with running(command, directory, answers(port), user):
        yield f"mysql://root@127.0.0.1:{port}/"
