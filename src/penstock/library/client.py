"""The public client of a server: its feeds and their tables. How a server is asked is ``server_client.py``. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.library.places import given, given_uri
from penstock.library.progress import Progress
from penstock.library.server_client import DEFAULT_URL, ServerClient
from penstock.settings.loader import merge


class Client:
    """A server, over its HTTP API. Errors are ``PenstockError`` with the server's code and hint.

    Without ``token`` it is found as the command line finds it: ``PENSTOCK_TOKEN``, ``PENSTOCK_TOKEN_FILE``, or that of a server that this
    user runs here. ``ca_file`` names certificates to trust beside the system's, as ``PENSTOCK_CA_FILE`` does. Answers are the API's own.
    """

    def __init__(
        self, url: str = DEFAULT_URL, *, token: str | None = None, ca_file: str | Path | None = None, timeout: float = 60.0
    ) -> None:
        self._server = ServerClient(url, timeout, token, str(ca_file) if ca_file else None)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._server.url!r})"

    def close(self) -> None:
        """Close the connection."""
        self._server.__exit__(None, None, None)

    def feeds(self) -> list[dict[str, Any]]:
        """Return a summary of every feed."""
        return self._server.list_feeds()

    def create(
        self,
        name: str,
        tables: str | Sequence[str],
        sink: str | Path,
        *,
        source: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Create a feed and start it; ``settings`` are those of a feed's configuration file. Returns the feed."""
        patterns = [tables] if isinstance(tables, str) else list(tables)
        told: dict[str, Any] = {"name": name, "tables": patterns, "sink": {"uri": given_uri(sink)}}
        told |= {"source": given_uri(source)} if source else {}
        return self._server.create_feed(merge(given().resolve_tree(dict(settings or {})), told))

    def show(self, name: str) -> dict[str, Any]:
        """Return everything that may be shown of a feed."""
        return self._server.show_feed(name)

    def status(self, name: str) -> Progress:
        """Return what a feed has reached."""
        return Progress.of(self._server.show_feed(name))

    def tables(self, name: str) -> list[dict[str, Any]]:
        """Return the tables of a feed with their states."""
        return self._server.list_tables(name)

    def pause(self, name: str, reason: str = "") -> dict[str, Any]:
        """Ask for a feed to be paused; answers before it is."""
        return self._server.control(name, "pause", {"reason": reason})

    def resume(self, name: str, reason: str = "") -> dict[str, Any]:
        """Ask for a feed to go on; answers before it does."""
        return self._server.control(name, "resume", {"reason": reason})

    def remove(self, name: str, reason: str = "") -> dict[str, Any]:
        """Remove a feed; what it delivered stays."""
        return self._server.control(name, "remove", {"reason": reason})
