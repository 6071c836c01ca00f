"""Tables on the terminal, as wide as it is.

Invariant: a cell stands as it is. What it holds is no markup, and makes the terminal do nothing (``line.py``). Runs anywhere.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.shown.line import visible


def show_table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> None:
    """Write rows under titles, some of whose columns stand at the right."""
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold", justify="right" if title in right else "left")
    _print(table, rows)


def show_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Write names in bold, and beside each what it has."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    _print(table, rows)


def time_of(ms: int | None) -> str:
    """Return a time of day in UTC to the second, nothing where there is none."""
    return dt.datetime.fromtimestamp(ms / 1000, tz=dt.UTC).isoformat(timespec="seconds") if ms else ""


def _print(table: Table, rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    Console().print(table)
