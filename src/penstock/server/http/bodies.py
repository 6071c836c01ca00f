"""Bodies of calls: JSON that Python reads, of which some cannot be kept, shown or walked through.

Invariant: a tree that passes here can be written as JSON in UTF-8, and no recursion over it goes deep. Runs in the server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock.model.errors import PenstockError

DEPTH_MAX = 16
ITEMS_MAX = 50_000


def checked_tree(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a body that can be worked with; raise ``CONFIG_INVALID`` for any other."""
    level: list[Any] = [tree]
    items = 0
    for _ in range(DEPTH_MAX):
        items += len(level)
        if items > ITEMS_MAX:
            raise PenstockError("CONFIG_INVALID", f"the body has more than {ITEMS_MAX} values")
        for value in level:
            _check_value(value)
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                below += [*value.keys(), *value.values()]
            elif isinstance(value, list):
                below += value
        if not below:
            return tree
        level = below
    raise PenstockError("CONFIG_INVALID", f"the body is nested more than {DEPTH_MAX} levels deep")


def _check_value(value: Any) -> None:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise PenstockError("CONFIG_INVALID", "a text of the body has half a surrogate pair, which is no character") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise PenstockError("CONFIG_INVALID", "numbers of the body must be finite")
