"""The web page in a real browser, against a real server without Spark: what a person does there, and what the browser says of it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.cli.main import run
from penstock.meta.records import RequestedState
from penstock.model.errors import PenstockError
from penstock.server.page.page_routes import PAGE_FILES
from testing.servers.api_server import ApiServer
from testing.servers.browser import chromium
from testing.servers.loopback_server import from_npm
from testing.servers.page_browser import PageBrowser, page_browser
from testing.servers.waiting import wait_until

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium on this machine (Debian package chromium)")

AXE = "axe-core@4.14.0"
SCRIPTS = (Path(__file__).parent / "page_scripts.js").read_text(encoding="utf-8")
"""What a person does, as functions of the page: fill, press, unnamed, faint."""


def ask(browser: PageBrowser, what: str, *values: str) -> Any:
    return browser.run(f"(() => {{ {SCRIPTS}\nreturn {what}({', '.join(map(json.dumps, values))}); }})()")


def fill(browser: PageBrowser, label: str, text: str) -> None:
    assert ask(browser, "fill", label, text)


def click(browser: PageBrowser, text: str) -> None:
    browser.wait_until(lambda: ask(browser, "press", text), f"a button {text}")


def shows(browser: PageBrowser, text: str) -> None:
    browser.wait_for(f"document.body.innerText.includes({text!r})")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageBrowser]:
    program = chromium()
    assert program is not None
    with page_browser(program, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as opened:
        yield opened


def pictured(browser: PageBrowser, name: str) -> None:
    """Keep a picture for the documentation where somebody asks for it."""
    if folder := os.environ.get("PENSTOCK_PICTURES"):
        browser.picture(Path(folder) / f"{name}.png")


def test_a_person_creates_watches_pauses_resumes_and_reads_an_error(
    browser: PageBrowser, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    browser.errors.clear()
    browser.size(1_200, 800)
    assert run(["page", "--server", server.url]) == 0
    browser.open(capsys.readouterr().out.strip())
    shows(browser, "No feed yet")
    assert "token" not in browser.run("location.href"), "the token has left the address"
    browser.press("n")
    shows(browser, "Preview the tables")
    fill(browser, "Name", "orders")
    fill(browser, "Tables", "shop.*")
    fill(browser, "Target", "ftp://nowhere/x")
    click(browser, "Create")
    shows(browser, "SINK_URI_INVALID")
    shows(browser, "Use file:///dir")
    fill(browser, "Target", (tmp_path / "target").as_uri())
    click(browser, "Preview the tables")
    shows(browser, "2 tables, 2 ranges")
    shows(browser, "shop.items")
    assert server.meta.list_feeds() == [], "a preview makes nothing"
    pictured(browser, "new-feed")
    click(browser, "Create")
    shows(browser, "shop.orders")
    assert browser.run("location.hash") == "#/feed/orders"
    browser.wait_for("document.querySelector('h1 .chip').textContent === 'running'")
    spans = "import('/page/parts.js').then((parts) => [59.94, 3599.9, 86399.7].map(parts.span))"
    assert browser.run(spans) == ["60 s", "59 min 59 s", "23 h 59 min"]
    pictured(browser, "feed")
    browser.press("p")
    fill(browser, "Reason", "lunch")
    click(browser, "Pause")
    browser.wait_for("['paused', 'pausing'].includes(document.querySelector('h1 .chip').textContent)")
    assert server.meta.get_feed("orders").requested_state is RequestedState.PAUSED
    shows(browser, "lunch")
    click(browser, "Resume")
    click(browser, "Resume")
    browser.wait_for("document.querySelector('h1 .chip').textContent === 'running'")
    assert server.meta.get_feed("orders").requested_state is RequestedState.RUNNING
    click(browser, "Clone…")
    fill(browser, "Name of the new feed", "orders")
    fill(browser, "Its target", (tmp_path / "other").as_uri())
    click(browser, "Clone")
    shows(browser, "FEED_EXISTS")
    assert browser.run("document.querySelector('dialog input[name=sink]').value").endswith("other"), "what was typed is kept"
    click(browser, "Cancel")
    browser.press("s")
    browser.wait_for("document.querySelector('td a') !== null")
    assert browser.run("[...document.querySelectorAll('td a')].map((one) => [one.textContent, one.hash])") == [["orders", "#/feed/orders"]]
    browser.press("g")
    shows(browser, "1 of 1, ")
    pictured(browser, "feeds")
    browser.size(390, 800, dark=True)
    pictured(browser, "feeds-phone-dark")
    assert browser.run("document.documentElement.scrollWidth <= 390"), "a phone scrolls in one direction"
    browser.size(1_200, 800)
    # The browser's console repeats that a call was refused; the page shows it, and nothing else went wrong.
    assert [error for error in browser.errors if "400" not in error and "409" not in error and "422" not in error] == []


def test_without_a_token_it_asks_for_one_and_shows_nothing(browser: PageBrowser, server: ApiServer) -> None:
    browser.open("about:blank")
    browser.open(f"{server.url}/")
    browser.run("sessionStorage.clear()")
    browser.open(f"{server.url}/?again")
    shows(browser, "This server wants a token")
    fill(browser, "Token", "wrong")
    click(browser, "Sign in")
    shows(browser, "API_TOKEN_REQUIRED")
    fill(browser, "Token", server.token)
    click(browser, "Sign in")
    shows(browser, "No feed yet")
    click(browser, "Sign out")
    shows(browser, "This server wants a token")
    assert browser.run("sessionStorage.length") == 0


def test_every_control_has_a_name_and_text_stands_out_from_its_ground(browser: PageBrowser, server: ApiServer) -> None:
    """What axe says of names and contrast, asked of the page itself, also where there is no npm."""
    for dark in (False, True):
        browser.size(1_200, 800, dark=dark)
        for place in ("#/", "#/new", "#/servers", "#/sql"):
            browser.open("about:blank")
            browser.open(f"{server.url}/#token={server.token}")
            browser.run(f"location.hash = {place!r}")
            browser.wait_for("document.querySelector('main h1') !== null")
            assert ask(browser, "unnamed") == [], place
            assert ask(browser, "faint") == [], (place, dark)
    browser.size(1_200, 800)


def signed_in(browser: PageBrowser, server: ApiServer, place: str = "#/") -> None:
    browser.size(1_200, 800)
    browser.open("about:blank")
    browser.errors.clear()
    browser.open(f"{server.url}/#token={server.token}")
    browser.run(f"location.hash = {place!r}")


def create(server: ApiServer, name: str, tables: str, target: Path) -> None:
    tree = {"name": name, "tables": [tables], "sink": target.as_uri()}
    httpx.post(f"{server.url}/api/v1/feeds", json=tree, headers=server.headers, timeout=60, trust_env=False).raise_for_status()


def test_axe_finds_nothing(browser: PageBrowser, server: ApiServer, tmp_path: Path) -> None:
    axe = from_npm(AXE, "axe.min.js").read_text(encoding="utf-8")
    create(server, "orders", "shop.*", tmp_path / "target")
    for place in ("#/", "#/feed/orders", "#/feed/none", "#/new", "#/servers", "#/sql"):
        for width, dark in ((1_200, False), (1_200, True), (360, False)):
            signed_in(browser, server, place)
            browser.size(width, 800, dark=dark)
            browser.wait_for("document.querySelector('main h1') !== null && document.querySelector('h1 .chip')?.textContent !== '…'")
            browser.run(f"{axe};0")
            found = browser.run("axe.run().then((told) => told.violations.map((one) => [one.id, one.nodes.map((node) => node.html)]))")
            assert found == [], (place, width, dark)
            assert browser.run("document.documentElement.scrollWidth") <= width, place
    browser.size(1_200, 800)


def test_what_is_wrong_stands_first_and_the_console_stays_silent(browser: PageBrowser, server: ApiServer, tmp_path: Path) -> None:
    for name in ("alpha", "zulu"):
        create(server, name, "shop.*", tmp_path / name)
    runs = [server.runs.next_run() for _ in range(2)]
    next(run for run in runs if run.feed.name == "zulu").end(PenstockError("SINK_UNWRITABLE", "the disk is <b>full</b>"))
    wait_until(lambda: not server.health.components()["feeds"].ok, "health says so", 60)
    signed_in(browser, server)
    shows(browser, "not healthy")
    browser.wait_for("document.querySelector('tbody a').textContent === 'zulu'")
    shows(browser, "the disk is <b>full</b>")
    browser.wait_for("document.title.startsWith('(1 failed)')")
    click(browser, "failed 1")
    shows(browser, "1 of 2, ")
    browser.run("location.hash = '#/feed/zulu'")
    shows(browser, "then run penstock feed resume")
    assert browser.run("document.querySelectorAll('.trouble').length") == 1, "it is said once"
    assert browser.run("document.querySelector('[data-verb=resume]').dataset.kind") == "main"
    assert browser.errors == []


def test_curves_of_all_feeds_outlast_a_look_at_one(browser: PageBrowser, server: ApiServer, tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        create(server, name, "shop.*", tmp_path / name)
    signed_in(browser, server)
    browser.wait_for("[...document.querySelectorAll('svg.spark path:last-child')].filter((one) => one.getAttribute('d')).length === 2")
    browser.run("location.hash = '#/feed/alpha'")
    shows(browser, "shop.orders")
    kept = "import('/page/parts.js').then((parts) => parts.remembered('beta', 'rate').length)"
    assert browser.run(kept) >= 2
    broken = "import('/page/parts.js').then((parts) => parts.curve([[0, null], [1, 5], [2, 5], [3, null], [4, 2], [5, 2]], 100, 20).line)"
    assert browser.run(broken).count("M") == 2, "what is not known leaves a gap"


def test_ranges_of_a_table_are_shown_and_no_key_with_them(browser: PageBrowser, server: ApiServer, tmp_path: Path) -> None:
    create(server, "orders", "shop.*", tmp_path / "target")
    signed_in(browser, server, "#/feed/orders")
    shows(browser, "shop.orders")
    browser.run("document.querySelector('details').open = true")
    shows(browser, "1 of 1")
    told = httpx.get(f"{server.url}/api/v1/feeds/orders/ranges", headers=server.headers, timeout=60, trust_env=False).json()
    assert told["total"] == 2
    assert {one["table"] for one in told["ranges"]} == {"shop.orders", "shop.items"}
    assert not any("key" in field for one in told["ranges"] for field in one)


def test_who_stands_on_a_link_stays_there_while_the_page_asks_again(browser: PageBrowser, server: ApiServer, tmp_path: Path) -> None:
    create(server, "orders", "shop.*", tmp_path / "target")
    signed_in(browser, server, "#/servers")
    browser.wait_for("document.querySelector('td a') !== null && (document.querySelector('td a').focus(), true)")
    asked = "performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/servers')).length"
    before = browser.run(asked)
    browser.wait_for(f"{asked} >= {before} + 2")
    assert browser.run("document.activeElement.textContent") == "orders"


def test_a_server_that_ended_and_addresses_of_nothing(browser: PageBrowser, tmp_path: Path) -> None:
    with ApiServer(tmp_path, "shop.orders") as server:
        create(server, "orders", "shop.*", tmp_path / "target")
        signed_in(browser, server, "#/feed/%E0%A4%A")
        shows(browser, "FEED_UNKNOWN")
        browser.run("location.hash = '#/feed/none'")
        shows(browser, "There is nothing here")
        browser.run("location.hash = '#/feed/orders'")
        browser.wait_for("document.querySelector('h1 .chip')?.textContent === 'running'")
    shows(browser, "What is below is as it was at")
    colour = "getComputedStyle(document.querySelector('h1 .chip')).backgroundColor"
    seen = browser.run(colour)
    browser.run("document.querySelector('h1 .chip').dataset.tone = 'idle'")
    assert seen == browser.run(colour), "what is old is not green"


def test_the_files_are_small_complete_and_load_nothing_from_elsewhere(server: ApiServer) -> None:
    total = 0
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as stranger:
        for path in PAGE_FILES:
            answer = stranger.get(path)
            total += len(answer.content)
            assert answer.status_code == 200, path
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert b"http://" not in answer.content.replace(b"http://www.w3.org/2000/svg", b"")
            assert b"https://" not in answer.content
        assert stranger.get("/page/../page_routes.py").status_code in {401, 404}
    assert total < 200_000
