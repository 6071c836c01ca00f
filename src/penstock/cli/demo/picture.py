"""The demo's picture: source, store, feed and files with counts, rates, lag and a sparkline, drawn from figures for a width.

Wide terminals get four boxes with arrows between them, narrow ones four lines. Invariants: no line is wider than the width; nothing is
drawn that the encoding of the terminal cannot say. Runs in the demo.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import ASCII, ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.cli.demo.figures import SHOWN_S, Figures
from penstock.cli.shown.line import visible

BOXES_WIDTH_MIN = 104
WIDTH_MAX = 132
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_COLORS = {"source": "cyan", "store": "magenta", "feed": "yellow", "files": "green"}
_LABEL_CHARS, _ARROW_CHARS, _FRAME_CHARS = 11, 5, 4


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Return the last values as bars, of which the largest is full; nothing where there is nothing to show."""
    bars, shown = _ASCII_BARS if ascii_only else _BARS, list(values)[-width:] if width > 0 else []
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    return "".join(bars[min(len(bars) - 1, max(0, round(value / top * (len(bars) - 1))))] for value in shown)


def picture(figures: Figures, master: str, phase: str, width: int, *, ascii_only: bool = False) -> RenderableType:
    """Return what is drawn of the figures now."""
    width = min(width, WIDTH_MAX)
    drawn: list[RenderableType] = []
    if width >= BOXES_WIDTH_MIN:
        drawn.append(_boxes(figures, master, width, ascii_only))
    else:
        drawn.append(_lines(figures, master, width, ascii_only))
    drawn.append(_bar("written", figures.changes + figures.written.before, figures, width, _COLORS["source"], ascii_only))
    drawn.append(_bar("delivered", figures.delivered, figures, width, _COLORS["files"], ascii_only))
    drawn.append(_line(f"{phase}", width, "bold"))
    if figures.written.last_ddl:
        drawn.append(_line(f"schema change {figures.written.report.ddls}: {figures.written.last_ddl}", width, "dim"))
    if figures.trouble:
        drawn.append(_line(f"! {figures.trouble}", width, "bold yellow"))
    return Group(*drawn)


def megabytes(nbytes: int) -> str:
    """Return a size as it is shown."""
    return f"{nbytes / 1e6:,.1f} MB"


def seconds(value: float | None) -> str:
    """Return a time as it is shown, a dash where there is none yet."""
    return "-" if value is None else f"{value:.1f} s"


def _stages(figures: Figures, master: str, chars: int, ascii_only: bool) -> dict[str, list[str]]:
    """Return what is said of each stage, in lines of so many characters."""
    writes, deliveries, now_s = figures.writes, figures.deliveries, figures.now_s
    told = min(chars, SHOWN_S)
    return {
        "source": [
            figures.written.server,
            f"{figures.written.report.rows:,} written",
            f"{writes.rate(now_s):,.0f} rows/s",
            sparkline(writes.rates(now_s, told), told, ascii_only=ascii_only),
        ],
        "store": [
            "event store",
            megabytes(figures.store_bytes),
            f"{seconds(figures.store_lag_s)} behind",
            "",
        ],
        "feed": [
            f"Spark {master}",
            f"{figures.windows:,} windows",
            f"lag {seconds(figures.lag_s)}",
            "",
        ],
        "files": [
            f"{figures.files:,} files, {megabytes(figures.nbytes)}",
            f"{figures.delivered:,} delivered",
            f"{deliveries.rate(now_s):,.0f} rows/s",
            sparkline(deliveries.rates(now_s, told), told, ascii_only=ascii_only),
        ],
    }


def _boxes(figures: Figures, master: str, width: int, ascii_only: bool) -> RenderableType:
    chars = (width - 3 * _ARROW_CHARS) // 4 - _FRAME_CHARS
    grid = Table.grid(padding=0)
    cells: list[RenderableType] = []
    for name, lines in _stages(figures, master, chars, ascii_only).items():
        if cells:
            grid.add_column(width=_ARROW_CHARS, justify="center", vertical="middle")
            cells.append(Text("-->" if ascii_only else "──▶", "bold"))
        grid.add_column(width=chars + _FRAME_CHARS)
        text = Text("\n").join(_line(line, chars, "bold" if at == 1 else _COLORS[name] if at == 3 else "") for at, line in enumerate(lines))
        cells.append(Panel(text, title=name, title_align="left", border_style=_COLORS[name], box=ASCII if ascii_only else ROUNDED))
    grid.add_row(*cells)
    return grid


def _lines(figures: Figures, master: str, width: int, ascii_only: bool) -> RenderableType:
    chars = width - 8
    stages = _stages(figures, master, max(0, chars - 37), ascii_only)
    drawn = []
    for name, (what, count, rate, spark) in stages.items():
        first = name in {"source", "files"}
        text = f"{count:<22} {rate:>12}  {spark}" if first else f"{count}, {rate}"
        drawn.append(Text.assemble((f"{name:<8}", f"bold {_COLORS[name]}"), _line(text, chars, "")))
        if first and what:
            drawn.append(Text.assemble(" " * 8, _line(what, chars, "dim")))
    return Group(*drawn)


def _bar(name: str, count: int, figures: Figures, width: int, color: str, ascii_only: bool) -> Text:
    """Return a bar of how much of everything that will be written is done."""
    wanted = max(1, figures.rows_wanted + figures.written.before)
    told = f" {count:,} of {wanted:,}"
    room = max(0, width - _LABEL_CHARS - len(told))
    full = min(room, round(room * count / wanted))
    done, left = ("#", ".") if ascii_only else ("━", "─")
    return Text.assemble(f"{name:<{_LABEL_CHARS}}", (done * full, color), (left * (room - full), "dim"), told, no_wrap=True)


def _line(text: str, chars: int, style: str) -> Text:
    """Return a line that is cut where it is too long."""
    line = Text(visible(text), style, no_wrap=True, overflow="ellipsis")
    line.truncate(max(0, chars))
    return line
