"""The whole path with executors in other processes, through the demo as a user runs it."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.server.verify.verification import open_reader
from testing.checks.target_audit import DeliveredChanges, numbering_problems
from testing.servers.command_process import CommandProcess

ROWS = 20_000


def test_the_demo_on_a_local_cluster(tmp_path: Path) -> None:
    target = tmp_path / "files"
    options = ["--rows", str(ROWS), "--seconds", "5", "--master", "local-cluster[2,1,1024]", "--out", str(target)]
    with CommandProcess("demo", *options) as demo:
        code = demo.wait(220)
        output = demo.output
    assert code == 0, output
    verified = re.search(r"^verified: 4 tables, (\d+) rows identical$", output, re.MULTILINE)
    assert verified, output
    assert f"workload: {ROWS:,} changes" in output
    assert numbering_problems(target) == []
    changes = DeliveredChanges(open_reader(target.as_uri(), {}))
    assert changes.problems() == []
    # The feed begins with a snapshot of what the workload has written by then, so it has at most as many changes, and at least the rows.
    assert int(verified[1]) <= changes.rows <= ROWS
