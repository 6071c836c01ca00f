"""Named connections: targets whose address and secrets the server's own configuration holds, and feeds only name.

``[connections.lake]`` in the server's file, or ``PENSTOCK_CONNECTION_LAKE`` in its environment, gives a URI and parameters;
``connection://lake/shop`` is the prefix ``shop`` below it. Invariants: a feed keeps the name and never what it stands for, so a secret that
changes is changed in one place; a path below a connection never leaves it; a caller adds no parameters of the target's client. Runs in
the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from penstock.access.secret_variables import CONNECTION_PREFIX
from penstock.config.tree import SinkConfig, flatten
from penstock.model.errors import PenstockError
from penstock.settings.loader import Problems, did_you_mean
from penstock.sink.catalog import kind_of, settings_of
from penstock.target.settings import CONNECTION_SCHEME

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class Connections:
    """The connections of one server, by name."""

    def __init__(self, uris: Mapping[str, str]) -> None:
        self._uris = dict(uris)

    def __repr__(self) -> str:
        return f"Connections({sorted(self._uris)})"

    @classmethod
    def read(cls, tables: Mapping[str, Any], environment: Mapping[str, str]) -> Connections:
        """Return those of a configuration and of the environment, which wins; raise ``CONFIG_INVALID`` with every problem."""
        problems = Problems()
        uris = {name: uri for name, table in tables.items() if (uri := _read_table(name, table, problems)) is not None}
        for key, uri in environment.items():
            if key.startswith(CONNECTION_PREFIX):
                uris[key.removeprefix(CONNECTION_PREFIX).lower().replace("_", "-")] = uri
        for name, uri in uris.items():
            _check(name, uri, problems)
        problems.raise_if_any()
        return cls(uris)

    def resolve(self, sink: SinkConfig) -> SinkConfig:
        """Return a target with what its connections stand for, those of its options too; one that names none as it is."""
        resolved = self._resolve_uri(sink)
        named = kind_of(resolved.uri).place_options & resolved.options.keys()
        options = {key: self._resolve_uri(SinkConfig(resolved.options[key])).uri for key in named}
        return replace(resolved, options={**resolved.options, **options}) if options else resolved

    def _resolve_uri(self, sink: SinkConfig) -> SinkConfig:
        parts = urlsplit(sink.uri)
        if parts.scheme != CONNECTION_SCHEME:
            return sink
        base = self._uris.get(parts.netloc)
        if base is None:
            known = f"{did_you_mean(parts.netloc, self._uris)}" or f"; it has {', '.join(sorted(self._uris)) or 'none'}"
            raise PenstockError(
                "CONFIG_INVALID", f"sink.uri: this server has no connection {parts.netloc!r}{known}", "See [connections] of the server."
            )
        if ".." in unquote(parts.path).split("/"):
            raise PenstockError("SINK_FORBIDDEN", f"sink.uri: {parts.path} leaves the connection {parts.netloc!r}")
        of = urlsplit(base)
        path = "/".join(part for part in (of.path.rstrip("/"), parts.path.strip("/")) if part) or "/"
        query = "&".join(part for part in (of.query, parts.query) if part)
        return replace(sink, uri=f"{of.scheme}://{of.netloc}{path}" + (f"?{query}" if query else ""))


def _read_table(name: str, table: Any, problems: Problems) -> str | None:
    """Return the URI of a table with ``uri`` and parameters."""
    if not isinstance(table, Mapping) or not isinstance(table.get("uri"), str):
        problems.add(f"connections.{name}", "must be a table with a uri")
        return None
    parameters = urlencode(flatten({key: value for key, value in table.items() if key != "uri"}))
    return str(table["uri"]) + (("&" if "?" in table["uri"] else "?") + parameters if parameters else "")


def _check(name: str, uri: str, problems: Problems) -> None:
    if not _NAME.fullmatch(name):
        problems.add(f"connections.{name}", "its name must have lower-case letters, digits, '-' and '_' only")
    try:
        if urlsplit(settings_of(uri)[0]).scheme == CONNECTION_SCHEME:
            problems.add(f"connections.{name}.uri", "must name a target, not another connection")
    except PenstockError as error:
        problems.add_error(f"connections.{name}", error)
