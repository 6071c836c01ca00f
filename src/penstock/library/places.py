"""Places as people write them: a URI, or a path here. Runs where commands and calls are given."""

from __future__ import annotations

from pathlib import Path

_PATHS = ("/", "./", "../", "~/")


def uri_of(place: str | Path) -> str:
    """Return the URI of a place; a path, which may be followed by ``?`` and settings, is that of a file or folder here."""
    path, mark, options = (str(place), "", "") if isinstance(place, Path) else place.partition("?")
    if isinstance(place, Path) or path.startswith(_PATHS):
        path = Path(path).expanduser().absolute().as_uri()
    return f"{path}{mark}{options}"
