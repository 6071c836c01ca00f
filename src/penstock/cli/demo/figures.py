"""What the demo measures: counts of every stage as they were seen, the rates made of them, and the account that must come out even.

Invariant: a rate is that of some seconds, never of two neighbouring looks: deliveries come a window at a time. Runs in the demo.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.demo.writer import Written

RATE_OVER_S = 3.0
SHOWN_S = 60
_LOOKS_MAX = 4_096


class Series:
    """A count over time."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._counts: list[int] = []

    def see(self, now_s: float, count: int) -> None:
        """Note a count; times never go back."""
        self._times.append(now_s)
        self._counts.append(count)
        del self._times[:-_LOOKS_MAX], self._counts[:-_LOOKS_MAX]

    def rate(self, now_s: float) -> float:
        """Return by how much it grew per second of late."""
        if not self._times:
            return 0.0
        over_s = min(RATE_OVER_S, now_s - self._times[0])
        return (self._at(now_s) - self._at(now_s - over_s)) / over_s if over_s > 0 else 0.0

    def rates(self, now_s: float, seconds: int) -> list[float]:
        """Return the rate at each of the last seconds, as far back as there is a count."""
        if not self._times:
            return []
        known = min(seconds, int(now_s - self._times[0]) + 1)
        return [self.rate(now_s - back) for back in range(known - 1, -1, -1)]

    def _at(self, at_s: float) -> int:
        return self._counts[max(0, bisect.bisect_right(self._times, at_s) - 1)]


@dataclass
class Figures:
    """Where every stage stands, and what was measured on the way. One thread writes; whoever draws reads some recent state."""

    rows_wanted: int
    """Row changes that the workload will write."""
    written: Written = field(default_factory=Written)
    delivered: int = 0
    files: int = 0
    nbytes: int = 0
    windows: int = 0
    lag_s: float | None = None
    lag_s_max: float = 0.0
    store_bytes: int = 0
    store_lag_s: float | None = None
    trouble: str = ""
    created_s: float = 0.0
    first_rows_s: float | None = None
    """How long after the feed was created its first rows were in files."""
    now_s: float = 0.0
    writes: Series = field(default_factory=Series)
    deliveries: Series = field(default_factory=Series)

    def create(self, now_s: float, written: Written) -> None:
        """Note that the feed was created."""
        self.created_s = self.now_s = now_s
        self.written = written

    def observe(self, now_s: float, written: Written, feed: dict[str, Any], store_bytes: int, store_lag_s: float | None) -> None:
        """Take over what the writer and the server say."""
        self.now_s, self.written = now_s, written
        self.delivered, self.files = int(feed["rows"]), int(feed["files"])
        self.nbytes, self.windows, self.lag_s = int(feed["bytes"]), int(feed["windows"]), feed["lag_s"]
        self.store_bytes, self.store_lag_s = store_bytes, store_lag_s
        self.writes.see(now_s, written.report.rows)
        self.deliveries.see(now_s, self.delivered)
        if self.delivered and self.first_rows_s is None:
            self.first_rows_s = now_s - self.created_s
        if self.first_rows_s is not None and self.lag_s is not None:
            self.lag_s_max = max(self.lag_s_max, self.lag_s)
        self.trouble = trouble_of(feed)

    @property
    def changes(self) -> int:
        """Return the row changes of the workload so far, by its own count."""
        return self.written.report.rows - self.written.before

    @property
    def is_even(self) -> bool:
        """Return whether everything that was written is delivered, and nothing else, by the counts of both ends."""
        return self.delivered == self.written.report.rows

    def account(self) -> list[tuple[str, int, str]]:
        """Return the account of rows: what, how many, and a remark."""
        report = self.written.report
        kinds = f"{report.inserts - self.written.before:,} inserts, {report.updates:,} updates, {report.deletes:,} deletes"
        verdict = "the same" if self.is_even else f"{self.delivered - report.rows:+,}: not the same"
        return [
            ("there before the feed", self.written.before, "rows, read as a snapshot"),
            ("written by the workload", self.changes, kinds),
            ("together", report.rows, ""),
            ("delivered to files", self.delivered, verdict),
        ]


def trouble_of(feed: dict[str, Any]) -> str:
    """Return what holds a feed up, in a line; empty where nothing does."""
    found = [f"[{feed['error']['code']}] {feed['error']['message']}"] if feed["error"] else []
    return "; ".join([*found, *feed["capture_problems"]]).replace("\n", " ")
