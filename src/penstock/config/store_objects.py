"""Where the objects of an event store go, as a server is told: ``store.objects``.

A URI of shared storage, or a named connection; below it each source has a folder, named after its address, so that servers and sources
share a bucket. Invariants: two sources never share a folder; the URI of a space holds no secret, those are in its options. Runs in the
server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

import xxhash
from obstore.exceptions import BaseError

from penstock.config.tree import SinkConfig
from penstock.model.errors import PenstockError
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.ownership import PREFIX
from penstock.store.settings import StoreSettings
from penstock.target.settings import from_uri

_UNFIT = re.compile(r"[^A-Za-z0-9.]+")
_SHOWN_MAX = 80
_HINT = "Give store.objects as s3://bucket/prefix, gs://…, az://…, file:///mounted/directory or connection://name/prefix."


def open_objects(settings: StoreSettings, source: str, resolve: Callable[[SinkConfig], SinkConfig]) -> ObjectSpace | None:
    """Return where the objects of a source go, None for the data directory.

    ``source`` is its name without credentials; ``resolve`` gives what a named connection stands for. Raises ``CONFIG_INVALID`` where the
    setting names no such place, and ``OBJECT_UNAVAILABLE`` where that does not answer.
    """
    if not settings.objects:
        return None
    try:
        uri, _ = from_uri(resolve(SinkConfig(settings.objects)).uri)
    except PenstockError as error:
        lines = "\n".join(f"store.objects: {line}" for line in error.detail.splitlines())
        raise PenstockError("CONFIG_INVALID", lines, _HINT) from error
    parts = urlsplit(uri)
    if parts.scheme == "memory":
        raise PenstockError("CONFIG_INVALID", "store.objects: no other server reaches the memory of this one", _HINT)
    place = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    try:
        space = ObjectSpace(f"{place}/{folder_of(source)}", options=dict(parse_qsl(parts.query)))
        space.list_names(PREFIX)
    except PenstockError as error:
        raise PenstockError(error.code, f"store.objects: {place}: {error.detail}") from error
    except (BaseError, OSError, ValueError, TypeError) as error:
        # An option that the storage's client does not take; its words may repeat it.
        raise PenstockError("CONFIG_INVALID", f"store.objects: {place}: {type(error).__name__}", _HINT) from None
    return space


def folder_of(source: str) -> str:
    """Return the folder of a source: its name as far as it can be shown, and a hash of all of it."""
    return f"{_UNFIT.sub('-', source)[:_SHOWN_MAX].strip('-')}-{xxhash.xxh3_64_hexdigest(source.encode())}"
