"""The demo in a terminal, as a newcomer runs it: quiet, one picture in its place at every width, verified, and nothing left of it."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from testing.servers.terminal_process import CTRL_C, TerminalProcess

DEMO_S = 200.0
ROWS = 6_000


def test_a_picture_at_two_widths_on_mariadb_and_an_account_that_comes_out_even(tmp_path: Path) -> None:
    options = ["--source", "mysql", "--rows", str(ROWS), "--seconds", "3"]
    with TerminalProcess("demo", *options, columns=120, environment={"TMPDIR": str(tmp_path)}) as demo:
        demo.wait_for("snapshot:", DEMO_S)
        demo.wait_for("──▶", DEMO_S)
        wide = demo.widest()
        demo.resize(60)
        # The first line of narrow terminals; what is drawn after it is for 60 columns.
        demo.wait_for("source  ", DEMO_S)
        since = demo.written.index("source  ")
        code = demo.wait(DEMO_S)
        text, narrow, written = demo.text(), demo.widest(since), demo.written
    assert code == 0, text
    assert wide <= 120
    assert narrow <= 60
    # What stood there was folded: it is cleared, and what was done is said again.
    assert re.search(r"\x1b\[2J.*MariaDB.*server http", written, re.DOTALL)
    assert re.search(rf"written by the workload +{ROWS:,} ", text)
    assert re.search(rf"together +{ROWS + ROWS // 10:,}\b", text)
    assert re.search(rf"delivered to files +{ROWS + ROWS // 10:,} +the same", text)
    assert re.search(r"^verified: 3 tables, [\d,]+ rows identical$", text, re.MULTILINE)
    for noise in ("WARN", "incubator", "sc.setLogLevel", "Traceback", "py4j"):
        assert noise not in text
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_database_and_all_that_was_started(tmp_path: Path) -> None:
    with TerminalProcess("demo", "--source", "postgres", columns=80, environment={"TMPDIR": str(tmp_path)}) as demo:
        demo.wait_for("starting Spark", DEMO_S)
        started = psutil.Process(demo.pid).children(recursive=True)
        assert any("postgres" in process.name() for process in started)
        demo.press(CTRL_C)
        code = demo.wait(DEMO_S)
        text = demo.text()
    assert code == 130, text
    assert "stopped; nothing is left of it" in text
    assert psutil.wait_procs(started, timeout=240)[1] == []
    assert list(tmp_path.iterdir()) == []
