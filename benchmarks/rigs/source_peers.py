"""The peers of ``make bench NAME=sources``: programs that users run today, on the same logs.

Those from PyPI and npm are installed into a folder of the benchmark's own, once. Each writes JSON or text to a file and says when
it saw its first and its last change; CPU time counts its own processes, not the server's. Runs in the benchmark.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from benchmarks.report import say
from benchmarks.rigs.source_servers import DATABASE, USER, Server, Workload
from penstock.model.errors import PenstockError
from testing.servers.loopback import program

PEER_S_MAX = 1800.0
SAMPLE_S = 0.1


class Measured(msgspec.Struct, frozen=True):
    """What one contestant took: seconds from the first to the last change, CPU seconds of its processes, start-up beside it."""

    seconds: float
    cpu_seconds: float
    startup_seconds: float
    peak_bytes: int
    rows: int

    @property
    def rows_per_s(self) -> float:
        """Return the changes per second."""
        return self.rows / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """Return the CPU seconds per million changes."""
        return self.cpu_seconds * 1e6 / self.rows

    def told(self, name: str) -> Measured:
        """Say the figures; return them."""
        say(
            f"  {name}: {self.rows_per_s:,.0f} rows/s, {self.cpu_per_million:.2f} CPU-seconds per million, "
            f"start-up {self.startup_seconds:.1f} s, peak {self.peak_bytes / 2**20:,.0f} MiB"
        )
        return self


class Watched:
    """Sums CPU time and memory of a process and all its descendants, by sampling; ended ones keep what CPU time was last seen."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}
        self._stop = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far."""
        self._sample()
        return sum(self._cpu.values())

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        total = 0
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        for process in processes:
            try:
                times = process.cpu_times()
                self._cpu[(process.pid, process.create_time())] = times.user + times.system
                total += _own_share(process.pid)
            except psutil.Error:
                continue
        self.peak_bytes = max(self.peak_bytes, total)


def _own_share(pid: int) -> int:
    """Return the bytes of a process that are in memory, each page by the share of it: what forked workers have in common counts once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def peers_folder() -> Path:
    """Return where peers are installed."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock" / "bench-peers"


def install_python_peer() -> Path:
    """Install python-mysql-replication; return the interpreter that has it."""
    folder = peers_folder() / "python"
    interpreter = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        say("  installing python-mysql-replication")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
        subprocess.run([str(interpreter), "-m", "pip", "install", "-q", "mysql-replication==1.0.17"], check=True, capture_output=True)
        (folder / ".complete").touch()
    return interpreter


def install_node_peer() -> Path:
    """Install zongji; return its folder."""
    folder = peers_folder() / "node"
    if shutil.which("npm") is None:
        raise PenstockError("MISSING_DEPENDENCY", "npm is not on this machine", "Install the Debian package npm.")
    if not (folder / ".complete").exists():
        say("  installing @vlasky/zongji")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"type": "module", "private": true}', encoding="utf-8")
        command = ["npm", "install", "--no-fund", "--no-audit", "--silent", "@vlasky/zongji@0.9.0"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        (folder / ".complete").touch()
    return folder


_PYTHON_PEER = """
import json, sys, time
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent
port, user, schema, table, file, out = sys.argv[1:]
stream = BinLogStreamReader(
    connection_settings={"host": "127.0.0.1", "port": int(port), "user": user, "passwd": ""}, server_id=4101, resume_stream=True,
    log_file=file, log_pos=4, only_schemas=[schema], only_tables=[table],
    only_events=[DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent])
rows, first = 0, None
with open(out, "w") as sink:
    for event in stream:
        kind = type(event).__name__
        for row in event.rows:
            if first is None:
                first = time.perf_counter()
                print("first", flush=True)
            sink.write(json.dumps({"op": kind, "table": event.table, "row": row}, default=str) + "\\n")
            rows += 1
print(json.dumps({"rows": rows, "seconds": time.perf_counter() - first}), flush=True)
"""

_NODE_PEER = """
import fs from 'node:fs';
import ZongJi from '@vlasky/zongji';
const [port, user, schema, table, file, expected, out] = process.argv.slice(2);
const zongji = new ZongJi({ host: '127.0.0.1', port: Number(port), user, password: '' });
const sink = fs.openSync(out, 'w');
let rows = 0, first = 0, buffer = [];
zongji.on('binlog', (event) => {
  if (event.getEventName() === 'tablemap') return;
  if (!first) { first = performance.now(); console.log('first'); }
  const op = event.getEventName();
  for (const row of event.rows) buffer.push(JSON.stringify({ op, table, row }));
  rows += event.rows.length;
  if (buffer.length >= 1000 || rows >= Number(expected)) { fs.writeSync(sink, buffer.join('\\n') + '\\n'); buffer = []; }
  if (rows >= Number(expected)) {
    console.log(JSON.stringify({ rows, seconds: (performance.now() - first) / 1000 }));
    process.exit(0);
  }
});
zongji.on('error', (error) => { console.error(String(error)); process.exit(1); });
zongji.start({ serverId: 4102, filename: file, position: 4, includeSchema: { [schema]: [table] },
  includeEvents: ['tablemap', 'writerows', 'updaterows', 'deleterows'] });
"""


def python_mysql_replication(server: Server, workload: Workload, first_log: str, folder: Path) -> Measured:
    """Run python-mysql-replication over the log to a file of JSON lines."""
    script = folder / "peer.py"
    script.write_text(_PYTHON_PEER, encoding="utf-8")
    arguments = [str(server.port), USER, DATABASE, workload.table, first_log, str(folder / "python.json")]
    return telling([str(install_python_peer()), str(script), *arguments])


def zongji(server: Server, workload: Workload, first_log: str, folder: Path) -> Measured:
    """Run zongji over the log to a file of JSON lines."""
    installed = install_node_peer()
    script = installed / "peer.js"
    script.write_text(_NODE_PEER, encoding="utf-8")
    arguments = [str(server.port), USER, DATABASE, workload.table, first_log, str(workload.changes), str(folder / "zongji.json")]
    return telling(["node", str(script), *arguments])


def mariadb_binlog(server: Server, workload: Workload, first_log: str, folder: Path, *, decoded: bool) -> Measured:
    """Run ``mariadb-binlog`` over the log: raw files, or decoded to text that goes to /dev/null."""
    command = [program("mariadb-binlog", "mariadb-client"), "--no-defaults", "--read-from-remote-server", "--host=127.0.0.1"]
    command += [f"--port={server.port}", f"--user={USER}", "--to-last-log"]
    command += ["-v", "--base64-output=DECODE-ROWS"] if decoded else ["--raw", f"--result-file={folder}/raw-"]
    return _whole([*command, first_log], workload.changes)


def pg_recvlogical(server: Server, workload: Workload, slot: str, end_lsn: str, folder: Path) -> Measured:
    """Run ``pg_recvlogical`` with pgoutput to a file, up to a position."""
    command = [program("pg_recvlogical", "postgresql-client"), "--start", "--no-loop", "-d", server.uri, "-S", slot]
    command += [
        "-o",
        "proto_version=1",
        "-o",
        f"publication_names=pub_{workload.table}",
        f"--endpos={end_lsn}",
        "-f",
        f"{folder}/pgoutput.bin",
    ]
    return _whole(command, workload.changes)


def telling(command: Sequence[str]) -> Measured:
    """Run a peer that says ``first`` at its first change and JSON at its last."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watched = Watched(process.pid)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        startup, before = time.perf_counter() - began, watched.cpu_seconds()
        last = process.stdout.readline()
        cpu = watched.cpu_seconds() - before
        _, errors = process.communicate(timeout=PEER_S_MAX)
    finally:
        watched.close()
        if process.poll() is None:
            process.kill()
            process.wait()
    if not first or not last.startswith("{"):
        raise PenstockError("INTERNAL", f"the peer {Path(command[1]).name} failed: {errors[-500:]}")
    told = json.loads(last)
    return Measured(float(told["seconds"]), cpu, startup, watched.peak_bytes, int(told["rows"]))


def _whole(command: Sequence[str], rows: int) -> Measured:
    """Run a program that has no notion of a first change: it counts from its start, which takes a few milliseconds."""
    before, began = _children_cpu(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watched = Watched(process.pid)
    try:
        _, errors = process.communicate(timeout=PEER_S_MAX)
        seconds = time.perf_counter() - began
    finally:
        watched.close()
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise PenstockError("INTERNAL", f"{Path(command[0]).name} failed: {errors.decode(errors='replace')[-500:]}")
    return Measured(seconds, _children_cpu() - before, 0.0, watched.peak_bytes, rows)


def _children_cpu() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
