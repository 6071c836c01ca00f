"""Servers with few and with many feeds: how long a status call waits there under load, and how long the page's scripts run."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from testing.servers.api_server import ApiServer
from testing.servers.browser import chromium
from testing.servers.page_browser import page_browser

FEW, MANY = 10, 1_000
LISTERS = 2
"""Clients that list all feeds without a pause, as pages and dashboards do, while status calls are timed."""


@contextmanager
def server_with(feeds: int) -> Iterator[ApiServer]:
    """Yield a server with so many feeds."""
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder), "shop.orders") as server:
        for at in range(feeds):
            server.creator.create({"name": f"feed-{at:04}", "tables": ["shop.*"], "sink": f"memory://many-{feeds}/{at}"})
        server.supervisor.stop()
        yield server


def status_p99_s(server: ApiServer, calls: int) -> float:
    """Return the 99th percentile of a call that shows one feed, while others list all of them."""
    ended = threading.Event()

    def list_all() -> None:
        with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=120) as client:
            while not ended.wait(0.2):
                client.get("/api/v1/feeds").raise_for_status()

    threads = [threading.Thread(target=list_all, daemon=True) for _ in range(LISTERS)]
    for thread in threads:
        thread.start()
    took = []
    with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=120) as client:
        for _ in range(calls):
            began = time.perf_counter()
            client.get("/api/v1/feeds/feed-0005").raise_for_status()
            took.append(time.perf_counter() - began)
    ended.set()
    for thread in threads:
        thread.join()
    return statistics.quantiles(took, n=100)[98]


def page_script_s(server: ApiServer, feeds: int) -> float | None:
    """Return for how long the page works until it shows all feeds, layout included; None where there is no browser."""
    program = chromium()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder, page_browser(program, Path(folder)) as browser:
        browser.open(f"{server.url}/#token={server.token}")
        browser.wait_for(f"document.body.innerText.includes('{feeds:,} of {feeds:,}')")
        return browser.script_seconds()
