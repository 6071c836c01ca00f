"""A standalone Spark cluster on loopback: a master and workers as processes of this machine, which a test may kill. Runs in tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from testing.servers.loopback import end, free_port
from testing.servers.waiting import wait_until

START_S_MAX = 300.0
_HOST = "127.0.0.1"


class SparkStandalone:
    """A running cluster. Its processes lead groups of their own."""

    def __init__(self, folder: Path, cores: int, memory: str) -> None:
        self._folder, self._cores, self._memory = folder, cores, memory
        self._home = Path(pyspark.__file__).parent
        self._running: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.master = f"spark://{_HOST}:{port}"
        self._start("master", "org.apache.spark.deploy.master.Master", "--port", str(port), says="I have been elected leader")
        self.workers: list[subprocess.Popen[bytes]] = []

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker; it ends its executors when it ends in order, and leaves them where it is killed."""
        name = f"worker-{len(self.workers)}"
        options = ["--work-dir", str(self._folder / name), "--cores", str(self._cores), "--memory", self._memory, self.master]
        worker = self._start(name, "org.apache.spark.deploy.worker.Worker", *options, says="Successfully registered with master")
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        """End everything, and what it started."""
        for process in reversed(self._running):
            end(process, ((signal.SIGTERM, 5.0),))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self, name: str, kind: str, *options: str, says: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{name}.log"
        command = [str(self._home / "bin/spark-class"), kind, "--host", _HOST, "--webui-port", "0", *options]
        environment = os.environ | {"SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": _HOST}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        self._running.append(process)
        wait_until(lambda: process.poll() is not None or says in log.read_text(errors="replace"), name, START_S_MAX)
        if process.poll() is not None:
            raise AssertionError(f"{name} ended with {process.returncode}:\n{log.read_text(errors='replace')[-3000:]}")
        return process


@contextlib.contextmanager
def spark_standalone(folder: Path, workers: int, cores: int, memory: str = "3g") -> Iterator[SparkStandalone]:
    """Start a master and workers; end them with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = SparkStandalone(folder, cores, memory)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.close()
