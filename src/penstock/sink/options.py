"""Reads the settings of a target out of its URI and a feed's options, the same way for every kind that is not files. Runs anywhere.

Query parameters of the URI win over options. Invariants: every fault is reported at once, each with its key; no text shows a secret.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from penstock.model.errors import PenstockError
from penstock.settings.loader import Problems, did_you_mean, dotted_keys, merge, nested, read
from penstock.settings.masking import mask_uri
from penstock.target.settings import flat_options

S = TypeVar("S")


def read_options(kind: type[S], uri: str, options: Mapping[str, Any], parameters: Collection[str] = ()) -> tuple[str, S]:
    """Return the URI with what is left of its query, and the settings, a dataclass of the given type.

    ``parameters`` are those of the target's client, which stay in the URI; everything else must be an option.
    """
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} is not a URI") from error
    if "\0" in unquote(uri):
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} has a NUL, which no name has")
    if parts.fragment or uri.endswith("#"):
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} is followed by a fragment; write # as %23")
    known = frozenset(dotted_keys(kind))
    given = {key: (key, value) for key, value in flat_options(options).items()}
    unknown, kept = [], []
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in known:
            given[key] = (f"uri?{key}", value)
        elif key in parameters:
            kept.append((key, value))
        else:
            unknown.append(key)
    problems = Problems({key: name for key, (name, _) in given.items()})
    for key in unknown:
        problems.add(f"uri?{key}", f"unknown key{did_you_mean(key, (*known, *parameters))}")
    tree: dict[str, Any] = {}
    for key, (_, value) in given.items():
        tree = merge(tree, nested(key, value))
    settings = read(kind, tree, "", problems)
    problems.raise_if_any()
    assert settings is not None
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(kept), "")), settings
