"""What ``penstock run`` shows: a live line on a terminal, a line now and then where output goes to a file. Runs in the CLI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from penstock.cli.feeds.feed_table import table_line
from penstock.cli.shown.line import visible
from penstock.model.clock import Clock, SystemClock

_LINE_CHARS_MAX = 150
PLAIN_EVERY_S = 10.0


class RunView:
    """Writes steps and progress."""

    def __init__(self, console: Console | None = None, clock: Clock | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock or SystemClock()
        self._live = self._console.is_terminal
        self._said = ""
        self._said_s = float("-inf")
        self._seen: tuple[float, int] | None = None
        self._rate = 0.0
        self._problem = ""
        self._doubts: dict[str, tuple[str, str]] = {}
        self._last = ""

    def step(self, text: str) -> None:
        """Say what happens now."""
        self._clear()
        self._console.print(Text("> ", "bold cyan") + Text(visible(text)), soft_wrap=True)

    def progress(self, feed: dict[str, Any]) -> None:
        """Show where the feed stands, and anything that holds it up, once."""
        now_s = self._clock.monotonic_s()
        self._measure(feed, now_s)
        problem = "; ".join([*(f"[{e['code']}] {e['message']}" for e in [feed["error"]] if e), *feed["capture_problems"]])
        if problem != self._problem:
            self._problem = problem
            self._warn(problem)
        self._tell_doubts(feed)
        self._last = self._line(feed)
        if self._live:
            self._console.file.write(f"\r\x1b[2K{self._last[:_LINE_CHARS_MAX]}")
            self._console.file.flush()
        elif self._last != self._said and now_s - self._said_s >= PLAIN_EVERY_S:
            self._say(now_s)

    def end(self, caught_up: bool, without: Sequence[str] = ()) -> None:
        """Say how it ended, and which tables are not in the target as they are in the source."""
        self._clear()
        self._say(self._clock.monotonic_s())
        if without:
            self.step(f"ended: everything that was committed before the start is in the target, but not of {', '.join(without)}")
        elif caught_up:
            self.step("caught up: everything that was committed before the start is in the target")
        else:
            self.step("stopped; run it again to go on")

    def _tell_doubts(self, feed: dict[str, Any]) -> None:
        """Say in one line which table is in doubt, and when it no longer is."""
        now = {t["name"]: t for t in feed.get("tables", ()) if t["state"] != "ok"}
        for name, table in now.items():
            if self._doubts.get(name) != (table["state"], table["code"]):
                self._warn(table_line(table))
        for name in self._doubts.keys() - now.keys():
            self.step(f"{name}: ok again")
        self._doubts = {name: (table["state"], table["code"]) for name, table in now.items()}

    def _warn(self, text: str) -> None:
        if text:
            self._clear()
            self._console.print(Text("! ", "bold yellow") + Text(visible(text)), soft_wrap=True)

    def _measure(self, feed: dict[str, Any], now_s: float) -> None:
        rows = int(feed["rows"])
        if self._seen is None:
            self._seen = (now_s, rows)
        since_s, before = self._seen
        if rows > before and now_s > since_s:
            self._rate = (rows - before) / (now_s - since_s)
            self._seen = (now_s, rows)

    def _line(self, feed: dict[str, Any]) -> str:
        lag = "-" if feed["lag_s"] is None else f"{feed['lag_s']:.1f} s"
        rate = f"  {self._rate:,.0f} rows/s" if self._rate else ""
        read = feed.get("snapshot")
        doing = f"  snapshot {read['parts_done']:,} of {read['parts']:,} parts, {read['rows']:,} rows" if read else ""
        # A target without files has none to be counted.
        files = f"  {feed['files']:>6,} files" if feed["files"] or feed.get("kind", "storage") in {"storage", "connection"} else ""
        return f"  {feed['state']:<9} {feed['rows']:>12,} rows{files}  {feed['bytes'] / 1e6:>10,.1f} MB  lag {lag:>8}{rate}{doing}"

    def _say(self, now_s: float) -> None:
        self._said, self._said_s = self._last, now_s
        if self._last:
            self._console.print(Text(self._last), soft_wrap=True)

    def _clear(self) -> None:
        if self._live:
            self._console.file.write("\r\x1b[2K")
