"""The image, the compose file and the unit: linted by their own tools where those are there, and by the rules that matter in any case."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config.server_tree import ServerConfig
from penstock.settings.loader import load

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE, COMPOSE, SERVER = (ROOT / "ops" / "docker" / name for name in ("Dockerfile", "compose.yaml", "server.toml"))
UNIT = ROOT / "ops" / "systemd" / "penstock.service"
SECRET = re.compile(r"(?i)(password|secret|token|key)\s*[=:]\s*[\"']?[A-Za-z0-9+/]{6,}")


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile and their arguments, continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ").splitlines()
    return [(name.upper(), rest.strip()) for name, _, rest in (line.strip().partition(" ") for line in lines if line.strip())]


def faults(text: str) -> list[str]:
    """Return what is wrong with a Dockerfile, by the rules that matter."""
    steps = instructions(text)
    names = [name for name, _ in steps]
    bases = [rest for name, rest in steps if name == "ARG" and rest.startswith("BASE=")] + [
        r for n, r in steps if n == "FROM" and "$" not in r
    ]
    users = [rest for name, rest in steps if name == "USER"]
    found = [f"base is not pinned: {base}" for base in bases if not re.search(r":\d+\.\d+[^:]*$|@sha256:", base.split(" AS ")[0])]
    found += ["runs as root"] if not users or users[-1].split(":")[0] in {"root", "0"} else []
    found += [] if "HEALTHCHECK" in names else ["no HEALTHCHECK"]
    found += ["ADD fetches or unpacks"] if "ADD" in names else []
    found += ["a secret stands in it"] if SECRET.search(text) else []
    found += [f"apt lists stay: {r}" for n, r in steps if n == "RUN" and "apt-get install" in r and "rm -rf /var/lib/apt/lists" not in r]
    return found


def test_the_image_keeps_the_rules() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert faults(text) == []
    assert faults("FROM python\nRUN apt-get install x\nADD a b\nENV API_TOKEN=abcdefgh") == [
        "base is not pinned: python",
        "runs as root",
        "no HEALTHCHECK",
        "ADD fetches or unpacks",
        "a secret stands in it",
        "apt lists stay: apt-get install x",
    ]


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    copied = [r.split()[:-1] for n, r in instructions(DOCKERFILE.read_text(encoding="utf-8")) if n == "COPY" and "--from" not in r]
    sources = {source for args in copied for source in args if not source.startswith("--")}
    assert sources == kept
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_image_installs_the_part_that_runs() -> None:
    pattern = re.search(r"sed '/(\^[^/]+)/,\$d' constraints-hashes", DOCKERFILE.read_text(encoding="utf-8"))
    assert pattern is not None
    text = (ROOT / "constraints-hashes.txt").read_text(encoding="utf-8")
    assert len(re.findall(pattern[1], text, re.MULTILINE)) == 1


@pytest.mark.skipif(not (Path(sys.executable).parent / "hadolint").exists(), reason="hadolint comes with make setup-test")
def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([program, "--no-color", DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_loads_and_its_paths_exist() -> None:
    service: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["penstock"]
    context = (COMPOSE.parent / service["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / service["build"]["dockerfile"]) == DOCKERFILE
    mounted = [volume.split(":")[0] for volume in service["volumes"] if volume.startswith(".")]
    assert [(COMPOSE.parent / name).resolve() for name in mounted] == [SERVER]
    assert [port for port in service["ports"] if not port.startswith("127.0.0.1:")] == []
    assert not SECRET.search(COMPOSE.read_text(encoding="utf-8"))


def test_the_server_of_the_image_takes_its_configuration() -> None:
    tree = tomllib.loads(SERVER.read_text(encoding="utf-8")) | {"source": "mysql://cdc@db:3306"}
    config = load(ServerConfig, tree)
    health = re.search(r"http://127.0.0.1:(\d+)(/health/\w+)", DOCKERFILE.read_text(encoding="utf-8"))
    assert health is not None
    assert config.http_port == int(health[1])
    assert health[2] in config.api.open_paths


def test_the_unit_keeps_the_rules() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text(encoding="utf-8"))
    service = unit["Service"]
    assert service["ExecStart"].startswith("/opt/penstock/bin/penstock server ")
    assert service["DynamicUser"] == service["NoNewPrivileges"] == service["PrivateTmp"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert "MemoryDenyWriteExecute" not in service, "kernels and the JVM are compiled while they run"
    assert service["Restart"] == "on-failure"
    assert not SECRET.search(UNIT.read_text(encoding="utf-8"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """The program that the unit starts is not here, so one that is stands in its place."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/penstock/bin/penstock", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert (ours, done.returncode) == ([], 0)
