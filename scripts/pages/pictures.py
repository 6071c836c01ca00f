"""pictures.py: takes the pictures of the web page for docs/pictures, light and dark, in a headless browser.

``PYTHONPATH=.. python -m pages.pictures`` from the folder ``scripts``. The server is one without Spark; what its feeds deliver is told to
its meta database, so that curves have something to show. Run it when the page has changed.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

import httpx

from penstock.meta.records import Counted, RetryRecord
from penstock.model.clock import SystemClock
from penstock.model.timestamp import compose_ts
from testing.servers.api_server import ApiServer
from testing.servers.browser import chromium
from testing.servers.page_browser import PageBrowser, page_browser

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
BYTES_MAX = 150_000
FEEDS = {"shop": "shop.*", "people": "crm.people", "billing": "billing.*", "hooks": "shop.orders"}
TABLES = ("shop.orders", "shop.items", "shop.customers", "crm.people", "billing.invoices", "billing.payments")
_STEPS, _STEP_S = 24, 1.0


def _create(server: ApiServer, folder: Path) -> None:
    for name, tables in FEEDS.items():
        body = {"name": name, "tables": [tables], "sink": (folder / name).as_uri()}
        httpx.post(f"{server.url}/api/v1/feeds", json=body, headers=server.headers, timeout=60).raise_for_status()


def _deliver(server: ApiServer, step: int, clock: SystemClock) -> None:
    """Tell the meta database of one window of each feed that runs; rates rise and fall."""
    for at, name in enumerate(("shop", "people")):
        feed = server.meta.get_feed(name)
        dispatchers = server.meta.dispatchers(name) or []
        if not feed.epoch or not dispatchers:
            continue
        to_ts = compose_ts(clock.now_ms() - 700)
        rows = 9_000 + 4_000 * abs((step + 5 * at) % 12 - 6)
        counts = {one.range_id: Counted(rows // (n + 1), rows * 90 // (n + 1), 1) for n, one in enumerate(dispatchers)}
        server.meta.begin_window(name, feed.epoch, feed.checkpoint_ts, to_ts, "{}")
        total = Counted(*(sum(getattr(one, key) for one in counts.values()) for key in ("rows", "nbytes", "files")))
        server.meta.commit_window(
            name, feed.epoch, feed.checkpoint_ts, to_ts, {key: {} for key in counts}, total.rows, total.nbytes, total.files, counts=counts
        )


def _take(browser: PageBrowser, server: ApiServer) -> None:
    clock, never = SystemClock(), threading.Event()
    now_ms = clock.now_ms()
    httpx.post(f"{server.url}/api/v1/feeds/billing/pause", json={"reason": "migration"}, headers=server.headers, timeout=60)
    browser.size(1_280, 800)
    browser.open(f"{server.url}/#token={server.token}")
    for step in range(_STEPS):
        _deliver(server, step, clock)
        text = "the target answered 503 Service Unavailable"
        if epoch := server.meta.get_feed("hooks").epoch:
            server.meta.record_error("hooks", epoch, "SINK_UNAVAILABLE", text, RetryRecord(now_ms - 90_000, now_ms + 60_000, 4))
        clock.wait(never, _STEP_S)
    for name, place, wanted in (("feeds", "#/", "of 4"), ("feed", "#/feed/shop", "shop.customers"), ("servers", "#/servers", "feeds")):
        browser.run(f"location.hash = {place!r}")
        browser.wait_for(f"document.body.innerText.includes({wanted!r})")
        for dark in (False, True):
            _deliver(server, _STEPS, clock)
            browser.size(1_280, 800, dark=dark)
            clock.wait(never, _STEP_S)
            browser.picture(PICTURES / f"{name}-{'dark' if dark else 'light'}.png")


def main() -> int:
    """Take all pictures; fail where one is larger than a page should carry."""
    program = chromium()
    if program is None:
        print("there is no Chromium on this machine", file=sys.stderr)
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "browser").mkdir()
        with ApiServer(folder, *TABLES) as server, page_browser(program, folder / "browser") as browser:
            _create(server, folder)
            _take(browser, server)
    large = [path.name for path in PICTURES.glob("*.png") if path.stat().st_size > BYTES_MAX]
    print(f"larger than {BYTES_MAX} bytes: {', '.join(large)}" if large else f"pictures are in {PICTURES}")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
