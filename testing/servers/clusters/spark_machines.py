"""A standalone Spark cluster whose workers are machines of their own: each in a network, a process tree and a file system of its own.

A worker runs in namespaces of Linux: its network is a cable to a bridge that this machine has too, and in its file system the directories
that a test names are empty, while Spark lies at another path than here. The master and whatever a test starts run on this machine, at the
bridge's address. Everything ends with the worker's first process, which ends with the test's. Needs root. Runs in tests.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from penstock.feed.spark.launch_properties import properties_text
from testing.servers.loopback import end, free_port
from testing.servers.waiting import wait_until

START_S_MAX = 300.0
_TOOLS = ("ip", "unshare", "setpriv", "mount")
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True)
class SparkMachines:
    """A running cluster: the master's URL, this machine's address in its network, and each worker's directory."""

    master: str
    address: str
    machines: tuple[Path, ...]


def why_not() -> str:
    """Return why this machine cannot hold such a cluster; nothing where it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"namespaces are not permitted: {tried.stderr.strip()}"
    bridge = _bridge_name()
    tried = subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"bridges are not permitted: {tried.stderr.strip()}"
    _ip("link", "del", bridge)
    return ""


@contextlib.contextmanager
def network() -> Iterator[str]:
    """Make the bridge; yield this machine's address in its network."""
    bridge, address = _bridge_name(), f"10.231.{os.getpid() % 250}.1"
    _ip("link", "add", bridge, "type", "bridge")
    try:
        _ip("addr", "add", f"{address}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        yield address
    finally:
        _ip("link", "del", bridge)


@contextlib.contextmanager
def spark_machines(
    folder: Path, address: str, workers: int, hidden: Sequence[Path], conf: Mapping[str, str], cores: int = 1, memory: str = "1g"
) -> Iterator[SparkMachines]:
    """Start a master and workers in the network of ``network``; on workers the hidden directories are empty."""
    home = Path(pyspark.__file__).parent
    settings = folder / "conf"
    settings.mkdir(parents=True)
    (settings / "spark-defaults.conf").write_text(properties_text(conf))
    with contextlib.ExitStack() as parts:
        port = free_port()
        command = [str(home / "bin/spark-class"), _MASTER, "--host", address, "--port", str(port), "--webui-port", "0"]
        environment = {"SPARK_HOME": str(home), "SPARK_CONF_DIR": str(settings), "SPARK_LOCAL_IP": address}
        log = folder / "master.log"
        master = parts.enter_context(_running(command, environment, log, folder))
        wait_until(functools.partial(_says, master, log, "I have been elected leader"), "the master", START_S_MAX)
        url = f"spark://{address}:{port}"
        running: list[tuple[subprocess.Popen[bytes], Path]] = []
        machines = tuple(folder / f"machine{at}" for at in range(workers))
        for at, machine in enumerate(machines):
            own = f"{address.rpartition('.')[0]}.{11 + at}"
            script = _script(machine, own, home, settings, hidden)
            worker = [
                str(machine / "spark/bin/spark-class"),
                _WORKER,
                "--host",
                own,
                "--webui-port",
                "0",
                "--work-dir",
                str(machine / "work"),
            ]
            worker += ["--cores", str(cores), "--memory", memory, url]
            started = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
            started += ["--propagation", "private", "sh", "-c", f"{script}\nexec {shlex.join(worker)}"]
            (machine / "spark").mkdir(parents=True)
            log = machine / "worker.log"
            running.append((parts.enter_context(_running(started, {}, log, machine)), log))
            _connect(running[-1][0], at)
        for process, log in running:
            wait_until(functools.partial(_says, process, log, "Successfully registered with master"), "a worker", START_S_MAX)
        yield SparkMachines(url, address, machines)


def _script(machine: Path, address: str, home: Path, settings: Path, hidden: Sequence[Path]) -> str:
    """Return what a worker's machine does before it is one: Spark at a path of its own, nothing of what is hidden, a network."""
    own = machine / "conf"
    lines = ["set -e", f"mount --bind {home} {machine}/spark", f"mkdir {own}", f"cp {settings}/spark-defaults.conf {own}"]
    lines += [f"mount -t tmpfs tmpfs {shlex.quote(str(directory))}" for directory in hidden]
    lines += ["mount -t proc proc /proc", "until ip link show cable >/dev/null 2>&1; do sleep 0.05; done", "ip link set lo up"]
    lines += [f"ip addr add {address}/24 dev cable", "ip link set cable up", f"cd {machine}"]
    lines += [f"export SPARK_HOME={machine}/spark SPARK_CONF_DIR={own} SPARK_LOCAL_IP={address}", "unset PYTHONPATH PYSPARK_PYTHON"]
    return "\n".join(lines)


def _connect(process: subprocess.Popen[bytes], at: int) -> None:
    """Give a worker its end of a cable, once it has a network."""
    here = Path("/proc/self/ns/net").readlink()
    wait_until(lambda: Path(f"/proc/{process.pid}/ns/net").readlink() != here, "a network", START_S_MAX)
    near, far = f"{_bridge_name()}-{at}", f"{_bridge_name()}f{at}"
    _ip("link", "add", near, "type", "veth", "peer", "name", far)
    _ip("link", "set", far, "netns", str(process.pid), "name", "cable")
    _ip("link", "set", near, "master", _bridge_name(), "up")


@contextlib.contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=os.environ | environment, start_new_session=True
        )
        try:
            yield process
        finally:
            end(process, ((signal.SIGTERM, 5.0),))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _says(process: subprocess.Popen[bytes], log: Path, words: str) -> bool:
    text = log.read_text(errors="replace")
    if process.poll() is not None:
        raise AssertionError(f"it ended with {process.returncode}:\n{text[-3000:]}")
    return re.search(words, text) is not None


def _bridge_name() -> str:
    return f"ps{os.getpid() % 1_000_000}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, env={"PATH": _path()})


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
