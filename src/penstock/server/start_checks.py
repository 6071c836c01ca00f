"""What is tried before a server starts anything slow: its sources, its ports, and the targets of the feed that it is started for.

Everything is tried, and everything that is wrong is told at once. Invariant: nothing is made, and nothing is left where it was not; of a
source only that is refused without which no table at all is captured, because one table never stops another. Runs where a server is
started.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config.server_tree import ServerConfig
from penstock.meta.engine import sqlite_file
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.finding import Finding
from penstock.server.source_address import check_reachable
from penstock.settings.masking import mask_text, mask_uri
from penstock.sink.catalog import check_target
from penstock.source.catalog import check_scheme, examine_server
from penstock.target.settings import CONNECTION_SCHEME

if TYPE_CHECKING:
    from penstock.config.tree import FeedConfig


def check_start(config: ServerConfig, feeds: Sequence[FeedConfig] = (), tell: Callable[[str], None] = lambda _: None) -> None:
    """Raise what keeps a server from starting, or its feeds from beginning; ``tell`` hears what is tried."""
    found = [error] if (error := _tried(_check_directory, config.data_dir)) else []
    named = [(f"sources.{name}.uri", place.uri) for name, place in config.sources.items()]
    for key, uri in [("source", config.source), *named] if config.source else named:
        # A source with a name begins with its first feed: that it is away now is no reason not to start.
        steps = (check_scheme, _check_source) if key == "source" else (check_scheme,)
        tell(f"{key}: {mask_uri(uri)}")
        for step in steps:
            error = _tried(step, uri)
            if error is not None:
                lines = [f"{key}: {line.removeprefix('source: ')}" for line in error.detail.splitlines()]
                found.append(PenstockError(error.code, "\n".join(lines), error.hint))
                break
    for key, host, port in _ports(config):
        error = _tried(_check_port, host, port)
        if error is not None:
            found.append(PenstockError(error.code, f"{key}: {error.detail}", error.hint))
    # A feed that is there goes on when its target does; only one that is about to be made needs it now.
    there = sqlite_file(config.effective_meta_url)
    for feed in feeds if there is not None and not there.exists() else ():
        uri = feed.target.uri
        if not uri.startswith(f"{CONNECTION_SCHEME}:"):
            tell(f"sink: {mask_uri(uri)}")
            found += _target_problems(uri, check_target(uri, feed.target.options, feed.name))
    if len(found) == 1:
        raise found[0]
    if found:
        lines = [f"[{error.code}] {line}" for error in found for line in error.detail.splitlines()]
        # What waiting does not mend comes first.
        first = min(found, key=lambda error: error.kind is ErrorKind.TRANSIENT)
        raise PenstockError(first.code, "\n".join(lines), first.hint)


def _check_directory(path: Path) -> None:
    place = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    why = "Not a directory" if not place.is_dir() else "" if os.access(place, os.W_OK | os.X_OK) else "Permission denied"
    if why:
        hint = "Choose a directory that this user can write, with --data-dir."
        raise PenstockError("CONFIG_INVALID", f"data-dir: {path.absolute()}: {why}", hint)


def _tried(step: Callable[..., None], *given: str | int | Path) -> PenstockError | None:
    try:
        step(*given)
    except PenstockError as error:
        return error
    return None


def _check_source(uri: str) -> None:
    check_reachable(uri)
    wrong = [finding for finding in examine_server(uri) if finding.blocks]
    if wrong:
        text = "\n".join(f"{f.name} is {f.found}, wanted: {f.wanted}" + (f"; do: {f.statement}" if f.statement else "") for f in wrong)
        raise PenstockError("UPSTREAM_MISCONFIGURED", text, f"Do what is said, then see `penstock doctor {mask_uri(uri)}`.")


def _ports(config: ServerConfig) -> list[tuple[str, str, int]]:
    """Return the ports that the server will listen on, those that it may choose itself left out."""
    given = [("http-port", config.http_host, config.http_port), ("grpc-port", config.http_host, config.grpc_port or 0)]
    given.append(("flight-port", config.flight_host, config.flight_port))
    return [(key, host, port) for key, host, port in given if port]


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the listener itself does: a port whose last connections are only just closed is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Another process may have bound it in the same way; only one of them can listen.
            probe.listen(1)
        except OSError as error:
            raise PenstockError("CONFIG_INVALID", f"cannot listen on {host}:{port}: {error.strerror}", "Choose a free port.") from None


def _target_problems(uri: str, findings: Sequence[Finding]) -> list[PenstockError]:
    wrong = [finding for finding in findings if finding.blocks]
    return [
        PenstockError(
            "SINK_OCCUPIED" if finding.name.endswith(": free") else "SINK_UNWRITABLE",
            mask_text(f"sink: {mask_uri(uri)}: {finding.found}; wanted: {finding.wanted}"),
            f"See `penstock doctor --sink {mask_uri(uri)}`.",
        )
        for finding in wrong
    ]
