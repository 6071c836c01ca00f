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
from penstock.server.page.page_routes import PAGE_FILES
from testing.servers.api_server import ApiServer
from testing.servers.browser import chromium
from testing.servers.page_browser import PageBrowser, page_browser

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium on this machine (Debian package chromium)")

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
    shows(browser, "2 tables, 2 dispatchers")
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
    click(browser, "Close")
    browser.press("s")
    browser.wait_for("document.querySelector('td a') !== null")
    assert browser.run("[...document.querySelectorAll('td a')].map((one) => [one.textContent, one.hash])") == [["orders", "#/feed/orders"]]
    browser.press("g")
    shows(browser, "1 of 1")
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
    """What axe would say of names and contrast, asked of the page itself: there is no npm in the way of a test."""
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
