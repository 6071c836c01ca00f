"""Every command of the tutorial and of the README, as it stands there: real shell, real MariaDB, real server.

Only what a machine gives is put in its place: host and port of the database, which the fixture starts with the options that the page
names, and the port of the server. ``penstock run`` of the README is run by ``tests/spark/test_run_command.py``, ``make`` by nobody here.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
import pymysql
import pytest

from penstock.cli.main import cli
from testing.servers.command_process import CommandProcess
from testing.servers.loopback import free_port
from testing.servers.loopback_server import mariadb

DOCS = Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r'^```sh title="([^"]*)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
BLOCK_S_MAX, START_S_MAX = 300, 300


def blocks(terminal: str, page: Path = DOCS / "tutorial.md") -> list[str]:
    """The commands of one terminal, by block."""
    found = [text for title, text in BLOCK.findall(page.read_text(encoding="utf-8")) if title == terminal]
    assert found, terminal
    return found


def commands_of_the_readme(port: int) -> tuple[str, str, str]:
    """What the README has people type, with the database of this test: one command, the server, its feeds."""
    found = [blocks(title, DOCS.parent / "README.md")[0] for title in ("one command", "the server", "its feeds")]
    one, server, feeds = (text.replace("db:3306", f"127.0.0.1:{port}") for text in found)
    return one, server, feeds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorial")


@pytest.fixture(scope="module")
def database(folder: Path) -> Iterator[int]:
    """The MariaDB of terminal 1, with the options that the page gives it."""
    words = shlex.split(blocks("terminal 1")[0].replace("\\\n", " "))
    options = [word for word in words if re.match(r"--(server-id|log-bin|binlog)", word)]
    assert "--binlog-row-metadata=FULL" in options
    with mariadb(folder / "mariadb", options) as uri:
        yield urlsplit(uri).port or 0


@pytest.fixture(scope="module")
def surroundings(folder: Path) -> dict[str, str]:
    """What a shell of a reader has: the command, the password, and where the server is."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "penstock").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock "$@"\n', encoding="utf-8")
    (programs / "penstock").chmod(0o755)
    port = free_port()
    given = {"PATH": f"{programs}:{os.environ['PATH']}", "DB_PASSWORD": "secret", "PENSTOCK_SERVER": f"http://127.0.0.1:{port}"}
    return os.environ | given | {"HOME": str(folder)}


def shell(text: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a block as bash runs it, stopped by its first failure; return what it wrote."""
    command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BLOCK_S_MAX, check=False)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(1200)
@pytest.mark.integration
def test_every_command_of_the_tutorial(folder: Path, database: int, surroundings: dict[str, str]) -> None:
    (first,) = blocks("every terminal")
    home = folder / "penstock-tutorial"
    assert "export DB_PASSWORD=secret" in first
    assert re.fullmatch(r"penstock, version \S+\n", shell(first, folder, surroundings))
    steps = [text.replace("3306", str(database)) for text in blocks("terminal 3")]
    created = next(at for at, text in enumerate(steps) if "feed create" in text)
    told = [shell(text, home, surroundings) for text in steps[:created]]
    assert "that is what it asks for" in told[1]
    assert "GRANT" in told[1]
    assert re.search(r"shop\.orders\s", told[2])
    once, serve, feeds = commands_of_the_readme(database)
    assert serve == blocks("terminal 2")[0].replace("3306", str(database))
    words = shlex.split(serve)
    shell("".join(line for line in once.splitlines(keepends=True) if not line.startswith("penstock run ")), home, surroundings)
    port = surroundings["PENSTOCK_SERVER"].rpartition(":")[2]
    data = str(home / "penstock-data")
    extra = ["--http-port", port, "--set", "spark.warm-up=false"]
    environment = {key: surroundings[key] for key in ("DB_PASSWORD", "HOME")}
    with CommandProcess(*[data if word == "./penstock-data" else word for word in words[1:]], *extra, environment=environment) as server:
        server.wait_for("penstock server: ", START_S_MAX)
        told += [shell(text, home, surroundings) for text in [*steps[created:], feeds]]
    said = "".join(told)
    assert len(re.findall(r"^verified: 2 tables, [\d,]+ rows identical$", said, re.MULTILINE)) == 2
    assert re.findall(r"^verified: 1 tables?, [\d,]+ rows identical$", said, re.MULTILINE)
    assert said.endswith("feed orders removed\n")
    files = "".join(path.read_text(encoding="utf-8") for path in sorted((home / "files").rglob("CDC*.csv")))
    assert files.count('"late"') == files.count('"paused"') == 1
    copy = sqlite3.connect(home / "copy.db")
    kept = copy.execute('SELECT id, customer, total, state FROM "shop.orders" ORDER BY id').fetchall()
    copy.close()
    with pymysql.connect(host="127.0.0.1", port=database, user="root") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, customer, CAST(total AS CHAR), state FROM shop.orders ORDER BY id")
        there = cursor.fetchall()
    assert [(*row[:2], str(row[2]), row[3]) for row in kept] == list(there)


def test_the_readme_names_targets_of_make_and_options_that_exist() -> None:
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", (DOCS.parent / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test", "setup", "docs"} <= set(re.findall(r"`?make ([a-z]+)", text)) <= targets
    (arguments,) = re.findall(r'make demo ARGS="([^"]*)"', text)
    demo = cli.get_command(click.Context(cli), "demo")
    assert demo is not None
    known = {option for parameter in demo.params for option in parameter.opts}
    assert [word for word in arguments.split() if word.startswith("--") and word not in known] == []
