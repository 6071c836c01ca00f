"""The verb ``receive``: a receiver of an HTTP target on this machine, to see what a feed posts.

It checks signatures, drops what comes again as ``docs/targets/http.md`` tells receivers to, prints a line for each message and keeps
what it took. For trying things out: it listens on loopback alone and knows nobody. Runs anywhere.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

from penstock.model.clock import SystemClock
from penstock.target.signatures import is_signed, secret_key

_BODY_BYTES_MAX = 128 << 20
_HOST = "127.0.0.1"


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=8090, show_default=True, help="Where to listen; 0 for any free port.")
@click.option("--secret", default="", help="The secret of the feed; what is not signed with it is refused.")
@click.option("--keep", type=click.Path(path_type=Path, dir_okay=False), help="A file that each message is appended to, as a line of JSON.")
@click.option(
    "--answer", type=click.IntRange(200, 599), default=200, help="Answer this instead of taking anything, to see what a feed does."
)
def receive(port: int, secret: str, keep: Path | None, answer: int) -> None:
    """Receive what feeds post to an HTTP target, check it and print it, until it is interrupted.

    \b
    In two terminals:
      penstock receive --port 8090 --secret try
      penstock run --source dataserver://127.0.0.1:7070 --table 'shop.*' --sink 'http+json://127.0.0.1:8090/?secret=try'
    """  # noqa: D301
    server = ThreadingHTTPServer((_HOST, port), _Handler)
    server.daemon_threads = True
    vars(server)["desk"] = _Desk(secret, keep, answer)
    click.echo(f"receiving at http+json://{_HOST}:{server.server_address[1]}/")
    try:
        server.serve_forever()
    finally:
        server.server_close()


class _Desk:
    """Takes messages. Thread safe."""

    def __init__(self, secret: str, keep: Path | None, answer: int) -> None:
        self._secret = secret_key(secret)
        self._keep = keep
        self._answer = answer
        self._last: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Return what is answered to a message."""
        with self._lock:
            if self._secret and not is_signed(self._secret, headers, body, SystemClock().now_ms() // 1000):
                click.echo("refused: not signed with the secret")
                return 401
            try:
                told = json.loads(body)
            except ValueError:
                click.echo("refused: no JSON")
                return 400
            if self._answer != 200:
                click.echo(f"answered {self._answer}: {_line(told, headers)}")
                return self._answer
            place = (str(told.get("feed", "")) if isinstance(told, dict) else "", headers.get("penstock-lane", ""))
            sequence = headers.get("penstock-sequence", "")
            if sequence <= self._last.get(place, "") and "penstock-redelivery" not in headers:
                click.echo(f"again: {_line(told, headers)}")
                return 200
            if self._keep is not None:
                with self._keep.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(told, ensure_ascii=False) + "\n")
            self._last[place] = max(sequence, self._last.get(place, ""))
            click.echo(_line(told, headers))
            return 200


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def do_HEAD(self) -> None:
        self._say(200)

    def do_POST(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > _BODY_BYTES_MAX:
            self.close_connection = True
            self._say(413)
            return
        self._say(vars(self.server)["desk"].take(headers, self.rfile.read(int(length))))

    def _say(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing: each message has its line."""


def _line(told: Any, headers: dict[str, str]) -> str:
    """Return a message in one line."""
    place = f"lane {headers.get('penstock-lane', '-')}, sequence {headers.get('penstock-sequence', '-')}"
    if not isinstance(told, dict):
        return f"{len(told)} events, {place}"
    data = told.get("data", told)
    if data.get("type") == "rows":
        what = f"{data['rows']} rows of {data['schema']}.{data['table']}"
    else:
        what = f"{data.get('type', 'message')} {data.get('sql') or data.get('checkpoint_ts') or ''}".strip()
    return f"{what}, {place}"
