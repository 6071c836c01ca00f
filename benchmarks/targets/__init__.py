"""``make bench NAME=targets``: each target beyond files against the bare client that a user would call instead.

One part for each target, a module beside this one with ``part(quick)``, which gives bars and figures. Databases: a first state
against LOAD DATA LOCAL or COPY of the same rows from text that is ready, and mixed changes against one statement for each change.
Parts that start feeds of their own take minutes, and are left out of ``--quick``.
"""

from __future__ import annotations

import importlib

from benchmarks.report import Bar, Report, say

PARTS = tuple(f"benchmarks.targets.{name}" for name in ("databases", "databases_live", "kafka", "http", "visible", "lakes"))
"""A new target adds its module here."""
LIVE = frozenset({"benchmarks.targets.databases_live", "benchmarks.targets.visible"})


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    bars: list[Bar] = []
    figures: dict[str, float | int | str] = {}
    for name in PARTS:
        if quick and name in LIVE:
            say(f"targets: {name.rpartition('.')[2]} starts feeds, and is measured without --quick only")
            continue
        say(f"targets: {name.rpartition('.')[2]}")
        found, more = importlib.import_module(name).part(quick)
        bars += found
        figures |= more
    return Report("targets", tuple(bars), figures)
