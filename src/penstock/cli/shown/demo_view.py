"""What the demo shows: steps, a live line of progress, the tree of files, samples and figures. Runs in the CLI."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from penstock.server.verify.verification import TableVerdict

_LINE_CHARS_MAX = 150
_PLAIN_LINE_EVERY = 8
_CHILDREN_SHOWN_MAX = 4


@dataclass
class Figures:
    """What the demo measures as it goes."""

    rows: int = 0
    files: int = 0
    nbytes: int = 0
    windows: int = 0
    lag_s_max: float = 0.0
    rate: float = 0.0
    first_row_s: float | None = None
    first_rows: int = 0
    last_row_s: float = 0.0
    workload: dict[str, Any] = field(default_factory=dict)
    _seen: tuple[float, int] = (0.0, 0)

    def observe(self, feed: dict[str, Any], now_s: float) -> None:
        """Take over what the server says of the feed."""
        rows = int(feed["rows"])
        if rows > self.rows:
            if self.first_row_s is None:
                self.first_row_s, self.first_rows = now_s, rows
            since_s, before = self._seen
            if before and now_s > since_s:
                self.rate = (rows - before) / (now_s - since_s)
            self._seen, self.last_row_s = (now_s, rows), now_s
        if feed["lag_s"] is not None and self.rows:
            self.lag_s_max = max(self.lag_s_max, float(feed["lag_s"]))
        self.rows, self.files = rows, int(feed["files"])
        self.nbytes, self.windows = int(feed["bytes"]), int(feed["windows"])


class DemoView:
    """Writes to the terminal: one live line where there is one, lines otherwise."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = self._console.is_terminal
        self._plain_count = 0
        self._pause = threading.Event()
        self.last_line = ""

    def step(self, text: str) -> None:
        """Say what happens now."""
        self._clear()
        self._console.print(Text("> ", "bold cyan") + Text(text), soft_wrap=True)

    def watch(self, stream: IO[str]) -> threading.Event:
        """Return an event that is set once the stream has given a line, kept as ``last_line``."""
        told = threading.Event()

        def read() -> None:
            self.last_line = stream.readline()
            told.set()

        threading.Thread(target=read, name="demo-workload", daemon=True).start()
        return told

    def pause(self, seconds: float) -> None:
        """Wait between two looks."""
        self._pause.wait(seconds)

    def progress(self, feed: dict[str, Any], figures: Figures) -> None:
        """Show rows, rate, lag and files; without a terminal only now and then."""
        lag = "-" if feed["lag_s"] is None else f"{feed['lag_s']:.1f} s"
        line = (
            f"  {feed['state']}: {figures.rows:,} rows delivered, {figures.rate:,.0f} rows/s, lag {lag}, "
            f"{figures.files} files, {figures.nbytes / 1e6:,.1f} MB, {figures.windows} windows"
        )
        if self._live:
            self._console.file.write(f"\r\x1b[2K{line[:_LINE_CHARS_MAX]}")
            self._console.file.flush()
        elif self._plain_count % _PLAIN_LINE_EVERY == 0:
            self._print(line)
            sys.stdout.flush()
        self._plain_count += 1

    def verified(self, table: TableVerdict) -> None:
        """Show the outcome of one table."""
        self._print(f"  {table}")

    def show_tree(self, root: Path) -> None:
        """Print the folder, long lists of files cut in the middle."""
        self._clear()
        tree = Tree(str(root))
        self._grow(tree, root)
        self._console.print(tree)

    def show_samples(self, root: Path) -> None:
        """Print the first lines of one data file, and one schema file."""
        data = sorted(root.glob("shop/orders/*/**/CDC*.csv"))
        schemas = sorted(root.glob("shop/orders/meta/schema_*.json"))
        if data:
            self.step(f"a data file: {data[0].relative_to(root)}")
            with data[0].open(encoding="utf-8", newline="") as lines:
                for _, line in zip(range(3), lines, strict=False):
                    self._console.print(Text(f"  {line.rstrip()}"), soft_wrap=True)
        if schemas:
            self.step(f"a schema file: {schemas[-1].relative_to(root)}")
            shown = schemas[-1].read_text(encoding="utf-8").splitlines()
            self._console.print(Text("\n".join(f"  {line}" for line in [*shown[:18], "    ..."])), soft_wrap=True)

    def show_figures(self, figures: Figures) -> None:
        """Print what was measured."""
        ops = Counter({k: figures.workload.get(k, 0) for k in ("inserts", "updates", "deletes", "transactions", "rollbacks", "ddls")})
        self.step("figures")
        self._print(f"  workload: {figures.workload.get('rows', 0):,} changes ({', '.join(f'{v:,} {k}' for k, v in ops.items())})")
        rate = ""
        if figures.first_row_s is not None and figures.last_row_s > figures.first_row_s:
            later = figures.rows - figures.first_rows
            rate = f"; {later / (figures.last_row_s - figures.first_row_s):,.0f} rows/s after the first window"
        self._print(
            f"  delivered: {figures.rows:,} rows in {figures.files} files, {figures.nbytes / 1e6:,.1f} MB, {figures.windows} windows; "
            f"largest lag {figures.lag_s_max:.1f} s{rate}"
        )

    def done(self, summary: str) -> None:
        """Print the last line."""
        self._console.print(Text(summary, "bold green"))

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _clear(self) -> None:
        if self._live:
            self._console.file.write("\r\x1b[2K")

    def _grow(self, tree: Tree, folder: Path) -> None:
        entries = sorted(folder.iterdir(), key=lambda p: (p.is_file(), p.name))
        files = [e for e in entries if e.is_file()]
        cut = len(files) > _CHILDREN_SHOWN_MAX
        shown = [*files[: _CHILDREN_SHOWN_MAX - 1], files[-1]] if cut else files
        for entry in entries:
            if entry.is_dir():
                self._grow(tree.add(entry.name), entry)
        for at, entry in enumerate(shown):
            if cut and at == len(shown) - 1:
                tree.add(f"... {len(files) - len(shown)} more")
            tree.add(f"{entry.name}  {entry.stat().st_size:,} B")
