"""How the contract suite of sinks drives one kind of target, and all kits by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from penstock.sink.contract import Sink, SinkMaintainer


class Kit(NamedTuple):
    """One kind of target, empty. The table of the suite has the columns ``id`` (its key) and ``note``."""

    open_sink: Callable[[], Sink]
    open_maintainer: Callable[[], SinkMaintainer]
    state: Callable[[str, str], dict[int, str | None]]
    """The rows of a table, schema and name given, as a reader of the target rebuilds them: up to the published checkpoint."""
    changes: Callable[[str, str], list[tuple[int, int, int, str | None]]] | None = None
    """Every change (ts, op, id, note) in its order, where the target keeps changes and not only what came of them."""
    published_ts: Callable[[], int] | None = None
    """The newest checkpoint that a reader of the target knows, where the maintainer cannot ask the target for it."""
    owned: bool = True
    """Whether a target belongs to one feed; what any number of feeds may use belongs to none."""


MakeKit = Callable[[Path], AbstractContextManager[Kit]]
