"""What the demo shows: a spinner with the step, the live picture, and at the end the tree of files, a sample, the account and the proof.

On a terminal one picture stays in its place; elsewhere, and on a dumb one, there are lines, of which there are never more than some dozens.
Invariants: without a terminal no control character is written; whoever suspends the demo has a cursor. Runs in the demo.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from penstock.cli.demo.figures import Figures
from penstock.cli.demo.picture import megabytes, picture, seconds
from penstock.cli.shown.line import visible
from penstock.model.clock import Clock, SystemClock

PLAIN_EVERY_S, PLAIN_LINES_MAX = 3.0, 20
_REFRESHES_PER_S = 8
_FILES_SHOWN_MAX, _SAMPLED_FILES_MAX = 3, 8
_SHOW_CURSOR, _HIDE_CURSOR = b"\x1b[?25h", b"\x1b[?25l"
_SAMPLED = ('"I",', '"U",', '"D",')


class View:
    """Writes to a console. Steps and figures come from one thread; a live picture is drawn by another one."""

    def __init__(self, console: Console, master: str, stop: threading.Event, clock: Clock | None = None) -> None:
        """Once ``stop`` is set, the picture says that everything is about to end."""
        self._console = console
        self._stop = stop
        self._master = master
        self._clock = clock or SystemClock()
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._ascii_only = not console.encoding.lower().startswith("utf")
        self._lock = threading.Lock()
        self._spinner = Spinner("line" if self._ascii_only else "dots")
        self._step, self._since_s = "", self._clock.monotonic_s()
        self._figures: Figures | None = None
        self._phase = ""
        self._plain_s, self._plain_lines = float("-inf"), 0
        self._width = console.width
        self._done: list[Text] = []
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=_REFRESHES_PER_S, transient=True)

    def __enter__(self) -> View:
        if self._is_live:
            self._live.start()
            # Where job control is off, it stays off.
            if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
                signal.signal(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end_picture()

    def step(self, text: str) -> None:
        """Say what happens now, before there are figures."""
        with self._lock:
            self._step, self._since_s = text, self._clock.monotonic_s()
        if not self._is_live:
            self._say(Text(f"> {visible(text)}"))

    def done(self, text: str) -> None:
        """Say what the step came to, and how long it took."""
        took_s = self._clock.monotonic_s() - self._since_s
        mark = Text("* " if self._ascii_only else "✓ ", "bold green") if self._is_live else Text("  ")
        line = mark + Text(f"{visible(text)} ({took_s:.1f} s)")
        self._done.append(line)
        self._say(line)

    def show(self, figures: Figures, phase: str) -> None:
        """Show where everything stands."""
        with self._lock:
            changed = phase.partition(":")[0] != self._phase.partition(":")[0]
            self._figures, self._phase = figures, phase
        if self._is_live:
            self._tidy()
            return
        now_s = self._clock.monotonic_s()
        if changed:
            self._say(Text(f"> {visible(phase)}"))
        elif now_s - self._plain_s >= PLAIN_EVERY_S and self._plain_lines < PLAIN_LINES_MAX:
            self._plain_s, self._plain_lines = now_s, self._plain_lines + 1
            self._say(Text(plain_line(figures)))

    def end_picture(self) -> None:
        """Leave the live picture."""
        if self._is_live:
            if signal.getsignal(signal.SIGTSTP) == self._suspend:
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            self._live.stop()

    def show_end(self, figures: Figures, target: Path) -> None:
        """Show the last picture, the tree of files, a sample and the account."""
        if self._is_live:
            self._console.print(picture(figures, self._master, self._phase, self._console.width, ascii_only=self._ascii_only))
        self._head(f"files in {target}")
        self._console.print(tree_of(target), no_wrap=True, overflow="ellipsis")
        self._show_sample(target)
        self._head("the account")
        self._console.print(_account(figures))

    def verdict(self, text: str) -> None:
        """Print the proof."""
        self._console.print(Text(text, "bold green"), soft_wrap=True)

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Give the cursor back before the demo is suspended; afterwards begin again at the top, because a shell wrote meanwhile."""
        # Past the console, whose lock another thread may hold.
        terminal = self._console.file.fileno()
        os.write(terminal, _SHOW_CURSOR)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it goes on when it is continued.
        signal.signal(signal.SIGTSTP, self._suspend)
        os.write(terminal, _HIDE_CURSOR)
        self._width = sys.maxsize

    def _tidy(self) -> None:
        """Begin again at the top where the terminal became narrower: what stood there is folded, and nobody knows over how many lines."""
        narrower, self._width = self._console.width < self._width, self._console.width
        if narrower:
            self._console.clear()
            for line in self._done:
                self._say(line)

    def _show_sample(self, target: Path) -> None:
        """Print an insert, an update and a delete, as they stand in the files."""
        lines = sample_lines(target)
        if not lines:
            return
        self._head("an insert, an update and a delete in them")
        for line in lines:
            shown = visible(line).replace("\n", "\\n").replace("\t", "\\t")
            self._console.print(Text(f"  {shown}"), no_wrap=True, overflow="ellipsis", crop=True)

    def _head(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(visible(text), "bold"), soft_wrap=not self._is_live)

    def _say(self, text: Text) -> None:
        self._console.print(text, soft_wrap=not self._is_live)

    def _draw(self) -> RenderableType:
        with self._lock:
            figures, phase, step, since_s = self._figures, self._phase, self._step, self._since_s
        if self._stop.is_set():
            self._spinner.update(text=Text("stopping"))
            return self._spinner
        if figures is not None:
            return picture(figures, self._master, phase, self._console.width, ascii_only=self._ascii_only)
        self._spinner.update(text=Text(f"{visible(step)} ({self._clock.monotonic_s() - since_s:.0f} s)"))
        return self._spinner


def plain_line(figures: Figures) -> str:
    """Return where everything stands, in a line."""
    return (
        f"  {figures.now_s - figures.created_s:4.0f} s: {figures.written.report.rows:,} written, {figures.delivered:,} delivered, "
        f"{figures.deliveries.rate(figures.now_s):,.0f} rows/s, store {seconds(figures.store_lag_s)} behind, "
        f"lag {seconds(figures.lag_s)}, {figures.files:,} files" + (f"; {figures.trouble}" if figures.trouble else "")
    )


def sample_lines(target: Path) -> list[str]:
    """Return a line of each kind of change of the table of orders, as far as the first files have them."""
    found: dict[str, str] = {}
    for file in sorted(target.glob("shop/orders/*/**/CDC*.csv"), key=lambda p: p.stat().st_mtime_ns)[:_SAMPLED_FILES_MAX]:
        with file.open(encoding="utf-8", newline="\r\n", errors="replace") as lines:
            for line in lines:
                if line[:4] in _SAMPLED:
                    found.setdefault(line[:4], line.rstrip())
                if len(found) == len(_SAMPLED):
                    break
    return [found[kind] for kind in _SAMPLED if kind in found]


def tree_of(target: Path) -> Tree:
    """Return the tree of a target: one table with its files, the others with how much they have."""
    tree = Tree(".", guide_style="dim")
    tables = sorted(folder for folder in target.glob("*/*") if folder.is_dir() and not folder.parent.name.startswith("."))
    shown = next((folder for folder in tables if folder.name == "orders"), tables[0] if tables else None)
    for folder in tables:
        name = f"{folder.relative_to(target)}/"
        if folder == shown:
            _grow(tree.add(visible(name)), folder)
            continue
        sizes = [file.stat().st_size for file in folder.rglob("CDC*") if file.suffix != ".index"]
        tree.add(visible(f"{name}  {len(sizes):,} files, {megabytes(sum(sizes))}"))
    for file in sorted(target.glob("metadata")):
        tree.add(f"{file.name}  {file.read_text(encoding='utf-8').strip()}")
    return tree


def _grow(tree: Tree, folder: Path) -> None:
    """Add a folder's files, long lists cut in the middle."""
    entries = sorted(folder.iterdir(), key=lambda p: (p.is_file(), p.name))
    for entry in entries:
        if entry.is_dir():
            _grow(tree.add(visible(f"{entry.name}/")), entry)
    files = [e for e in entries if e.is_file()]
    cut = len(files) - _FILES_SHOWN_MAX
    for at, file in enumerate(files):
        if cut > 0 and 1 <= at <= cut:
            if at == 1:
                tree.add(f"... {cut:,} more")
            continue
        tree.add(visible(f"{file.name}  {file.stat().st_size:,} B"))


def _account(figures: Figures) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for what, count, remark in figures.account():
        style = "" if what != "delivered to files" else "bold green" if figures.is_even else "bold yellow"
        table.add_row(Text(f"  {what}"), Text(f"{count:,}", style), Text(remark, style))
    report = figures.written.report
    table.add_row("  in", f"{figures.files:,}", f"files, {megabytes(figures.nbytes)}, {figures.windows:,} windows")
    table.add_row("  first rows", seconds(figures.first_rows_s), "after the feed was created")
    table.add_row("  largest lag", seconds(figures.lag_s_max), f"over {report.ddls:,} schema changes, {report.rollbacks:,} rollbacks")
    return table
