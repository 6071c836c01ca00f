"""Secrets planted wherever a server takes them: ordinary things are done and failing ones, then everything that others can see is searched.

Nothing of them may stand in logs, answers, errors, command lines, environments of child processes, Spark's event logs, the meta database,
or in files that another user can read. Files that hold a secret by design are named one by one.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pwd
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import psutil
import psycopg
import pymysql
import pyspark
import pytest

from testing.servers.command_process import CommandProcess
from testing.servers.databases.mysql_lab import BINLOG
from testing.servers.loopback import free_port
from testing.servers.loopback_server import mariadb, postgres
from testing.servers.seaweed import S3Server, seaweed_s3

START_S, COMMAND_S = 180.0, 120.0
WORK_DIR = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "work"
MARK = "7f3a9c"
"""Stands in every planted secret, so that a part of one is found too."""
BACKEND = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
HELD = {"api-token", "flight.json", "flight.sock"}
"""Files of the data directory that hold a token of the server's own."""


def secret(name: str) -> str:
    return f"{name}/{MARK}?#% '\"{name}"


SOURCE, WRONG, META, TARGET = secret("source"), secret("wrong"), secret("meta"), secret("target")


class Answers:
    """Calls of the API, and everything that it answered."""

    def __init__(self, url: str, token: str) -> None:
        self.client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=120)
        self.texts: list[str] = []

    def call(self, method: str, path: str, **given: Any) -> httpx.Response:
        answer = self.client.request(method, path, **given)
        self.texts.append(f"{method} {path}\n{answer.headers}\n{answer.text}")
        return answer

    def rows(self, feed: str) -> int:
        shown = self.call("GET", f"/api/v1/feeds/{feed}").json()
        assert shown["state"] != "failed", shown["error"]
        return int(shown["rows"])


def config_text(source: str, meta: str, folder: Path, s3: S3Server, master: str = "local[2]") -> str:
    return f"""
source = "{source}"
meta-url = "{meta}"
data-dir = "{folder}/data"
http-port = 0
[spark]
master = "{master}"
warm-up = false
[spark.conf]
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.dir" = "file://{folder}/events"
"spark.hadoop.fs.s3a.secret.key" = "spark{MARK}secret"
"spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net" = "spark{MARK}account"
"spark.hadoop.fs.azure.sas.c.lake.blob.core.windows.net" = "spark{MARK}sas"
[connections.lake]
uri = "{s3.uri("lake")}"
"""


def command(*arguments: str, **environment: str) -> str:
    """Run a command that fails; return what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def processes(server: CommandProcess) -> tuple[dict[str, str], dict[str, str]]:
    """Return the command lines of a server and all that it started, and the environments of those that it started."""
    own = psutil.Process(server.pid)
    lines, environments = {str(own.pid): " ".join(own.cmdline())}, {}
    for child in own.children(recursive=True):
        try:
            name = f"{child.name()} {child.pid}"
            lines[name], environments[name] = " ".join(child.cmdline()), str(child.environ())
        except psutil.NoSuchProcess:
            continue
    return lines, environments


def stranger(server: CommandProcess) -> str:
    """Pass for an executor of the server, with what every user sees of the true ones; return what the driver made of it."""
    own = psutil.Process(server.pid)
    line = next(child.cmdline() for child in own.children(recursive=True) if BACKEND in child.cmdline())
    at = line.index("--executor-id") + 1
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(subprocess.TimeoutExpired):
        command = [*line[:at], "77", *line[at + 1 :]]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, cwd=folder, env={"PATH": os.environ["PATH"]}
        )
        return done.stdout + done.stderr
    return "it was let in"


def seen_by(user: str | None, needles: list[str], *places: Path) -> set[str]:
    """Return the files below some places in which a user finds a needle."""
    found = subprocess.run(
        ["grep", "-raFls", "-f", "-", *map(str, places)],
        input="\n".join(needles),
        capture_output=True,
        text=True,
        user=user,
        check=False,
        cwd="/",
    )
    return set(found.stdout.splitlines())


def stored(uri: str) -> str:
    """Return every row of every table of the meta database."""
    with closing(psycopg.connect(uri)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        tables = [row[0] for row in cursor.fetchall()]
        assert {"feed", "progress", "api_token"} <= set(tables)
        rows = []
        for table in tables:
            cursor.execute(f'SELECT * FROM "{table}"')  # type: ignore[arg-type]
            rows += [repr(row) for row in cursor.fetchall()]
    return "\n".join(rows)


@pytest.mark.chaos
@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_no_planted_secret_is_seen(waiting: Any, tmp_path: Path, master: str) -> None:
    folder = tmp_path / "server"
    for name in ("server", "server/events", "server/tmp"):
        (tmp_path / name).mkdir()
    (folder / "tmp").chmod(0o1777)
    said: list[str] = []
    with ExitStack() as stack:
        port = urlsplit(stack.enter_context(mariadb(tmp_path / "mariadb", BINLOG))).port or 0
        meta_uri = stack.enter_context(postgres(tmp_path / "postgres"))
        s3_life = stack.enter_context(ExitStack())
        s3 = s3_life.enter_context(seaweed_s3(tmp_path / "s3"))
        database = stack.enter_context(closing(pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True)))
        cursor = database.cursor()
        cursor.execute("CREATE USER cdc IDENTIFIED BY %s", (SOURCE,))
        for statement in (
            "GRANT ALL PRIVILEGES ON *.* TO cdc",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(40))",
            "INSERT INTO shop.orders SELECT seq, 'x' FROM shop.seq_1_to_1000",
        ):
            cursor.execute(statement)
        with closing(psycopg.connect(meta_uri, autocommit=True)) as connection:
            connection.execute("CREATE ROLE meta SUPERUSER LOGIN")
        meta = meta_uri.replace("penstock@", f"meta:{quote(META, safe='')}@")
        # A variable that a URI names, one that is a connection, and the key of the meta database.
        key = base64.b64encode(f"key-{MARK}".encode().ljust(32, b"x")).decode()
        environment = {
            "PLANTED_SOURCE": SOURCE,
            "PENSTOCK_META_KEY": key,
            "PENSTOCK_CONNECTION_SPARE": f"s3://spare/x?access-key-id=a&secret-access-key={quote(TARGET, safe='')}",
            "TMPDIR": str(folder / "tmp"),
        }
        config = tmp_path / "server.toml"
        source = f"mysql://cdc:{{env:PLANTED_SOURCE}}@127.0.0.1:{port}/"
        config.write_text(config_text(source, meta, folder, s3, master), encoding="utf-8")
        config.chmod(0o600)
        needles = [MARK, s3.secret_key, key, quote(key, safe="")]
        server = stack.enter_context(CommandProcess("server", "--config", str(config), environment=environment))
        url = server.wait_for("penstock server: ", START_S).split()[0]
        own_token = (folder / "data" / "api-token").read_text(encoding="utf-8").strip()
        api = Answers(url, own_token)
        stack.callback(api.client.close)
        made = api.client.post("/api/v1/tokens", json={"name": "somebody", "role": "read"}).json()
        needles += [own_token, made["token"]]

        feed = {"tables": ["shop.orders"], "flush-interval": "500ms"}
        for name, sink in (("direct", s3.uri("direct")), ("named", "connection://lake/named")):
            assert api.call("POST", "/api/v1/feeds", json=feed | {"name": name, "sink": sink}).status_code == 201
        given, closed = quote(TARGET, safe=""), f"http://127.0.0.1:{free_port()}"
        account = f"account-name=x&account-key={given}"
        refused = {
            "wrong-key": s3.uri("w").replace(s3.secret_key, given),
            "unreachable": f"s3://b/p?endpoint={closed}&access-key-id=a&secret-access-key={given}&region=r",
            "forbidden": f"az://c/p?{account}&federated-token-file=/etc/passwd",
            "unknown": f"s3://b/p?secret-access-kez={given}",
            "in-host": f"s3://user:{given}@b/p",
            "malformed": f"s3://b:{MARK}port/p?sas-key={given}",
            "spare": "connection://spare/x",
            "nothing": f"ftp://user:{given}@host/x",
        }
        for name, sink in refused.items():
            assert api.call("POST", "/api/v1/feeds", json=feed | {"name": name, "sink": sink}).status_code >= 400, name
        other = {"name": "other", "source": f"mysql://cdc:{quote(WRONG, safe='')}@127.0.0.1:{port}/", "sink": "connection://lake/other"}
        assert api.call("POST", "/api/v1/feeds", json=feed | other).status_code >= 400
        api.call("POST", "/api/v1/feeds", json=feed | {"name": "odd", "sink": {"uri": s3.uri("odd"), "csv.delimitex": given}})

        for name in ("direct", "named"):
            waiting.until(f"rows of {name}", lambda name=name: api.rows(name) >= 1000, explain=lambda: server.output, look_s=0.5)
        for path in ("feeds", "health", "tokens", "feeds/none", "feeds/direct/tables", "tables", "problems"):
            api.call("GET", f"/api/v1/{path}")
        for path in ("/metrics", "/health/live", "/health/ready", "/api/openapi.json"):
            api.call("GET", path)
        api.call("POST", "/api/v1/feeds/direct/verify")
        lines, environments = processes(server)
        if "cluster" in master:
            told = stranger(server)
            assert "it was let in" not in told
            said.append(told)

        # Commands, each with a secret that does not open what it is for.
        uri, variable = f"mysql://cdc:{{env:PLANTED}}@127.0.0.1:{port}/", {"PLANTED": WRONG}
        broken = tmp_path / "broken.toml"
        broken.write_text(config_text(uri, meta, tmp_path / "other", s3), encoding="utf-8")
        said += [
            command("doctor", uri, **variable),
            command("server", "--config", str(broken), **variable),
            command("server", "--source", uri, "--data-dir", str(tmp_path / "third"), "--set", f"meta-url={uri}x", **variable),
            command(
                "storage", "check", f"s3://b/p?endpoint={closed}&access-key-id=a&secret-access-key={{env:PLANTED}}&region=r", **variable
            ),
            command("replay", f"file://{tmp_path}/none", f"{uri}x", **variable),
            command(
                "feed", "create", "x", "--table", "shop.*", "--sink", "s3://b?secret-access-kez={env:PLANTED}", "--server", url, **variable
            ),
        ]

        # The target goes away under a running feed, and the source's password changes.
        s3_life.close()
        cursor.execute("INSERT INTO shop.orders VALUES (5000, 'after')")
        waiting.until(
            "an error of the target",
            lambda: api.call("GET", "/api/v1/feeds/direct").json().get("error"),
            explain=lambda: server.output,
            look_s=0.5,
        )
        for path in ("feeds", "health", "feeds/direct", "feeds/named"):
            api.call("GET", f"/api/v1/{path}")
        kept = stored(meta_uri)
        # Executors of a cluster have directories of their own, with their logs.
        places = [folder, tmp_path / "other", tmp_path / "third", WORK_DIR]
        (folder / "readable").write_text(MARK, encoding="utf-8")
        (folder / "readable").chmod(0o644)
        for parent in (folder, *folder.parents):
            parent.chmod(parent.stat().st_mode | 0o001)
        by_nobody = seen_by(pwd.getpwnam("nobody").pw_name, needles, *places) if os.geteuid() == 0 else {str(folder / "readable")}
        by_owner = seen_by(None, needles, *places)
    # What the search itself can find it does.
    assert str(folder / "readable") in by_nobody
    assert any("java" in name for name in environments)
    assert any("python" in name for name in environments)
    executors = sum(BACKEND in line for line in lines.values())
    assert executors == (2 if "cluster" in master else 0)
    assert "cluster" not in master or any(WORK_DIR.rglob("stderr"))
    assert (folder / "events").iterdir()
    shown = {"logs": server.output, "answers": "\n".join(api.texts), "commands": "\n".join(said), "meta": kept}
    leaks = [f"{where}: {line[:2000]}" for where, text in shown.items() for line in text.splitlines() if any(n in line for n in needles)]
    leaks += [f"command line of {name}" for name, line in lines.items() if any(n in line for n in needles)]
    leaks += [f"environment of {name}" for name, text in environments.items() if any(n in text for n in needles)]
    leaks += [f"another user reads {file}" for file in by_nobody - {str(folder / "readable")}]
    leaks += [f"{file}" for file in by_owner - {str(folder / "readable")} if Path(file).name not in HELD]
    assert leaks == []
