"""What every benchmark reports: bars, and one JSON object on the last line.

A bar is one figure that an issue asks for, as a ratio to a baseline measured in the same run, with its target. Runs anywhere.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import msgspec
import psutil

RESULTS = Path(__file__).resolve().parent / "results"


class Bar(msgspec.Struct, frozen=True):
    """One figure and its target; ``at_least`` tells on which side of the target the figure must be. One without a value was skipped."""

    name: str
    value: float | None
    target: float
    at_least: bool = True

    @property
    def holds(self) -> bool | None:
        """Return whether the figure meets its target, None where it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


class Report(msgspec.Struct, frozen=True):
    """The outcome of one benchmark."""

    bench: str
    bars: tuple[Bar, ...]
    figures: Mapping[str, float | int | str]

    def line(self) -> dict[str, object]:
        """Return what the last line of output says."""
        bars = [
            {"name": b.name, "value": None if b.value is None else round(b.value, 4), "target": b.target, "holds": b.holds}
            for b in self.bars
        ]
        return {"bench": self.bench, "bars": bars, "figures": dict(self.figures), "machine": describe_machine()}

    def save(self, size: str) -> Path:
        """Keep the run on record, under the commit that is checked out; return where."""
        commit = _git("rev-parse", "--short=7", "HEAD")
        machine = describe_machine()
        kept = {
            "bench": self.bench,
            "recorded": _git("show", "-s", "--format=%cI", "HEAD"),
            "commit": commit,
            "command": f"make bench NAME={self.bench}" + (" ARGS=--quick" if size == "quick" else ""),
            "size": size,
            "conditions": f"{machine['cores']} cores, {machine['memory_gib']} GiB, load {machine['load_1m']} at the end",
            "note": "with changes that are not committed" if _git("status", "--porcelain", "--untracked-files=no") else "",
            "bars": self.line()["bars"],
        }
        path = RESULTS / f"{self.bench}-{commit}-{size}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
        return path

    def emit(self, *, as_json: bool) -> bool:
        """Print the bars for people, then (asked for) the JSON line for machines; return whether all hold."""
        for bar in self.bars:
            if bar.value is None:
                click.echo(f"  {bar.name}: skipped, not measured here")
                continue
            sign, mark = (">=", "<=")[not bar.at_least], "holds" if bar.holds else "FALLS SHORT"
            click.echo(f"  {bar.name}: {bar.value:.3f} (target {sign} {bar.target:g}) {mark}")
        if as_json:
            click.echo(msgspec.json.encode(self.line()).decode())
        return all(bar.holds is not False for bar in self.bars)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def describe_machine() -> dict[str, str | int | float]:
    """Return what a reader must know to judge the figures."""
    return {
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_1m": round(psutil.getloadavg()[0], 2),
    }


def say(text: str) -> None:
    """Tell the person what the benchmark does now; the machine reads only the last line."""
    click.echo(text)
    sys.stdout.flush()


Benchmark = Callable[[bool], Report]
"""A benchmark: takes whether to run the quick size."""
