"""What the demo writes where there is no terminal, and what it shows of a target."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.demo.view import PLAIN_EVERY_S, PLAIN_LINES_MAX, View, sample_lines, tree_of
from testing.twins.clock import SimulatedClock
from tests.unit.cli.demo.test_picture import figures


def console(**settings: object) -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False, **settings)  # type: ignore[arg-type]


def text_of(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    day = tmp_path / "shop" / "orders" / "17" / "2026-11-16"
    (day / "meta").mkdir(parents=True)
    (day / "meta" / "CDC.index").write_text("CDC00000000000000000009.csv\n")
    for number in range(1, 10):
        (day / f"CDC{number:020d}.csv").write_bytes(b'"I","orders","shop",1,"two\nlines\x1b[2J"\r\n"U","orders","shop",2,"a"\r\n' * number)
    (day / f"CDC{10:020d}.csv").write_bytes(b'"D","orders","shop",3,"a"\r\n')
    other = tmp_path / "shop" / "products" / "17" / "2026-11-16"
    other.mkdir(parents=True)
    (other / "CDC00000000000000000001.csv").write_bytes(b"x" * 1_500_000)
    (tmp_path / ".penstock").mkdir()
    (tmp_path / "metadata").write_text('{"checkpoint-ts":7}')
    return tmp_path


@pytest.mark.parametrize("settings", [{}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}], ids=["no terminal", "dumb"])
def test_without_a_terminal_there_are_some_lines_and_nothing_to_obey(settings: dict[str, object], target: Path) -> None:
    on, clock = console(**settings), SimulatedClock()
    with View(on, "local[*]", threading.Event(), clock) as view:
        view.step("starting MariaDB")
        clock.advance(2.0)
        view.done("MariaDB 10.11: 10 rows")
        found = figures()
        for _ in range(1000):
            clock.advance(1.0)
            view.show(found, "live: it goes on")
        view.show_end(found, target)
        view.verdict("verified: 1 tables, 1 rows identical")
    shown = text_of(on)
    assert shown.startswith("> starting MariaDB\n  MariaDB 10.11: 10 rows (2.0 s)\n> live: it goes on\n")
    assert shown.count("lag 1.5 s") == PLAIN_LINES_MAX
    assert shown.endswith("verified: 1 tables, 1 rows identical\n")
    assert not {chr(c) for c in range(32)} - {"\n"} & set(shown)
    assert len(shown.splitlines()) < 80


def test_lines_stand_apart_in_time() -> None:
    on, clock = console(), SimulatedClock()
    with View(on, "local[*]", threading.Event(), clock) as view:
        view.show(figures(), "live: it goes on")
        for _ in range(4 * 9):
            clock.advance(0.25)
            view.show(figures(), "live: it goes on")
    assert text_of(on).count("lag") == 9 / PLAIN_EVERY_S


def test_the_tree_shows_one_table_whole_and_cuts_long_lists(target: Path) -> None:
    on = console()
    on.print(tree_of(target))
    shown = text_of(on)
    assert "CDC00000000000000000001.csv" in shown
    assert "... 7 more" in shown
    assert "CDC00000000000000000010.csv  27 B" in shown
    assert "shop/products/  1 files, 1.5 MB" in shown
    assert 'metadata  {"checkpoint-ts":7}' in shown
    assert ".penstock" not in shown


def test_the_sample_has_each_kind_of_change(target: Path) -> None:
    assert sample_lines(target) == ['"I","orders","shop",1,"two\nlines\x1b[2J"', '"U","orders","shop",2,"a"']
    for number in range(2, 10):
        (target / "shop" / "orders" / "17" / "2026-11-16" / f"CDC{number:020d}.csv").unlink()
    assert sample_lines(target)[2:] == ['"D","orders","shop",3,"a"']


SUSPENDED = """
import sys, threading
from rich.console import Console
from penstock.cli.demo.view import View
with View(Console(force_terminal=True), "local[*]", threading.Event()) as view:
    view.step("waiting")
    sys.stdin.readline()
"""


def read_until(terminal: int, wanted: bytes, heard: bytes = b"") -> bytes:
    """Return what a terminal was told so far, once the last word about the cursor is the one that is wanted."""
    while not heard[heard.rfind(b"\x1b[?25") :].startswith(wanted):
        assert select.select([terminal], [], [], 60)[0], heard
        heard += os.read(terminal, 4096)
    return heard


def test_a_demo_that_is_suspended_gives_the_cursor_back_and_takes_it_again() -> None:
    shown, hidden = b"\x1b[?25h", b"\x1b[?25l"
    terminal, inner = os.openpty()
    # A process group of its own in this session: one in a session of its own could not be suspended.
    command = ["/usr/bin/env", "--default-signal", sys.executable, "-c", SUSPENDED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=inner, process_group=0) as child:
        try:
            os.close(inner)
            heard = read_until(terminal, hidden)
            # The spinner is drawn after everything else of the picture's start.
            while b"waiting" not in heard:
                heard += os.read(terminal, 4096)
            os.kill(child.pid, signal.SIGTSTP)
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            heard = read_until(terminal, shown, heard)
            os.kill(child.pid, signal.SIGCONT)
            heard = read_until(terminal, hidden, heard)
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.close()
            read_until(terminal, shown, heard)
            assert child.wait(60) == 0
        finally:
            child.kill()
            os.close(terminal)
