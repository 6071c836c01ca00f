"""Penstock: change data capture on Spark.

What stands in ``__all__`` is public (docs/library.md); every other module is private and changes without notice. Invariant: importing
this costs nothing, because executors import it too: what a name needs is imported when it is first used. Runs anywhere.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""Known to type checkers by its name; `typing` itself would be most of what importing this costs."""
if TYPE_CHECKING:
    from typing import Any

    from penstock import spark
    from penstock.library.capture import Capture, capture
    from penstock.library.client import Client
    from penstock.library.progress import Progress
    from penstock.library.reading import read_changes, read_table
    from penstock.model.errors import PenstockError
    from penstock.sink.callback.changes import Changes

__version__ = "0.1.0"

__all__ = [
    "Capture",
    "Changes",
    "Client",
    "PenstockError",
    "Progress",
    "__version__",
    "capture",
    "read_changes",
    "read_table",
    "spark",
]

_HOMES = {
    "Capture": "library.capture",
    "Changes": "sink.callback.changes",
    "Client": "library.client",
    "PenstockError": "model.errors",
    "Progress": "library.progress",
    "capture": "library.capture",
    "read_changes": "library.reading",
    "read_table": "library.reading",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "spark":
        return import_module("penstock.spark")
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found = getattr(import_module(f"penstock.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
