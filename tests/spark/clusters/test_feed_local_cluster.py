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
    verified = re.search(r"^verified: 4 tables, ([\d,]+) rows identical$", output, re.MULTILINE)
    assert verified, output
    assert re.search(rf"^  written by the workload +{ROWS:,} ", output, re.MULTILINE), output
    # Without a terminal there are lines, and not many; nothing that the JVM or Spark says is among them.
    assert "\x1b" not in output
    assert "\r" not in output
    assert len(output.splitlines()) < 120
    assert not re.search("WARN|incubator|setLogLevel|Traceback", output)
    assert numbering_problems(target) == []
    changes = DeliveredChanges(open_reader(target.as_uri(), {}))
    assert changes.problems() == []
    # What the workload counts is what the files hold, beside the rows that were there before.
    assert changes.rows == ROWS + ROWS // 10
