"""Waiting for a server that starts, and how verbs reach one: ``penstock.library.server_client``. Runs anywhere."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit

from penstock.cli.shown.line import say
from penstock.config.known_servers import is_starting
from penstock.library.server_client import DEFAULT_URL, ServerClient, found_token
from penstock.model.clock import SystemClock
from penstock.settings.masking import mask_uri

STARTING_S_MAX, UNKNOWN_S_MAX = 120.0, 10.0
"""How long a server is waited for that is starting here, and one of which nothing is known."""
_CONNECT_S_MAX, _LOOK_S = 2.0, 0.2
__all__ = ["DEFAULT_URL", "ServerClient", "await_server", "found_token"]


def await_server(url: str, wait_s: float | None = None) -> None:
    """Wait for a server that does not listen yet, and say so; not at all where something else than that is wrong.

    One of this user that is starting on this machine is waited for longer than one of which nothing is known. Whether it answers is told
    by the next call.
    """
    clock, never, began_s, told = SystemClock(), threading.Event(), None, ""
    parts = urlsplit(url if "://" in url else f"//{url}")
    while True:
        starts = is_starting(url)
        if not starts and not _is_refused(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)):
            return
        bound_s = wait_s if wait_s is not None else STARTING_S_MAX if starts else UNKNOWN_S_MAX
        began_s = clock.monotonic_s() if began_s is None else began_s
        if clock.monotonic_s() - began_s >= bound_s:
            return
        what = "which is starting" if starts else "where nobody listens yet"
        if told != what:
            say(f"waiting up to {bound_s:g} s for the server at {mask_uri(url)}, {what}", err=True)
            told = what
        clock.wait(never, _LOOK_S)


def _is_refused(host: str, port: int) -> bool:
    """Return whether nobody listens at an address."""
    try:
        with socket.create_connection((host, port), _CONNECT_S_MAX):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, UnicodeError):
        return False
