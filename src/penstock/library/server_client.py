"""How verbs and programs talk to a server: its HTTP API, errors turned back into Penstock's own.

The token is that of ``PENSTOCK_TOKEN``, or in the file of ``PENSTOCK_TOKEN_FILE``, or the one of a server that this user runs here, which
is found by its address. ``PENSTOCK_CA_FILE`` names certificates to trust, beside those of the system. Runs anywhere.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from penstock.access.secret_variables import TOKEN_VARIABLE
from penstock.config.feed_group import full_name
from penstock.config.known_servers import KnownServer, find_server, read_token
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_uri

DEFAULT_URL = "http://127.0.0.1:8300"
_NOT_WELL = 503
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class ServerClient:
    """A connection to one server."""

    def __init__(self, url: str, timeout_s: float = 60.0, token: str | None = None, ca_file: str | None = None) -> None:
        """Whoever runs the server in this process gives its token; all others have theirs found, unless they give one."""
        self._url = _checked(url)
        known = find_server(self._url)
        token = found_token(known) if token is None else token
        if known is not None and self._url.startswith("http://localhost"):
            # The token goes to the address that its server noted, and not to whatever else answers to the name.
            self._url = self._url.replace("localhost", "127.0.0.1", 1)
        try:
            self._client = httpx.Client(
                base_url=f"{self._url}/api/v1",
                timeout=timeout_s,
                # A proxy of the environment is for the world outside, not for this machine.
                trust_env=urlsplit(self._url).hostname not in _LOOPBACK,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                verify=_trusted(known, ca_file) if self._url.startswith("https:") else True,
            )
        except (ValueError, httpx.InvalidURL):
            raise _no_address(url) from None

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    @property
    def url(self) -> str:
        """Return the server's address."""
        return self._url

    def create_feed(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Create a feed from its configuration."""
        return self._call("POST", "/feeds", tree)

    def list_feeds(self) -> list[dict[str, Any]]:
        """Return a summary of every feed."""
        feeds: list[dict[str, Any]] = self._call("GET", "/feeds")["feeds"]
        return feeds

    def show_feed(self, name: str) -> dict[str, Any]:
        """Return everything that may be shown of a feed."""
        return self._call("GET", f"/feeds/{quote(full_name(name), safe='')}")

    def control(self, name: str, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Ask something of a feed, by one of the server's verbs; answers before it is reached."""
        return self._call("POST", f"/feeds/{quote(full_name(name), safe='')}/{verb}", arguments)

    def feed_history(self, name: str) -> list[dict[str, Any]]:
        """Return what was asked of a feed and what it reached, oldest first."""
        entries: list[dict[str, Any]] = self._call("GET", f"/feeds/{quote(full_name(name), safe='')}/history")["history"]
        return entries

    def dead_letters(self, name: str) -> list[str]:
        """Return the names of what the target of a feed refused for good."""
        names: list[str] = self._call("GET", f"/feeds/{quote(full_name(name), safe='')}/dead-letters")["dead_letters"]
        return names

    def ask_for_letter(self, name: str, letter: str, what: str) -> dict[str, Any]:
        """Have a dead letter shown, or offered to the target once more."""
        return self._call("POST", f"/feeds/{quote(full_name(name), safe='')}/dead-letters/{quote(letter, safe='')}/{what}")

    def drain(self, method: str = "GET") -> dict[str, Any]:
        """Begin to drain the server (POST), end that (DELETE), or ask which feeds are left (GET)."""
        return self._call(method, "/server/drain")

    def verify_feed(self, name: str) -> dict[str, Any]:
        """Let the server compare a feed's target with the upstream; answers when every table is compared."""
        return self._call("POST", f"/feeds/{quote(full_name(name), safe='')}/verify")

    def verify_progress(self, name: str, after: int) -> list[str]:
        """Return what was told of a verification that is under way, after so many lines."""
        lines: list[str] = self._call("GET", f"/feeds/{quote(full_name(name), safe='')}/verify?after={after}")["progress"]
        return lines

    def cancel_verification(self, name: str) -> bool:
        """End a verification that is under way; return whether there was one."""
        return bool(self._call("DELETE", f"/feeds/{quote(full_name(name), safe='')}/verify")["cancelled"])

    def list_tables(self, name: str) -> list[dict[str, Any]]:
        """Return the tables of a feed with their states."""
        tables: list[dict[str, Any]] = self._call("GET", f"/feeds/{quote(full_name(name), safe='')}/tables")["tables"]
        return tables

    def ask_for_table(self, name: str, table: str, what: str, reason: str = "") -> dict[str, Any]:
        """Ask for something to be done with a table of a feed, by one of the server's verbs for tables; answers before it is."""
        return self._call("POST", f"/feeds/{quote(full_name(name), safe='')}/tables/{quote(table, safe='')}/{what}", {"reason": reason})

    def execute(self, text: str, *, reads: bool) -> dict[str, Any]:
        """Execute a statement of SQL; whoever may only read can have those executed that only read."""
        if reads:
            return self._call("GET", f"/sql?text={quote(text, safe='')}")
        return self._call("POST", "/sql", {"text": text})

    def health(self) -> dict[str, Any]:
        """Return how the server fares; one that does not fare well says so and is no error."""
        return self._call("GET", "/health", fine=(_NOT_WELL,))

    def read_log(self, after: int, feed: str, level: str, lines: int) -> dict[str, Any]:
        """Return the newest lines of the server's log behind a number, and the number of the newest of all."""
        return self._call("GET", f"/logs?after={after}&feed={quote(feed, safe='')}&level={level}&lines={lines}")

    def create_token(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Make a token; the answer is the only place that ever shows it."""
        return self._call("POST", "/tokens", tree)

    def list_tokens(self) -> list[dict[str, Any]]:
        """Return every token that was made, without the tokens themselves."""
        tokens: list[dict[str, Any]] = self._call("GET", "/tokens")["tokens"]
        return tokens

    def revoke_token(self, token_id: str) -> dict[str, Any]:
        """End a token."""
        return self._call("DELETE", f"/tokens/{quote(token_id, safe='')}")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, fine: tuple[int, ...] = ()) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, json=body)
            answer = response.json()
        except (httpx.TransportError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise PenstockError("SERVER_UNREACHABLE", f"{mask_uri(self._url)}: {_reason(error)}") from None
        except ValueError:
            raise PenstockError(
                "SERVER_UNREACHABLE", f"{mask_uri(self._url)}: what answers is no Penstock server (HTTP {response.status_code})"
            ) from None
        if isinstance(answer, dict) and (response.is_success or (response.status_code in fine and "code" not in answer)):
            return answer
        if isinstance(answer, dict) and {"code", "message"} <= answer.keys():
            raise PenstockError(str(answer["code"]), str(answer["message"]), answer.get("hint"))
        raise PenstockError(
            "SERVER_UNREACHABLE", f"{mask_uri(self._url)}: what answers is no Penstock server (HTTP {response.status_code})"
        )


def found_token(known: KnownServer | None) -> str:
    """Return the token of the environment, or that of a server that this user runs here; empty where there is none."""
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    if given:
        return given
    file = os.environ.get("PENSTOCK_TOKEN_FILE") or (known.token_file if known else "")
    return read_token(Path(file)) if file else ""


def _checked(url: str) -> str:
    """Return an address that can be called; host and port will do."""
    address = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parts = urlsplit(address)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise _no_address(url)
    return address


def _no_address(url: str) -> PenstockError:
    return PenstockError("CONFIG_INVALID", f"server: {mask_uri(url)!r} is no address of one", f"Use {DEFAULT_URL}.")


def _trusted(known: KnownServer | None, ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for file in (ca_file or os.environ.get("PENSTOCK_CA_FILE"), known.certificate if known else None):
        if file:
            try:
                context.load_verify_locations(file)
            except (OSError, ssl.SSLError) as error:
                raise PenstockError("CONFIG_INVALID", f"{file}: {error.strerror or 'no certificate'}") from None
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__
