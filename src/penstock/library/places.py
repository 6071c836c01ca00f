"""Places as people write them: a URI, or a path here, with secrets that are named and not written down.

What a user of this process gives is looked at, by command or by call, never what comes over a wire. Runs where commands and calls are
given.
"""

from __future__ import annotations

import getpass
import os
import sys
import warnings
from functools import cache
from pathlib import Path

from penstock.access.given_uris import GivenUris
from penstock.model.errors import PenstockError

_PATHS = ("/", "./", "../", "~/")


def uri_of(place: str | Path) -> str:
    """Return the URI of a place; a path, which may be followed by ``?`` and settings, is that of a file or folder here."""
    path, mark, options = (str(place), "", "") if isinstance(place, Path) else place.partition("?")
    if isinstance(place, Path) or path.startswith(_PATHS):
        path = Path(path).expanduser().absolute().as_uri()
    return f"{path}{mark}{options}"


def given_uri(place: str | Path) -> str:
    """Return the URI of a place, with the secrets that it names; those of a path are no secrets."""
    return uri_of(place) if isinstance(place, Path) else given().resolve(uri_of(place))


@cache
def given() -> GivenUris:
    """Return what finds the secrets that texts name: a question is asked once in a process."""
    return GivenUris(os.environ, _ask)


def _ask(label: str) -> str:
    """Ask for a secret, which is not shown; where there is neither a terminal nor anything to read, say so."""
    try:
        with warnings.catch_warnings():
            # Said where standard input is a pipe, which shows nothing anyway.
            warnings.simplefilter("ignore", getpass.GetPassWarning)
            return getpass.getpass(f"{label}: ", sys.stderr)
    except EOFError:
        hint = "Write {env:NAME} or {file:/path/to/it} where nobody can be asked."
        raise PenstockError("CONFIG_INVALID", "{ask}: there is no terminal, and standard input is at its end", hint) from None
