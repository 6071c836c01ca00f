"""The demo's picture, from figures that are given: everything is in it, and nothing is too wide."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from penstock.cli.demo.figures import Figures
from penstock.cli.demo.picture import BOXES_WIDTH_MIN, picture, sparkline
from penstock.cli.demo.writer import Written
from penstock.source.dataserver.workload import WorkloadReport
from tests.unit.cli.demo.test_figures import feed

WIDTHS = [1, 20, 40, 59, 60, 80, BOXES_WIDTH_MIN - 1, BOXES_WIDTH_MIN, 120, 160, 400]


def figures(server: str = "MariaDB 10.11") -> Figures:
    found = Figures(rows_wanted=90_000)
    for second in range(30):
        written = Written("uri", server, 10_000, WorkloadReport(rows=10_000 + 1000 * second, ddls=2), "ALTER TABLE shop.orders ADD x INT")
        if not second:
            found.create(0.0, written)
        found.observe(float(second), written, feed(10_000 + 900 * second), 12_400_000, 0.4)
    return found


def drawn(found: Figures, width: int, *, ascii_only: bool = False, phase: str = "live: it goes on") -> str:
    console = Console(file=io.StringIO(), width=width, height=50, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(picture(found, "local[*]", phase, width, ascii_only=ascii_only))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, ascii_only: bool) -> None:
    found = figures("上海 " * 40)
    found.trouble = "[SINK_UNWRITABLE] \x1b[2J " + "long " * 100
    shown = drawn(found, width, ascii_only=ascii_only)
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    assert "\x1b" not in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_stage_has_its_figures(width: int) -> None:
    shown = drawn(figures(), width)
    for told in ("source", "store", "feed", "files", "MariaDB 10.11", "39,000 written", "1,000 rows/s", "12.4 MB", "0.4 s behind"):
        assert told in shown, told
    for told in ("2 windows", "lag 1.5 s", "36,100 delivered", "900 rows/s", "3 files, 5.0 MB", "39,000 of 100,000", "36,100 of 100,000"):
        assert told in shown, told
    assert "live: it goes on" in shown
    assert "schema change 2: ALTER TABLE" in shown
    assert shown.count("█") >= 2
    assert ("──▶" in shown) == (width >= BOXES_WIDTH_MIN)


def test_a_terminal_without_unicode_gets_none() -> None:
    for width in (60, 120):
        assert drawn(figures(), width, ascii_only=True).isascii()


def test_a_sparkline_has_its_largest_full() -> None:
    assert sparkline([0, 1, 2, 4], 10) == "▁▃▅█"
    assert sparkline([8, 0, 1, 2, 4], 4) == "▁▃▅█"
    assert sparkline([1, 2], 2, ascii_only=True) == "=#"
    assert (sparkline([], 5), sparkline([0, 0], 5), sparkline([1], 0)) == ("", "", "")
