"""Variables of the environment that hold secrets of this process: no other process that it starts is given them.

Invariant: whatever is started inside ``withheld`` has none of them, and this process has all of them again afterwards. Runs in the server
and where commands are given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

CONNECTION_PREFIX = "PENSTOCK_CONNECTION_"
META_KEY_VARIABLE = "PENSTOCK_META_KEY"
TOKEN_VARIABLE = "PENSTOCK_TOKEN"

_named: set[str] = set()


def note_secret(name: str) -> None:
    """Remember that a setting took its value from this variable."""
    _named.add(name)


@contextmanager
def withheld() -> Iterator[None]:
    """Start processes inside without the secrets of this one."""
    own = {name for name in os.environ if name.startswith(CONNECTION_PREFIX) or name in {META_KEY_VARIABLE, TOKEN_VARIABLE, *_named}}
    kept = {name: os.environ.pop(name) for name in own}
    try:
        yield
    finally:
        os.environ.update(kept)
