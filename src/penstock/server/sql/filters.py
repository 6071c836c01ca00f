"""What stands behind ``AS`` in a statement, as settings of a feed: the one place where a query becomes filters.

Runs in the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.errors import PenstockError


def filter_settings(query: str, tables: Sequence[str]) -> dict[str, Any]:
    """Return the part of a feed's configuration that a query asks for; raise ``CONFIG_INVALID`` where it cannot be had."""
    if not query:
        return {}
    raise PenstockError(
        "CONFIG_INVALID",
        f"query: rows and columns of {', '.join(tables[:3])} cannot be chosen by a query",
        "Leave AS SELECT out: whole tables are delivered.",
    )
