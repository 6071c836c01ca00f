"""Secrets in URIs that a user gives: not written down there, but named.

``{env:NAME}`` stands for a variable of the environment, ``{file:PATH}`` for the first line of a file, ``{ask}`` for what the user types
without seeing it; what they stand for is percent-encoded, so that any character is right in a password. A whole URI may stand in any of
them too. Only what the user of this process gives is looked at, never what comes over a wire. Invariant: no error shows what a secret is.
Runs where commands are given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.access.secret_variables import note_secret
from penstock.model.errors import PenstockError

_NAMED = re.compile(r"\{(?P<kind>env|file|ask)(?::(?P<name>[^{}]*))?\}")
_HINT = "Write {env:NAME}, {file:/path/to/it} or {ask} where the secret stands."
_SECRET_BYTES_MAX = 1 << 16

Ask = Callable[[str], str]


class GivenUris:
    """Finds what names in URIs stand for; a question is asked once."""

    def __init__(self, environment: Mapping[str, str], ask: Ask) -> None:
        self._environment = environment
        self._ask = ask
        self._answers: dict[str, str] = {}

    def resolve(self, uri: str) -> str:
        """Return a URI with its secrets."""
        whole = _NAMED.fullmatch(uri)
        if whole is not None:
            return self._value(whole)
        return _NAMED.sub(lambda found: quote(self._value(found), safe=""), uri)

    def resolve_tree(self, tree: Any) -> Any:
        """Return a tree of settings in which every text that names a secret has it."""
        if isinstance(tree, Mapping):
            return {key: self.resolve_tree(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [self.resolve_tree(value) for value in tree]
        return self.resolve(tree) if isinstance(tree, str) else tree

    def _value(self, found: re.Match[str]) -> str:
        kind, name = found["kind"], found["name"] or ""
        if kind == "ask":
            if name not in self._answers:
                self._answers[name] = self._ask(name or "password")
            return self._answers[name]
        if not name:
            raise PenstockError("CONFIG_INVALID", f"{{{kind}}} does not say which", _HINT)
        return self._variable(name) if kind == "env" else _first_line(name)

    def _variable(self, name: str) -> str:
        value = self._environment.get(name)
        if value is None:
            raise PenstockError("CONFIG_INVALID", f"{{env:{name}}}: there is no such variable in the environment", _HINT)
        note_secret(name)
        return value


def _first_line(name: str) -> str:
    try:
        with Path(name).expanduser().open("rb") as file:
            content = file.read(_SECRET_BYTES_MAX)
        return content.decode().splitlines()[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds no text"
        raise PenstockError("CONFIG_INVALID", f"{{file:{name}}}: {why}", _HINT) from None
