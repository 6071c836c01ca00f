"""``make bench NAME=api``: what the token, the names, the rates and the bounds cost, against the same routes without them.

One process serves the same application twice, guarded and as uvicorn serves it by itself, on a meta database with feeds; clients in
processes of their own call a route that lists the feeds, with the server's own token and with one that was made, one call after the other
on one connection, and one that sends a body. What counts is the CPU time of the
serving process for a call, in the best of several interleaved rounds: calls per core, whatever else the machine does. Then servers with
few and with many feeds: how long the status of one feed waits while others list all of them, and how long the web page's scripts run.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import uvicorn
from starlette.types import ASGIApp

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.many_feeds import FEW, MANY, page_script_s, server_with, status_p99_s
from testing.servers.api_server import ApiServer

FEEDS = 10
CALLS, CALLS_QUICK = 2_000, 300
ROUNDS, ROUNDS_QUICK = 9, 5
CLIENT = """
import json, socket, sys
host, port, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
request = sys.stdin.buffer.read()
wire = socket.create_connection((host, port))
file = wire.makefile("rb")
def call():
    wire.sendall(request)
    status = int(file.readline().split()[1])
    length = 0
    while (line := file.readline()) not in (b"\\r\\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    file.read(length)
    return status
seen = {call()}
print("ready", flush=True)
sys.stdin.close()
for _ in range(calls):
    seen.add(call())
print(json.dumps(sorted(seen)), flush=True)
"""


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    calls, rounds = (CALLS_QUICK, ROUNDS_QUICK) if quick else (CALLS, ROUNDS)
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder), "shop.orders") as server:
        bare = _Bare(server.app)
        for at in range(FEEDS):
            tree = {"name": f"feed-{at}", "tables": ["shop.*"], "sink": f"memory://bench/{at}"}
            httpx.post(f"{server.url}/api/v1/feeds", json=tree, headers=server.headers, trust_env=False, timeout=60).raise_for_status()
        # What it does beside the calls is not theirs.
        server.supervisor.stop()
        say(f"api: {calls:,} calls, {FEEDS} feeds, best of {rounds} interleaved rounds")
        made = httpx.post(f"{server.url}/api/v1/tokens", json={"name": "bench"}, headers=server.headers, trust_env=False, timeout=60)
        requests = {
            "list feeds": (_get(server.token), 200),
            "list feeds by a made token": (_get(made.json()["token"]), 200),
            "refuse a body": (_post(server.token), 422),
        }
        cpu: dict[tuple[str, str], float] = {}
        for _ in range(rounds):
            for name, (request, status) in requests.items():
                for kind, url in (("bare", bare.url), ("guarded", server.url)):
                    seconds = _measure(url, request, calls, status)
                    cpu[name, kind] = min(seconds, cpu.get((name, kind), seconds))
        bare.stop()
    bars = [Bar(f"{name}: calls per CPU second, guarded to bare", cpu[name, "bare"] / cpu[name, "guarded"], 0.9) for name in requests]
    figures: dict[str, float | int | str] = {
        f"{name}, {kind}: calls per CPU second": round(calls / seconds) for (name, kind), seconds in cpu.items()
    }
    p99 = {}
    for feeds in (FEW, MANY):
        with server_with(feeds) as server:
            p99[feeds] = min(status_p99_s(server, calls) for _ in range(3))
            figures[f"status of one of {feeds:,} feeds while others list all: 99th percentile, ms"] = round(p99[feeds] * 1000, 1)
            if feeds == MANY and (seconds_of_script := page_script_s(server, feeds)) is not None:
                bars.append(Bar(f"page: seconds of script until {MANY:,} feeds are shown", seconds_of_script, 2.0, at_least=False))
    bars.append(Bar(f"status call, 99th percentile: {MANY:,} feeds to {FEW}", p99[MANY] / p99[FEW], 3.0, at_least=False))
    return Report("api", tuple(bars), figures)


class _Bare:
    """An application in uvicorn, without anything of ours around it."""

    def __init__(self, app: ASGIApp) -> None:
        # The protocol is named, because asyncio turns Nagle's algorithm off only where it is: else each small answer waits 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(100)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _measure(url: str, request: bytes, calls: int, status: int) -> float:
    """Return the CPU seconds of this process for so many calls of a client."""
    host, _, port = url.removeprefix("http://").partition(":")
    command = [sys.executable, "-S", "-c", CLIENT, host, port, str(calls)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(request)
        client.stdin.close()
        client.stdout.readline()
        began = time.process_time()
        seen = json.loads(client.stdout.readline())
        seconds = time.process_time() - began
    if seen != [status]:
        raise RuntimeError(f"the calls were answered {seen}")
    return seconds


def _get(token: str) -> bytes:
    return f"GET /api/v1/feeds HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def _post(token: str) -> bytes:
    body = json.dumps({"name": "x", "tables": ["none.*"], "sink": "memory://bench/x"}).encode()
    head = f"POST /api/v1/feeds HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
