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


class _Shown:
    """What was said of one feed."""

    def __init__(self) -> None:
        self.problem = ""
        self.doubts: dict[str, tuple[str, str]] = {}
        self._seen: tuple[float, int] | None = None
        self._rate = 0.0

    def line(self, feed: dict[str, Any], now_s: float) -> str:
        """Return where the feed stands."""
        self._measure(feed, now_s)
        lag = "-" if feed["lag_s"] is None else f"{feed['lag_s']:.1f} s"
        rate = f"  {self._rate:,.0f} rows/s" if self._rate else ""
        read = feed.get("snapshot")
        doing = f"  snapshot {read['parts_done']:,} of {read['parts']:,} parts, {read['rows']:,} rows" if read else ""
        # A target without files has none to be counted.
        files = f"  {feed['files']:>6,} files" if feed["files"] or feed.get("kind", "storage") in {"storage", "connection"} else ""
        return f"  {feed['state']:<9} {feed['rows']:>12,} rows{files}  {feed['bytes'] / 1e6:>10,.1f} MB  lag {lag:>8}{rate}{doing}"

    def _measure(self, feed: dict[str, Any], now_s: float) -> None:
        rows = int(feed["rows"])
        if self._seen is None:
            self._seen = (now_s, rows)
        since_s, before = self._seen
        if rows > before and now_s > since_s:
            self._rate = (rows - before) / (now_s - since_s)
            self._seen = (now_s, rows)


class RunView:
    """Writes steps and progress, of one feed or of those of a group."""

    def __init__(self, console: Console | None = None, clock: Clock | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock or SystemClock()
        self._live = self._console.is_terminal
        self._said: list[str] = []
        self._said_s = float("-inf")
        self._shown: dict[str, _Shown] = {}
        self._last: list[str] = []

    def step(self, text: str) -> None:
        """Say what happens now."""
        self._clear()
        self._console.print(Text("> ", "bold cyan") + Text(visible(text)), soft_wrap=True)

    def progress(self, feeds: Sequence[dict[str, Any]]) -> None:
        """Show where the feeds stand, and anything that holds one up, once."""
        now_s = self._clock.monotonic_s()
        several = len(feeds) > 1
        self._last = []
        for feed in feeds:
            shown = self._shown.setdefault(str(feed.get("name", "")), _Shown())
            lead = f"{feed['name']} ({feed['kind']}): " if several else ""
            problem = "; ".join([*(f"[{e['code']}] {e['message']}" for e in [feed["error"]] if e), *feed["capture_problems"]])
            if problem != shown.problem:
                shown.problem = problem
                self._warn(f"{lead}{problem}" if problem else "")
            self._tell_doubts(feed, shown, lead)
            self._last.append(f"  {lead.rstrip(' :')}{shown.line(feed, now_s)}" if several else shown.line(feed, now_s))
        if self._live:
            # A line that is wider than the terminal would go on in the next one, which nobody clears.
            width = max(min(self._console.width - 1, _LINE_CHARS_MAX), 1)
            self._console.file.write(f"\r\x1b[2K{self._one_line()[:width]}")
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

    def _tell_doubts(self, feed: dict[str, Any], shown: _Shown, lead: str) -> None:
        """Say in one line which table is in doubt, and when it no longer is."""
        now = {t["name"]: t for t in feed.get("tables", ()) if t["state"] != "ok"}
        for name, table in now.items():
            if shown.doubts.get(name) != (table["state"], table["code"]):
                self._warn(lead + table_line(table))
        for name in shown.doubts.keys() - now.keys():
            self.step(f"{lead}{name}: ok again")
        shown.doubts = {name: (table["state"], table["code"]) for name, table in now.items()}

    def _warn(self, text: str) -> None:
        if text:
            self._clear()
            self._console.print(Text("! ", "bold yellow") + Text(visible(text)), soft_wrap=True)

    def _one_line(self) -> str:
        """Return what stands on a terminal: the line of a feed, or those of several side by side without their gaps."""
        return self._last[0] if len(self._last) == 1 else "  " + " | ".join(" ".join(line.split()) for line in self._last)

    def _say(self, now_s: float) -> None:
        self._said, self._said_s = self._last, now_s
        for line in self._last:
            self._console.print(Text(line), soft_wrap=True)

    def _clear(self) -> None:
        if self._live:
            self._console.file.write("\r\x1b[2K")
